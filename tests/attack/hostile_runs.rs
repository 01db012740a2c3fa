//! Hostile runs between honest ones of the same caller, and processes of sandboxes that die while
//! sandboxes are recycled. `JIG_FULL=1` makes 10,000 hostile runs.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use jig::api::v1::Outcome;
use rustix::process::{Pid, Signal, kill_process};
use tokio::time::sleep;

use super::recycled_sandboxes::one_place;
use crate::support::{
    Daemon, HOSTILE_SCRIPTS, Setup, descendants, eventually, full_size, shell, status_field,
};

/// What a command sees of its sandbox and of itself. The limit on processes allows for the template of
/// a shell.
const VIEW: &str = r#"
ls -A /tmp /dev/shm ~
stat -c '%n %a %u %g %h' /tmp /dev/shm ~ /dev/pts /dev/ptmx /dev/null
getfattr -d -m - /tmp /dev/shm ~ 2>/dev/null
cat /proc/sysvipc/*
ls /proc/self/fd
cat /proc/self/oom_score_adj /proc/self/timerslack_ns
umask; ulimit -a | sed 's/^process  *51[2-9]$/process/'; trap; set -o | sort
grep -E '^(Sig|Shd|Cap|Seccomp|NoNew|Threads|Groups|Cpus|Uid|Gid)' /proc/self/status | grep -v SigQ
cat /proc/net/unix /proc/net/sockstat | grep -c .
for p in /proc/[0-9]*; do
  read -r n <$p/comm; case $n in jig-init | jig-shell | sh) ;; *) echo "$n" ;; esac
done
"#;

#[tokio::test]
async fn honest_runs_see_nothing_of_hostile_ones() {
    let daemon = one_place().start().await;
    let expected = daemon.output(shell(VIEW)).await;
    assert!(expected.contains("nofiles") && expected.contains("/tmp 1777"), "{expected}");

    let count = full_size(10_000, 3 * HOSTILE_SCRIPTS.len());
    for (number, script) in HOSTILE_SCRIPTS.iter().cycle().take(count).enumerate() {
        let response = daemon.run(shell(script)).await;
        assert!(
            matches!(response.outcome(), Outcome::Exited | Outcome::Signaled),
            "{script}: {response:?}"
        );
        let seen = daemon.output(shell(VIEW)).await;
        assert_eq!(seen, expected, "after hostile run {number}: {script}");
    }
}

/// The processes of sandboxes, and those that make them. Without the keeper and the launcher, the
/// daemon can build no sandbox.
fn helpers(daemon: &Daemon) -> Vec<i32> {
    let is_helper = |pid: &i32| {
        status_field(*pid, "Name").is_some_and(|name| {
            name.starts_with("jig-") && name != "jig-keeper" && name != "jig-launcher"
        })
    };
    descendants(daemon.pid()).iter().map(|process| process.pid).filter(is_helper).collect()
}

fn kill(pid: i32) {
    // It can have ended since.
    let _gone = kill_process(Pid::from_raw(pid).unwrap(), Signal::KILL);
}

#[tokio::test]
async fn sandboxes_are_built_anew_when_their_processes_die_between_runs() {
    // The template of sandboxes, the slot, the init, the template of the shell, and its copy.
    const HELPERS: usize = 5;
    for index in 0..HELPERS {
        let daemon = one_place().start().await;
        let expected = daemon.output(shell(VIEW)).await;
        eventually("all helpers are there", async || {
            daemon.output(shell("true")).await;
            helpers(&daemon).len() == HELPERS
        })
        .await;
        kill(*helpers(&daemon).get(index).unwrap());

        // The daemon may not know of the death yet.
        eventually("a run is as in a new sandbox", async || {
            daemon.try_run(shell(VIEW)).await.is_ok_and(|response| response.stdout == expected)
        })
        .await;
    }
}

#[tokio::test]
async fn runs_are_right_or_fail_while_processes_of_sandboxes_die() {
    let daemon = Setup::new().start().await;
    let is_done = AtomicBool::new(false);
    let runs = async {
        let mut successes = 0;
        for number in 0..full_size(2000, 100) {
            if let Ok(response) = daemon.try_run(shell(&format!("echo {number}"))).await
                && response.outcome() == Outcome::Exited
            {
                assert_eq!(response.stdout, format!("{number}\n"), "{response:?}");
                successes += 1;
            }
        }
        is_done.store(true, Ordering::Relaxed);
        successes
    };
    let killer = async {
        for index in (0..).map(|number| 7 * number) {
            if is_done.load(Ordering::Relaxed) {
                break;
            }
            let helpers = helpers(&daemon);
            if let Some(pid) = helpers.get(index % helpers.len().max(1)) {
                kill(*pid);
            }
            sleep(Duration::from_millis(20)).await;
        }
    };
    let (successes, ()) = tokio::join!(runs, killer);
    assert!(successes > 0, "some runs are not hit");

    eventually("runs work again", async || {
        daemon.try_run(shell("echo after")).await.is_ok_and(|response| response.stdout == "after\n")
    })
    .await;
}
