//! Key files, made with `jig key` as operators make them.

use std::{path::PathBuf, process::Command};

use tempfile::TempDir;
use tonic::Request;

use super::call::with_metadata;

/// A key file in a temporary directory.
#[derive(Debug)]
pub(crate) struct KeyFile(TempDir);

impl KeyFile {
    /// A path without a file: there are no keys yet.
    pub(crate) fn new() -> Self {
        Self(TempDir::with_prefix("jig-test-keys-").unwrap())
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.0.path().join("keys.toml")
    }

    /// Adds a key with further flags of `jig key new`, and returns the key.
    pub(crate) fn add_key(&self, name: &str, role: &str, flags: &[&str]) -> String {
        let arguments = [&["new", name, "--role", role], flags].concat();
        let output = self.run_jig_key(&arguments);
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    }

    /// Runs `jig key` on the file.
    pub(crate) fn run_jig_key(&self, arguments: &[&str]) -> std::process::Output {
        Command::new(env!("CARGO_BIN_EXE_jig"))
            .arg("key")
            .args(arguments)
            .env_clear()
            .env("JIG_KEYS", self.path())
            .output()
            .unwrap()
    }
}

/// A request with a key in its metadata.
pub(crate) fn with_key<T>(key: &str, message: T) -> Request<T> {
    with_metadata("authorization", &format!("Bearer {key}"), message)
}
