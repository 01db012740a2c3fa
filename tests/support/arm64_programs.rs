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
    /// The integration tests and what they execute.
    pub(crate) tests: Option<Arm64Tests>,
}

#[derive(Debug)]
pub(crate) struct Arm64Tests {
    pub(crate) integration: PathBuf,
    pub(crate) unit: PathBuf,
    daemon: PathBuf,
}

impl Arm64Programs {
    /// Builds the program alone. If nothing has changed, that takes a second.
    pub(crate) fn build() -> Self {
        let built = run_cargo(&["build", "--bin", "jig"]);
        Self { client: built.find("jig", "bin"), tests: None }
    }

    /// Builds the programs and the tests.
    pub(crate) fn build_with_tests() -> Self {
        let built = run_cargo(&["test", "--no-run", "--lib", "--test", "integration"]);
        let tests = Arm64Tests {
            integration: built.find("integration", "test"),
            unit: built.find("jig", "lib"),
            daemon: built.find("jigd", "bin"),
        };
        Self { client: built.find("jig", "bin"), tests: Some(tests) }
    }

    pub(super) fn paths(&self) -> Vec<&Path> {
        let tests = self.tests.iter();
        let tests = tests.flat_map(|tests| [&tests.integration, &tests.unit, &tests.daemon]);
        [&self.client].into_iter().chain(tests).map(PathBuf::as_path).collect()
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
