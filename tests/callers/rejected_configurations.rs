//! Configurations that would let in whom nobody means to: refused at the start, and when they are read again.

use std::{fs, os::unix::fs::symlink, path::Path, sync::Arc};

use jig::api::v1::GetInfoRequest;
use tempfile::TempDir;

use super::start_daemon_with_keys;
use crate::support::{Daemon, KeyFile, Setup, run_jigd, with_key};

/// A folder with a workspace `ws`, its own folder `in` in it, and a folder `out` beside it.
fn create_folder() -> TempDir {
    let folder = TempDir::with_prefix("jig-test-refused-").unwrap();
    for name in ["ws", "ws/in", "out"] {
        fs::create_dir(folder.path().join(name)).unwrap();
    }
    folder
}

fn path_in(folder: &TempDir, name: &str) -> String {
    folder.path().join(name).display().to_string()
}

/// What `jigd` says that ends at once because of its configuration.
fn failed_start_stderr(folder: &TempDir, more: &[&str]) -> String {
    let state = path_in(folder, "state");
    let output = run_jigd(&[&["--state-dir", &state], more].concat());
    assert_eq!(output.status.code(), Some(78), "{more:?}: {output:?}");
    String::from_utf8(output.stderr).unwrap()
}

#[test]
fn trust_loopback_is_rejected_when_commands_reach_loopback() {
    let folder = create_folder();
    let (workspace, keys) = (path_in(&folder, "ws"), KeyFile::new());
    keys.add_key("a", "read", &[]);
    let keys = keys.path().display().to_string();
    let config = path_in(&folder, "out/jig.toml");
    let proxied = "[sandbox]\nnetwork = \"proxy\"\n[proxy]\nallow_addresses = [\"127.0.0.0/8\"]\n";
    fs::write(&config, proxied).unwrap();
    for (more, part) in [
        (&["--network", "host"][..], "--network host"),
        (&["--keys", &keys], "--keys"),
        (&["--config", &config], "proxy.allow_addresses"),
    ] {
        let flags = ["--workspace", &workspace, "--trust-loopback"];
        let stderr = failed_start_stderr(&folder, &[&flags[..], more].concat());
        assert!(stderr.contains("--trust-loopback"), "{stderr}");
        assert!(stderr.contains(part), "{part}: {stderr}");
    }
}

#[test]
fn key_and_config_files_commands_could_reach_are_rejected() {
    let folder = create_folder();
    let (workspace, other) = (path_in(&folder, "ws"), path_in(&folder, "out"));
    let keys = KeyFile::new();
    keys.add_key("a", "read", &[]);
    let inside = path_in(&folder, "ws/in/file.toml");
    let link = path_in(&folder, "ws/in/link.toml");
    let beside = path_in(&folder, "out/file.toml");
    let to_inside = path_in(&folder, "to-inside.toml");
    let target = path_in(&folder, "target.toml");
    for file in [&inside, &beside, &target] {
        fs::copy(keys.path(), file).unwrap();
    }
    symlink(&target, &link).unwrap();
    symlink(&inside, &to_inside).unwrap();
    let through = path_in(&folder, "ws/to-out/file.toml");
    symlink(&other, path_in(&folder, "ws/to-out")).unwrap();
    for flag in ["--keys", "--config"] {
        if flag == "--config" {
            for file in [&inside, &beside, &target] {
                fs::write(file, "").unwrap();
            }
        }
        for file in [&inside, &link, &to_inside, &through] {
            let stderr = failed_start_stderr(&folder, &["--workspace", &workspace, flag, file]);
            assert!(stderr.contains("commands could reach"), "{flag} {file}: {stderr}");
            assert!(stderr.contains(flag), "{flag} {file}: {stderr}");
        }
        // What is bound is as near as the workspace.
        for bind in ["--bind", "--bind-ro"] {
            let bound = format!("{other}:/other");
            let flags = ["--workspace", &workspace, flag, &beside, bind, &bound];
            let stderr = failed_start_stderr(&folder, &flags);
            assert!(stderr.contains("commands could reach"), "{flag} {bind}: {stderr}");
        }
    }
}

#[tokio::test]
async fn key_file_moved_within_reach_is_not_reloaded() {
    let keys = Arc::new(KeyFile::new());
    let key = keys.add_key("a", "read", &[]);
    let place = TempDir::with_prefix("jig-test-refused-").unwrap();
    let link = place.path().join("keys.toml");
    symlink(keys.path(), &link).unwrap();
    let link = link.display().to_string();
    let daemon = Setup::new().arguments(&["--keys", &link]).start().await;
    let moved = daemon.file("keys.toml");
    fs::copy(keys.path(), &moved).unwrap();
    fs::remove_file(&link).unwrap();
    symlink(&moved, &link).unwrap();
    daemon.reload_config(Daemon::RELOAD_FAILED).await;
    assert!(daemon.log().contains("commands could reach"), "{}", daemon.log());
    let mut info = super::info_client(&daemon);
    info.get_info(with_key(&key, GetInfoRequest {})).await.unwrap();
}

#[test]
fn overlapping_workspaces_are_rejected() {
    let folder = create_folder();
    let link = path_in(&folder, "link");
    symlink(folder.path().join("ws"), &link).unwrap();
    let named = |name: &str, at: &str| format!("{name}={}", path_in(&folder, at));
    for (one, other) in [
        (named("a", "ws"), named("b", "ws/in")),
        (named("a", "ws/in"), named("b", "ws")),
        (named("a", "ws"), named("b", "ws")),
        (named("a", "ws"), named("b", "link")),
    ] {
        let stderr = failed_start_stderr(&folder, &["--workspace", &one, "--workspace", &other]);
        for part in ["share files", "separate directories", "a (", "b ("] {
            assert!(stderr.contains(part), "{one} {other}: {stderr}");
        }
    }
    let system = Path::new("/usr/lib");
    let seen = format!("b={}", system.display());
    let flags = ["--workspace", &named("a", "ws"), "--workspace", &seen];
    let stderr = failed_start_stderr(&folder, &flags);
    assert!(stderr.contains("which commands of all workspaces see"), "{stderr}");
    // Bound for another's commands.
    let bound = path_in(&folder, "out");
    let (one, other) = (named("a", "ws"), named("b", "out"));
    let flags = ["--workspace", &one, "--workspace", &other];
    let stderr = failed_start_stderr(
        &folder,
        &[&flags[..], &["--bind-ro", &format!("{bound}:/out")]].concat(),
    );
    assert!(stderr.contains("is bound for commands of another"), "{stderr}");
}

#[tokio::test]
async fn key_revoked_through_a_symlink_is_rejected() {
    let keys = Arc::new(KeyFile::new());
    let key = keys.add_key("gone", "read", &[]);
    let stays = keys.add_key("stays", "read", &[]);
    let place = TempDir::with_prefix("jig-test-link-").unwrap();
    let link = place.path().join("keys.toml");
    symlink(keys.path(), &link).unwrap();
    let path = link.display().to_string();
    let daemon = Setup::new().arguments(&["--keys", &path]).start().await;
    let mut info = super::info_client(&daemon);
    info.get_info(with_key(&key, GetInfoRequest {})).await.unwrap();
    let revoked = keys.run_jig_key(&["revoke", "--keys", &path, "gone"]);
    assert!(revoked.status.success(), "{revoked:?}");
    assert!(link.is_symlink());
    daemon.reload_config(Daemon::RELOADED).await;
    let refused = info.get_info(with_key(&key, GetInfoRequest {})).await;
    assert!(refused.is_err());
    info.get_info(with_key(&stays, GetInfoRequest {})).await.unwrap();
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
