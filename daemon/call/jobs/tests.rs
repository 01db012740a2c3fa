//! Jobs in a log that is kept in memory.

use std::time::SystemTime;

use super::*;
use crate::daemon::store::state_dir::StateDir;

/// A job that nobody has submitted yet.
fn new(jobs: &Jobs) -> Job {
    Job {
        id: jobs.new_id().to_string(),
        workspace: "w".to_owned(),
        session: "default".to_owned(),
        principal: "uid:0".to_owned(),
        request: None,
        tool: "run".to_owned(),
        queue: "default".to_owned(),
        priority: 0,
        state: JobState::Queued,
        trace: String::new(),
        submitted: SystemTime::now(),
        started: None,
        ended: None,
        step: None,
    }
}

#[tokio::test]
async fn a_job_that_is_kept_and_not_known_yet_has_not_ended() {
    let folder = tempfile::tempdir().unwrap();
    let state = StateDir::open(folder.path()).unwrap();
    let config = config::jobs::Jobs {
        retention: Duration::from_secs(60),
        kept: 10,
        kept_bytes: 1000,
        queued: 10,
        queued_bytes: 1000,
        concurrent: 1,
        queue_concurrency: 1,
        queues: Default::default(),
    };
    let database = Database::in_memory().unwrap();
    let drain = Drain::default();
    let jobs = Jobs::open(database, state.job_params(), config, false, &drain);
    let jobs = jobs.await.unwrap();
    let job = new(&jobs);
    let id = job.id.clone();
    let mut submit = Box::pin(jobs.submit(job, b"{}".to_vec(), None));
    // Until the log has it; who submits it does not know that yet.
    while jobs
        .log
        .find("w".to_owned(), id.clone())
        .await
        .unwrap()
        .is_none()
    {
        let step = std::future::poll_fn(|context| {
            std::task::Poll::Ready(submit.as_mut().poll(context).is_ready())
        });
        assert!(!step.await, "it was not kept");
    }
    let (found, submitted) = tokio::join!(jobs.find("w", &id), submit);
    submitted.unwrap();
    let Found::Live(live) = found.unwrap() else {
        panic!("it has ended");
    };
    jobs.cancel(&live).await;
    assert_eq!(live.seen().job.state, JobState::Cancelled);
    assert!(matches!(
        jobs.find("w", &id).await.unwrap(),
        Found::Ended(_)
    ));
}
