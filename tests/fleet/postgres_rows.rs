//! Rows of jobs in PostgreSQL: those that name no workspace, that callers cancel, that are old, and
//! those of dead or restarted daemons. Databases that cannot have any, or have them elsewhere.

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
    telemetry::metrics::{metrics_address, scrape},
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

    /// Claims a job for the daemon that has claimed another one.
    async fn claim_like(&self, claimed: &str, id: &str) {
        let claim = format!(
            "UPDATE jig_jobs SET (state, claimed_by, claimed_start, claimed_at, lease_until, attempts) = \
             (SELECT state, claimed_by, claimed_start, now(), now() + interval '3 seconds', 1 \
              FROM jig_jobs WHERE id = '{claimed}') WHERE id = '{id}'"
        );
        self.server.connect("postgres").await.batch_execute(&claim).await.unwrap();
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

#[tokio::test]
async fn claims_of_a_dead_daemon_end_without_another_one_of_its_workspace() {
    let mut fleet = PostgresFleet::start().await;
    let mut first = fleet.start_daemon().await;
    let once = fleet.server.insert("once", &command_job(COUNTED_WAIT)).await;
    let again = fleet.server.insert("again", &repeatable(COUNTED_WAIT)).await;
    wait_for_effects(&first, 2).await;
    kill(&mut first).await;

    fleet.workspace = "other".to_owned();
    let second = fleet.start_daemon_beside(&first).await;
    fleet.expect_end(&once, "lost").await;
    eventually_within(MAX_FLEET_TIME, "the other one waits for a daemon", async || {
        fleet.server.job(&again).await.state == "queued"
    })
    .await;
    go(&first);
    let first = first.restart().await;
    assert_eq!(fleet.expect_end(&again, "succeeded").await.attempts, 2);
    assert_eq!((effects(&first), effects(&second)), (3, 0));
}

#[tokio::test]
async fn running_job_is_cancelled_at_another_daemon() {
    let fleet = PostgresFleet::start().await;
    let first = fleet.start_daemon().await;
    let running = fleet.server.insert("running", &command_job(COUNTED_WAIT)).await;
    wait_for_effects(&first, 1).await;
    let second = fleet.start_daemon_beside(&first).await;
    let mut jobs = fleet.jobs(&second);
    let request = with_key(&jobs.key, CancelJobRequest { job_id: running.clone() });
    assert_eq!(jobs.try_get(&running).await.unwrap().principal, "key:ci");
    let cancelled = jobs.client.cancel_job(request).await.unwrap().into_inner().job.unwrap();
    assert_eq!(cancelled.state(), JobState::Cancelled);
    assert_eq!(fleet.expect_end(&running, "cancelled").await.attempts, 1);
}

/// The claims that have no place are kept.
#[tokio::test]
async fn restarted_daemon_with_fewer_places_loses_no_job() {
    let mut fleet = PostgresFleet::start().await;
    fleet.keys.add_key("slow", "invoke", &["--concurrent-calls", "1"]);
    fleet.queues = fleet.queues.replace("\"ci\"", "\"slow\"");
    let mut first = fleet.start_daemon().await;
    let mut ids = Vec::new();
    for number in 0..4 {
        let job = SubmitJobRequest { retry_if_lost: number == 0, ..command_job(COUNTED_WAIT) };
        ids.push(fleet.server.insert(&format!("m-{number}"), &job).await);
        wait_for_effects(&first, 1).await;
    }
    eventually_within(MAX_FLEET_TIME, "the daemon has claimed all jobs", async || {
        fleet.server.count("state = 'claimed'").await == 4
    })
    .await;
    // The daemon dies before it stores the job of a claim.
    kill(&mut first).await;
    let not_begun = fleet.server.insert("not-begun", &command_job(COUNTED_WAIT)).await;
    fleet.claim_like(&ids[1], &not_begun).await;
    ids.push(not_begun);

    fleet.queues = fleet.queues.replace("places = 4", "places = 1");
    let first = first.restart_with(|setup| setup.workspace_table(&fleet.table())).await;
    let second = fleet.start_daemon_beside(&first).await;
    go(&second);
    // All leases would have ended.
    let resumed = "state = 'claimed' AND lease_until > claimed_at + interval '15 seconds'";
    eventually_within(MAX_FLEET_TIME, "the leases are renewed", async || {
        fleet.server.count(resumed).await >= 4
    })
    .await;
    go(&first);
    for id in &ids {
        fleet.expect_end(id, "succeeded").await;
    }
}

/// The answer to a claim can be lost, or the claim can be made after the daemon has given it up.
#[tokio::test]
async fn claim_that_its_daemon_does_not_know_is_taken_up() {
    let fleet = PostgresFleet::start().await;
    let reject = "CREATE FUNCTION reject() RETURNS trigger LANGUAGE plpgsql AS \
            $$ BEGIN RAISE EXCEPTION 'the job may have begun'; END $$; \
        CREATE TRIGGER reject BEFORE UPDATE ON jig_jobs FOR EACH ROW \
            WHEN (old.state = 'claimed' AND new.state = 'queued') EXECUTE FUNCTION reject()";
    let operator = fleet.server.connect("postgres").await;
    operator.batch_execute(reject).await.unwrap();
    let daemon = fleet.start_daemon().await;
    let running = fleet.server.insert("running", &command_job(COUNTED_WAIT)).await;
    wait_for_effects(&daemon, 1).await;
    let job = command_job("true");
    let unknown = fleet.insert_anywhere("unknown", &job, "now() + interval '1 hour'").await;
    operator.batch_execute("UPDATE jig_jobs SET workspace = 'main'").await.unwrap();
    fleet.claim_like(&running, &unknown).await;
    assert_eq!(fleet.expect_end(&unknown, "succeeded").await.attempts, 1);
    go(&daemon);
    fleet.expect_end(&running, "succeeded").await;
}

/// Its daemon stood still for longer than the lease.
#[tokio::test]
async fn job_that_another_daemon_took_over_does_not_begin() {
    let mut fleet = PostgresFleet::start().await;
    fleet.keys.add_key("slow", "invoke", &["--concurrent-calls", "1"]);
    fleet.queues = fleet.queues.replace("\"ci\"", "\"slow\"");
    let first = fleet.start_daemon().await;
    fleet.server.insert("running", &command_job(COUNTED_WAIT)).await;
    wait_for_effects(&first, 1).await;
    let waiting = fleet.server.insert("waiting", &repeatable(COUNTED_WAIT)).await;
    eventually_within(MAX_FLEET_TIME, "the daemon has claimed both", async || {
        fleet.server.count("state = 'claimed'").await == 2
    })
    .await;

    let mut second = fleet.start_daemon_beside(&first).await;
    go(&second);
    first.signal(Signal::STOP);
    assert_eq!(fleet.expect_end(&waiting, "succeeded").await.attempts, 2);
    second.signal(Signal::TERM);
    assert!(second.wait_for_exit().await.success());
    first.signal(Signal::CONT);
    eventually_within(MAX_FLEET_TIME, "the daemon knows of it", async || {
        first.log().matches("the claim of a fleet job was lost").count() >= 2
    })
    .await;
    go(&first);
    let next = fleet.server.insert("next", &command_job(COUNTED_WAIT)).await;
    fleet.expect_end(&next, "succeeded").await;
    assert_eq!((effects(&first), effects(&second)), (2, 1));
}

#[tokio::test]
async fn metrics_count_the_jobs() {
    let fleet = PostgresFleet::start().await;
    let daemon = fleet.setup().arguments(&["--metrics-listen", "0.0.0.0:0"]).start().await;
    let id = fleet.server.insert("m-1", &command_job("true")).await;
    fleet.expect_end(&id, "succeeded").await;
    let address = metrics_address(&daemon).unwrap();
    eventually_within(MAX_FLEET_TIME, "the metrics have the job", async || {
        let metrics = scrape(&address).await;
        let has = |name: &str, part: &str, value: &str| {
            let mut lines = metrics.lines().filter(|line| line.starts_with(name));
            lines.any(|line| line.contains(part) && line.ends_with(value))
        };
        has("jig_fleet_jobs_total", "\"finished\"", " 1")
            && has("jig_fleet_free_places", "\"build\"", " 4")
            && has("jig_fleet_daemon_id_taken", "", " 0")
    })
    .await;
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
async fn table_of_an_older_version_costs_no_job() {
    let fleet = PostgresFleet::start().await;
    let older = "ALTER TABLE jig_jobs DROP COLUMN cancel_requested, DROP COLUMN approval_id";
    fleet.server.connect("postgres").await.batch_execute(older).await.unwrap();
    let daemon = fleet.start_daemon().await;
    let id = fleet.server.insert("m-1", &command_job("true")).await;
    let hint = "run deploy/postgres/fleet.sql in the database";
    eventually_within(MAX_FLEET_TIME, "the log has the hint", async || daemon.log().contains(hint))
        .await;
    assert_eq!(fleet.server.count("state = 'queued' AND attempts = 0").await, 1);
    fleet.server.run_fleet_script("postgres").unwrap();
    fleet.expect_end(&id, "succeeded").await;
}

/// The options of the URL say where.
#[tokio::test]
async fn table_can_be_in_another_schema() {
    let mut fleet = PostgresFleet::start().await;
    let schema = "CREATE SCHEMA jig; GRANT USAGE ON SCHEMA jig TO jigd, ci; \
        ALTER TABLE jig_jobs SET SCHEMA jig; ALTER ROLE ci SET search_path = jig";
    fleet.server.connect("postgres").await.batch_execute(schema).await.unwrap();
    let url = fleet.server.socket_url();
    let with_options = format!("{url}&options=-csearch_path%3Djig");
    fleet.settings = fleet.settings.replace(&url, &with_options);
    let _daemon = fleet.start_daemon().await;
    let id = fleet.server.insert("m-1", &command_job("true")).await;
    fleet.expect_end(&id, "succeeded").await;
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
