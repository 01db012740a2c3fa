//! `jig cp` where it cannot do all that it was asked for: what it leaves as it is, and what it tells.

use std::{
    fs,
    io::Write as _,
    os::unix::fs::{FileTypeExt as _, symlink},
    path::Path,
    process::{Command, Output, Stdio},
};

use rustix::fs::{CWD, FileType, Mode, makedev, mknodat};
use tempfile::TempDir;

use crate::support::Daemon;

/// A workspace, and a directory of this side.
struct Sides {
    daemon: Daemon,
    here: TempDir,
}

impl Sides {
    async fn new() -> Self {
        Self {
            daemon: Daemon::start().await,
            here: tempfile::tempdir().unwrap(),
        }
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_jig"));
        let socket = self.daemon.socket();
        command
            .args(arguments)
            .current_dir(self.here.path())
            .env_clear()
            .env("JIG_ADDRESS", format!("unix:{}", socket.display()))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command
    }

    /// Runs `jig cp`, which must exit with `code`.
    fn cp(&self, arguments: &[&str], code: i32) -> Output {
        let mut command = self.command(&["cp"]);
        let output = command.args(arguments).output().unwrap();
        let ended = output.status.code();
        assert_eq!(ended, Some(code), "{arguments:?}: {output:?}");
        output
    }

    /// Of an attempt that must fail, what it says.
    fn refused(&self, arguments: &[&str]) -> String {
        String::from_utf8(self.cp(arguments, 1).stderr).unwrap()
    }

    fn at(&self, name: &str) -> std::path::PathBuf {
        self.here.path().join(name)
    }
}

fn names(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).unwrap();
    let mut names: Vec<_> = entries
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

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
    for name in [
        "fifo",
        "socket",
        "device",
        "to-fifo",
        "to-socket",
        "to-device",
    ] {
        let told = sides.refused(&[":f", name]);
        let says = format!("jig: NOT_A_FILE: the local file \"{name}\" is not a regular file");
        assert!(
            told.starts_with(&says) && told.contains("`jig read`"),
            "{told}"
        );
    }
    for name in ["/dev/stdout", "/dev/fd/1", "/proc/self/fd/1"] {
        let told = sides.refused(&[":f", name]);
        assert!(
            told.contains("NOT_A_FILE") && told.contains("`jig read`"),
            "{told}"
        );
    }
    assert!(
        sides
            .refused(&[":f", "dangling"])
            .contains("leads to no file")
    );
    assert!(sides.refused(&[":f", "dir"]).contains("NOT_A_FILE"));
    assert_eq!(names(sides.here.path()), before);
    let kind = |name: &str| sides.at(name).symlink_metadata().unwrap().file_type();
    assert!(kind("fifo").is_fifo() && kind("socket").is_socket());
    assert!(kind("device").is_char_device() && kind("dangling").is_symlink());
    // Standard output that is a file is not replaced either, and nothing is written to it.
    let out = fs::File::create(sides.at("out")).unwrap();
    (&out).write_all(b"kept").unwrap();
    let status = sides
        .command(&["cp", ":f", "/dev/stdout"])
        .stdout(out)
        .status()
        .unwrap();
    assert_eq!(status.code(), Some(1));
    assert_eq!(fs::read(sides.at("out")).unwrap(), b"kept");

    sides.cp(&[":f", "link"], 0);
    assert!(kind("link").is_symlink());
    assert_eq!(fs::read(sides.at("file")).unwrap(), b"new");
    assert!(
        sides
            .refused(&["-n", ":f", "link"])
            .contains("--no-clobber")
    );
}
