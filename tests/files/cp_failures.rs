//! `jig cp` that fails in part: what it leaves unchanged, and what it reports.

use std::{
    fs,
    io::Write as _,
    os::unix::fs::{FileTypeExt as _, symlink},
};

use rustix::{
    fs::{CWD, FileType, Mode, makedev, mknodat},
    process::{Pid, Signal, kill_process},
};
use serde_json::Value;

use super::client_fixture::{ClientFixture, sorted_names};
use crate::support::eventually;

#[tokio::test]
async fn cp_replaces_only_regular_files() {
    let fixture = ClientFixture::start().await;
    fs::write(fixture.daemon.file("f"), "new").unwrap();

    for (name, kind) in [
        ("fifo", FileType::Fifo),
        ("socket", FileType::Socket),
        ("device", FileType::CharacterDevice),
    ] {
        // The device number of /dev/null.
        let device = makedev(1, 3);
        mknodat(CWD, fixture.local_path(name), kind, Mode::RWXU, device).unwrap();
        symlink(name, fixture.local_path(&format!("to-{name}"))).unwrap();
    }

    symlink("none", fixture.local_path("dangling")).unwrap();
    fs::create_dir(fixture.local_path("dir")).unwrap();
    fs::create_dir(fixture.local_path("dir/f")).unwrap();
    fs::write(fixture.local_path("file"), "old").unwrap();
    symlink("file", fixture.local_path("link")).unwrap();
    let before = sorted_names(fixture.local_dir.path());

    for name in ["fifo", "socket", "device", "to-fifo", "to-socket", "to-device"] {
        let stderr = fixture.run_failing_cp(&[":f", name]);
        let expected = format!("jig: NOT_A_FILE: the local file \"{name}\" is not a regular file");
        assert!(stderr.starts_with(&expected) && stderr.contains("`jig read`"), "{stderr}");
    }

    for name in ["/dev/stdout", "/dev/fd/1", "/proc/self/fd/1"] {
        let stderr = fixture.run_failing_cp(&[":f", name]);
        assert!(stderr.contains("NOT_A_FILE") && stderr.contains("`jig read`"), "{stderr}");
    }

    assert!(
        fixture.run_failing_cp(&[":f", "dangling"]).contains("symbolic link to a missing file")
    );
    assert!(fixture.run_failing_cp(&[":f", "dir"]).contains("NOT_A_FILE"));
    assert_eq!(sorted_names(fixture.local_dir.path()), before);

    let kind = |name: &str| fixture.local_path(name).symlink_metadata().unwrap().file_type();
    assert!(kind("fifo").is_fifo() && kind("socket").is_socket());
    assert!(kind("device").is_char_device() && kind("dangling").is_symlink());

    // A file behind standard output is neither replaced nor written to.
    let out = fs::File::create(fixture.local_path("out")).unwrap();
    (&out).write_all(b"kept").unwrap();
    let status = fixture.cp_command(&[":f", "/dev/stdout"]).stdout(out).status().unwrap();
    assert_eq!(status.code(), Some(1));
    assert_eq!(fs::read(fixture.local_path("out")).unwrap(), b"kept");

    fixture.run_cp(&[":f", "link"], 0);
    assert!(kind("link").is_symlink());
    assert_eq!(fs::read(fixture.local_path("file")).unwrap(), b"new");
    assert!(fixture.run_failing_cp(&["-n", ":f", "link"]).contains("--no-clobber"));
}

#[tokio::test]
async fn directory_cp_does_not_follow_local_links() {
    let fixture = ClientFixture::start().await;
    fs::create_dir_all(fixture.daemon.file("tree/d")).unwrap();
    for name in ["tree/a", "tree/d/in", "tree/z"] {
        fs::write(fixture.daemon.file(name), "new").unwrap();
    }

    fs::create_dir_all(fixture.local_path("out")).unwrap();
    fs::create_dir(fixture.local_path("elsewhere")).unwrap();
    fs::write(fixture.local_path("secret"), "old").unwrap();
    symlink("../secret", fixture.local_path("out/a")).unwrap();
    symlink("../elsewhere", fixture.local_path("out/d")).unwrap();

    // A link that DST itself names is followed.
    symlink("out", fixture.local_path("link")).unwrap();
    let stderr = fixture.run_failing_cp(&["-r", ":tree/.", "link"]);
    assert_eq!(stderr.matches("SYMLINK_BLOCKED").count(), 2, "{stderr}");
    assert_eq!(fs::read(fixture.local_path("secret")).unwrap(), b"old");
    assert_eq!(sorted_names(&fixture.local_path("elsewhere")), [""; 0]);
    assert_eq!(fs::read(fixture.local_path("out/z")).unwrap(), b"new");
}

#[tokio::test]
async fn directory_cp_continues_after_entries_that_fail() {
    let fixture = ClientFixture::start().await;
    for tree in [fixture.daemon.file("tree"), fixture.local_path("tree")] {
        fs::create_dir_all(tree.join("d")).unwrap();
        for name in ["a", "b", "c", "d/in"] {
            fs::write(tree.join(name), "new").unwrap();
        }
    }

    // The destination has entries of another type.
    for destination in [fixture.daemon.file("in"), fixture.local_path("out")] {
        fs::create_dir_all(destination.join("b")).unwrap();
        fs::write(destination.join("d"), "").unwrap();
    }

    for (from, to, expected) in [
        ("tree/.", ":in", &["tree/./b", "tree/./d/in", "tree/./d"][..]),
        (":tree/.", "out", &[":tree/./b", ":tree/./d"]),
    ] {
        let output = fixture.run_cp(&["-r", from, to], 1);
        let stdout = String::from_utf8(output.stdout).unwrap();
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!(stdout.lines().count(), 2, "{stdout}");

        for name in ["a", "c"] {
            assert!(stdout.contains(&format!("{to}/{name} (3 B)\n")), "{stdout}");
        }

        assert_eq!(stderr.lines().count(), expected.len(), "{stderr}");

        for (line, path) in stderr.lines().zip(expected) {
            let prefix = format!("jig: skipped: {path}: ");
            assert!(line.starts_with(&prefix), "{stderr}");
        }

        assert!(stderr.contains(": NOT_A_FILE: "), "{stderr}");

        let output = fixture.run_cp(&["-r", "--json", from, to], 1);
        let json: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(json["files"].as_array().unwrap().len(), 2, "{json}");

        let skipped = json["skipped"].as_array().unwrap();
        assert_eq!(skipped.len(), expected.len(), "{json}");
        assert_eq!(skipped[0]["error"]["reason"], "NOT_A_FILE", "{json}");
        assert_eq!(json.get("error"), None, "{json}");
    }

    assert_eq!(fs::read(fixture.local_path("out/c")).unwrap(), b"new");
    assert_eq!(fs::read(fixture.daemon.file("in/c")).unwrap(), b"new");
}

#[tokio::test]
async fn interrupted_directory_cp_reports_copied_files() {
    let mut fixture = ClientFixture::start().await;
    fs::create_dir(fixture.daemon.file("tree")).unwrap();
    fs::write(fixture.daemon.file("tree/a"), "new").unwrap();

    // A sparse file: it uses no disk space, and its copy takes long.
    let large_file = fs::File::create(fixture.daemon.file("tree/b")).unwrap();
    large_file.set_len(64 << 30).unwrap();

    for (flags, daemon_dies, code) in
        [(&[][..], false, 143), (&["--json"], false, 143), (&["--json"], true, 1)]
    {
        let arguments = [&["-r", ":tree", "out"], flags].concat();
        let child = fixture.cp_command(&arguments).spawn().unwrap();
        let out = fixture.local_path("out");
        eventually("jig cp copies the second file", async || {
            out.exists()
                && sorted_names(&out).iter().any(|name| name.ends_with(".part"))
                && sorted_names(&out).contains(&"a".to_owned())
        })
        .await;

        if daemon_dies {
            fixture.daemon.signal(Signal::KILL);
            fixture.daemon.wait_for_exit().await;
        } else {
            kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
        }

        let output = child.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(code), "{output:?}");

        let stdout = String::from_utf8(output.stdout).unwrap();
        if flags.is_empty() {
            assert_eq!(stdout, ":tree/a -> out/a (3 B)\n");
        } else {
            let json: Value = serde_json::from_str(&stdout).unwrap();
            assert_eq!(json["files"].as_array().unwrap().len(), 1, "{json}");
            assert_eq!(json["files"][0]["destination"], "out/a", "{json}");
            let expected = if daemon_dies { "UNAVAILABLE" } else { "CANCELLED" };
            assert_eq!(json["error"]["code"], expected, "{json}");
        }

        assert_eq!(sorted_names(&out), ["a"], "no partial file is left");

        fs::remove_dir_all(&out).unwrap();
    }
}
