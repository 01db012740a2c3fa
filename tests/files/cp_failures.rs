//! `jig cp` where it cannot do all that it was asked for: what it leaves as it is, and what it tells.

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

use super::cp_fixture::{CopyFixture, sorted_names};
use crate::support::eventually;

#[tokio::test]
async fn cp_replaces_only_regular_files() {
    let fixture = CopyFixture::start().await;
    fs::write(fixture.daemon.file("f"), "new").unwrap();
    for (name, kind) in [
        ("fifo", FileType::Fifo),
        ("socket", FileType::Socket),
        ("device", FileType::CharacterDevice),
    ] {
        // That of /dev/null.
        let number = makedev(1, 3);
        mknodat(CWD, fixture.local_path(name), kind, Mode::RWXU, number).unwrap();
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
        let says = format!("jig: NOT_A_FILE: the local file \"{name}\" is not a regular file");
        assert!(stderr.starts_with(&says) && stderr.contains("`jig read`"), "{stderr}");
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
    // Standard output that is a file is not replaced either, and nothing is written to it.
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
    let fixture = CopyFixture::start().await;
    fs::create_dir_all(fixture.daemon.file("tree/d")).unwrap();
    for name in ["tree/a", "tree/d/in", "tree/z"] {
        fs::write(fixture.daemon.file(name), "new").unwrap();
    }
    fs::create_dir_all(fixture.local_path("out")).unwrap();
    fs::create_dir(fixture.local_path("elsewhere")).unwrap();
    fs::write(fixture.local_path("secret"), "old").unwrap();
    symlink("../secret", fixture.local_path("out/a")).unwrap();
    symlink("../elsewhere", fixture.local_path("out/d")).unwrap();
    // The one that DST names itself is followed.
    symlink("out", fixture.local_path("link")).unwrap();
    let stderr = fixture.run_failing_cp(&["-r", ":tree/.", "link"]);
    assert_eq!(stderr.matches("SYMLINK_BLOCKED").count(), 2, "{stderr}");
    assert_eq!(fs::read(fixture.local_path("secret")).unwrap(), b"old");
    assert_eq!(sorted_names(&fixture.local_path("elsewhere")), [""; 0]);
    assert_eq!(fs::read(fixture.local_path("out/z")).unwrap(), b"new");
}

#[tokio::test]
async fn directory_cp_continues_after_entries_that_fail() {
    let fixture = CopyFixture::start().await;
    for tree in [fixture.daemon.file("tree"), fixture.local_path("tree")] {
        fs::create_dir_all(tree.join("d")).unwrap();
        for name in ["a", "b", "c", "d/in"] {
            fs::write(tree.join(name), "new").unwrap();
        }
    }
    // Things of another kind are where copies are to be.
    for other in [fixture.daemon.file("in"), fixture.local_path("out")] {
        fs::create_dir_all(other.join("b")).unwrap();
        fs::write(other.join("d"), "").unwrap();
    }
    for (from, to, expected) in [
        ("tree/.", ":in", &["tree/./b", "tree/./d/in", "tree/./d"][..]),
        (":tree/.", "out", &[":tree/./b", ":tree/./d"]),
    ] {
        let output = fixture.run_cp(&["-r", from, to], 1);
        let copied = String::from_utf8(output.stdout).unwrap();
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!(copied.lines().count(), 2, "{copied}");
        for name in ["a", "c"] {
            assert!(copied.contains(&format!("{to}/{name} (3 B)\n")), "{copied}");
        }
        assert_eq!(stderr.lines().count(), expected.len(), "{stderr}");
        for (line, path) in stderr.lines().zip(expected) {
            let says = format!("jig: skipped: {path}: ");
            assert!(line.starts_with(&says), "{stderr}");
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
    let mut fixture = CopyFixture::start().await;
    fs::create_dir(fixture.daemon.file("tree")).unwrap();
    fs::write(fixture.daemon.file("tree/a"), "new").unwrap();
    // It takes no room, and takes a while.
    let large = fs::File::create(fixture.daemon.file("tree/b")).unwrap();
    large.set_len(64 << 30).unwrap();
    for (flags, is_lost, code) in
        [(&[][..], false, 143), (&["--json"], false, 143), (&["--json"], true, 1)]
    {
        let arguments = [&["-r", ":tree", "out"], flags].concat();
        let child = fixture.cp_command(&arguments).spawn().unwrap();
        let out = fixture.local_path("out");
        eventually("it is at the second file", async || {
            out.exists()
                && sorted_names(&out).iter().any(|name| name.ends_with(".part"))
                && sorted_names(&out).contains(&"a".to_owned())
        })
        .await;
        if is_lost {
            fixture.daemon.signal(Signal::KILL);
            fixture.daemon.wait_for_exit().await;
        } else {
            kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
        }
        let output = child.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(code), "{output:?}");
        let stderr = String::from_utf8(output.stdout).unwrap();
        if flags.is_empty() {
            assert_eq!(stderr, ":tree/a -> out/a (3 B)\n");
        } else {
            let json: Value = serde_json::from_str(&stderr).unwrap();
            assert_eq!(json["files"].as_array().unwrap().len(), 1, "{json}");
            assert_eq!(json["files"][0]["destination"], "out/a", "{json}");
            let expected = if is_lost { "UNAVAILABLE" } else { "CANCELLED" };
            assert_eq!(json["error"]["code"], expected, "{json}");
        }
        assert_eq!(sorted_names(&out), ["a"], "nothing half-done is left");
        fs::remove_dir_all(&out).unwrap();
    }
}
