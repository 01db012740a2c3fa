//! Repeated calls whose answer was evicted, perhaps together with what they created.

use std::fs;

use jig::api::v1::{SubmitJobRequest, upload_request::Part};
use rusqlite::Connection;
use rustix::process::Signal;
use tonic::Request;

use super::{counted_command, uploads::upload_whole, with_request_id};
use crate::{
    files::transfer::{chunk, resumable_start},
    jobs::{Jobs, command_job},
    support::{Daemon, Refusal, Setup, eventually, wait_timeout},
};

/// Limits that retain few jobs and few answers.
const SMALL_LIMITS_TABLE: &str = "[requests]\nmax_bytes = 20000\n[jobs]\nmax_entries = 5";

/// Runs calls whose large answers evict earlier ones.
async fn evict_answers(daemon: &Daemon) {
    for number in 0..30 {
        let large = counted_command("head -c 2000 /dev/zero | tr '\\0' x");
        daemon.run(with_request_id(&format!("large {number}"), large)).await;
    }
}

fn submission() -> Request<SubmitJobRequest> {
    with_request_id("submission", command_job("echo ran >> job-runs"))
}

/// Submits jobs that evict earlier ones once those have ended.
async fn submit_others(daemon: &Daemon) {
    let mut jobs = Jobs::of(daemon);
    for _ in 0..20 {
        let id = jobs.submit(command_job("true")).await;
        jobs.wait(&id).await;
    }
}

fn job_runs(daemon: &Daemon) -> String {
    fs::read_to_string(daemon.file("job-runs")).unwrap_or_default()
}

/// The messages of a resumable upload with the id `name`.
fn upload_parts(name: &str, text: &str) -> Vec<Part> {
    let start = resumable_start(name, text.as_bytes(), name);
    vec![Part::Start(start), chunk(0, text.as_bytes())]
}

/// Uploads more files than the daemon remembers.
async fn upload_others(daemon: &Daemon) {
    for number in 0..66 {
        let name = format!("other-{number}");
        upload_whole(daemon, &name, upload_parts(&name, "other")).await.unwrap();
    }
}

/// Repeats a call until its outcome is reported as lost. Until then it returns the first answer.
async fn repeat_until_lost<T: PartialEq + std::fmt::Debug>(
    first: T,
    repeat: impl AsyncFn() -> Result<T, Refusal>,
) {
    eventually("the answer is evicted", async || match repeat().await {
        Ok(repeated) => {
            assert_eq!(repeated, first);
            false
        }
        Err(refusal) => {
            assert_eq!(refusal.reason, "DAEMON_LOST", "{refusal:?}");
            true
        }
    })
    .await;
}

/// Kills the daemon, and removes its stored answer to a call, as if it had died before storing it.
async fn crash_before_answer(mut daemon: Daemon, id: &str) -> Daemon {
    daemon.signal(Signal::KILL);
    daemon.wait_for_exit().await;
    let database = Connection::open(daemon.state_dir().join("jig.db")).unwrap();
    database.busy_timeout(wait_timeout()).unwrap();
    let sql = "UPDATE request SET answer = NULL, answer_bytes = 0, ended_ms = NULL WHERE id = ?1";
    assert_eq!(database.execute(sql, [id]).unwrap(), 1);
    drop(database);
    daemon.restart().await
}

#[tokio::test]
async fn evicted_submission_is_not_repeated() {
    let daemon = Setup::new().workspace_table(SMALL_LIMITS_TABLE).start().await;
    let mut jobs = Jobs::of(&daemon);

    let first = jobs.submit(submission()).await;
    jobs.wait(&first).await;
    submit_others(&daemon).await;
    evict_answers(&daemon).await;
    let repeat = async |daemon: &Daemon| {
        let repeated = Jobs::of(daemon).try_submit(submission()).await;
        repeated.map(|job| job.job_id)
    };
    repeat_until_lost(first.clone(), async || repeat(&daemon).await).await;

    let daemon = daemon.restart().await;
    assert_eq!(repeat(&daemon).await.unwrap_err().reason, "DAEMON_LOST");
    assert_eq!(job_runs(&daemon), "ran\n");
}

#[tokio::test]
async fn unanswered_submission_is_not_repeated() {
    let daemon = Setup::new().workspace_table(SMALL_LIMITS_TABLE).start().await;
    let mut jobs = Jobs::of(&daemon);

    let first = jobs.submit(submission()).await;
    jobs.wait(&first).await;
    let daemon = crash_before_answer(daemon, "submission").await;

    // As long as the job is stored, it is the answer.
    assert_eq!(Jobs::of(&daemon).submit(submission()).await, first);

    let daemon = crash_before_answer(daemon, "submission").await;
    submit_others(&daemon).await;
    eventually("the job is evicted", async || Jobs::of(&daemon).try_get(&first).await.is_err())
        .await;

    let refused = Jobs::of(&daemon).try_submit(submission()).await;
    assert_eq!(refused.unwrap_err().reason, "DAEMON_LOST");
    assert_eq!(job_runs(&daemon), "ran\n");
}

#[tokio::test]
async fn evicted_upload_does_not_overwrite_newer_content() {
    let daemon = Setup::new().workspace_table(SMALL_LIMITS_TABLE).start().await;
    let first = upload_whole(&daemon, "upload", upload_parts("file", "old")).await.unwrap();
    upload_others(&daemon).await;
    evict_answers(&daemon).await;
    fs::write(daemon.file("file"), "NEW WORK").unwrap();
    let repeat = async || upload_whole(&daemon, "upload", upload_parts("file", "old")).await;
    repeat_until_lost(first, repeat).await;
    assert_eq!(fs::read_to_string(daemon.file("file")).unwrap(), "NEW WORK");
}

#[tokio::test]
async fn unanswered_upload_does_not_overwrite_newer_content() {
    let daemon = Setup::new().workspace_table(SMALL_LIMITS_TABLE).start().await;

    let first = upload_whole(&daemon, "upload", upload_parts("file", "old")).await.unwrap();
    let daemon = crash_before_answer(daemon, "upload").await;
    fs::write(daemon.file("file"), "NEW WORK").unwrap();

    // As long as the upload is stored, it is the answer.
    let repeated = upload_whole(&daemon, "upload", upload_parts("file", "old")).await.unwrap();
    assert_eq!(repeated.created, first.created);
    assert_eq!(repeated.received_bytes, 0);

    let daemon = crash_before_answer(daemon, "upload").await;
    upload_others(&daemon).await;
    let refusal = upload_whole(&daemon, "upload", upload_parts("file", "old")).await;
    assert_eq!(refusal.unwrap_err().reason, "DAEMON_LOST");
    assert_eq!(fs::read_to_string(daemon.file("file")).unwrap(), "NEW WORK");
}

#[tokio::test]
async fn fixed_state_directory_frees_rejected_request_id() {
    let daemon = Daemon::start().await;

    let directory = daemon.state_dir().join("jobs");
    fs::write(&directory, "").unwrap();
    for _ in 0..2 {
        let refused = Jobs::of(&daemon).try_submit(submission()).await;
        let refusal = refused.unwrap_err();
        assert_eq!(refusal.reason, "STATE_LOST");
        assert!(refusal.message.contains("nothing was started"), "{refusal:?}");
    }

    fs::remove_file(&directory).unwrap();
    let mut jobs = Jobs::of(&daemon);
    let id = jobs.submit(submission()).await;
    jobs.wait(&id).await;

    assert_eq!(job_runs(&daemon), "ran\n");
}
