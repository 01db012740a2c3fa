//! Keys: accepted forms, scopes, expiry, and rejection of wrong keys.

use std::{fs, sync::Arc, time::Instant};

use jig::api::v1::{
    GetInfoRequest, GetInfoResponse, ListFilesRequest, Role,
    daemon_service_client::DaemonServiceClient,
};
use tonic::{Request, Status};

use super::{failed_start_stderr, start_daemon_with_keys};
use crate::support::{Daemon, KeyFile, Refusal, Setup, shell, with_key, with_metadata};

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
    let other_key = keys.add_key("other", "read", &[]);
    let daemon = start_daemon_with_keys(Setup::new(), &keys).await;

    let builder = Ok(("key:builder".to_owned(), Role::Invoke));
    let rejected = Err("UNAUTHENTICATED".to_owned());
    for (name, value, expected) in [
        ("authorization", format!("Bearer {key}"), &builder),
        ("authorization", format!("bearer {key}"), &builder),
        ("x-api-key", key.clone(), &builder),
        ("authorization", format!("Basic {key}"), &rejected),
        ("authorization", key.clone(), &rejected),
        ("x-api-key", format!("Bearer {key}"), &rejected),
        ("x-api-key", key.to_uppercase(), &rejected),
        ("x-api-key", key[..key.len() - 1].to_owned(), &rejected),
        ("x-other", key.clone(), &rejected),
    ] {
        let request = with_metadata(name, &value, GetInfoRequest {});
        assert_eq!(&caller_of(&daemon, request).await, expected, "{name}: {value}");
    }

    let mut both = with_key(&key, GetInfoRequest {});
    both.metadata_mut().insert("x-api-key", key.parse().unwrap());
    assert_eq!(caller_of(&daemon, both).await, builder);

    let mut two = with_key(&key, GetInfoRequest {});
    two.metadata_mut().insert("x-api-key", other_key.parse().unwrap());
    assert_eq!(caller_of(&daemon, two).await, rejected);
}

#[tokio::test]
async fn key_for_some_tools_cannot_call_others() {
    let keys = Arc::new(KeyFile::new());
    let key = keys.add_key("lister", "invoke", &["--for-tool", "list_files"]);
    let daemon = start_daemon_with_keys(Setup::new(), &keys).await;
    let request = with_key(&key, ListFilesRequest::default());
    daemon.tools().list_files(request).await.unwrap();
    let response = daemon.try_run(with_key(&key, shell("touch ran"))).await;
    let refusal = Refusal::from_status(&response.unwrap_err());

    assert_eq!(refusal.reason, "FORBIDDEN");
    assert!(refusal.message.contains("key:lister"), "{refusal:?}");
    assert!(!daemon.file("ran").exists());
}

#[tokio::test]
async fn expired_key_is_rejected() {
    let keys = Arc::new(KeyFile::new());
    let expired_key = keys.add_key("old", "admin", &["--expires", "2020-01-01T00:00:00Z"]);
    let valid_key = keys.add_key("new", "admin", &["--expires", "2999-01-01T00:00:00Z"]);
    let daemon = start_daemon_with_keys(Setup::new(), &keys).await;
    let response = get_info(&daemon, with_key(&expired_key, GetInfoRequest {})).await;
    let refusal = Refusal::from_status(&response.unwrap_err());
    assert_eq!(refusal.reason, "UNAUTHENTICATED");
    assert!(refusal.message.contains("expired"), "{refusal:?}");

    get_info(&daemon, with_key(&valid_key, GetInfoRequest {})).await.unwrap();
}

#[tokio::test]
async fn wrong_keys_do_not_affect_latency_memory_or_log() {
    let keys = Arc::new(KeyFile::new());
    let key = keys.add_key("builder", "invoke", &[]);
    let daemon = start_daemon_with_keys(Setup::new(), &keys).await;
    let call_repeatedly = async |count: usize, key: &dyn Fn(usize) -> String| {
        for number in 0..count {
            let request = with_key(&key(number), GetInfoRequest {});
            assert_eq!(get_info(&daemon, request).await.is_ok(), key(0) == key(1));
        }
    };

    let valid_key = |_: usize| key.clone();
    let wrong_key = |number: usize| format!("jig_{number:043}");
    call_repeatedly(1000, &wrong_key).await;
    call_repeatedly(1000, &valid_key).await;

    // Ratio of the latency of calls with the valid key to that of calls that need none. The calls
    // alternate, so the load of the machine affects both alike.
    let ratio = async || {
        let (mut keyed, mut plain) = (Vec::new(), Vec::new());
        for _ in 0..1000 {
            let start = Instant::now();
            call_repeatedly(1, &valid_key).await;
            keyed.push(start.elapsed());
            let start = Instant::now();
            daemon.health().await;
            plain.push(start.elapsed());
        }
        let [keyed, plain] = [keyed, plain].map(|mut times| {
            times.sort_unstable();
            times[times.len() / 2].as_secs_f64()
        });
        keyed / plain
    };

    let (resident_before, log_before) = (daemon.resident_bytes(), daemon.log().len());
    let ratio_before = ratio().await;
    call_repeatedly(10_000, &wrong_key).await;

    // A cost that grows with each wrong key would multiply the ratio by hundreds.
    let ratio_after = ratio().await;
    assert!(ratio_after < ratio_before * 4.0, "{ratio_before} before, {ratio_after} after");
    assert!(daemon.resident_bytes() < resident_before + (2 << 20));
    assert_eq!(daemon.log().len(), log_before, "{}", daemon.log());
}

#[tokio::test]
async fn non_loopback_daemon_needs_a_valid_key_file() {
    let directory = tempfile::tempdir().unwrap();
    let workspace = directory.path().join("w");
    fs::create_dir(&workspace).unwrap();
    let [workspace, state] =
        [workspace, directory.path().join("s")].map(|path| path.display().to_string());
    let rejected_start = |more_flags: &[&str]| {
        let flags = ["--workspace", &workspace, "--state-dir", &state, "--listen", "0.0.0.0:0"];
        failed_start_stderr(&[&flags[..], &["--allow-plaintext"], more_flags].concat())
    };

    let stderr = rejected_start(&[]);
    assert!(stderr.contains("--keys") && stderr.contains("jig key new"), "{stderr}");

    let keys = KeyFile::new();
    let path = keys.path().display().to_string();
    let stderr = rejected_start(&["--keys", &path]);
    assert!(stderr.contains("No such file") && stderr.contains("jig key new"), "{stderr}");

    keys.add_key("a", "invoke", &["--for-workspace", "elsewhere", "--for-tool", "run"]);

    // `jig key` rejects unknown tools, so the file is changed directly.
    let content = fs::read_to_string(keys.path()).unwrap();
    fs::write(keys.path(), content.replace("\"run\"", "\"dance\"")).unwrap();
    let stderr = rejected_start(&["--keys", &path]);
    for text in ["\"elsewhere\"", "\"dance\"", "key \"a\""] {
        assert!(stderr.contains(text), "{text}: {stderr}");
    }
}
