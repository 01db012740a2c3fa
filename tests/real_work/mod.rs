//! Real work in the sandbox: what developers and agents run every day, with the programs of the
//! host, each in a daemon of root's and in one of an ordinary user's.
//!
//! `install.sh` puts there what a machine may lack. A program that is missing after it is a failure.

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

/// Seconds that a step may take: compilers are slow where many tests share two cores.
const STEP_TIMEOUT_SEC: u32 = 300;
/// Where commands see the directory of the host that a test shows them.
const MOUNTED_DIRECTORY: &str = "/shown";
/// Mounts the directory that `$1` names where the user may look, and becomes that user.
const MOUNT_AND_BECOME_USER_SCRIPT: &str = r#"
    mount --bind "$JIG_TEST_SHOWN" /mnt
    exec setpriv --reuid="$JIG_TEST_USER" --regid="$JIG_TEST_USER" --clear-groups "$0" "$@"
"#;

/// Makes two tests of each function: with a daemon of root's, and of an ordinary user's.
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

/// A daemon of root's, on a machine that has all programs.
fn root_setup() -> Setup {
    static INSTALLED: Once = Once::new();
    INSTALLED.call_once(|| run_setup_script("tests/real_work/install.sh"));
    Setup::new()
}

/// A daemon of an ordinary user's.
fn user_setup() -> Setup {
    root_setup().user(DAEMON_UID)
}

impl Setup {
    /// Shows commands a directory of the host at [`SHOWN`], read-only. An ordinary user's daemon finds
    /// it elsewhere: the way to it may be closed to that user.
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

/// Runs a script, of which every line must succeed. Answers what it wrote to its standard output.
async fn run_script(daemon: &Daemon, script: &str) -> String {
    run_script_with_env(daemon, script, &[]).await
}

/// As [`work`], with variables.
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

/// Runs a script until a line of it fails, whatever becomes of it.
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

/// Runs each line by itself. Answers those that fail, with what they wrote.
async fn failing_lines(daemon: &Daemon, lines: &str) -> Vec<String> {
    let mut failed = Vec::new();
    for line in lines.lines().map(str::trim).filter(|line| !line.is_empty()) {
        let response =
            daemon.run(RunRequest { timeout_sec: Some(STEP_TIMEOUT_SEC), ..shell(line) });
        let response = response.await;
        if response.exit_code != Some(0) {
            failed.push(format!("{line}: {}{}", response.stdout, response.stderr));
        }
    }
    failed
}
