//! Calls that are repeated after the daemon has died.

use jig::api::v1::Outcome;

use super::{counted, run, runs, under};
use crate::support::{Daemon, Mark, Refusal, eventually, started};

#[tokio::test]
async fn an_answer_outlives_the_daemon() {
    let daemon = Daemon::start().await;
    let first = run(&daemon, "id").await;
    let daemon = daemon.restart().await;
    assert_eq!(run(&daemon, "id").await, first);
    assert_eq!(runs(&daemon), 1);
}

#[tokio::test]
async fn a_run_that_died_with_the_daemon_is_lost_and_not_repeated() {
    let daemon = Daemon::start().await;
    let mark = Mark::new();
    let request = || under("id", mark.on(counted("exec sleep 1000")));
    let run = daemon.begin(request());
    eventually("it runs", async || runs(&daemon) == 1).await;
    let daemon = daemon.restart().await;
    assert!(run.await.unwrap().is_err());
    for _ in 0..2 {
        let lost = daemon.run(request()).await;
        assert_eq!(lost.outcome(), Outcome::DaemonLost);
        assert_eq!(lost.exit_code, None);
        assert_eq!(lost.stdout_path, "logs/tool_step_0001_stdout.txt");
    }
    mark.vanishes().await;
    assert_eq!(runs(&daemon), 1);
}

#[tokio::test]
async fn a_process_that_died_with_the_daemon_is_lost_and_not_started_again() {
    let daemon = Daemon::start().await;
    let mark = Mark::new();
    let request = || under("id", started(mark.on(counted("exec sleep 1000"))));
    let watch = daemon.watch(request()).await;
    eventually("it runs", async || runs(&daemon) == 1).await;
    let daemon = daemon.restart().await;
    drop(watch);
    let lost = daemon.try_watch(request()).await;
    assert_eq!(Refusal::of(&lost.unwrap_err()).reason, "DAEMON_LOST");
    mark.vanishes().await;
    assert_eq!(runs(&daemon), 1);
}

#[tokio::test]
async fn fifty_clients_get_one_answer_also_after_a_restart() {
    let daemon = Daemon::start().await;
    let first = run(&daemon, "id").await;
    let daemon = daemon.restart().await;
    let calls: Vec<_> = (0..50)
        .map(|_| {
            let mut tools = daemon.tools_on_a_new_connection();
            tokio::spawn(async move {
                let answer = tools.run(under("id", counted("exit 3"))).await;
                answer.unwrap().into_inner()
            })
        })
        .collect();
    for call in calls {
        assert_eq!(call.await.unwrap(), first);
    }
    assert_eq!(runs(&daemon), 1);
}
