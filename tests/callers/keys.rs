//! Keys: which are right, for what, and what becomes of wrong ones.

use std::{fs, sync::Arc, time::Instant};

use jig::api::v1::{
    GetInfoRequest, GetInfoResponse, ListFilesRequest, Role,
    daemon_service_client::DaemonServiceClient,
};
use tonic::{Request, Status};

use super::start_daemon_with_keys;
use crate::support::{Daemon, KeyFile, Refusal, Setup, run_jigd, shell, with_key, with_metadata};

async fn get_info(
    daemon: &Daemon,
    request: Request<GetInfoRequest>,
) -> Result<GetInfoResponse, Status> {
    let mut client = DaemonServiceClient::new(daemon.channel());
    client.get_info(request).await.map(tonic::Response::into_inner)
}

async fn caller_of(
    daemon: &Daemon,
    request: Request<GetInfoRequest>,
) -> Result<(String, Role), String> {
    match get_info(daemon, request).await {
        Ok(info) => {
            let caller = info.caller.unwrap();
            Ok((caller.name.clone(), caller.role()))
        }
        Err(status) => Err(Refusal::from_status(&status).reason),
    }
}

#[tokio::test]
async fn key_is_accepted_in_either_of_two_headers() {
    let keys = Arc::new(KeyFile::new());
    let key = keys.add_key("builder", "invoke", &[]);
    let other = keys.add_key("other", "read", &[]);
    let daemon = start_daemon_with_keys(Setup::new(), &keys).await;
    let builder = Ok(("key:builder".to_owned(), Role::Invoke));
    let refused = Err("UNAUTHENTICATED".to_owned());
    for (name, value, expected) in [
        ("authorization", format!("Bearer {key}"), &builder),
        ("authorization", format!("bearer {key}"), &builder),
        ("x-api-key", key.clone(), &builder),
        ("authorization", format!("Basic {key}"), &refused),
        ("authorization", key.clone(), &refused),
        ("x-api-key", format!("Bearer {key}"), &refused),
        ("x-api-key", key.to_uppercase(), &refused),
        ("x-api-key", key[..key.len() - 1].to_owned(), &refused),
        ("x-other", key.clone(), &refused),
    ] {
        let request = with_metadata(name, &value, GetInfoRequest {});
        assert_eq!(&caller_of(&daemon, request).await, expected, "{name}: {value}");
    }
    let mut both = with_key(&key, GetInfoRequest {});
    both.metadata_mut().insert("x-api-key", key.parse().unwrap());
    assert_eq!(caller_of(&daemon, both).await, builder);
    let mut two = with_key(&key, GetInfoRequest {});
    two.metadata_mut().insert("x-api-key", other.parse().unwrap());
    assert_eq!(caller_of(&daemon, two).await, refused);
}

#[tokio::test]
async fn key_for_some_tools_cannot_call_others() {
    let keys = Arc::new(KeyFile::new());
    let key = keys.add_key("lister", "invoke", &["--for-tool", "list_files"]);
    let daemon = start_daemon_with_keys(Setup::new(), &keys).await;
    let request = with_key(&key, ListFilesRequest::default());
    daemon.tools().list_files(request).await.unwrap();
    let refused = daemon.try_run(with_key(&key, shell("touch ran"))).await;
    let refusal = Refusal::from_status(&refused.unwrap_err());
    assert_eq!(refusal.reason, "FORBIDDEN");
    assert!(refusal.message.contains("key:lister"), "{refusal:?}");
    assert!(!daemon.file("ran").exists());
}

#[tokio::test]
async fn expired_key_is_rejected() {
    let keys = Arc::new(KeyFile::new());
    let old = keys.add_key("old", "admin", &["--expires", "2020-01-01T00:00:00Z"]);
    let new = keys.add_key("new", "admin", &["--expires", "2999-01-01T00:00:00Z"]);
    let daemon = start_daemon_with_keys(Setup::new(), &keys).await;
    let refusal = get_info(&daemon, with_key(&old, GetInfoRequest {})).await;
    let refusal = Refusal::from_status(&refusal.unwrap_err());
    assert_eq!(refusal.reason, "UNAUTHENTICATED");
    assert!(refusal.message.contains("expired"), "{refusal:?}");
    get_info(&daemon, with_key(&new, GetInfoRequest {})).await.unwrap();
}

#[tokio::test]
async fn wrong_keys_do_not_affect_latency_memory_or_log() {
    let keys = Arc::new(KeyFile::new());
    let key = keys.add_key("builder", "invoke", &[]);
    let daemon = start_daemon_with_keys(Setup::new(), &keys).await;
    let many = async |count: usize, key: &dyn Fn(usize) -> String| {
        for number in 0..count {
            let request = with_key(&key(number), GetInfoRequest {});
            assert_eq!(get_info(&daemon, request).await.is_ok(), key(0) == key(1));
        }
    };
    let right = |_: usize| key.clone();
    let wrong = |number: usize| format!("jig_{number:043}");
    many(1000, &wrong).await;
    many(1000, &right).await;
    // How much longer a call takes with the right key than one that needs none, made in turns with it, so
    // that the load of the machine counts for both.
    let ratio = async || {
        let (mut keyed, mut plain) = (Vec::new(), Vec::new());
        for _ in 0..1000 {
            let begun = Instant::now();
            many(1, &right).await;
            keyed.push(begun.elapsed());
            let begun = Instant::now();
            daemon.health().await;
            plain.push(begun.elapsed());
        }
        let [keyed, plain] = [keyed, plain].map(|mut times| {
            times.sort_unstable();
            times[times.len() / 2].as_secs_f64()
        });
        keyed / plain
    };
    let (before, quick) = ((daemon.resident_bytes(), daemon.log().len()), ratio().await);
    many(10_000, &wrong).await;
    // What grew with each wrong key would be hundreds of times as long.
    let then = ratio().await;
    assert!(then < quick * 4.0, "{quick} before, {then} after");
    assert!(daemon.resident_bytes() < before.0 + (2 << 20));
    assert_eq!(daemon.log().len(), before.1, "{}", daemon.log());
}

#[tokio::test]
async fn non_loopback_daemon_needs_a_valid_key_file() {
    let folder = tempfile::tempdir().unwrap();
    let workspace = folder.path().join("w");
    fs::create_dir(&workspace).unwrap();
    let [workspace, state] =
        [workspace, folder.path().join("s")].map(|path| path.display().to_string());
    let refused = |more: &[&str]| {
        let words = ["--workspace", &workspace, "--state-dir", &state, "--listen", "0.0.0.0:0"];
        let output = run_jigd(&[&words[..], more].concat());
        assert_eq!(output.status.code(), Some(78), "{output:?}");
        String::from_utf8(output.stderr).unwrap()
    };
    let text = refused(&[]);
    assert!(text.contains("--keys") && text.contains("jig key new"), "{text}");
    let keys = KeyFile::new();
    let path = keys.path().display().to_string();
    let text = refused(&["--keys", &path]);
    assert!(text.contains("No such file") && text.contains("jig key new"), "{text}");
    keys.add_key("a", "invoke", &["--for-workspace", "elsewhere", "--for-tool", "run"]);
    // `jig key` knows the tools.
    let written = fs::read_to_string(keys.path()).unwrap();
    fs::write(keys.path(), written.replace("\"run\"", "\"dance\"")).unwrap();
    let text = refused(&["--keys", &path]);
    for part in ["\"elsewhere\"", "\"dance\"", "key \"a\""] {
        assert!(text.contains(part), "{part}: {text}");
    }
}
