//! Callers who leave, and come back.

use jig::api::v1::Outcome;
use tonic::{Code, Request, Status};

use super::{counted, runs, under};
use crate::support::{Daemon, Mark, Setup, eventually, promptly, started};

/// Lets work go on for a short time when nobody waits.
const SHORT: &str = "[requests]\ndetached_timeout = \"200ms\"";

/// Gives a call a deadline.
fn give<T>(request: &mut Request<T>, time: &str) {
    let time = time.parse().unwrap();
    request.metadata_mut().insert("grpc-timeout", time);
}

/// Whether a call ended with its deadline. Our own client may be the first to see it.
fn is_late(refused: &Status) -> bool {
    [Code::DeadlineExceeded, Code::Cancelled].contains(&refused.code())
}

#[tokio::test]
async fn work_goes_on_when_its_caller_has_left_and_answers_who_comes_back() {
    let daemon = Daemon::start().await;
    let request = || under("id", counted("until [ -e go ]; do sleep 0.01; done; echo done"));
    let run = daemon.begin(request());
    eventually("it runs", async || runs(&daemon) == 1).await;
    run.abort();
    assert!(run.await.is_err());
    let again = daemon.begin(request());
    std::fs::write(daemon.file("go"), "").unwrap();
    let answer = promptly("it is answered", again).await.unwrap().unwrap();
    assert!(answer.stdout.ends_with("done\n"));
    assert_eq!(runs(&daemon), 1);
}

#[tokio::test]
async fn work_that_nobody_waits_for_any_more_is_ended() {
    let daemon = Setup::new().workspace_table(SHORT).start().await;
    let mark = Mark::new();
    let request = || under("id", mark.on(counted("sleep 1000; true")));
    let run = daemon.begin(request());
    eventually("it runs", async || runs(&daemon) == 1).await;
    run.abort();
    mark.vanishes().await;
    let answer = promptly("it is answered", daemon.run(request())).await;
    assert_eq!(answer.outcome(), Outcome::Cancelled);
    assert_eq!(runs(&daemon), 1);
}

#[tokio::test]
async fn a_deadline_ends_one_wait() {
    let daemon = Daemon::start().await;
    let request = || under("id", counted("until [ -e go ]; do sleep 0.01; done"));
    let patient = daemon.begin(request());
    eventually("it runs", async || runs(&daemon) == 1).await;
    let mut hurried = request();
    give(&mut hurried, "50m");
    let refused = daemon.try_run(hurried).await.unwrap_err();
    assert!(is_late(&refused), "{refused}");
    std::fs::write(daemon.file("go"), "").unwrap();
    assert_eq!(patient.await.unwrap().unwrap().exit_code, Some(0));
}

#[tokio::test]
async fn the_deadline_of_the_first_ends_its_wait_only() {
    let daemon = Daemon::start().await;
    let request = || under("id", counted("until [ -e go ]; do sleep 0.01; done"));
    let mut hurried = request();
    give(&mut hurried, "1S");
    let refused = daemon.try_run(hurried).await.unwrap_err();
    assert!(is_late(&refused), "{refused}");
    std::fs::write(daemon.file("go"), "").unwrap();
    assert_eq!(daemon.run(request()).await.exit_code, Some(0));
    assert_eq!(runs(&daemon), 1);
}

#[tokio::test]
async fn a_process_waits_a_while_for_its_readers() {
    let daemon = Setup::new().workspace_table(SHORT).start().await;
    let mark = Mark::new();
    let request = || under("id", started(mark.on(counted("sleep 1000; true"))));
    let first = daemon.watch(request()).await;
    eventually("it runs", async || runs(&daemon) == 1).await;
    drop(first);
    mark.vanishes().await;
    let mut again = daemon.watch(request()).await;
    assert_eq!(again.finish().await.outcome(), Outcome::Cancelled);

    let daemon = Daemon::start().await;
    let request = || under("id", started(counted("until [ -e go ]; do sleep 0.01; done")));
    let first = daemon.watch(request()).await;
    eventually("it runs", async || runs(&daemon) == 1).await;
    drop(first);
    let mut again = daemon.watch(request()).await;
    std::fs::write(daemon.file("go"), "").unwrap();
    assert_eq!(again.finish().await.exit_code, Some(0));
}

#[tokio::test]
async fn a_draining_daemon_lets_work_with_an_id_end() {
    let mut daemon = Daemon::start().await;
    let request = || under("id", counted("until [ -e go ]; do sleep 0.01; done"));
    let run = daemon.begin(request());
    eventually("it runs", async || runs(&daemon) == 1).await;
    daemon.signal(rustix::process::Signal::TERM);
    std::fs::write(daemon.file("go"), "").unwrap();
    let answer = run.await.unwrap().unwrap();
    assert!(daemon.exit().await.success());
    let daemon = daemon.restart().await;
    assert_eq!(daemon.run(request()).await, answer);
}
