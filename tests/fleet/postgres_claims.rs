//! Claims of rows in PostgreSQL that callers cancel, and those of dead or superseded daemons.

use std::time::Duration;

use jig::api::v1::{JobState, SubmitJobRequest};
use prost::Message as _;
use rustix::process::Signal;
use tokio::task::JoinSet;

use super::{
    COUNTED_WAIT,
    capacity::queues_with_slots,
    plain_client::{MAX_FLEET_TIME, fleet_job_id},
    postgres::{PostgresFleet, effects, go, kill, repeatable, wait_for_effects},
};
use crate::{
    jobs::{command_job, start_blocked::wait_for_pending_approvals_with_key},
    support::{Daemon, eventually_within},
};

/// Starts a daemon that runs a job, and one where its repetition would end. Returns them, and the id of
/// the job.
async fn start_pair(fleet: &PostgresFleet) -> (Daemon, Daemon, String) {
    let first = fleet.start_daemon().await;
    let id = fleet.server.insert("m-1", &repeatable(COUNTED_WAIT)).await;
    wait_for_effects(&first, 1).await;
    let second = fleet.start_daemon_beside(&first).await;
    go(&second);
    (first, second, id)
}

impl PostgresFleet {
    /// Starts a daemon, and kills it when it has ended a job. Returns the id of the job.
    pub(super) async fn start_dead_daemon(&self) -> (Daemon, String) {
        let mut daemon = self.start_daemon().await;
        let known = self.server.insert("known", &command_job("true")).await;
        self.expect_end(&known, "succeeded").await;
        kill(&mut daemon).await;
        (daemon, known)
    }

    /// Inserts jobs that the daemon of another one has claimed, before it died and stored them.
    pub(super) async fn insert_claims_of(
        &self,
        known: &str,
        names: &[&str],
        request: &SubmitJobRequest,
    ) {
        let insert = "INSERT INTO jig_jobs (queue, workspace, request_id, request) \
            SELECT 'build', 'main', name, $1 FROM unnest($2::text[]) AS name";
        let claim = "UPDATE jig_jobs AS job SET state = 'claimed', claimed_by = known.claimed_by, \
            claimed_start = known.claimed_start, claimed_at = now(), attempts = 1, \
            lease_until = now() + interval '6 seconds' \
            FROM jig_jobs AS known WHERE known.id = $1 AND job.request_id = ANY($2)";
        let mut client = self.server.connect("postgres").await;
        let transaction = client.transaction().await.unwrap();
        transaction.execute(insert, &[&request.encode_to_vec(), &names]).await.unwrap();
        transaction.execute(claim, &[&known, &names]).await.unwrap();
        transaction.commit().await.unwrap();
    }
}

#[tokio::test]
async fn cancelled_job_of_a_dead_daemon_does_not_run_again() {
    let fleet = PostgresFleet::start().await;
    let (mut first, second, id) = start_pair(&fleet).await;

    // The first daemon does not hear of the cancellation.
    first.signal(Signal::STOP);
    let mut jobs = fleet.jobs(&second);
    let job_id = id.clone();
    let cancelling = tokio::spawn(async move { jobs.try_cancel(&job_id).await });
    eventually_within(MAX_FLEET_TIME, "the row has the cancellation", async || {
        fleet.server.count("cancel_requested").await == 1
    })
    .await;
    kill(&mut first).await;
    // It had begun. How far it came is unknown.
    fleet.expect_end(&id, "lost").await;
    assert_eq!((effects(&first), effects(&second)), (1, 0));
    cancelling.abort();
}

#[tokio::test]
async fn job_that_is_cancelled_during_a_drain_is_not_given_back() {
    let fleet = PostgresFleet::start().await;
    let (mut first, second, id) = start_pair(&fleet).await;

    first.signal(Signal::TERM);
    eventually_within(MAX_FLEET_TIME, "the daemon drains", async || !first.socket().exists()).await;
    let cancelled = fleet.jobs(&second).try_cancel(&id).await.unwrap();
    assert_eq!(cancelled.state(), JobState::Cancelled);
    assert_eq!(fleet.expect_end(&id, "cancelled").await.attempts, 1);
    assert!(first.wait_for_exit().await.success());
    assert_eq!((effects(&first), effects(&second)), (1, 0));
}

#[tokio::test]
async fn queues_of_a_daemon_do_not_claim_rows_for_the_same_slot() {
    let mut fleet = PostgresFleet::start().await;
    let names = ["build", "q-1", "q-2"];
    fleet.queues = queues_with_slots(&names, 1);
    let insert = "INSERT INTO jig_jobs (queue, workspace, request_id, request) \
        SELECT name, 'main', 'm', $1 FROM unnest($2::text[]) AS name";
    let body = command_job(COUNTED_WAIT).encode_to_vec();
    fleet.server.connect("ci").await.execute(insert, &[&body, &&names[..]]).await.unwrap();
    let first = fleet.start_daemon().await;
    wait_for_effects(&first, 1).await;
    let second = fleet.start_daemon_beside(&first).await;
    let third = fleet.start_daemon_beside(&first).await;
    for daemon in [&second, &third] {
        wait_for_effects(daemon, 1).await;
    }
    for daemon in [&first, &second, &third] {
        go(daemon);
    }
    eventually_within(MAX_FLEET_TIME, "all jobs have ended", async || {
        fleet.server.count("outcome = 'succeeded'").await == 3
    })
    .await;
}

#[tokio::test]
async fn claims_of_a_dead_daemon_end_although_the_other_has_no_free_place() {
    let mut fleet = PostgresFleet::start().await;
    fleet.queues = fleet.queues.replace("places = 4", "places = 2");
    let mut first = fleet.start_daemon().await;
    let once = fleet.server.insert("once", &command_job(COUNTED_WAIT)).await;
    let again = fleet.server.insert("again", &repeatable(COUNTED_WAIT)).await;
    wait_for_effects(&first, 2).await;
    fleet.queues = fleet.queues.replace("places = 2", "places = 1");
    let second = fleet.start_daemon_beside(&first).await;
    let running = fleet.server.insert("running", &command_job(COUNTED_WAIT)).await;
    wait_for_effects(&second, 1).await;

    kill(&mut first).await;
    fleet.expect_end(&once, "lost").await;
    eventually_within(MAX_FLEET_TIME, "the other one waits for a place", async || {
        fleet.server.job(&again).await.state == "queued"
    })
    .await;
    assert_eq!(fleet.server.job(&running).await.state, "claimed");
    go(&second);
    assert_eq!(fleet.expect_end(&again, "succeeded").await.attempts, 2);
    fleet.expect_end(&running, "succeeded").await;
    assert_eq!(effects(&second), 2);
}

#[tokio::test]
async fn claims_of_a_dead_daemon_end_without_another_one_of_their_queue() {
    let mut fleet = PostgresFleet::start().await;
    let mut first = fleet.start_daemon().await;
    let once = fleet.server.insert("once", &command_job(COUNTED_WAIT)).await;
    let again = fleet.server.insert("again", &repeatable(COUNTED_WAIT)).await;
    wait_for_effects(&first, 2).await;
    // It submits and waits.
    fleet.queues.clear();
    let second = fleet.start_daemon_beside(&first).await;

    kill(&mut first).await;
    let lost = fleet.jobs(&second).wait(&once).await;
    assert_eq!(lost.state(), JobState::Lost);
    go(&first);
    let first = first.restart().await;
    assert_eq!(fleet.expect_end(&again, "succeeded").await.attempts, 2);
    assert_eq!(effects(&first), 3);
}

/// The database rejects the first report.
#[tokio::test]
async fn any_daemon_shows_an_approval_although_its_first_report_fails() {
    let mut fleet = PostgresFleet::start().await;
    let admin = fleet.keys.add_key("admin", "admin", &[]);
    fleet.queues += "[policy]\ndangerous = \"ask\"\n";
    let reject = "CREATE FUNCTION reject() RETURNS trigger LANGUAGE plpgsql AS \
            $$ BEGIN RAISE EXCEPTION 'the report is rejected'; END $$; \
        CREATE TRIGGER reject BEFORE UPDATE ON jig_jobs FOR EACH ROW \
            WHEN (new.approval_id <> '') EXECUTE FUNCTION reject()";
    let operator = fleet.server.connect("postgres").await;
    operator.batch_execute(reject).await.unwrap();

    let first = fleet.start_daemon().await;
    let id = fleet.server.insert("m-1", &command_job("true")).await;
    let approval = wait_for_pending_approvals_with_key(&first, Some(&admin), 1).await.remove(0);
    eventually_within(MAX_FLEET_TIME, "the first report fails", async || {
        fleet.server.log().contains("the report is rejected")
    })
    .await;
    operator.batch_execute("DROP TRIGGER reject ON jig_jobs").await.unwrap();

    let second = fleet.start_daemon_beside(&first).await;
    let mut jobs = fleet.jobs(&second);
    eventually_within(MAX_FLEET_TIME, "the other daemon shows the approval", async || {
        jobs.try_get(&id).await.unwrap().approval_id == approval.approval_id
    })
    .await;
    assert_eq!(fleet.server.job(&id).await.attempts, 1);
}

/// Otherwise each lost claim would cost the database a statement each second. Looks for claims that the
/// daemon does not keep do not count.
#[tokio::test]
async fn lost_claims_are_not_renewed() {
    let mut fleet = PostgresFleet::start().await;
    fleet.settings = fleet.settings.replace("3s", "6s");
    let count = "CREATE SEQUENCE updates; \
        CREATE FUNCTION count_update() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS \
            $$ BEGIN \
                IF current_query() NOT LIKE '%resumed_from%' THEN PERFORM nextval('updates'); END IF; \
                RETURN NULL; \
            END $$; \
        CREATE TRIGGER count_update BEFORE UPDATE ON jig_jobs \
            FOR EACH STATEMENT EXECUTE FUNCTION count_update()";
    let operator = fleet.server.connect("postgres").await;
    operator.batch_execute(count).await.unwrap();
    let updates = async || -> i64 {
        let count = operator.query_one("SELECT last_value FROM updates", &[]).await;
        count.unwrap().get(0)
    };

    let daemon = fleet.start_daemon().await;
    for number in 0..4 {
        fleet.server.insert(&format!("m-{number}"), &command_job(COUNTED_WAIT)).await;
    }
    wait_for_effects(&daemon, 4).await;
    let before = updates().await;
    eventually_within(MAX_FLEET_TIME, "claims are renewed", async || updates().await > before + 4)
        .await;

    let supersede = "UPDATE jig_jobs SET claimed_by = 'other', claimed_start = 'other', \
        claimed_at = now(), attempts = 2, lease_until = now() + interval '1 hour'";
    assert_eq!(operator.execute(supersede, &[]).await.unwrap(), 4);
    // The daemon looks for dead ones less than once a second.
    eventually_within(Duration::from_secs(30), "the daemon is silent", async || {
        let before = updates().await;
        tokio::time::sleep(Duration::from_secs(4)).await;
        updates().await <= before + 4
    })
    .await;
    // Its results do not count.
    go(&daemon);
    let next = fleet.server.insert("next", &command_job("true")).await;
    fleet.expect_end(&next, "succeeded").await;
    assert_eq!(fleet.server.count("state = 'claimed' AND claimed_by = 'other'").await, 4);
}

/// An asynchronous standby takes over without the end.
#[tokio::test]
async fn end_that_the_server_has_lost_is_stored_again() {
    let fleet = PostgresFleet::start().await;
    let daemon = fleet.start_daemon().await;
    let id = fleet.server.insert("m-1", &command_job("echo run >> effects")).await;
    fleet.expect_end(&id, "succeeded").await;
    let before = "UPDATE jig_jobs SET state = 'claimed', lease_until = now() + interval '3 seconds', \
        outcome = NULL, result = NULL, ended_at = NULL";
    let operator = fleet.server.connect("postgres").await;
    assert_eq!(operator.execute(before, &[]).await.unwrap(), 1);
    assert_eq!(fleet.expect_end(&id, "succeeded").await.attempts, 1);
    assert_eq!(effects(&daemon), 1);
}

/// Programs lock rows, and foreign keys of other tables lock their keys.
#[tokio::test]
async fn locked_row_keeps_a_restarted_daemon_from_no_other_one() {
    let mut fleet = PostgresFleet::start().await;
    fleet.settings = fleet.settings.replace("3s", "6s");
    let (first, known) = fleet.start_dead_daemon().await;
    let queues = std::mem::take(&mut fleet.queues);
    let _judge = fleet.start_daemon_beside(&first).await;
    fleet.queues = queues;

    let job = command_job("echo run >> effects");
    fleet.insert_claims_of(&known, &["free", "referenced", "locked"], &job).await;
    let operator = fleet.server.connect("postgres").await;
    let lock = "BEGIN; SELECT 1 FROM jig_jobs WHERE request_id = 'locked' FOR UPDATE; \
        SELECT 1 FROM jig_jobs WHERE request_id IN ('referenced', 'next') FOR KEY SHARE";
    fleet.server.insert("next", &job).await;
    operator.batch_execute(lock).await.unwrap();

    let first = first.restart().await;
    for name in ["free", "referenced", "next"] {
        assert_eq!(fleet.expect_end(&fleet_job_id(name), "succeeded").await.attempts, 1, "{name}");
    }
    let expired = "state = 'claimed' AND lease_until < clock_timestamp() - interval '6 seconds'";
    eventually_within(MAX_FLEET_TIME, "the lease of the locked one ends", async || {
        fleet.server.count(expired).await == 1
    })
    .await;
    operator.batch_execute("COMMIT").await.unwrap();
    let locked = fleet.expect_end(&fleet_job_id("locked"), "succeeded").await;
    assert_eq!((locked.attempts, effects(&first)), (1, 4));
}

#[tokio::test]
async fn cancelled_claims_of_a_restarted_daemon_do_not_begin() {
    let fleet = PostgresFleet::start().await;
    let (daemon, known) = fleet.start_dead_daemon().await;

    let names = ["m-1", "m-2", "m-3", "m-4"];
    fleet.insert_claims_of(&known, &names, &command_job("echo run >> effects")).await;
    let cancel = "UPDATE jig_jobs SET cancel_requested = true WHERE state = 'claimed'";
    fleet.server.connect("postgres").await.batch_execute(cancel).await.unwrap();
    let daemon = daemon.restart().await;
    for name in names {
        fleet.expect_end(&fleet_job_id(name), "cancelled").await;
    }
    assert_eq!(effects(&daemon), 0);
}

/// Calls wait until the lock ends.
#[tokio::test]
async fn calls_about_a_locked_row_do_not_delay_the_judgement() {
    let mut fleet = PostgresFleet::start().await;
    let mut first = fleet.start_daemon().await;
    let dead = fleet.server.insert("dead", &command_job(COUNTED_WAIT)).await;
    let locked = fleet.server.insert("locked", &command_job(COUNTED_WAIT)).await;
    wait_for_effects(&first, 2).await;
    fleet.queues.clear();
    let second = fleet.start_daemon_beside(&first).await;

    let operator = fleet.server.connect("postgres").await;
    let lock = "BEGIN; SELECT 1 FROM jig_jobs WHERE request_id = 'locked' FOR UPDATE";
    operator.batch_execute(lock).await.unwrap();
    let mut calls = JoinSet::new();
    for _ in 0..8 {
        let (mut jobs, id) = (fleet.jobs(&second), locked.clone());
        calls.spawn(async move { while jobs.try_cancel(&id).await.is_err() {} });
    }
    kill(&mut first).await;
    fleet.expect_end(&dead, "lost").await;
    assert_eq!(calls.len(), 8);
    assert!(calls.try_join_next().is_none(), "the row is locked");
}
