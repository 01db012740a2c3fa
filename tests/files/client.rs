//! `jig cp`, and the commands for files, with a real daemon.

use std::{
    fs,
    os::unix::fs::{PermissionsExt as _, symlink},
    path::Path,
    process::{Command, Output, Stdio},
};

use crate::support::{Daemon, Proxy};

/// Runs `jig` against the daemon's socket, or the one given, in `directory`.
fn jig_at(socket: &Path, directory: &Path, arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_jig"))
        .args(arguments)
        .current_dir(directory)
        .env_clear()
        .env("JIG_ADDRESS", format!("unix:{}", socket.display()))
        .stdin(Stdio::null())
        .output()
        .unwrap()
}

/// Runs `jig`, which must exit with `code`; answers what it wrote to both streams.
fn jig(daemon: &Daemon, directory: &Path, arguments: &[&str], code: i32) -> String {
    let output = jig_at(&daemon.socket(), directory, arguments);
    assert_eq!(
        output.status.code(),
        Some(code),
        "{arguments:?}: {output:?}"
    );
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    text(&output.stdout) + &text(&output.stderr)
}

#[tokio::test]
async fn cp_takes_files_in_and_out() {
    let daemon = Daemon::start().await;
    let here = tempfile::tempdir().unwrap();
    let at = |name: &str| here.path().join(name);
    let cp =
        |arguments: &[&str], code| jig(&daemon, here.path(), &[&["cp"], arguments].concat(), code);
    fs::write(at("tool"), "#!/bin/sh\n").unwrap();
    fs::set_permissions(at("tool"), fs::Permissions::from_mode(0o755)).unwrap();
    assert_eq!(cp(&["tool", ":bin/"], 0), "tool -> :bin/tool (10 B)\n");
    let path = daemon.file("bin/tool");
    assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o755);
    cp(&["jig:bin/tool", "back"], 0);
    assert_eq!(fs::read(at("back")).unwrap(), b"#!/bin/sh\n");
    assert_ne!(
        at("back").metadata().unwrap().permissions().mode() & 0o100,
        0
    );
    fs::create_dir(at("into")).unwrap();
    cp(&[":/workspace/bin/tool", "into"], 0);
    assert!(at("into/tool").exists());

    assert!(cp(&["-n", "tool", ":bin/tool"], 1).contains("FILE_EXISTS"));
    assert!(cp(&["-n", ":bin/tool", "back"], 1).contains("--no-clobber"));
    assert!(cp(&["--expect", &"0".repeat(64), "tool", ":bin/tool"], 1).contains("STALE_FILE"));
    assert!(cp(&["tool", "back"], 1 + 63).contains("exactly one"));
    assert!(cp(&[":none", "none"], 1).contains("FILE_NOT_FOUND"));
    assert!(!at("none").exists());
    assert!(cp(&["into", ":into"], 64).contains("-r"));
    let json = cp(&["--json", "tool", ":other"], 0);
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json["files"][0]["destination"], ":other");
    assert_eq!(json["files"][0]["size_bytes"], 10);
    let left: Vec<_> = fs::read_dir(here.path()).unwrap().collect();
    assert_eq!(left.len(), 3, "nothing half-done is left: {left:?}");
}

#[tokio::test]
async fn cp_takes_directories_in_and_out() {
    let daemon = Daemon::start().await;
    let here = tempfile::tempdir().unwrap();
    let tree = here.path().join("tree");
    fs::create_dir_all(tree.join("a/b")).unwrap();
    fs::create_dir_all(tree.join(".git")).unwrap();
    fs::write(tree.join("a/b/one"), "1").unwrap();
    fs::write(tree.join("a/.two"), "2").unwrap();
    fs::write(tree.join(".git/no"), "").unwrap();
    symlink("/etc/passwd", tree.join("link")).unwrap();
    let cp = |arguments: &[&str]| {
        jig(
            &daemon,
            here.path(),
            &[&["cp", "-r"], arguments].concat(),
            0,
        )
    };
    cp(&["tree", ":in/tree"]);
    assert_eq!(
        daemon.list_files().await,
        ["in/tree/a/.two", "in/tree/a/b/one"]
    );
    cp(&[":in", "out"]);
    assert_eq!(
        fs::read(here.path().join("out/tree/a/b/one")).unwrap(),
        b"1"
    );
    cp(&[":", "all"]);
    assert_eq!(
        fs::read(here.path().join("all/in/tree/a/.two")).unwrap(),
        b"2"
    );
}

#[tokio::test]
async fn cp_that_was_broken_off_goes_on_when_it_is_repeated() {
    let daemon = Daemon::start().await;
    let here = tempfile::tempdir().unwrap();
    let bytes: Vec<u8> = (0..3_000_000_u32).map(|n| (n % 251) as u8).collect();
    fs::write(here.path().join("file"), &bytes).unwrap();
    let proxy = Proxy::to(&daemon);
    // A repeat of one that is complete is made again.
    for round in 0..2 {
        let output = jig_at(
            &daemon.beside("proxy.sock"),
            here.path(),
            &["cp", "file", ":file"],
        );
        assert!(output.status.success(), "{output:?}");
        assert!(
            fs::read(daemon.file("file")).unwrap() == bytes,
            "round {round}"
        );
        fs::write(daemon.file("file"), "changed").unwrap();
        proxy.cut();
    }
    assert!(output_has_no_colour(&daemon, here.path()));
}

/// Progress and colours are for terminals only.
fn output_has_no_colour(daemon: &Daemon, directory: &Path) -> bool {
    !jig(daemon, directory, &["cp", "file", ":file"], 0).contains('\x1b')
}
