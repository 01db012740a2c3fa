//! The operator's git commands in the workspace.

use std::process::{Command, Stdio};
use std::{fs, os::unix::fs::MetadataExt as _, os::unix::process::CommandExt as _, path::Path};

/// Runs git as the owner of the directory. Returns its standard output, whatever its exit code is.
pub(super) fn run_git(directory: &Path, arguments: &[&str]) -> String {
    let owner = fs::metadata(directory).unwrap();
    let output = Command::new("git")
        .args(["-c", "safe.directory=*"])
        .args(["-c", "user.name=o", "-c", "user.email=o@localhost"])
        .args(arguments)
        .current_dir(directory)
        .uid(owner.uid())
        .gid(owner.gid())
        .env("HOME", "/nonexistent")
        .env("GIT_CONFIG_NOSYSTEM", "1")
        .env("GIT_CEILING_DIRECTORIES", directory.parent().unwrap())
        .stdin(Stdio::null())
        .output()
        .unwrap();

    String::from_utf8_lossy(&output.stdout).into_owned()
}
