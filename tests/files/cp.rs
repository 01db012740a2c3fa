//! `jig cp`, and the commands for files, with a real daemon.

use std::{
    collections::BTreeSet,
    ffi::OsStr,
    fs,
    os::unix::{
        ffi::OsStrExt as _,
        fs::{PermissionsExt as _, symlink},
    },
    path::Path,
    process::{Command, Output, Stdio},
};

use jig::api::v1::upload_request::Part;
use rustix::fs::{CWD, FileType, Mode, mknodat};

use super::transfer::{
    await_upload_offset, chunk, pseudo_random_bytes, resumable_start, start_manual_upload,
    upload_offset,
};
use crate::support::{ConnectionProxy, Daemon};

/// Runs `jig` against the daemon's socket, or the one given, in `directory`.
fn run_jig_at(socket: &Path, directory: &Path, arguments: &[&str]) -> Output {
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
fn run_jig(daemon: &Daemon, directory: &Path, arguments: &[&str], code: i32) -> String {
    let output = run_jig_at(&daemon.socket(), directory, arguments);
    assert_eq!(output.status.code(), Some(code), "{arguments:?}: {output:?}");
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    text(&output.stdout) + &text(&output.stderr)
}

#[tokio::test]
async fn cp_copies_files_in_both_directions() {
    let daemon = Daemon::start().await;
    let here = tempfile::tempdir().unwrap();
    let at = |name: &str| here.path().join(name);
    let cp = |arguments: &[&str], code| {
        run_jig(&daemon, here.path(), &[&["cp"], arguments].concat(), code)
    };
    fs::write(at("tool"), "#!/bin/sh\n").unwrap();
    fs::set_permissions(at("tool"), fs::Permissions::from_mode(0o755)).unwrap();
    assert_eq!(cp(&["tool", ":bin/"], 0), "tool -> :bin/tool (10 B)\n");
    let path = daemon.file("bin/tool");
    assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o755);
    cp(&["jig:bin/tool", "back"], 0);
    assert_eq!(fs::read(at("back")).unwrap(), b"#!/bin/sh\n");
    assert_ne!(at("back").metadata().unwrap().permissions().mode() & 0o100, 0);
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
    let entries: Vec<_> = fs::read_dir(here.path()).unwrap().collect();
    assert_eq!(entries.len(), 3, "nothing half-done is left: {entries:?}");
}

#[tokio::test]
async fn cp_keeps_permission_bits() {
    let daemon = Daemon::start().await;
    let here = tempfile::tempdir().unwrap();
    let at = |name: &str| here.path().join(name);
    let mode = |path: &Path| path.metadata().unwrap().permissions().mode() & 0o777;
    for (bits, with_umask) in [
        (0o600, 0o600),
        (0o400, 0o400),
        (0o640, 0o640),
        (0o700, 0o700),
        (0o755, 0o750),
        (0o777, 0o750),
    ] {
        // In the second round, something is there.
        for _ in 0..2 {
            fs::write(at("key"), "secret").unwrap();
            fs::set_permissions(at("key"), fs::Permissions::from_mode(bits)).unwrap();
            run_jig(&daemon, here.path(), &["cp", "key", ":key"], 0);
            assert_eq!(mode(&daemon.file("key")), bits, "{bits:o}");
            let back = Command::new("/bin/sh")
                .args(["-c", "umask 027; exec \"$@\"", "sh"])
                .arg(env!("CARGO_BIN_EXE_jig"))
                .args(["cp", ":key", "back"])
                .current_dir(here.path())
                .env("JIG_ADDRESS", format!("unix:{}", daemon.socket().display()))
                .output()
                .unwrap();
            assert!(back.status.success(), "{back:?}");
            assert_eq!(mode(&at("back")), with_umask, "{bits:o}");
        }
    }
    fs::create_dir_all(daemon.file("shut/in")).unwrap();
    fs::set_permissions(daemon.file("shut"), fs::Permissions::from_mode(0o500)).unwrap();
    fs::set_permissions(daemon.file("shut/in"), fs::Permissions::from_mode(0o710)).unwrap();
    run_jig(&daemon, here.path(), &["cp", "-r", ":shut", "."], 0);
    assert_eq!((mode(&at("shut")), mode(&at("shut/in"))), (0o700, 0o710));
}

#[tokio::test]
async fn cp_copies_directories_in_both_directions() {
    let daemon = Daemon::start().await;
    let here = tempfile::tempdir().unwrap();
    let at = |name: &str| here.path().join(name);
    let long = "n".repeat(255);
    fs::create_dir_all(at("tree/a/b")).unwrap();
    fs::create_dir_all(at("tree/empty/er")).unwrap();
    fs::create_dir_all(at("tree/.git")).unwrap();
    fs::write(at("tree/a/b/one"), "1").unwrap();
    fs::write(at("tree/a/.two"), "2").unwrap();
    fs::write(at("tree").join(&long), "3").unwrap();
    fs::write(at("tree/.git/no"), "").unwrap();
    let cp = |arguments: &[&str]| {
        let arguments = [&["cp", "-r"], arguments].concat();
        run_jig(&daemon, here.path(), &arguments, 0)
    };
    let output = cp(&["tree", ":in/tree"]);
    assert!(output.contains("skipped, a name that git takes for .git: tree/.git\n"), "{output}");
    let files =
        ["in/tree/a/.two".to_owned(), "in/tree/a/b/one".to_owned(), format!("in/tree/{long}")];
    assert_eq!(daemon.list_files().await, files);
    assert!(daemon.file("in/tree/empty/er").is_dir());
    fs::create_dir(daemon.file("in/.git")).unwrap();
    let output = cp(&[":in", "out"]);
    assert!(output.contains("skipped, a name that git takes for .git: :in/.git\n"), "{output}");
    assert_eq!(fs::read(at("out/tree/a/b/one")).unwrap(), b"1");
    assert!(at("out/tree/empty/er").is_dir());
    assert!(!at("out/.git").exists());
    cp(&[":", "all"]);
    assert_eq!(fs::read(at("all/in/tree/a/.two")).unwrap(), b"2");
    // One file is a tree, too.
    cp(&[":in/tree/a/.two", "two"]);
    assert_eq!(fs::read(at("two")).unwrap(), b"2");
    cp(&["two", ":two"]);
    assert_eq!(fs::read(daemon.file("two")).unwrap(), b"2");
}

#[tokio::test]
async fn cp_copies_contents_of_unnamed_directories() {
    let daemon = Daemon::start().await;
    let here = tempfile::tempdir().unwrap();
    let at = |name: &str| here.path().join(name);
    fs::create_dir_all(at("a/b")).unwrap();
    fs::write(at("a/b/one"), "1").unwrap();
    fs::write(at("two"), "2").unwrap();
    let cp = |from: &str, to: &str| {
        run_jig(&daemon, here.path(), &["cp", "-r", from, to], 0);
    };
    cp(".", ":");
    assert_eq!(daemon.list_files().await, ["a/b/one", "two"]);
    cp("a/.", ":sub/");
    cp("a/b/..//", ":up");
    assert_eq!(fs::read(daemon.file("sub/b/one")).unwrap(), b"1");
    assert_eq!(fs::read(daemon.file("up/b/one")).unwrap(), b"1");
    cp(":a/.", "into");
    assert_eq!(fs::read(at("into/b/one")).unwrap(), b"1");
    fs::create_dir(at("there")).unwrap();
    cp(":.", "there");
    assert_eq!(fs::read(at("there/sub/b/one")).unwrap(), b"1");
    let output = run_jig(&daemon, here.path(), &["cp", ".", ":"], 64);
    assert!(output.contains("SRC has no name to keep"), "{output}");
}

#[tokio::test]
async fn cp_lists_entries_that_it_cannot_copy() {
    let daemon = Daemon::start().await;
    let here = tempfile::tempdir().unwrap();
    let tree = here.path().join("tree");
    let no_utf8 = OsStr::from_bytes(b"\xff");
    for tree in [&tree, &daemon.file("tree")] {
        fs::create_dir_all(tree.join("only")).unwrap();
        fs::write(tree.join("file"), "1").unwrap();
        fs::write(tree.join(no_utf8), "").unwrap();
        symlink("/etc", tree.join("only/link")).unwrap();
        mknodat(CWD, tree.join("fifo"), FileType::Fifo, Mode::RWXU, 0).unwrap();
    }
    for (arguments, begins, name) in
        [(["tree", ":in"], "tree", "\u{fffd}"), ([":tree", "out"], ":tree", "?")]
    {
        let arguments = [&["cp", "-r"], &arguments[..]].concat();
        let output = run_jig(&daemon, here.path(), &arguments, 1);
        assert!(output.contains("file -> "), "{output}");
        for line in [
            format!("jig: skipped, a symbolic link: {begins}/only/link\n"),
            format!("jig: skipped, neither a file nor a directory: {begins}/fifo\n"),
            format!("jig: skipped, a name that is not UTF-8: {begins}/{name}\n"),
        ] {
            assert!(output.contains(&line), "{line}: {output}");
        }
        let json = run_jig(&daemon, here.path(), &[&["--json"], &arguments[..]].concat(), 1);
        let json: serde_json::Value = serde_json::from_str(&json).unwrap();
        assert_eq!(json["skipped"].as_array().unwrap().len(), 3, "{json}");
        assert_eq!(json["files"].as_array().unwrap().len(), 1, "{json}");
    }
    assert!(daemon.file("in/only").is_dir() && here.path().join("out/only").is_dir());
}

#[tokio::test]
async fn cp_skips_names_reserved_for_the_daemon() {
    const RESERVED_NAME: &str = ".jig-01ARZ3NDEKTSV4RRFFQ69G5FAV.tmp";
    let daemon = Daemon::start().await;
    let here = tempfile::tempdir().unwrap();
    let at = |name: &str| here.path().join(name);
    fs::create_dir_all(at("tree").join(RESERVED_NAME)).unwrap();
    fs::create_dir(at("tree/sub")).unwrap();
    fs::write(at("tree/sub").join(RESERVED_NAME), "").unwrap();
    fs::write(at("tree/sub/file"), "1").unwrap();
    let output = run_jig(&daemon, here.path(), &["cp", "-r", "tree", ":in"], 1);
    for path in [format!("tree/{RESERVED_NAME}"), format!("tree/sub/{RESERVED_NAME}")] {
        let why = "a name that is reserved for the daemon's own files";
        let line = format!("jig: skipped, {why}: {path}\n");
        assert!(output.contains(&line), "{line}: {output}");
    }
    assert_eq!(daemon.list_files().await, ["in/sub/file"]);
    assert_eq!(fs::read_dir(daemon.file("in")).unwrap().count(), 1);
    let path = format!("tree/sub/{RESERVED_NAME}");
    let output = run_jig(&daemon, here.path(), &["cp", &path, ":"], 1);
    assert!(output.contains("POLICY_DENIED"), "{output}");
}

#[tokio::test]
async fn repeated_cp_replaces_a_file_changed_since() {
    let daemon = Daemon::start().await;
    let here = tempfile::tempdir().unwrap();
    let bytes: Vec<u8> = (0..3_000_000_u32).map(|n| (n % 251) as u8).collect();
    fs::write(here.path().join("file"), &bytes).unwrap();
    let proxy = ConnectionProxy::start(&daemon);
    // A repeat of one that is complete is made again.
    for round in 0..2 {
        let output =
            run_jig_at(&daemon.sibling_path("proxy.sock"), here.path(), &["cp", "file", ":file"]);
        assert!(output.status.success(), "{output:?}");
        assert!(fs::read(daemon.file("file")).unwrap() == bytes, "round {round}");
        fs::write(daemon.file("file"), "changed").unwrap();
        proxy.cut();
    }
    assert!(output_has_no_colour(&daemon, here.path()));
}

#[tokio::test]
async fn repeated_cp_resumes_its_interrupted_upload() {
    let daemon = Daemon::start().await;
    let here = tempfile::tempdir().unwrap();
    let bytes = pseudo_random_bytes(3_000_000);
    fs::write(here.path().join("file"), &bytes).unwrap();
    let cp = || run_jig(&daemon, here.path(), &["cp", "file", ":file"], 0);
    let ids = || {
        let records = fs::read_dir(daemon.state_dir().join("uploads")).unwrap();
        let ids = records.map(|entry| {
            let record = fs::read(entry.unwrap().path()).unwrap();
            let record: serde_json::Value = serde_json::from_slice(&record).unwrap();
            assert_eq!(record["complete"], record["replaces"] == false);
            record["upload_id"].as_str().unwrap().to_owned()
        });
        ids.collect::<BTreeSet<_>>()
    };
    cp();
    let first = ids().pop_first().unwrap();
    for number in 1..4 {
        let id = format!("{first}-{number}");
        let parts =
            vec![Part::Start(resumable_start("file", &bytes, &id)), chunk(0, &bytes[..1_000_000])];
        let (sender, call) = start_manual_upload(&daemon, parts).await;
        await_upload_offset(&daemon, &id, 1_000_000).await;
        call.abort();
        drop(sender);
        fs::write(daemon.file("file"), "changed").unwrap();
        cp();
        assert!(fs::read(daemon.file("file")).unwrap() == bytes);
        assert_eq!(ids().len(), 1 + number, "{:?}", ids());
        assert_eq!(upload_offset(&daemon, &id).await, Some(3_000_000));
        assert_eq!(fs::read_dir(daemon.workspace()).unwrap().count(), 1);
    }
    let events =
        fs::read_to_string(daemon.state_dir().join("sessions/default/events.jsonl")).unwrap();
    let resumed = events.matches(r#""received_bytes":2000000"#).count();
    assert_eq!(resumed, 3, "{events}");
}

/// Progress and colours are for terminals only.
fn output_has_no_colour(daemon: &Daemon, directory: &Path) -> bool {
    !run_jig(daemon, directory, &["cp", "file", ":file"], 0).contains('\x1b')
}
