//! The processes that make and keep sandboxes die at any moment: nothing outlives the daemon.

use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use crate::support::{
    Daemon, Mark, Process, Setup, argv, descendants, eventually, full_size, host_status,
    of_session, shell,
};

/// Kills one of `names`, whichever is found first, again and again while sandboxes are made, then the
/// daemon.
async fn nothing_outlives(setup: Setup, names: &[&str]) {
    let daemon = setup.start().await;
    let keeper = named(&daemon, "jig-keeper").expect("it lives as long as the daemon");
    let mark = Mark::new();
    let mut runs = Vec::new();
    for round in 0..full_size(300, 30) {
        // Its slot makes the next sandbox when it has ended; another is made instead of it.
        let ended = daemon.begin(shell("true"));
        let running = daemon.begin(mark.on(argv(&["sleep", "1000"])));
        let name = names[round % names.len()];
        let moment = Duration::from_micros(u64::try_from(round * 397 % 9000).unwrap());
        tokio::time::sleep(moment).await;
        if let Some(process) = named(&daemon, name) {
            // It may have died with another.
            let _gone = kill_process(Pid::from_raw(process.pid).unwrap(), Signal::KILL);
        }
        let _lost_or_not = ended.await.unwrap();
        runs.push(running);
    }
    drop(daemon);
    eventually("no process of the daemon's is left", async || of_session(keeper.pid).is_empty())
        .await;
    mark.vanishes().await;
    for run in runs {
        let _lost_or_killed = run.await.unwrap();
    }
}

fn named(daemon: &Daemon, name: &str) -> Option<Process> {
    let has_name = |process: &Process| host_status(process.pid, "Name").as_deref() == Some(name);
    descendants(daemon.pid()).into_iter().find(has_name)
}

#[tokio::test]
async fn at_l3() {
    nothing_outlives(Setup::new(), &["jig-slot", "jig-template", "jig-launcher"]).await;
}

#[tokio::test]
async fn at_l2() {
    let setup = Setup::new().at_l2();
    nothing_outlives(setup, &["jig-slot", "jig-template", "jig-launcher"]).await;
}

#[tokio::test]
async fn at_l1() {
    let setup = Setup::new().at_l1();
    nothing_outlives(setup, &["jig-slot", "jig-template", "jig-slot"]).await;
}
