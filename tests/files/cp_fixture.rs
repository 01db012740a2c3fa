//! A workspace and a directory of this side, for `jig cp` between them.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
};

use tempfile::TempDir;

use crate::support::Daemon;

/// A daemon with a workspace, and a directory of this side.
pub(super) struct CopyFixture {
    pub(super) daemon: Daemon,
    pub(super) local_dir: TempDir,
}

impl CopyFixture {
    pub(super) async fn start() -> Self {
        Self { daemon: Daemon::start().await, local_dir: tempfile::tempdir().unwrap() }
    }

    /// `jig cp` in the directory of this side.
    pub(super) fn cp_command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_jig"));
        let socket = self.daemon.socket();
        command
            .arg("cp")
            .args(arguments)
            .current_dir(self.local_dir.path())
            .env_clear()
            .env("JIG_ADDRESS", format!("unix:{}", socket.display()))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command
    }

    /// Runs `jig cp`, which must exit with `code`.
    pub(super) fn run_cp(&self, arguments: &[&str], code: i32) -> Output {
        let output = self.cp_command(arguments).output().unwrap();
        let ended = output.status.code();
        assert_eq!(ended, Some(code), "{arguments:?}: {output:?}");
        output
    }

    /// Runs `jig cp`, which must exit with 1. Answers what it says on standard error.
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
