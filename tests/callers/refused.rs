//! Configurations that would let in whom nobody means to: refused at the start, and when they are read again.

use std::{fs, os::unix::fs::symlink, path::Path, sync::Arc};

use jig::api::v1::GetInfoRequest;
use tempfile::TempDir;

use super::with_keys;
use crate::support::{Daemon, KeyFile, Setup, jigd, with_key};

/// A folder with a workspace `ws`, its own folder `in` in it, and a folder `out` beside it.
fn folder() -> TempDir {
    let folder = TempDir::with_prefix("jig-test-refused-").unwrap();
    for name in ["ws", "ws/in", "out"] {
        fs::create_dir(folder.path().join(name)).unwrap();
    }
    folder
}

fn path(folder: &TempDir, name: &str) -> String {
    folder.path().join(name).display().to_string()
}

/// What `jigd` says that ends at once because of its configuration.
fn refused(folder: &TempDir, more: &[&str]) -> String {
    let state = path(folder, "state");
    let output = jigd(&[&["--state-dir", &state], more].concat());
    assert_eq!(output.status.code(), Some(78), "{more:?}: {output:?}");
    String::from_utf8(output.stderr).unwrap()
}

#[test]
fn nobody_is_trusted_who_may_be_a_command() {
    let folder = folder();
    let (workspace, keys) = (path(&folder, "ws"), KeyFile::new());
    keys.add("a", "read", &[]);
    let keys = keys.path().display().to_string();
    let config = path(&folder, "out/jig.toml");
    let proxied = "[sandbox]\nnetwork = \"proxy\"\n[proxy]\nallow_addresses = [\"127.0.0.0/8\"]\n";
    fs::write(&config, proxied).unwrap();
    for (more, part) in [
        (&["--network", "host"][..], "--network host"),
        (&["--keys", &keys], "--keys"),
        (&["--config", &config], "proxy.allow_addresses"),
    ] {
        let flags = ["--workspace", &workspace, "--trust-loopback"];
        let said = refused(&folder, &[&flags[..], more].concat());
        assert!(said.contains("--trust-loopback"), "{said}");
        assert!(said.contains(part), "{part}: {said}");
    }
}

#[test]
fn files_that_say_who_may_call_are_out_of_the_reach_of_commands() {
    let folder = folder();
    let (workspace, other) = (path(&folder, "ws"), path(&folder, "out"));
    let keys = KeyFile::new();
    keys.add("a", "read", &[]);
    let inside = path(&folder, "ws/in/file.toml");
    let link = path(&folder, "ws/in/link.toml");
    let beside = path(&folder, "out/file.toml");
    let to_inside = path(&folder, "to-inside.toml");
    let target = path(&folder, "target.toml");
    for file in [&inside, &beside, &target] {
        fs::copy(keys.path(), file).unwrap();
    }
    symlink(&target, &link).unwrap();
    symlink(&inside, &to_inside).unwrap();
    let through = path(&folder, "ws/to-out/file.toml");
    symlink(&other, path(&folder, "ws/to-out")).unwrap();
    for flag in ["--keys", "--config"] {
        if flag == "--config" {
            for file in [&inside, &beside, &target] {
                fs::write(file, "").unwrap();
            }
        }
        for file in [&inside, &link, &to_inside, &through] {
            let said = refused(&folder, &["--workspace", &workspace, flag, file]);
            assert!(said.contains("commands could reach"), "{flag} {file}: {said}");
            assert!(said.contains(flag), "{flag} {file}: {said}");
        }
        // What is bound is as near as the workspace.
        for bind in ["--bind", "--bind-ro"] {
            let bound = format!("{other}:/other");
            let flags = ["--workspace", &workspace, flag, &beside, bind, &bound];
            let said = refused(&folder, &flags);
            assert!(said.contains("commands could reach"), "{flag} {bind}: {said}");
        }
    }
}

#[tokio::test]
async fn a_key_file_that_comes_within_reach_is_not_read_again() {
    let keys = Arc::new(KeyFile::new());
    let key = keys.add("a", "read", &[]);
    let place = TempDir::with_prefix("jig-test-refused-").unwrap();
    let link = place.path().join("keys.toml");
    symlink(keys.path(), &link).unwrap();
    let link = link.display().to_string();
    let daemon = Setup::new().arguments(&["--keys", &link]).start().await;
    let moved = daemon.file("keys.toml");
    fs::copy(keys.path(), &moved).unwrap();
    fs::remove_file(&link).unwrap();
    symlink(&moved, &link).unwrap();
    daemon.reload(Daemon::NOT_READ_AGAIN).await;
    assert!(daemon.log().contains("commands could reach"), "{}", daemon.log());
    let mut info = super::info_client(&daemon);
    info.get_info(with_key(&key, GetInfoRequest {})).await.unwrap();
}

#[test]
fn workspaces_that_hold_the_same_files_are_refused() {
    let folder = folder();
    let link = path(&folder, "link");
    symlink(folder.path().join("ws"), &link).unwrap();
    let named = |name: &str, at: &str| format!("{name}={}", path(&folder, at));
    for (one, other) in [
        (named("a", "ws"), named("b", "ws/in")),
        (named("a", "ws/in"), named("b", "ws")),
        (named("a", "ws"), named("b", "ws")),
        (named("a", "ws"), named("b", "link")),
    ] {
        let said = refused(&folder, &["--workspace", &one, "--workspace", &other]);
        for part in ["share files", "separate directories", "a (", "b ("] {
            assert!(said.contains(part), "{one} {other}: {said}");
        }
    }
    let system = Path::new("/usr/lib");
    let seen = format!("b={}", system.display());
    let flags = ["--workspace", &named("a", "ws"), "--workspace", &seen];
    let said = refused(&folder, &flags);
    assert!(said.contains("which commands of all workspaces see"), "{said}");
    // Bound for another's commands.
    let bound = path(&folder, "out");
    let (one, other) = (named("a", "ws"), named("b", "out"));
    let flags = ["--workspace", &one, "--workspace", &other];
    let said = refused(&folder, &[&flags[..], &["--bind-ro", &format!("{bound}:/out")]].concat());
    assert!(said.contains("is bound for commands of another"), "{said}");
}

#[tokio::test]
async fn a_key_that_was_revoked_by_a_link_is_none() {
    let keys = Arc::new(KeyFile::new());
    let key = keys.add("gone", "read", &[]);
    let stays = keys.add("stays", "read", &[]);
    let place = TempDir::with_prefix("jig-test-link-").unwrap();
    let link = place.path().join("keys.toml");
    symlink(keys.path(), &link).unwrap();
    let path = link.display().to_string();
    let daemon = Setup::new().arguments(&["--keys", &path]).start().await;
    let mut info = super::info_client(&daemon);
    info.get_info(with_key(&key, GetInfoRequest {})).await.unwrap();
    let revoked = keys.jig(&["revoke", "--keys", &path, "gone"]);
    assert!(revoked.status.success(), "{revoked:?}");
    assert!(link.is_symlink());
    daemon.reload(Daemon::READ_AGAIN).await;
    let refused = info.get_info(with_key(&key, GetInfoRequest {})).await;
    assert!(refused.is_err());
    info.get_info(with_key(&stays, GetInfoRequest {})).await.unwrap();
}

#[tokio::test]
async fn who_owns_the_key_file_or_its_folder_matters() {
    use std::os::unix::fs::chown;
    let keys = Arc::new(KeyFile::new());
    keys.add("a", "read", &[]);
    let daemon = with_keys(Setup::new(), &keys).await;
    chown(keys.path(), Some(12_345), None).unwrap();
    daemon.reload(Daemon::NOT_READ_AGAIN).await;
    let log = daemon.log();
    assert!(log.contains("it belongs to the user 12345"), "{log}");
}
