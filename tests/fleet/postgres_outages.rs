//! Fleets whose daemons cannot change the table in PostgreSQL for a while, or lose connections.

use std::time::{Duration, Instant};

use jig::api::v1::JobState;
use rustix::process::Signal;
use tokio_postgres::Client;

use super::{
    COUNTED_WAIT, fleet_job,
    plain_client::MAX_FLEET_TIME,
    postgres::{PostgresFleet, effects, go, kill, repeatable, wait_for_effects},
};
use crate::{
    jobs::command_job,
    support::{Daemon, eventually_within},
};

/// A daemon with a running job, and one that could take it for dead.
async fn start_pair(fleet: &PostgresFleet) -> (Daemon, Daemon, String) {
    let first = fleet.start_daemon().await;
    let running = fleet.server.insert("running", &command_job(COUNTED_WAIT)).await;
    wait_for_effects(&first, 1).await;
    let second = fleet.start_daemon_beside(&first).await;
    // It can judge others.
    wait_for_renewals(fleet, 4).await;
    (first, second, running)
}

/// Waits until the lease of a claim was renewed some times, one third of it each.
async fn wait_for_renewals(fleet: &PostgresFleet, count: usize) {
    for _renewal in 0..count {
        let client = fleet.server.connect("ci").await;
        let lease = "SELECT max(lease_until)::text FROM jig_jobs";
        let lease =
            async || -> Option<String> { client.query_one(lease, &[]).await.unwrap().get(0) };
        let before = lease().await;
        eventually_within(MAX_FLEET_TIME, "the lease is renewed", async || lease().await != before)
            .await;
    }
}

/// Waits until the lease of the running job has ended, and for some time after that.
async fn wait_for_expiry(client: &Client) {
    let expired =
        "SELECT count(*) FROM jig_jobs WHERE lease_until < clock_timestamp() - '2s'::interval";
    eventually_within(MAX_FLEET_TIME, "the lease has ended", async || {
        client.query_one(expired, &[]).await.unwrap().get::<_, i64>(0) > 0
    })
    .await;
}

#[tokio::test]
async fn locks_of_the_table_cost_no_claim() {
    let fleet = PostgresFleet::start().await;
    let (first, second, running) = start_pair(&fleet).await;
    let operator = fleet.server.connect("postgres").await;
    // The last one lets daemons read.
    for mode in ["ACCESS EXCLUSIVE", "SHARE ROW EXCLUSIVE", "SHARE"] {
        let lock = format!("BEGIN; LOCK TABLE jig_jobs IN {mode} MODE");
        operator.batch_execute(&lock).await.unwrap();
        wait_for_expiry(&operator).await;
        operator.batch_execute("COMMIT").await.unwrap();
        wait_for_renewals(&fleet, 5).await;
        assert_eq!(fleet.server.job(&running).await.state, "claimed", "{mode}");
    }
    go(&first);
    assert_eq!(fleet.expect_end(&running, "succeeded").await.attempts, 1);
    assert_eq!((effects(&first), effects(&second)), (1, 0));
}

/// The server stands still, and no connection breaks.
#[tokio::test]
async fn stalls_of_the_server_cost_no_claim() {
    let fleet = PostgresFleet::start().await;
    let (first, second, running) = start_pair(&fleet).await;
    for _stall in 0..2 {
        fleet.server.signal_all(Signal::STOP);
        tokio::time::sleep(Duration::from_secs(4)).await;
        fleet.server.signal_all(Signal::CONT);
        wait_for_renewals(&fleet, 5).await;
        assert_eq!(fleet.server.job(&running).await.state, "claimed");
    }
    go(&first);
    assert_eq!(fleet.expect_end(&running, "succeeded").await.attempts, 1);
    assert_eq!((effects(&first), effects(&second)), (1, 0));
}

/// The clock of the server jumps.
#[tokio::test]
async fn leases_that_end_early_cost_no_claim() {
    let fleet = PostgresFleet::start().await;
    let (first, second, running) = start_pair(&fleet).await;
    let jump = "UPDATE jig_jobs SET lease_until = lease_until - interval '1 hour'";
    let operator = fleet.server.connect("postgres").await;
    for number in 0..3 {
        operator.batch_execute(jump).await.unwrap();
        // A look at the table.
        let next = fleet.server.insert(&format!("m-{number}"), &command_job("true")).await;
        fleet.expect_end(&next, "succeeded").await;
        wait_for_renewals(&fleet, 2).await;
    }
    go(&first);
    assert_eq!(fleet.expect_end(&running, "succeeded").await.attempts, 1);
    assert_eq!((effects(&first), effects(&second)), (1, 0));
}

/// Proxies and servers can cut idle connections more often than a lease ends.
#[tokio::test]
async fn job_of_dead_daemon_is_lost_although_idle_connections_are_cut() {
    let fleet = PostgresFleet::start().await;
    let cut = "ALTER ROLE jigd SET idle_session_timeout = '300ms'";
    fleet.server.connect("postgres").await.batch_execute(cut).await.unwrap();
    let (mut first, second, running) = start_pair(&fleet).await;
    let again = fleet.server.insert("again", &repeatable("echo run >> effects")).await;
    fleet.expect_end(&again, "succeeded").await;
    let mut jobs = fleet.jobs(&second);

    let waiting = tokio::spawn(async move { jobs.wait(&running).await });
    kill(&mut first).await;
    let lost = waiting.await.unwrap();
    assert_eq!(lost.state(), JobState::Lost);
}

/// A program may insert jobs in transactions of its own.
#[tokio::test]
async fn open_transaction_of_a_submitter_costs_no_claim() {
    let fleet = PostgresFleet::start().await;
    let first = fleet.start_daemon().await;
    let running = fleet.server.insert("running", &command_job(COUNTED_WAIT)).await;
    wait_for_effects(&first, 1).await;
    let second = fleet.start_daemon_beside(&first).await;

    let submitter = fleet.server.connect("ci").await;
    let insert = "BEGIN; INSERT INTO jig_jobs (queue, workspace, request_id, request) \
        VALUES ('build', 'main', 'blocked', '')";
    submitter.batch_execute(insert).await.unwrap();
    // An operator repeats the script, which waits for nothing.
    fleet.server.run_fleet_script("postgres").unwrap();
    // Longer than a lease.
    let started = Instant::now();
    while started.elapsed() < Duration::from_secs(5) {
        let submitted = fleet.jobs(&first).try_submit("blocked", fleet_job("true")).await;
        assert_eq!(submitted.unwrap_err().reason, "FLEET_UNAVAILABLE");
    }
    submitter.batch_execute("ROLLBACK").await.unwrap();
    assert_eq!(fleet.jobs(&first).submit("blocked", fleet_job("true")).await.queue, "build");

    go(&first);
    assert_eq!(fleet.expect_end(&running, "succeeded").await.attempts, 1);
    assert_eq!((effects(&first), effects(&second)), (1, 0));
}

/// An operator changes rows in a transaction that stays open.
#[tokio::test]
async fn locked_rows_cost_no_claim_of_another_one() {
    let mut fleet = PostgresFleet::start().await;
    fleet.queues = fleet.queues.replace("places = 4", "places = 16");
    let first = fleet.start_daemon().await;
    let mut ids = Vec::new();
    for number in 0..16 {
        ids.push(fleet.server.insert(&format!("m-{number}"), &command_job(COUNTED_WAIT)).await);
    }
    wait_for_effects(&first, ids.len()).await;
    let second = fleet.start_daemon_beside(&first).await;
    wait_for_renewals(&fleet, 4).await;

    let operator = fleet.server.connect("postgres").await;
    let locked = ids[..14].join("', '");
    let change = format!("BEGIN; UPDATE jig_jobs SET session = session WHERE id IN ('{locked}')");
    operator.batch_execute(&change).await.unwrap();
    // Four leases.
    let expired = "lease_until < clock_timestamp() - interval '9 seconds'";
    eventually_within(MAX_FLEET_TIME, "the leases of the locked ones end", async || {
        fleet.server.count(expired).await == 14
    })
    .await;
    for id in &ids[14..] {
        assert_eq!(fleet.server.job(id).await.state, "claimed");
    }
    operator.batch_execute("COMMIT").await.unwrap();
    go(&first);
    for id in &ids {
        assert_eq!(fleet.expect_end(id, "succeeded").await.attempts, 1);
    }
    assert_eq!((effects(&first), effects(&second)), (16, 0));
}
