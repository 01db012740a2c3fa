//! Rows of jobs in PostgreSQL that name no workspace, old rows, and databases that cannot have any.

use jig::api::v1::{CancelJobRequest, JobState, SubmitJobRequest};
use prost::Message as _;
use rustix::process::Signal;

use super::{
    COUNTED_WAIT,
    plain_client::MAX_FLEET_TIME,
    postgres::{PostgresFleet, effects, go, kill, repeatable, wait_for_effects},
};
use crate::{
    jobs::command_job,
    support::{eventually_within, with_key},
};

impl PostgresFleet {
    /// Inserts a job without a workspace, which is due at a time. Returns its id.
    async fn insert_anywhere(
        &self,
        request_id: &str,
        request: &SubmitJobRequest,
        due: &str,
    ) -> String {
        let client = self.server.connect("ci").await;
        let statement = format!(
            "INSERT INTO jig_jobs (queue, request_id, request, not_before) \
             VALUES ('build', $1, $2, {due}) RETURNING id"
        );
        let body = request.encode_to_vec();
        client.query_one(&statement, &[&request_id, &body]).await.unwrap().get(0)
    }
}

/// Daemons with other workspaces may run it.
#[tokio::test]
async fn row_without_a_workspace_is_not_bound_to_the_first_one() {
    let mut fleet = PostgresFleet::start().await;
    fleet.keys.add_key("slow", "invoke", &["--concurrent-calls", "1"]);
    fleet.queues = fleet.queues.replace("\"ci\"", "\"slow\"");
    fleet.workspace = "other".to_owned();
    let mut first = fleet.start_daemon().await;
    let running = fleet.insert_anywhere("running", &command_job(COUNTED_WAIT), "now()").await;
    wait_for_effects(&first, 1).await;
    let released = fleet.insert_anywhere("released", &command_job(COUNTED_WAIT), "now()").await;
    let claimed = "state = 'claimed' AND workspace = 'other' AND any_workspace";
    eventually_within(MAX_FLEET_TIME, "both are claimed", async || {
        fleet.server.count(claimed).await == 2
    })
    .await;

    // One is given back.
    fleet.workspace = "main".to_owned();
    let second = fleet.start_daemon_beside(&first).await;
    go(&second);
    first.signal(Signal::TERM);
    fleet.expect_end(&released, "succeeded").await;
    go(&first);
    fleet.expect_end(&running, "succeeded").await;
    assert!(first.wait_for_exit().await.success());
    assert_eq!((effects(&first), effects(&second)), (1, 1));
    assert_eq!(fleet.server.count("workspace = 'main'").await, 1);
}

#[tokio::test]
async fn row_without_a_workspace_outlives_its_daemon() {
    let mut fleet = PostgresFleet::start().await;
    fleet.workspace = "other".to_owned();
    let mut first = fleet.start_daemon().await;
    let once = fleet.insert_anywhere("once", &command_job(COUNTED_WAIT), "now()").await;
    let again = fleet.insert_anywhere("again", &repeatable(COUNTED_WAIT), "now()").await;
    wait_for_effects(&first, 2).await;
    kill(&mut first).await;

    fleet.workspace = "main".to_owned();
    let second = fleet.start_daemon_beside(&first).await;
    go(&second);
    fleet.expect_end(&once, "lost").await;
    assert_eq!(fleet.expect_end(&again, "succeeded").await.attempts, 2);
    assert_eq!(effects(&second), 1);
}

#[tokio::test]
async fn row_without_a_workspace_is_known_before_its_claim() {
    let mut fleet = PostgresFleet::start().await;
    // It takes no jobs before the second daemon does.
    let queues = std::mem::take(&mut fleet.queues);
    let first = fleet.start_daemon().await;
    let mut jobs = fleet.jobs(&first);
    let job = command_job("true");
    let late = fleet.insert_anywhere("late", &job, "now() + interval '1 hour'").await;
    assert_eq!(jobs.try_get(&late).await.unwrap().state(), JobState::Queued);
    let request = with_key(&jobs.key, CancelJobRequest { job_id: late.clone() });
    let cancelled = jobs.client.cancel_job(request).await.unwrap().into_inner().job.unwrap();
    assert_eq!(cancelled.state(), JobState::Cancelled);
    assert_eq!(jobs.try_get(&late).await.unwrap().state(), JobState::Cancelled);

    // Callers in another workspace than that of its claim do not get its result.
    let foreign = fleet.insert_anywhere("foreign", &job, "now()").await;
    assert_eq!(jobs.try_get(&foreign).await.unwrap().state(), JobState::Queued);
    let waited = foreign.clone();
    let waiting = tokio::spawn(async move { jobs.try_wait(&waited).await });
    fleet.queues = queues;
    fleet.workspace = "other".to_owned();
    let second = fleet.start_daemon_beside(&first).await;
    fleet.expect_end(&foreign, "succeeded").await;
    assert_eq!(waiting.await.unwrap().unwrap_err().reason, "JOB_NOT_FOUND");
    assert_eq!(fleet.jobs(&second).wait(&foreign).await.state(), JobState::Succeeded);
}

/// Also at a daemon that takes no jobs.
#[tokio::test]
async fn all_old_rows_are_deleted() {
    let mut fleet = PostgresFleet::start().await;
    let old = "INSERT INTO jig_jobs (queue, request_id, request, state, outcome, result, ended_at) \
        SELECT 'build', 'm-' || n, '', 'ended', 'succeeded', '', \
            now() - CASE WHEN n <= 3 THEN interval '59 minutes' ELSE interval '3 days' END \
        FROM generate_series(1, 12000) AS n";
    fleet.server.connect("postgres").await.batch_execute(old).await.unwrap();
    fleet.settings += "result_retention = \"1h\"\n";
    fleet.queues.clear();
    let _daemon = fleet.start_daemon().await;
    eventually_within(MAX_FLEET_TIME, "old rows are deleted", async || {
        fleet.server.count("true").await == 3
    })
    .await;
}

#[tokio::test]
async fn database_of_another_encoding_gets_no_table() {
    let fleet = PostgresFleet::start().await;
    let create = "CREATE DATABASE ascii ENCODING 'SQL_ASCII' LC_COLLATE 'C' LC_CTYPE 'C' \
        TEMPLATE template0";
    fleet.server.connect("postgres").await.batch_execute(create).await.unwrap();
    let error = fleet.server.run_fleet_script("ascii").unwrap_err();
    assert!(error.contains("SQL_ASCII, and a fleet needs UTF8"), "{error}");
}
