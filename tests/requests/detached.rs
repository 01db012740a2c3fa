//! Callers that disconnect, and return with the same request id.

use jig::api::v1::Outcome;
use tonic::{Code, Request, Status};

use super::{WAIT_FOR_GO_FILE, counted_command, run_count, with_request_id};
use crate::support::{Daemon, Mark, Setup, eventually, promptly, start_request};

/// Work without a waiting caller continues only briefly.
const SHORT_DETACHED_TIMEOUT: &str = "[requests]\ndetached_timeout = \"200ms\"";

fn set_grpc_timeout<T>(request: &mut Request<T>, timeout: &str) {
    let timeout = timeout.parse().unwrap();
    request.metadata_mut().insert("grpc-timeout", timeout);
}

/// Whether a call ended at its deadline. The local client may report it before the daemon.
fn is_timeout(status: &Status) -> bool {
    [Code::DeadlineExceeded, Code::Cancelled].contains(&status.code())
}

#[tokio::test]
async fn detached_work_continues_and_answers_returning_caller() {
    let daemon = Daemon::start().await;

    let request = || {
        with_request_id("id", counted_command("until [ -e go ]; do sleep 0.01; done; echo done"))
    };
    let run = daemon.spawn_run(request());
    eventually("the command runs", async || run_count(&daemon) == 1).await;

    run.abort();
    assert!(run.await.is_err());

    let repeated = daemon.spawn_run(request());
    std::fs::write(daemon.file("go"), "").unwrap();
    let answer = promptly("the daemon answers", repeated).await.unwrap().unwrap();
    assert!(answer.stdout.ends_with("done\n"));
    assert_eq!(run_count(&daemon), 1);
}

#[tokio::test]
async fn work_without_callers_is_cancelled_after_timeout() {
    let daemon = Setup::new().workspace_table(SHORT_DETACHED_TIMEOUT).start().await;
    let mark = Mark::new();

    let request = || with_request_id("id", mark.on(counted_command("sleep 1000; true")));
    let run = daemon.spawn_run(request());
    eventually("the command runs", async || run_count(&daemon) == 1).await;

    run.abort();
    mark.wait_until_gone().await;

    let answer = promptly("the daemon answers", daemon.run(request())).await;
    assert_eq!(answer.outcome(), Outcome::Cancelled);
    assert_eq!(run_count(&daemon), 1);
}

#[tokio::test]
async fn deadline_of_one_caller_does_not_cancel_work() {
    let daemon = Daemon::start().await;

    let request = || with_request_id("id", counted_command(WAIT_FOR_GO_FILE));
    let without_deadline = daemon.spawn_run(request());
    eventually("the command runs", async || run_count(&daemon) == 1).await;

    let mut with_deadline = request();
    set_grpc_timeout(&mut with_deadline, "50m");
    let refused = daemon.try_run(with_deadline).await.unwrap_err();
    assert!(is_timeout(&refused), "{refused}");

    std::fs::write(daemon.file("go"), "").unwrap();
    assert_eq!(without_deadline.await.unwrap().unwrap().exit_code, Some(0));
}

#[tokio::test]
async fn deadline_of_first_caller_does_not_cancel_work() {
    let daemon = Daemon::start().await;

    let request = || with_request_id("id", counted_command(WAIT_FOR_GO_FILE));
    let mut with_deadline = request();
    set_grpc_timeout(&mut with_deadline, "1S");
    let refused = daemon.try_run(with_deadline).await.unwrap_err();
    assert!(is_timeout(&refused), "{refused}");

    std::fs::write(daemon.file("go"), "").unwrap();
    assert_eq!(daemon.run(request()).await.exit_code, Some(0));
    assert_eq!(run_count(&daemon), 1);
}

#[tokio::test]
async fn process_without_readers_is_cancelled_after_timeout() {
    let daemon = Setup::new().workspace_table(SHORT_DETACHED_TIMEOUT).start().await;
    let mark = Mark::new();

    let request =
        || with_request_id("id", start_request(mark.on(counted_command("sleep 1000; true"))));
    let first = daemon.start_process(request()).await;
    eventually("the command runs", async || run_count(&daemon) == 1).await;

    drop(first);
    mark.wait_until_gone().await;

    let mut second = daemon.start_process(request()).await;
    assert_eq!(second.wait_for_exit().await.outcome(), Outcome::Cancelled);

    let daemon = Daemon::start().await;
    let request = || with_request_id("id", start_request(counted_command(WAIT_FOR_GO_FILE)));
    let first = daemon.start_process(request()).await;
    eventually("the command runs", async || run_count(&daemon) == 1).await;

    drop(first);
    let mut second = daemon.start_process(request()).await;
    std::fs::write(daemon.file("go"), "").unwrap();
    assert_eq!(second.wait_for_exit().await.exit_code, Some(0));
}

#[tokio::test]
async fn draining_daemon_completes_work_with_request_id() {
    let mut daemon = Daemon::start().await;

    let request = || with_request_id("id", counted_command(WAIT_FOR_GO_FILE));
    let run = daemon.spawn_run(request());
    eventually("the command runs", async || run_count(&daemon) == 1).await;

    daemon.signal(rustix::process::Signal::TERM);
    std::fs::write(daemon.file("go"), "").unwrap();
    let answer = run.await.unwrap().unwrap();
    assert!(daemon.wait_for_exit().await.success());

    let daemon = daemon.restart().await;
    assert_eq!(daemon.run(request()).await, answer);
}
