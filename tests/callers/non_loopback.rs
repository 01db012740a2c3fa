//! Addresses that other machines can reach (attack N20 of `attack`). The daemon rejects callers
//! without a valid key, and an unreadable key file admits no caller.

use std::{
    fs,
    os::unix::{
        fs::{PermissionsExt as _, chown},
        process::CommandExt as _,
    },
    process::{Command, Stdio},
};

use jig::api::v1::{GetInfoRequest, daemon_service_client::DaemonServiceClient};
use tempfile::TempDir;
use tonic::Code;

use super::failed_start_stderr;
use crate::support::{
    Daemon, KeyFile, Refusal, Setup, copy_program, daemon_binary, lazy_channel, shell, tool_client,
    with_key,
};

/// A directory with a workspace, for daemons that do not start.
fn create_directory() -> TempDir {
    let directory = TempDir::with_prefix("jig-test-exposed-").unwrap();
    fs::create_dir(directory.path().join("ws")).unwrap();
    directory
}

fn listen_flags(directory: &TempDir, listen: &str) -> Vec<String> {
    let path = |name: &str| directory.path().join(name).display().to_string();
    ["--workspace", &path("ws"), "--state-dir", &path("state"), "--listen", listen]
        .map(str::to_owned)
        .into()
}

/// Runs a `jigd` that must reject its flags, and returns its standard error.
fn rejected_start(flags: &[String]) -> String {
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    failed_start_stderr(&flags)
}

#[test]
fn case_n20_daemon_without_keys_rejects_non_loopback_addresses() {
    let directory = create_directory();
    for address in [
        "0.0.0.0:0",
        "[::]:0",
        "[::ffff:127.0.0.1]:0",
        "[::ffff:0.0.0.0]:0",
        "[::ffff:10.0.0.1]:0",
        "[fe80::1%1]:0",
        "169.254.1.1:0",
        "10.0.0.1:0",
        // Two addresses in one value.
        "127.0.0.1:0,0.0.0.0:0",
    ] {
        let stderr = rejected_start(&listen_flags(&directory, address));
        assert!(stderr.contains("reachable from other machines"), "{stderr}");
    }

    // These texts are not addresses, even where other programs accept them.
    for address in [
        "lo:0",
        "eth0:0",
        "*:0",
        ":0",
        "0:0",
        "127.1:0",
        "2130706433:0",
        "localhost.:0",
        "localhost.localdomain:0",
        "127.0.0.1",
        "[::1%lo]:0",
        "127.0.0.1:0 0.0.0.0:0",
    ] {
        let stderr = rejected_start(&listen_flags(&directory, address));
        assert!(stderr.contains("is not an address"), "{address}: {stderr}");
    }
}

#[test]
fn case_n20_unreadable_key_files_are_rejected() {
    let directory = create_directory();
    let keys = directory.path().join("keys.toml");
    let mut flags = listen_flags(&directory, "0.0.0.0:0");
    flags.extend(["--allow-plaintext".to_owned(), "--keys".to_owned()]);
    flags.push(keys.display().to_string());

    for content in [&b"\0"[..], b"\xff", b"[[keys]]\n", b"keys = 1\n", b"{}"] {
        fs::write(&keys, content).unwrap();
        rejected_start(&flags);
    }

    fs::remove_file(&keys).unwrap();
    fs::create_dir(&keys).unwrap();
    rejected_start(&flags);
    fs::remove_dir(&keys).unwrap();

    // A file of another user, without permission to read it.
    fs::write(&keys, "").unwrap();
    fs::set_permissions(&keys, fs::Permissions::from_mode(0o600)).unwrap();
    let program = directory.path().join("jigd");
    copy_program(daemon_binary(), &program);
    fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o755)).unwrap();
    chown(directory.path(), Some(12345), Some(12345)).unwrap();
    let output = Command::new(program)
        .args(&flags)
        .env_clear()
        .stdin(Stdio::null())
        .uid(12345)
        .gid(12345)
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(78), "{output:?}");

    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(stderr.contains("Permission denied"), "{stderr}");
}

/// Checks that a daemon rejects all callers, including one with `key`.
async fn assert_rejects_all_callers(daemon: &Daemon, key: &str) {
    let addresses = [
        format!("http://127.0.0.1:{}", daemon.port()),
        format!("unix:{}", daemon.socket().display()),
    ];
    for address in addresses {
        let channel = lazy_channel(&address);
        for key in [None, Some(""), Some(key), Some("jig_"), Some("null")] {
            let run = match key {
                Some(key) => with_key(key, shell("touch ran")),
                None => tonic::Request::new(shell("touch ran")),
            };
            let status = tool_client(channel.clone()).run(run).await.unwrap_err();
            assert_eq!(status.code(), Code::Unauthenticated, "{key:?}: {status:?}");

            let mut info = DaemonServiceClient::new(channel.clone());
            let response = match key {
                Some(key) => info.get_info(with_key(key, GetInfoRequest {})).await,
                None => info.get_info(GetInfoRequest {}).await,
            };
            assert!(!Refusal::from_status(&response.unwrap_err()).reason.is_empty());
        }
    }

    assert!(!daemon.file("ran").exists());
}

#[tokio::test]
async fn case_n20_empty_key_file_authorizes_no_caller() {
    for revoked in [false, true] {
        let keys = KeyFile::new();
        let key = keys.add_key("only", "admin", &[]);

        if revoked {
            let output = keys.run_jig_key(&["revoke", "only"]);
            assert!(output.status.success(), "{output:?}");
        } else {
            fs::write(keys.path(), "").unwrap();
        }

        let path = keys.path().display().to_string();
        let flags = ["--listen", "0.0.0.0:0", "--allow-plaintext", "--keys", &path];
        let daemon = Setup::new().arguments(&flags).start().await;
        assert_rejects_all_callers(&daemon, &key).await;
    }
}

#[tokio::test]
async fn case_n20_emptied_key_file_authorizes_no_caller() {
    let keys = KeyFile::new();
    let key = keys.add_key("only", "admin", &[]);
    let path = keys.path().display().to_string();
    let flags = ["--listen", "0.0.0.0:0", "--allow-plaintext", "--keys", &path];
    let daemon = Setup::new().arguments(&flags).start().await;
    daemon.output(with_key(&key, shell("true"))).await;
    fs::write(keys.path(), "").unwrap();
    daemon.reload_config(Daemon::RELOADED).await;
    assert_rejects_all_callers(&daemon, &key).await;
}
