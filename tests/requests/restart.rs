//! Calls repeated after the daemon has died.

use jig::api::v1::Outcome;
use tonic::Response;

use super::{counted_command, run_count, run_counted, with_request_id};
use crate::support::{Daemon, Mark, Refusal, eventually, start_request};

#[tokio::test]
async fn answer_survives_restart() {
    let daemon = Daemon::start().await;
    let first = run_counted(&daemon, "id").await;
    let daemon = daemon.restart().await;
    assert_eq!(run_counted(&daemon, "id").await, first);
    assert_eq!(run_count(&daemon), 1);
}

#[tokio::test]
async fn run_killed_with_daemon_is_lost_and_not_repeated() {
    let daemon = Daemon::start().await;
    let mark = Mark::new();

    let request = || with_request_id("id", mark.on(counted_command("exec sleep 1000")));
    let run = daemon.spawn_run(request());
    eventually("the command runs", async || run_count(&daemon) == 1).await;

    let daemon = daemon.restart().await;
    assert!(run.await.unwrap().is_err());

    for _ in 0..2 {
        let lost = daemon.run(request()).await;
        assert_eq!(lost.outcome(), Outcome::DaemonLost);
        assert_eq!(lost.exit_code, None);
        assert_eq!(lost.stdout_path, "logs/tool_step_0001_stdout.txt");
    }

    mark.wait_until_gone().await;
    assert_eq!(run_count(&daemon), 1);
}

#[tokio::test]
async fn process_killed_with_daemon_is_lost_and_not_restarted() {
    let daemon = Daemon::start().await;
    let mark = Mark::new();

    let request =
        || with_request_id("id", start_request(mark.on(counted_command("exec sleep 1000"))));
    let watch = daemon.start_process(request()).await;
    eventually("the command runs", async || run_count(&daemon) == 1).await;

    let daemon = daemon.restart().await;
    drop(watch);
    let lost = daemon.try_start_process(request()).await;
    assert_eq!(Refusal::from_status(&lost.unwrap_err()).reason, "DAEMON_LOST");

    mark.wait_until_gone().await;
    assert_eq!(run_count(&daemon), 1);
}

#[tokio::test]
async fn fifty_clients_get_one_answer_after_restart() {
    let daemon = Daemon::start().await;

    let first = run_counted(&daemon, "id").await;
    let daemon = daemon.restart().await;
    let calls: Vec<_> = (0..50)
        .map(|_| {
            let mut tools = daemon.tools_on_new_connection();
            tokio::spawn(async move {
                let answer = tools.run(with_request_id("id", counted_command("exit 3"))).await;
                answer.unwrap().into_inner()
            })
        })
        .collect();

    for call in calls {
        assert_eq!(call.await.unwrap(), first);
    }
    assert_eq!(run_count(&daemon), 1);
}

#[tokio::test]
async fn fifty_clients_get_one_answer_after_daemon_is_killed() {
    // A command killed with the daemon, and one whose answer some clients have received.
    for (rest, has_ended) in [("exec sleep 1000", false), ("exit 3", true)] {
        let daemon = Daemon::start().await;
        let mark = Mark::new();

        let request = || with_request_id("shared", mark.on(counted_command(rest)));
        let begin = |daemon: &Daemon| {
            let calls = (0..50).map(|_| {
                let mut tools = daemon.tools_on_new_connection();
                let request = request();
                tokio::spawn(async move { tools.run(request).await.map(Response::into_inner) })
            });
            calls.collect::<Vec<_>>()
        };
        let calls = begin(&daemon);
        eventually("the command runs", async || run_count(&daemon) == 1).await;

        if has_ended {
            eventually("a client has the answer", async || {
                calls.iter().any(|call| call.is_finished())
            })
            .await;
        }

        let daemon = daemon.restart().await;
        let mut answers = Vec::new();
        for call in calls {
            answers.extend(call.await.unwrap().ok());
        }
        assert_eq!(!answers.is_empty(), has_ended);

        for call in begin(&daemon) {
            answers.push(call.await.unwrap().unwrap());
        }

        answers.dedup();
        assert_eq!(answers.len(), 1, "{answers:?}");

        let is_lost = answers[0].outcome() == Outcome::DaemonLost;
        assert_eq!(is_lost, !has_ended);

        mark.wait_until_gone().await;
        assert_eq!(run_count(&daemon), 1);
    }
}
