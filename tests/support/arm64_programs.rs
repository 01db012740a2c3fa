//! Builds of this package for the arm64 processor of a virtual machine.

use std::{
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use serde_json::Value;

/// Programs of this package for arm64, by their paths.
#[derive(Debug)]
pub(crate) struct Arm64Programs {
    pub(crate) client: PathBuf,
    daemon: PathBuf,
    pub(crate) unit_tests: PathBuf,
    pub(crate) integration_tests: PathBuf,
}

impl Arm64Programs {
    /// Compiles the programs without linking them.
    pub(crate) fn check() {
        run_cargo(&["check", "--bins"]);
    }

    /// Builds the programs and the tests.
    pub(crate) fn build() -> Self {
        let built = run_cargo(&["test", "--no-run", "--lib", "--test", "integration"]);
        Self {
            client: built.find("jig", "bin"),
            daemon: built.find("jigd", "bin"),
            unit_tests: built.find("jig", "lib"),
            integration_tests: built.find("integration", "test"),
        }
    }

    pub(super) fn paths(&self) -> [PathBuf; 4] {
        let Self { client, daemon, unit_tests, integration_tests } = self;
        [client, daemon, unit_tests, integration_tests].map(PathBuf::clone)
    }
}

/// The messages of cargo.
struct Built(Vec<Value>);

impl Built {
    /// The program of a target of this package.
    fn find(&self, name: &str, kind: &str) -> PathBuf {
        let message = self.0.iter().find(|message| {
            message["executable"].is_string()
                && message["target"]["name"] == name
                && message["target"]["kind"][0] == kind
        });
        let message = message.unwrap_or_else(|| panic!("cargo has not built {name} ({kind})"));
        PathBuf::from(message["executable"].as_str().unwrap())
    }
}

fn run_cargo(arguments: &[&str]) -> Built {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/kernels/build_arm64.sh");
    let output = Command::new(&script)
        .args(arguments)
        .args(["--message-format=json-render-diagnostics", "--quiet"])
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()
        .unwrap();
    assert!(output.status.success(), "{} failed", script.display());

    let messages = String::from_utf8(output.stdout).unwrap();
    Built(messages.lines().map(|line| serde_json::from_str(line).unwrap()).collect())
}
