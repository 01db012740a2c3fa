//! Configurations that would admit unintended callers. The daemon rejects them at its start and on
//! reload.

use std::{fs, os::unix::fs::symlink, path::Path, sync::Arc};

use jig::api::v1::GetInfoRequest;
use tempfile::TempDir;

use super::{failed_start_stderr, start_daemon_with_keys};
use crate::support::{Daemon, KeyFile, Setup, with_key};

/// A directory with a workspace `ws`, its subdirectory `in`, and a directory `out` beside it.
fn create_directory() -> TempDir {
    let directory = TempDir::with_prefix("jig-test-refused-").unwrap();
    for name in ["ws", "ws/in", "out"] {
        fs::create_dir(directory.path().join(name)).unwrap();
    }
    directory
}

fn path_in(directory: &TempDir, name: &str) -> String {
    directory.path().join(name).display().to_string()
}

/// Runs a `jigd` that must reject its flags, with its state in `directory`.
fn rejected_start(directory: &TempDir, flags: &[&str]) -> String {
    let state = path_in(directory, "state");
    failed_start_stderr(&[&["--state-dir", &state], flags].concat())
}

#[test]
fn trust_loopback_is_rejected_when_commands_reach_loopback() {
    let directory = create_directory();
    let (workspace, keys) = (path_in(&directory, "ws"), KeyFile::new());
    keys.add_key("a", "read", &[]);
    let keys = keys.path().display().to_string();
    let config = path_in(&directory, "out/jig.toml");
    let proxy_table =
        "[sandbox]\nnetwork = \"proxy\"\n[proxy]\nallow_addresses = [\"127.0.0.0/8\"]\n";
    fs::write(&config, proxy_table).unwrap();

    for (more_flags, text) in [
        (&["--network", "host"][..], "--network host"),
        (&["--keys", &keys], "--keys"),
        (&["--config", &config], "proxy.allow_addresses"),
    ] {
        let flags = ["--workspace", &workspace, "--trust-loopback"];
        let stderr = rejected_start(&directory, &[&flags[..], more_flags].concat());
        assert!(stderr.contains("--trust-loopback"), "{stderr}");
        assert!(stderr.contains(text), "{text}: {stderr}");
    }
}

#[test]
fn key_and_config_files_commands_could_reach_are_rejected() {
    let directory = create_directory();
    let (workspace, outside) = (path_in(&directory, "ws"), path_in(&directory, "out"));
    let keys = KeyFile::new();
    keys.add_key("a", "read", &[]);
    let in_workspace = path_in(&directory, "ws/in/file.toml");
    let link_in_workspace = path_in(&directory, "ws/in/link.toml");
    let in_outside = path_in(&directory, "out/file.toml");
    let link_to_workspace = path_in(&directory, "to-inside.toml");
    let target = path_in(&directory, "target.toml");
    for file in [&in_workspace, &in_outside, &target] {
        fs::copy(keys.path(), file).unwrap();
    }

    symlink(&target, &link_in_workspace).unwrap();
    symlink(&in_workspace, &link_to_workspace).unwrap();
    let through_link = path_in(&directory, "ws/to-out/file.toml");
    symlink(&outside, path_in(&directory, "ws/to-out")).unwrap();

    for flag in ["--keys", "--config"] {
        if flag == "--config" {
            for file in [&in_workspace, &in_outside, &target] {
                fs::write(file, "").unwrap();
            }
        }

        for file in [&in_workspace, &link_in_workspace, &link_to_workspace, &through_link] {
            let stderr = rejected_start(&directory, &["--workspace", &workspace, flag, file]);
            assert!(stderr.contains("commands could reach"), "{flag} {file}: {stderr}");
            assert!(stderr.contains(flag), "{flag} {file}: {stderr}");
        }

        // A bound directory is reachable as the workspace is.
        for bind in ["--bind", "--bind-ro"] {
            let binding = format!("{outside}:/other");
            let flags = ["--workspace", &workspace, flag, &in_outside, bind, &binding];
            let stderr = rejected_start(&directory, &flags);
            assert!(stderr.contains("commands could reach"), "{flag} {bind}: {stderr}");
        }
    }
}

#[test]
fn binds_where_nothing_can_be_created_are_rejected() {
    let directory = create_directory();
    let (workspace, outside) = (path_in(&directory, "ws"), path_in(&directory, "out"));
    let bound = format!("{outside}:/toolchain");
    for (destination, read_only) in
        [("/opt/jig-missing/x", "/opt"), ("/toolchain/missing", "/toolchain")]
    {
        let bind = format!("{outside}:{destination}");
        let flags = ["--workspace", &workspace, "--bind-ro", &bound, "--bind-ro", &bind];
        let stderr = rejected_start(&directory, &flags);
        let expected = format!("{destination}, which does not exist: {read_only} is read-only");
        assert!(stderr.contains(&expected), "{stderr}");
    }
}

#[test]
fn sockets_commands_could_reach_are_rejected_by_their_setting() {
    let directory = create_directory();
    let workspace = path_in(&directory, "ws");
    let socket = format!("unix:{}", path_in(&directory, "ws/in/jig.sock"));
    let elsewhere = format!("unix:{}", path_in(&directory, "out/jig.sock"));
    for flags in [["--listen", &socket], ["--health-listen", &socket]] {
        let all = [&["--workspace", &workspace, "--listen", &elsewhere], &flags[..]].concat();
        let stderr = rejected_start(&directory, &all);
        let remedy = format!("choose a path outside of it with {}\n", flags[0]);
        assert!(stderr.contains(&remedy), "{stderr}");
    }
}

#[tokio::test]
async fn key_file_moved_within_reach_is_not_reloaded() {
    let keys = Arc::new(KeyFile::new());
    let key = keys.add_key("a", "read", &[]);
    let directory = TempDir::with_prefix("jig-test-refused-").unwrap();
    let link = directory.path().join("keys.toml");
    symlink(keys.path(), &link).unwrap();
    let link = link.display().to_string();
    let daemon = Setup::new().arguments(&["--keys", &link]).start().await;
    let in_workspace = daemon.file("keys.toml");
    fs::copy(keys.path(), &in_workspace).unwrap();
    fs::remove_file(&link).unwrap();
    symlink(&in_workspace, &link).unwrap();
    daemon.reload_config(Daemon::RELOAD_FAILED).await;
    assert!(daemon.log().contains("commands could reach"), "{}", daemon.log());

    let mut info = super::info_client(&daemon);
    info.get_info(with_key(&key, GetInfoRequest {})).await.unwrap();
}

#[test]
fn overlapping_workspaces_are_rejected() {
    let directory = create_directory();
    let link = path_in(&directory, "link");
    symlink(directory.path().join("ws"), &link).unwrap();

    let workspace = |name: &str, at: &str| format!("{name}={}", path_in(&directory, at));
    for (first, second) in [
        (workspace("a", "ws"), workspace("b", "ws/in")),
        (workspace("a", "ws/in"), workspace("b", "ws")),
        (workspace("a", "ws"), workspace("b", "ws")),
        (workspace("a", "ws"), workspace("b", "link")),
    ] {
        let stderr = rejected_start(&directory, &["--workspace", &first, "--workspace", &second]);
        for text in ["share files", "separate directories", "a (", "b ("] {
            assert!(stderr.contains(text), "{first} {second}: {stderr}");
        }
    }

    let system = Path::new("/usr/lib");
    let system_workspace = format!("b={}", system.display());
    let flags = ["--workspace", &workspace("a", "ws"), "--workspace", &system_workspace];
    let stderr = rejected_start(&directory, &flags);
    assert!(stderr.contains("which commands of all workspaces see"), "{stderr}");

    // A directory that is bound for the commands of another workspace.
    let path = path_in(&directory, "out");
    let (first, second) = (workspace("a", "ws"), workspace("b", "out"));
    let flags = ["--workspace", &first, "--workspace", &second];
    let stderr =
        rejected_start(&directory, &[&flags[..], &["--bind-ro", &format!("{path}:/out")]].concat());

    assert!(stderr.contains("is bound for commands of another"), "{stderr}");
}

#[tokio::test]
async fn key_revoked_through_a_symlink_is_rejected() {
    let keys = Arc::new(KeyFile::new());
    let key = keys.add_key("gone", "read", &[]);
    let other_key = keys.add_key("stays", "read", &[]);
    let directory = TempDir::with_prefix("jig-test-link-").unwrap();
    let link = directory.path().join("keys.toml");
    symlink(keys.path(), &link).unwrap();
    let path = link.display().to_string();
    let daemon = Setup::new().arguments(&["--keys", &path]).start().await;
    let mut info = super::info_client(&daemon);
    info.get_info(with_key(&key, GetInfoRequest {})).await.unwrap();

    let output = keys.run_jig_key(&["revoke", "--keys", &path, "gone"]);
    assert!(output.status.success(), "{output:?}");
    assert!(link.is_symlink());

    daemon.reload_config(Daemon::RELOADED).await;
    let response = info.get_info(with_key(&key, GetInfoRequest {})).await;
    assert!(response.is_err());

    info.get_info(with_key(&other_key, GetInfoRequest {})).await.unwrap();
}

#[tokio::test]
async fn key_file_of_another_user_is_not_reloaded() {
    use std::os::unix::fs::chown;
    let keys = Arc::new(KeyFile::new());
    keys.add_key("a", "read", &[]);
    let daemon = start_daemon_with_keys(Setup::new(), &keys).await;
    chown(keys.path(), Some(12_345), None).unwrap();
    daemon.reload_config(Daemon::RELOAD_FAILED).await;
    let log = daemon.log();

    assert!(log.contains("it belongs to the user 12345"), "{log}");
}
