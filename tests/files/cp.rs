//! `jig cp`: files and directories in both directions, and repeated copies.

use std::{
    collections::BTreeSet,
    ffi::OsStr,
    fs,
    os::unix::{
        ffi::OsStrExt as _,
        fs::{PermissionsExt as _, symlink},
    },
    path::Path,
    process::{Command, Stdio},
};

use jig::api::v1::upload_request::Part;
use rustix::fs::{CWD, FileType, Mode, mknodat};

use super::{
    RESERVED_NAME,
    client_fixture::ClientFixture,
    transfer::{
        chunk, pseudo_random_bytes, resumable_start, start_manual_upload, upload_offset,
        wait_for_upload_offset,
    },
};
use crate::support::ConnectionProxy;

#[tokio::test]
async fn cp_copies_files_in_both_directions() {
    let fixture = ClientFixture::start().await;
    let daemon = &fixture.daemon;
    let cp = |arguments: &[&str], code| fixture.run_cp_text(arguments, code);
    fs::write(fixture.local_path("tool"), "#!/bin/sh\n").unwrap();
    fs::set_permissions(fixture.local_path("tool"), fs::Permissions::from_mode(0o755)).unwrap();
    assert_eq!(cp(&["tool", ":bin/"], 0), "tool -> :bin/tool (10 B)\n");

    let path = daemon.file("bin/tool");
    assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o755);

    cp(&["jig:bin/tool", "back"], 0);
    assert_eq!(fs::read(fixture.local_path("back")).unwrap(), b"#!/bin/sh\n");
    assert_ne!(fixture.local_path("back").metadata().unwrap().permissions().mode() & 0o100, 0);

    fs::create_dir(fixture.local_path("into")).unwrap();
    cp(&[":/workspace/bin/tool", "into"], 0);
    assert!(fixture.local_path("into/tool").exists());

    assert!(cp(&["-n", "tool", ":bin/tool"], 1).contains("FILE_EXISTS"));
    assert!(cp(&["-n", ":bin/tool", "back"], 1).contains("--no-clobber"));
    assert!(cp(&["--expect", &"0".repeat(64), "tool", ":bin/tool"], 1).contains("STALE_FILE"));
    assert!(cp(&["tool", "back"], 1 + 63).contains("exactly one"));
    assert!(cp(&[":none", "none"], 1).contains("FILE_NOT_FOUND"));
    assert!(!fixture.local_path("none").exists());
    assert!(cp(&["into", ":into"], 64).contains("-r"));

    let json = cp(&["--json", "tool", ":other"], 0);
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json["files"][0]["destination"], ":other");
    assert_eq!(json["files"][0]["size_bytes"], 10);

    let entries: Vec<_> = fs::read_dir(fixture.local_dir.path()).unwrap().collect();
    assert_eq!(entries.len(), 3, "no partial file is left: {entries:?}");
}

#[tokio::test]
async fn cp_keeps_permission_bits() {
    let fixture = ClientFixture::start().await;
    let daemon = &fixture.daemon;
    let mode = |path: &Path| path.metadata().unwrap().permissions().mode() & 0o777;

    for (bits, with_umask) in [
        (0o600, 0o600),
        (0o400, 0o400),
        (0o640, 0o640),
        (0o700, 0o700),
        (0o755, 0o750),
        (0o777, 0o750),
    ] {
        // The second round replaces existing files.
        for _ in 0..2 {
            fs::write(fixture.local_path("key"), "secret").unwrap();
            fs::set_permissions(fixture.local_path("key"), fs::Permissions::from_mode(bits))
                .unwrap();
            fixture.run_cp(&["key", ":key"], 0);
            assert_eq!(mode(&daemon.file("key")), bits, "{bits:o}");

            let back = Command::new("/bin/sh")
                .args(["-c", "umask 027; exec \"$@\"", "sh"])
                .arg(env!("CARGO_BIN_EXE_jig"))
                .args(["cp", ":key", "back"])
                .current_dir(fixture.local_dir.path())
                .env("JIG_ADDRESS", format!("unix:{}", daemon.socket().display()))
                .output()
                .unwrap();
            assert!(back.status.success(), "{back:?}");
            assert_eq!(mode(&fixture.local_path("back")), with_umask, "{bits:o}");
        }
    }

    fs::create_dir_all(daemon.file("shut/in")).unwrap();
    fs::set_permissions(daemon.file("shut"), fs::Permissions::from_mode(0o500)).unwrap();
    fs::set_permissions(daemon.file("shut/in"), fs::Permissions::from_mode(0o710)).unwrap();
    fixture.run_cp(&["-r", ":shut", "."], 0);
    assert_eq!(
        (mode(&fixture.local_path("shut")), mode(&fixture.local_path("shut/in"))),
        (0o700, 0o710)
    );
}

#[tokio::test]
async fn cp_copies_directories_in_both_directions() {
    let fixture = ClientFixture::start().await;
    let daemon = &fixture.daemon;
    let long_name = "n".repeat(255);
    fs::create_dir_all(fixture.local_path("tree/a/b")).unwrap();
    fs::create_dir_all(fixture.local_path("tree/empty/er")).unwrap();
    fs::create_dir_all(fixture.local_path("tree/.git")).unwrap();
    fs::write(fixture.local_path("tree/a/b/one"), "1").unwrap();
    fs::write(fixture.local_path("tree/a/.two"), "2").unwrap();
    fs::write(fixture.local_path("tree").join(&long_name), "3").unwrap();
    fs::write(fixture.local_path("tree/.git/no"), "").unwrap();

    let cp = |arguments: &[&str]| fixture.run_cp_text(&[&["-r"], arguments].concat(), 0);
    let output = cp(&["tree", ":in/tree"]);
    assert!(output.contains("skipped, a name that git takes for .git: tree/.git\n"), "{output}");

    let files =
        ["in/tree/a/.two".to_owned(), "in/tree/a/b/one".to_owned(), format!("in/tree/{long_name}")];
    assert_eq!(daemon.list_files().await, files);
    assert!(daemon.file("in/tree/empty/er").is_dir());

    fs::create_dir(daemon.file("in/.git")).unwrap();
    let output = cp(&[":in", "out"]);
    assert!(output.contains("skipped, a name that git takes for .git: :in/.git\n"), "{output}");
    assert_eq!(fs::read(fixture.local_path("out/tree/a/b/one")).unwrap(), b"1");
    assert!(fixture.local_path("out/tree/empty/er").is_dir());
    assert!(!fixture.local_path("out/.git").exists());

    cp(&[":", "all"]);
    assert_eq!(fs::read(fixture.local_path("all/in/tree/a/.two")).unwrap(), b"2");

    // `-r` copies a single file too.
    cp(&[":in/tree/a/.two", "two"]);
    assert_eq!(fs::read(fixture.local_path("two")).unwrap(), b"2");

    cp(&["two", ":two"]);
    assert_eq!(fs::read(daemon.file("two")).unwrap(), b"2");
}

#[tokio::test]
async fn cp_copies_contents_of_unnamed_directories() {
    let fixture = ClientFixture::start().await;
    let daemon = &fixture.daemon;
    fs::create_dir_all(fixture.local_path("a/b")).unwrap();
    fs::write(fixture.local_path("a/b/one"), "1").unwrap();
    fs::write(fixture.local_path("two"), "2").unwrap();

    let cp = |from: &str, to: &str| {
        fixture.run_cp(&["-r", from, to], 0);
    };
    cp(".", ":");
    assert_eq!(daemon.list_files().await, ["a/b/one", "two"]);

    cp("a/.", ":sub/");
    cp("a/b/..//", ":up");
    assert_eq!(fs::read(daemon.file("sub/b/one")).unwrap(), b"1");
    assert_eq!(fs::read(daemon.file("up/b/one")).unwrap(), b"1");

    cp(":a/.", "into");
    assert_eq!(fs::read(fixture.local_path("into/b/one")).unwrap(), b"1");

    fs::create_dir(fixture.local_path("there")).unwrap();
    cp(":.", "there");
    assert_eq!(fs::read(fixture.local_path("there/sub/b/one")).unwrap(), b"1");

    let output = fixture.run_cp_text(&[".", ":"], 64);
    assert!(output.contains("SRC has no name to keep"), "{output}");
}

#[tokio::test]
async fn cp_lists_entries_that_it_cannot_copy() {
    let fixture = ClientFixture::start().await;
    let daemon = &fixture.daemon;
    let tree = fixture.local_path("tree");
    let invalid_name = OsStr::from_bytes(b"\xff");

    for tree in [&tree, &daemon.file("tree")] {
        fs::create_dir_all(tree.join("only")).unwrap();
        fs::write(tree.join("file"), "1").unwrap();
        fs::write(tree.join(invalid_name), "").unwrap();
        symlink("/etc", tree.join("only/link")).unwrap();
        mknodat(CWD, tree.join("fifo"), FileType::Fifo, Mode::RWXU, 0).unwrap();
    }

    for (arguments, source, name) in
        [(["tree", ":in"], "tree", "\u{fffd}"), ([":tree", "out"], ":tree", "?")]
    {
        let output = fixture.run_cp_text(&[&["-r"], &arguments[..]].concat(), 1);
        assert!(output.contains("file -> "), "{output}");

        for line in [
            format!("jig: skipped, a symbolic link: {source}/only/link\n"),
            format!("jig: skipped, neither a file nor a directory: {source}/fifo\n"),
            format!("jig: skipped, a name that is not UTF-8: {source}/{name}\n"),
        ] {
            assert!(output.contains(&line), "{line}: {output}");
        }

        let json = fixture.run_jig_json(&[&["cp", "-r"], &arguments[..]].concat(), 1);
        assert_eq!(json["skipped"].as_array().unwrap().len(), 3, "{json}");
        assert_eq!(json["files"].as_array().unwrap().len(), 1, "{json}");
    }

    assert!(daemon.file("in/only").is_dir() && fixture.local_path("out/only").is_dir());
}

#[tokio::test]
async fn cp_skips_names_reserved_for_the_daemon() {
    let fixture = ClientFixture::start().await;
    let daemon = &fixture.daemon;
    fs::create_dir_all(fixture.local_path("tree").join(RESERVED_NAME)).unwrap();
    fs::create_dir(fixture.local_path("tree/sub")).unwrap();
    fs::write(fixture.local_path("tree/sub").join(RESERVED_NAME), "").unwrap();
    fs::write(fixture.local_path("tree/sub/file"), "1").unwrap();

    let output = fixture.run_cp_text(&["-r", "tree", ":in"], 1);
    for path in [format!("tree/{RESERVED_NAME}"), format!("tree/sub/{RESERVED_NAME}")] {
        let reason = "a name that is reserved for the daemon's own files";
        let line = format!("jig: skipped, {reason}: {path}\n");
        assert!(output.contains(&line), "{line}: {output}");
    }

    assert_eq!(daemon.list_files().await, ["in/sub/file"]);
    assert_eq!(fs::read_dir(daemon.file("in")).unwrap().count(), 1);

    let path = format!("tree/sub/{RESERVED_NAME}");
    let output = fixture.run_cp_text(&[&path, ":"], 1);
    assert!(output.contains("POLICY_DENIED"), "{output}");
}

#[tokio::test]
async fn repeated_cp_replaces_a_file_changed_since() {
    let fixture = ClientFixture::start().await;
    let daemon = &fixture.daemon;
    let bytes: Vec<u8> = (0..3_000_000_u32).map(|n| (n % 251) as u8).collect();
    fs::write(fixture.local_path("file"), &bytes).unwrap();
    let proxy = ConnectionProxy::start(daemon);

    // A repeat of a complete copy starts a new upload.
    for round in 0..2 {
        let socket = daemon.sibling_path("proxy.sock");
        let output = fixture
            .command_at(&socket, &["cp", "file", ":file"])
            .stdin(Stdio::null())
            .output()
            .unwrap();
        assert!(output.status.success(), "{output:?}");
        assert!(fs::read(daemon.file("file")).unwrap() == bytes, "round {round}");

        fs::write(daemon.file("file"), "changed").unwrap();
        proxy.cut();
    }

    // Progress and colours are for terminals only.
    let output = fixture.run_cp_text(&["file", ":file"], 0);
    assert!(!output.contains('\x1b'), "{output:?}");
}

#[tokio::test]
async fn repeated_cp_resumes_its_interrupted_upload() {
    let fixture = ClientFixture::start().await;
    let daemon = &fixture.daemon;
    let bytes = pseudo_random_bytes(3_000_000);
    fs::write(fixture.local_path("file"), &bytes).unwrap();

    let cp = || fixture.run_cp(&["file", ":file"], 0);
    let upload_ids = || {
        let records = fs::read_dir(daemon.state_dir().join("uploads")).unwrap();
        let upload_ids = records.map(|entry| {
            let record = fs::read(entry.unwrap().path()).unwrap();
            let record: serde_json::Value = serde_json::from_slice(&record).unwrap();
            assert_eq!(record["complete"], record["replaces"] == false);
            record["upload_id"].as_str().unwrap().to_owned()
        });
        upload_ids.collect::<BTreeSet<_>>()
    };

    cp();
    let first_id = upload_ids().pop_first().unwrap();
    for number in 1..4 {
        let id = format!("{first_id}-{number}");
        let parts =
            vec![Part::Start(resumable_start("file", &bytes, &id)), chunk(0, &bytes[..1_000_000])];
        let (sender, call) = start_manual_upload(daemon, parts).await;
        wait_for_upload_offset(daemon, &id, 1_000_000).await;
        call.abort();
        drop(sender);
        fs::write(daemon.file("file"), "changed").unwrap();
        cp();
        assert!(fs::read(daemon.file("file")).unwrap() == bytes);
        assert_eq!(upload_ids().len(), 1 + number, "{:?}", upload_ids());
        assert_eq!(upload_offset(daemon, &id).await, Some(3_000_000));
        assert_eq!(fs::read_dir(daemon.workspace()).unwrap().count(), 1);
    }

    let events =
        fs::read_to_string(daemon.state_dir().join("sessions/default/events.jsonl")).unwrap();
    let resumed = events.matches(r#""received_bytes":2000000"#).count();
    assert_eq!(resumed, 3, "{events}");
}
