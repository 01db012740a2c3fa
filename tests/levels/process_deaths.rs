//! Deaths of the processes that build and keep sandboxes. No process outlives the daemon.

use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use crate::support::{
    Mark, Setup, argv, eventually, find_descendant, full_size, session_processes, shell,
};

/// Repeatedly kills a process of one of `names`, the first that it finds, while sandboxes are
/// built. Then kills the daemon.
async fn assert_nothing_outlives_daemon(setup: Setup, names: &[&str]) {
    let daemon = setup.start().await;
    let keeper = find_descendant(daemon.pid(), "jig-keeper").expect("the keeper is not running");

    let mark = Mark::new();
    let mut runs = Vec::new();
    for round in 0..full_size(300, 30) {
        // The slot of the short run builds its next sandbox when the run has ended. The sandbox of
        // the long run is replaced by a new one.
        let short_run = daemon.spawn_run(shell("true"));
        let long_run = daemon.spawn_run(mark.on(argv(&["sleep", "1000"])));
        let name = names[round % names.len()];
        let delay = Duration::from_micros(u64::try_from(round * 397 % 9000).unwrap());
        // Kills at another moment of the sandbox in each round.
        tokio::time::sleep(delay).await;

        if let Some(process) = find_descendant(daemon.pid(), name) {
            // The process may have died together with an earlier one.
            let _dead = kill_process(Pid::from_raw(process.pid).unwrap(), Signal::KILL);
        }

        let _lost_or_completed = short_run.await.unwrap();
        runs.push(long_run);
    }

    drop(daemon);
    eventually("all processes of the daemon have ended", async || {
        session_processes(keeper.pid).is_empty()
    })
    .await;
    mark.wait_until_gone().await;

    for run in runs {
        let _lost_or_killed = run.await.unwrap();
    }
}

#[tokio::test]
async fn sandbox_processes_do_not_outlive_the_daemon_at_l3() {
    assert_nothing_outlives_daemon(Setup::new(), &["jig-slot", "jig-template", "jig-launcher"])
        .await;
}

#[tokio::test]
async fn sandbox_processes_do_not_outlive_the_daemon_at_l2() {
    let setup = Setup::new().at_l2();
    assert_nothing_outlives_daemon(setup, &["jig-slot", "jig-template", "jig-launcher"]).await;
}

#[tokio::test]
async fn sandbox_processes_do_not_outlive_the_daemon_at_l1() {
    let setup = Setup::new().at_l1();
    assert_nothing_outlives_daemon(setup, &["jig-slot", "jig-template", "jig-slot"]).await;
}
