//! Tests of the job registry with a database in memory.

use std::time::{Duration, SystemTime};

use super::*;
use crate::daemon::store::state_dir::StateDir;

/// Creates a job that is not submitted yet.
fn new_job(jobs: &JobRegistry) -> Job {
    Job {
        id: jobs.new_id().to_string(),
        workspace: "w".to_owned(),
        session: "default".to_owned(),
        principal: "uid:0".to_owned(),
        request_id: None,
        dialect: String::new(),
        model_call_id: String::new(),
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
async fn job_during_its_submission_is_found_live() {
    let dir = tempfile::tempdir().unwrap();
    let state = StateDir::open(dir.path()).unwrap();
    let config = config::jobs::JobsConfig {
        retention: Duration::from_secs(60),
        max_entries: 10,
        max_bytes: 1000,
        max_queued: 10,
        max_queued_bytes: 1000,
        concurrency: 1,
        queue_concurrency: 1,
        queues: Default::default(),
    };

    let database = Database::in_memory().unwrap();
    let shutdown = Shutdown::default();
    let jobs =
        JobRegistry::open(database, state.job_params(), config, false, &shutdown).await.unwrap();
    let job = new_job(&jobs);
    let id = job.id.clone();

    // The state during a submission: the database has the job, memory not yet.
    let amount = PendingJobsUsage::of_job(2);
    jobs.state().pending_budget.reserve(&job.principal, amount).unwrap();
    let submitting = jobs.submit_lock.read().await;
    jobs.table.insert(job.clone()).await.unwrap();
    let submission = async {
        // `find` waits for the lock by then.
        while jobs.submit_lock.try_read().is_ok() {
            tokio::task::yield_now().await;
        }
        jobs.state().add(job, amount);
        drop(submitting);
    };

    let (found, ()) = tokio::join!(jobs.find("w", &id), submission);
    let LiveOrEndedJob::Live(handle) = found.unwrap() else {
        panic!("the job has ended");
    };

    jobs.cancel(&handle).await;
    assert_eq!(handle.snapshot().job.state, JobState::Cancelled);
    assert!(matches!(jobs.find("w", &id).await.unwrap(), LiveOrEndedJob::Ended(_)));
}
