//! A daemon with a workspace and a local directory, between which `jig` works.

use std::{
    fs,
    io::Write as _,
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
};

use serde_json::Value;
use tempfile::TempDir;

use crate::support::Daemon;

/// A daemon with a workspace, and a local directory in which `jig` runs.
pub(super) struct ClientFixture {
    pub(super) daemon: Daemon,
    pub(super) local_dir: TempDir,
}

impl ClientFixture {
    pub(super) async fn start() -> Self {
        Self { daemon: Daemon::start().await, local_dir: tempfile::tempdir().unwrap() }
    }

    /// `jig` in the local directory, with pipes for its streams.
    pub(super) fn command(&self, arguments: &[&str]) -> Command {
        self.command_at(&self.daemon.socket(), arguments)
    }

    /// As [`Self::command`], with the address of another socket.
    pub(super) fn command_at(&self, socket: &Path, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_jig"));
        command
            .args(arguments)
            .current_dir(self.local_dir.path())
            .env_clear()
            .env("JIG_ADDRESS", format!("unix:{}", socket.display()))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command
    }

    /// Runs `jig`, which must exit with `code`. Returns its standard output, then its standard error.
    pub(super) fn run_jig(&self, arguments: &[&str], input: &str, code: i32) -> String {
        let mut child = self.command(arguments).spawn().unwrap();

        // A command that does not read its input may have ended already.
        let _unread = child.stdin.take().unwrap().write_all(input.as_bytes());
        let output = child.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {output:?}");

        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        text(output.stdout) + &text(output.stderr)
    }

    pub(super) fn run_jig_json(&self, arguments: &[&str], code: i32) -> Value {
        let text = self.run_jig(&[&["--json"], arguments].concat(), "", code);
        serde_json::from_str(&text).unwrap()
    }

    /// `jig cp` without standard input.
    pub(super) fn cp_command(&self, arguments: &[&str]) -> Command {
        let mut command = self.command(&[&["cp"], arguments].concat());
        command.stdin(Stdio::null());
        command
    }

    /// Runs `jig cp`, which must exit with `code`.
    pub(super) fn run_cp(&self, arguments: &[&str], code: i32) -> Output {
        let output = self.cp_command(arguments).output().unwrap();
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {output:?}");
        output
    }

    /// Runs `jig cp`, which must exit with `code`. Returns its standard output, then its standard
    /// error.
    pub(super) fn run_cp_text(&self, arguments: &[&str], code: i32) -> String {
        let output = self.run_cp(arguments, code);
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        text(output.stdout) + &text(output.stderr)
    }

    /// Runs `jig cp`, which must exit with 1. Returns its standard error.
    pub(super) fn run_failing_cp(&self, arguments: &[&str]) -> String {
        String::from_utf8(self.run_cp(arguments, 1).stderr).unwrap()
    }

    pub(super) fn local_path(&self, name: &str) -> PathBuf {
        self.local_dir.path().join(name)
    }
}

/// The names in a directory, sorted.
pub(super) fn sorted_names(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).unwrap();
    let mut names: Vec<_> =
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}
