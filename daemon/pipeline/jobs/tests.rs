//! Jobs in a log that is kept in memory.

use std::time::SystemTime;

use super::*;
use crate::daemon::store::state_dir::StateDir;

/// A job that nobody has submitted yet.
fn new(jobs: &JobRegistry) -> Job {
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
async fn a_job_that_is_kept_and_not_known_yet_has_not_ended() {
    let folder = tempfile::tempdir().unwrap();
    let state = StateDir::open(folder.path()).unwrap();
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
    let drain = Shutdown::default();
    let jobs = JobRegistry::open(database, state.job_params(), config, false, &drain);
    let jobs = jobs.await.unwrap();
    let job = new(&jobs);
    let id = job.id.clone();
    // As where it is submitted: the log has it, and nobody else knows of it yet.
    let amount = PendingJobsUsage::of_job(2);
    jobs.state().pending_budget.reserve(&job.principal, amount).unwrap();
    let submits = jobs.submit_lock.read().await;
    jobs.log.insert(job.clone()).await.unwrap();
    let known = async {
        // By then, it is looked for.
        while jobs.submit_lock.try_read().is_ok() {
            tokio::task::yield_now().await;
        }
        jobs.state().add(job, amount);
        drop(submits);
    };
    let (found, ()) = tokio::join!(jobs.find("w", &id), known);
    let LiveOrEndedJob::Live(live) = found.unwrap() else {
        panic!("it has ended");
    };
    jobs.cancel(&live).await;
    assert_eq!(live.snapshot().job.state, JobState::Cancelled);
    assert!(matches!(jobs.find("w", &id).await.unwrap(), LiveOrEndedJob::Ended(_)));
}
