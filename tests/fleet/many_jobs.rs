//! Three daemons and many jobs, with and without deaths of daemons and of the server: each job has
//! one end, and one effect.

use std::{collections::BTreeMap, time::Duration};

use jig::api::v1::{FleetJobRecord, JobState, SubmitJobRequest};
use tokio::time::{Instant, sleep};

use super::{
    Member, TestFleet, all_effects, job_count,
    plain_client::{JobMessage, PlainClient, fleet_job_id},
};
use crate::{jobs::command_job, support::full_size};

/// A job that appends its number to the effects.
fn numbered_job(number: usize) -> SubmitJobRequest {
    let rest = if number.is_multiple_of(10) { "sleep 0.2" } else { "true" };
    let retry_if_lost = number.is_multiple_of(3);
    SubmitJobRequest { retry_if_lost, ..command_job(&format!("echo {number} >> effects; {rest}")) }
}

fn request_id(number: usize) -> String {
    format!("job-{number}")
}

/// Publishes jobs without waiting for them.
fn spawn_publisher(client: &PlainClient, count: usize) -> tokio::task::JoinHandle<()> {
    let client = client.clone();
    tokio::spawn(async move {
        for number in 0..count {
            let message = JobMessage::new(&request_id(number), &numbered_job(number));
            client.publish(&message).await;
        }
    })
}

/// Waits for the ends of the jobs. Returns their records and the numbers of their effects.
async fn ends_and_effects(
    fleet: &TestFleet,
    members: &[&Member],
    count: usize,
) -> (Vec<FleetJobRecord>, BTreeMap<usize, usize>) {
    let ids: Vec<_> = (0..count).map(|number| fleet_job_id(&request_id(number))).collect();
    let mut ends = fleet.client.wait_for_ends(&ids).await;
    let records = ids.iter().map(|id| ends.remove(id).unwrap()).collect();

    let mut effects = BTreeMap::new();
    for line in all_effects(members) {
        *effects.entry(line.parse().unwrap()).or_default() += 1;
    }
    (records, effects)
}

async fn start_three(fleet: &TestFleet) -> [Member; 3] {
    let first = fleet.start_member_with(|setup| setup.exclusive()).await;
    let second = fleet.start_member_beside(&first).await;
    let third = fleet.start_member_beside(&first).await;
    [first, second, third]
}

#[tokio::test]
async fn each_of_many_jobs_runs_once_on_one_of_three_daemons() {
    let fleet = TestFleet::start().await;
    let members = start_three(&fleet).await;
    let members = [&members[0], &members[1], &members[2]];
    let count = job_count();
    let started = Instant::now();
    spawn_publisher(&fleet.client, count).await.unwrap();
    let (records, effects) = ends_and_effects(&fleet, &members, count).await;
    let elapsed = started.elapsed();

    for record in &records {
        assert_eq!(record.job.as_ref().unwrap().state(), JobState::Succeeded, "{record:?}");
        assert_eq!(record.attempts, 1);
    }
    assert_eq!(effects.len(), count);
    assert!(effects.values().all(|runs| *runs == 1), "{effects:?}");

    let shares = members.map(|member| member.lines("effects").len());
    assert!(shares.iter().all(|share| *share > count / 10), "{shares:?}");
    eprintln!("{count} jobs in {elapsed:?}, by daemon: {shares:?}");
}

#[tokio::test]
async fn deaths_of_daemons_and_server_lose_and_repeat_nothing() {
    let mut fleet = TestFleet::start().await;
    // A restart of the server takes a while on a busy machine, and is the death of no daemon.
    fleet.set_times("1s", "20s");
    let max_deliver = 3;
    let mut members = start_three(&fleet).await;
    let (count, deaths) = (job_count(), full_size(200, 10));
    let started = Instant::now();
    let publisher = spawn_publisher(&fleet.client, count);

    let mut random = fastrand::Rng::with_seed(27);
    let mut daemon_deaths = 0;
    for _ in 0..deaths {
        // Acts at a random moment.
        sleep(Duration::from_millis(random.u64(50..1000))).await;
        match random.usize(0..4) {
            3 => {
                let [first, second, third] = &members;
                fleet.restart_server(&[first, second, third]).await;
            }
            dying => {
                members[dying].kill().await;
                members = restart_one(members, dying).await;
                daemon_deaths += 1;
            }
        }
    }

    publisher.await.unwrap();
    let members = [&members[0], &members[1], &members[2]];
    let (records, effects) = ends_and_effects(&fleet, &members, count).await;
    let mut lost = 0;
    for (number, record) in records.iter().enumerate() {
        let runs = effects.get(&number).copied().unwrap_or_default();
        match record.job.as_ref().unwrap().state() {
            JobState::Succeeded if record.retry_if_lost => {
                assert!(runs >= 1, "{number} ran {runs} times");
                assert!(runs <= record.attempts as usize, "{number} ran {runs} times: {record:?}");
            }
            JobState::Succeeded => assert_eq!(runs, 1, "{number}: {record:?}"),
            JobState::Lost => {
                lost += 1;
                let has_no_attempt_left = record.attempts == max_deliver;
                assert!(!record.retry_if_lost || has_no_attempt_left, "{number}: {record:?}");
                assert!(runs <= record.attempts as usize, "{number} ran {runs} times: {record:?}");
            }
            state => panic!("job {number} is {state:?}: {record:?}"),
        }
    }
    // Each daemon has four places.
    assert!(lost <= daemon_deaths * 4, "{lost} of {count} jobs are lost");
    eprintln!("{count} jobs, {deaths} deaths, {lost} lost, in {:?}", started.elapsed());
}

async fn restart_one(members: [Member; 3], dead: usize) -> [Member; 3] {
    let [first, second, third] = members;
    match dead {
        0 => [first.restart().await, second, third],
        1 => [first, second.restart().await, third],
        _ => [first, second, third.restart().await],
    }
}
