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
mod refused;
mod rust;
mod shell;
mod terminal;

use std::{path::Path, sync::Once};

use jig::api::v1::{RunRequest, RunResponse};

use crate::support::{Daemon, Setup, USER, set_up, shell};

/// Seconds that a step may take: compilers are slow where many tests share two cores.
const PATIENCE_SEC: u32 = 300;
/// Where commands see the directory of the host that a test shows them.
const SHOWN: &str = "/shown";
/// Mounts the directory that `$1` names where the user may look, and becomes that user.
const SHOW: &str = r#"
    mount --bind "$JIG_TEST_SHOWN" /mnt
    exec setpriv --reuid="$JIG_TEST_USER" --regid="$JIG_TEST_USER" --clear-groups "$0" "$@"
"#;

/// Makes two tests of each function: with a daemon of root's, and of an ordinary user's.
macro_rules! with_each_daemon {
    ($($work:ident),+ $(,)?) => {
        mod in_a_daemon_of_roots {
            $(#[tokio::test]
            async fn $work() {
                super::$work($crate::real_work::of_roots()).await;
            })+
        }
        mod in_a_daemon_of_a_users {
            $(#[tokio::test]
            async fn $work() {
                super::$work($crate::real_work::of_a_users()).await;
            })+
        }
    };
}
use with_each_daemon;

/// A daemon of root's, on a machine that has all programs.
fn of_roots() -> Setup {
    static INSTALLED: Once = Once::new();
    INSTALLED.call_once(|| set_up("tests/real_work/install.sh"));
    Setup::new()
}

/// A daemon of an ordinary user's.
fn of_a_users() -> Setup {
    of_roots().user(USER)
}

impl Setup {
    /// Shows commands a directory of the host at [`SHOWN`], read-only. An ordinary user's daemon finds
    /// it elsewhere: the way to it may be closed to that user.
    fn showing(self, directory: &Path) -> Self {
        let directory = directory.to_str().unwrap();
        if self.owner() == 0 {
            return self.arguments(&["--bind-ro", &format!("{directory}:{SHOWN}")]);
        }
        let wrapper = ["unshare", "--mount", "--propagation", "private", "sh", "-ec"];
        self.environment("JIG_TEST_SHOWN", directory)
            .environment("JIG_TEST_USER", &USER.to_string())
            .under(wrapper.into_iter().chain([SHOW]))
            .becoming_its_user_itself()
            .arguments(&["--bind-ro", &format!("/mnt:{SHOWN}")])
    }
}

/// Runs a script, of which every line must succeed. Answers what it wrote to its standard output.
async fn work(daemon: &Daemon, script: &str) -> String {
    work_with(daemon, script, &[]).await
}

/// As [`work`], with variables.
async fn work_with(daemon: &Daemon, script: &str, variables: &[(&str, &str)]) -> String {
    let response = attempt(daemon, script, variables).await;
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
async fn attempt(daemon: &Daemon, script: &str, variables: &[(&str, &str)]) -> RunResponse {
    let variables = variables.iter();
    let env = variables.map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
    let request = RunRequest {
        timeout_sec: Some(PATIENCE_SEC),
        env: env.collect(),
        argv: ["bash", "-euo", "pipefail", "-c", script].map(str::to_owned).to_vec(),
        ..RunRequest::default()
    };
    daemon.run(request).await
}

/// Runs each line by itself. Answers those that fail, with what they wrote.
async fn failures(daemon: &Daemon, lines: &str) -> Vec<String> {
    let mut failed = Vec::new();
    for line in lines.lines().map(str::trim).filter(|line| !line.is_empty()) {
        let response = daemon.run(RunRequest { timeout_sec: Some(PATIENCE_SEC), ..shell(line) });
        let response = response.await;
        if response.exit_code != Some(0) {
            failed.push(format!("{line}: {}{}", response.stdout, response.stderr));
        }
    }
    failed
}
