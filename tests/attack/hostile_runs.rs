//! Hostile runs between honest ones of the same caller, and processes of sandboxes that die while
//! sandboxes are recycled. `JIG_FULL=1` makes 10,000 hostile runs.

use std::sync::atomic::{AtomicBool, Ordering};

use jig::api::v1::Outcome;
use rustix::process::{Pid, Signal, kill_process};

use crate::support::{Daemon, Setup, descendants, eventually, full_size, shell, status_field};

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

/// What hostile commands do. Some leave much, others nothing that the init sees.
const HOSTILE_SCRIPTS: &[&str] = &[
    "touch /tmp/left /dev/shm/left ~/left; mkdir -p /tmp/a/b/c; chmod 777 /tmp ~; ln -s / /tmp/root",
    "(setsid sleep 1000 &) ; (trap '' TERM INT HUP; setsid sleep 1000 &) ; exit 0",
    "kill -9 1; kill -STOP 1; kill -STOP -1; kill -CONT -1; renice -n 19 -p 1; true",
    "umask 0; ulimit -n 10; ulimit -u 1; trap '' TERM; set -f; exec 9>&1; cd /; true",
    "for s in $(seq 64); do kill -$s 1 2>/dev/null; done; true",
    "echo 1000 >/proc/self/oom_score_adj; echo 1 >/proc/1/oom_score_adj; echo x >/proc/1/comm; true",
    "sleep 1000 >/tmp/held & rm /tmp/held; kill -9 $$",
    "ipcmk -M 4096 -p 0666; ipcmk -Q; ipcmk -S 1; true",
    "for p in /proc/[0-9]*; do echo x >$p/mem; echo 7 >$p/autogroup; cat $p/environ; done 2>/dev/null; true",
    "exec 1<&- 2<&-; kill -SEGV $$",
    "mkfifo /tmp/f; (cat /tmp/f &); (cat </dev/zero >/dev/null &); true",
    "cp /bin/true /tmp/sh; PATH=/tmp; chmod 0 /dev/pts /dev/shm; touch -d @1 /tmp /dev/shm ~; true",
    "ulimit -v 100000; x=$(head -c 50000000 /dev/zero | tr '\\0' x); echo ${#x} >/dev/null",
    "setpriority=1; nice -n 5 true; taskset -p 1 $$ >/dev/null; chrt --batch -p 0 $$; ionice -c 3 -p $$; true",
];

fn one_place() -> Setup {
    Setup::new().workspace_table("[limits]\nconcurrent_runs = 1")
}

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
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
    };
    let (successes, ()) = tokio::join!(runs, killer);
    assert!(successes > 0, "some runs are not hit");

    eventually("runs work again", async || {
        daemon.try_run(shell("echo after")).await.is_ok_and(|response| response.stdout == "after\n")
    })
    .await;
}
