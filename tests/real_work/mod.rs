//! Everyday work of developers and agents in the sandbox, with the programs of the host. Each test
//! runs with a root daemon and with a daemon of an ordinary user.
//!
//! `install.sh` installs missing programs. A program that is missing afterwards is a failure.

mod archives;
mod c;
mod debuggers;
mod git;
mod go;
mod home;
mod java;
mod node;
mod python;
mod rust;
mod shell;
mod terminal;
mod unsupported;

use std::{path::Path, sync::Once};

use jig::api::v1::{RunRequest, RunResponse};

use crate::support::{DAEMON_UID, Daemon, Setup, run_setup_script, shell};

/// Timeout of a script: compilers are slow when many tests share two cores.
const STEP_TIMEOUT_SEC: u32 = 300;
/// Where commands see the host directory of [`Setup::mounting_directory`].
const MOUNTED_DIRECTORY: &str = "/shown";
/// Mounts the directory `JIG_TEST_SHOWN` where the user may read it, and becomes that user.
const MOUNT_AND_BECOME_USER_SCRIPT: &str = r#"
    mount --bind "$JIG_TEST_SHOWN" /mnt
    exec setpriv --reuid="$JIG_TEST_USER" --regid="$JIG_TEST_USER" --clear-groups "$0" "$@"
"#;

/// Defines two tests for each function: with a root daemon, and with a daemon of an ordinary user.
macro_rules! with_each_daemon {
    ($($work:ident),+ $(,)?) => {
        mod root_daemon {
            $(#[tokio::test]
            async fn $work() {
                super::$work($crate::real_work::root_setup()).await;
            })+
        }
        mod user_daemon {
            $(#[tokio::test]
            async fn $work() {
                super::$work($crate::real_work::user_setup()).await;
            })+
        }
    };
}
use with_each_daemon;

/// A root daemon, on a machine with all programs installed.
fn root_setup() -> Setup {
    static INSTALLED: Once = Once::new();
    INSTALLED.call_once(|| run_setup_script("tests/real_work/install.sh"));
    Setup::new()
}

/// A daemon of an ordinary user.
fn user_setup() -> Setup {
    root_setup().user(DAEMON_UID)
}

impl Setup {
    /// Binds a directory of the host read-only at [`MOUNTED_DIRECTORY`]. A daemon of an ordinary
    /// user gets it through a mount, as the path to it may be closed to that user.
    fn mounting_directory(self, directory: &Path) -> Self {
        let directory = directory.to_str().unwrap();
        if self.workspace_uid() == 0 {
            return self.arguments(&["--bind-ro", &format!("{directory}:{MOUNTED_DIRECTORY}")]);
        }

        let wrapper = ["unshare", "--mount", "--propagation", "private", "sh", "-ec"];
        self.environment("JIG_TEST_SHOWN", directory)
            .environment("JIG_TEST_USER", &DAEMON_UID.to_string())
            .wrapped_by(wrapper.into_iter().chain([MOUNT_AND_BECOME_USER_SCRIPT]))
            .wrapper_sets_user()
            .arguments(&["--bind-ro", &format!("/mnt:{MOUNTED_DIRECTORY}")])
    }
}

/// Runs a script, in which every line must succeed. Returns its standard output.
async fn run_script(daemon: &Daemon, script: &str) -> String {
    run_script_with_env(daemon, script, &[]).await
}

/// As [`run_script`], with variables.
async fn run_script_with_env(daemon: &Daemon, script: &str, variables: &[(&str, &str)]) -> String {
    let response = try_script(daemon, script, variables).await;
    assert_eq!(
        response.exit_code,
        Some(0),
        "{:?}\n--- stdout ---\n{}\n--- stderr ---\n{}\n--- script ---\n{script}",
        response.outcome(),
        response.stdout,
        response.stderr,
    );
    response.stdout
}

/// Runs a script up to the first line that fails.
async fn try_script(daemon: &Daemon, script: &str, variables: &[(&str, &str)]) -> RunResponse {
    let variables = variables.iter();
    let env = variables.map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));

    let request = RunRequest {
        timeout_sec: Some(STEP_TIMEOUT_SEC),
        env: env.collect(),
        argv: ["bash", "-euo", "pipefail", "-c", script].map(str::to_owned).to_vec(),
        ..RunRequest::default()
    };
    daemon.run(request).await
}

/// Runs each line as a command. Returns the lines that fail, with their output.
async fn failing_lines(daemon: &Daemon, lines: &str) -> Vec<String> {
    let mut failed = Vec::new();
    for line in lines.lines().map(str::trim).filter(|line| !line.is_empty()) {
        let request = RunRequest { timeout_sec: Some(STEP_TIMEOUT_SEC), ..shell(line) };
        let response = daemon.run(request).await;
        if response.exit_code != Some(0) {
            failed.push(format!("{line}: {}{}", response.stdout, response.stderr));
        }
    }
    failed
}
