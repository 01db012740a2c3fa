//! Random deaths of the daemons of a fleet in PostgreSQL, of their connections and of the server.

use std::{collections::HashMap, fs};

use jig::api::v1::SubmitJobRequest;
use prost::Message as _;

use super::{plain_client::MAX_FLEET_TIME, postgres::PostgresFleet};
use crate::{
    jobs::command_job,
    support::{Daemon, eventually_within, full_size},
};

/// `max_deliver` of the fleet.
const MAX_ATTEMPTS: i32 = 3;

/// How often a job has run, by its number.
fn runs(daemons: &[Daemon]) -> HashMap<String, i32> {
    let mut runs = HashMap::new();
    for daemon in daemons {
        let effects = fs::read_to_string(daemon.file("effects")).unwrap_or_default();
        for number in effects.lines() {
            *runs.entry(number.to_owned()).or_default() += 1;
        }
    }
    runs
}

#[tokio::test]
async fn deaths_lose_no_job_and_repeat_none() {
    let mut fleet = PostgresFleet::start().await;
    let first = fleet.start_daemon().await;
    let second = fleet.start_daemon_beside(&first).await;
    let third = fleet.start_daemon_beside(&first).await;
    let mut daemons = vec![first, second, third];

    let (count, deaths) = (full_size(600, 150), full_size(40, 9));
    let ci = fleet.server.connect("ci").await;
    let insert = "INSERT INTO jig_jobs (queue, workspace, request_id, request) \
        VALUES ('build', $1, $2, $3)";
    for number in 0..count {
        let job = SubmitJobRequest {
            retry_if_lost: number % 3 == 0,
            ..command_job(&format!("echo {number} >> effects; sleep 0.05"))
        };
        let workspace = if number % 2 == 0 { "main" } else { "" };
        let (id, body) = (number.to_string(), job.encode_to_vec());
        ci.execute(insert, &[&workspace, &id, &body]).await.unwrap();
    }
    for death in 0..deaths {
        let ended = fleet.server.count("state = 'ended'").await;
        let share = i64::try_from(count * death / (2 * deaths)).unwrap();
        if ended < share {
            eventually_within(MAX_FLEET_TIME, "more jobs have ended", async || {
                fleet.server.count("state = 'ended'").await >= share
            })
            .await;
        }
        if death % 4 == 3 {
            fleet.server.restart().await;
        } else {
            let cut = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity \
                WHERE usename = 'jigd' AND random() < 0.6";
            fleet.server.connect("postgres").await.batch_execute(cut).await.unwrap();
        }
        let daemon = daemons.remove(0);
        daemons.push(daemon.restart().await);
    }
    let count = i64::try_from(count).unwrap();
    eventually_within(2 * MAX_FLEET_TIME, "all jobs have ended", async || {
        fleet.server.count("state = 'ended'").await == count
    })
    .await;

    let runs = runs(&daemons);
    let ends = "SELECT request_id, outcome, attempts FROM jig_jobs";
    let mut lost = 0;
    for row in fleet.server.connect("ci").await.query(ends, &[]).await.unwrap() {
        let (number, outcome, attempts): (String, String, i32) =
            (row.get(0), row.get(1), row.get(2));
        let is_repeatable = number.parse::<usize>().unwrap() % 3 == 0;
        let runs = runs.get(&number).copied().unwrap_or_default();
        let expected = match &*outcome {
            "succeeded" if is_repeatable => (1..=attempts).contains(&runs),
            "succeeded" => runs == 1,
            "lost" if is_repeatable => attempts == MAX_ATTEMPTS,
            "lost" => runs <= 1,
            _ => false,
        };
        assert!(expected, "{number}: {outcome}, {attempts} attempts, {runs} runs");
        lost += u32::from(outcome == "lost");
    }
    eprintln!("{count} jobs, {deaths} deaths of daemons: {lost} lost");
}
