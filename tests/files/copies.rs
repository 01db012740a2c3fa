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

use super::sides::{Sides, names};
use crate::support::eventually;

#[tokio::test]
async fn cp_replaces_regular_files_alone() {
    let sides = Sides::new().await;
    fs::write(sides.daemon.file("f"), "new").unwrap();
    for (name, kind) in [
        ("fifo", FileType::Fifo),
        ("socket", FileType::Socket),
        ("device", FileType::CharacterDevice),
    ] {
        // That of /dev/null.
        let number = makedev(1, 3);
        mknodat(CWD, sides.at(name), kind, Mode::RWXU, number).unwrap();
        symlink(name, sides.at(&format!("to-{name}"))).unwrap();
    }
    symlink("none", sides.at("dangling")).unwrap();
    fs::create_dir(sides.at("dir")).unwrap();
    fs::create_dir(sides.at("dir/f")).unwrap();
    fs::write(sides.at("file"), "old").unwrap();
    symlink("file", sides.at("link")).unwrap();
    let before = names(sides.here.path());
    for name in ["fifo", "socket", "device", "to-fifo", "to-socket", "to-device"] {
        let told = sides.refused(&[":f", name]);
        let says = format!("jig: NOT_A_FILE: the local file \"{name}\" is not a regular file");
        assert!(told.starts_with(&says) && told.contains("`jig read`"), "{told}");
    }
    for name in ["/dev/stdout", "/dev/fd/1", "/proc/self/fd/1"] {
        let told = sides.refused(&[":f", name]);
        assert!(told.contains("NOT_A_FILE") && told.contains("`jig read`"), "{told}");
    }
    assert!(sides.refused(&[":f", "dangling"]).contains("symbolic link to a missing file"));
    assert!(sides.refused(&[":f", "dir"]).contains("NOT_A_FILE"));
    assert_eq!(names(sides.here.path()), before);
    let kind = |name: &str| sides.at(name).symlink_metadata().unwrap().file_type();
    assert!(kind("fifo").is_fifo() && kind("socket").is_socket());
    assert!(kind("device").is_char_device() && kind("dangling").is_symlink());
    // Standard output that is a file is not replaced either, and nothing is written to it.
    let out = fs::File::create(sides.at("out")).unwrap();
    (&out).write_all(b"kept").unwrap();
    let status = sides.cp_command(&[":f", "/dev/stdout"]).stdout(out).status().unwrap();
    assert_eq!(status.code(), Some(1));
    assert_eq!(fs::read(sides.at("out")).unwrap(), b"kept");

    sides.cp(&[":f", "link"], 0);
    assert!(kind("link").is_symlink());
    assert_eq!(fs::read(sides.at("file")).unwrap(), b"new");
    assert!(sides.refused(&["-n", ":f", "link"]).contains("--no-clobber"));
}

#[tokio::test]
async fn cp_of_a_directory_follows_no_link_of_this_side() {
    let sides = Sides::new().await;
    fs::create_dir_all(sides.daemon.file("tree/d")).unwrap();
    for name in ["tree/a", "tree/d/in", "tree/z"] {
        fs::write(sides.daemon.file(name), "new").unwrap();
    }
    fs::create_dir_all(sides.at("out")).unwrap();
    fs::create_dir(sides.at("elsewhere")).unwrap();
    fs::write(sides.at("secret"), "old").unwrap();
    symlink("../secret", sides.at("out/a")).unwrap();
    symlink("../elsewhere", sides.at("out/d")).unwrap();
    // The one that DST names itself is followed.
    symlink("out", sides.at("link")).unwrap();
    let told = sides.refused(&["-r", ":tree/.", "link"]);
    assert_eq!(told.matches("SYMLINK_BLOCKED").count(), 2, "{told}");
    assert_eq!(fs::read(sides.at("secret")).unwrap(), b"old");
    assert_eq!(names(&sides.at("elsewhere")), [""; 0]);
    assert_eq!(fs::read(sides.at("out/z")).unwrap(), b"new");
}

#[tokio::test]
async fn cp_of_a_directory_goes_on_behind_what_it_cannot_copy() {
    let sides = Sides::new().await;
    for tree in [sides.daemon.file("tree"), sides.at("tree")] {
        fs::create_dir_all(tree.join("d")).unwrap();
        for name in ["a", "b", "c", "d/in"] {
            fs::write(tree.join(name), "new").unwrap();
        }
    }
    // Things of another kind are where copies are to be.
    for other in [sides.daemon.file("in"), sides.at("out")] {
        fs::create_dir_all(other.join("b")).unwrap();
        fs::write(other.join("d"), "").unwrap();
    }
    for (from, to, expected) in [
        ("tree/.", ":in", &["tree/./b", "tree/./d/in", "tree/./d"][..]),
        (":tree/.", "out", &[":tree/./b", ":tree/./d"]),
    ] {
        let output = sides.cp(&["-r", from, to], 1);
        let copied = String::from_utf8(output.stdout).unwrap();
        let told = String::from_utf8(output.stderr).unwrap();
        assert_eq!(copied.lines().count(), 2, "{copied}");
        for name in ["a", "c"] {
            assert!(copied.contains(&format!("{to}/{name} (3 B)\n")), "{copied}");
        }
        assert_eq!(told.lines().count(), expected.len(), "{told}");
        for (line, path) in told.lines().zip(expected) {
            let says = format!("jig: left out: {path}: ");
            assert!(line.starts_with(&says), "{told}");
        }
        assert!(told.contains(": NOT_A_FILE: "), "{told}");

        let output = sides.cp(&["-r", "--json", from, to], 1);
        let json: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(json["files"].as_array().unwrap().len(), 2, "{json}");
        let left_out = json["left_out"].as_array().unwrap();
        assert_eq!(left_out.len(), expected.len(), "{json}");
        assert_eq!(left_out[0]["error"]["reason"], "NOT_A_FILE", "{json}");
        assert_eq!(json.get("error"), None, "{json}");
    }
    assert_eq!(fs::read(sides.at("out/c")).unwrap(), b"new");
    assert_eq!(fs::read(sides.daemon.file("in/c")).unwrap(), b"new");
}

#[tokio::test]
async fn cp_of_a_directory_that_is_broken_off_tells_what_it_copied() {
    let mut sides = Sides::new().await;
    fs::create_dir(sides.daemon.file("tree")).unwrap();
    fs::write(sides.daemon.file("tree/a"), "new").unwrap();
    // It takes no room, and takes a while.
    let large = fs::File::create(sides.daemon.file("tree/b")).unwrap();
    large.set_len(64 << 30).unwrap();
    for (flags, is_lost, code) in
        [(&[][..], false, 143), (&["--json"], false, 143), (&["--json"], true, 1)]
    {
        let arguments = [&["-r", ":tree", "out"], flags].concat();
        let child = sides.cp_command(&arguments).spawn().unwrap();
        let out = sides.at("out");
        eventually("it is at the second file", async || {
            out.exists()
                && names(&out).iter().any(|name| name.ends_with(".part"))
                && names(&out).contains(&"a".to_owned())
        })
        .await;
        if is_lost {
            sides.daemon.signal(Signal::KILL);
            sides.daemon.exit().await;
        } else {
            kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
        }
        let output = child.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(code), "{output:?}");
        let told = String::from_utf8(output.stdout).unwrap();
        if flags.is_empty() {
            assert_eq!(told, ":tree/a -> out/a (3 B)\n");
        } else {
            let json: Value = serde_json::from_str(&told).unwrap();
            assert_eq!(json["files"].as_array().unwrap().len(), 1, "{json}");
            assert_eq!(json["files"][0]["destination"], "out/a", "{json}");
            let expected = if is_lost { "UNAVAILABLE" } else { "CANCELLED" };
            assert_eq!(json["error"]["code"], expected, "{json}");
        }
        assert_eq!(names(&out), ["a"], "nothing half-done is left");
        fs::remove_dir_all(&out).unwrap();
    }
}
