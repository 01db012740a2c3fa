//! Daemons that die while they run fleet jobs: a job is lost, or runs again if its request permits.

use std::time::Duration;

use jig::api::v1::{
    FleetJobRecord, FleetJobState, Job, JobState, ListJobsRequest, SubmitJobRequest,
};
use tokio::time::sleep;

use super::{
    COUNTED_WAIT, Member, TestFleet, all_effects, fleet_job,
    plain_client::{JobMessage, MAX_FLEET_TIME, fleet_job_id, next_message},
};
use crate::{
    jobs::command_job,
    support::{eventually, eventually_within, with_key},
};

/// Asserts that a job is lost, and that its result says why.
fn expect_lost(record: FleetJobRecord) {
    let job = record.job.unwrap();
    assert_eq!(job.state(), JobState::Lost, "{job:?}");
    assert!(job.end_time.is_some());
    assert_eq!(job.result.unwrap().error.unwrap().error_type, "daemon_lost");
}

fn repeatable(command: &str) -> SubmitJobRequest {
    SubmitJobRequest { retry_if_lost: true, ..command_job(command) }
}

#[tokio::test]
async fn job_of_dead_daemon_is_lost_and_never_runs_again() {
    let fleet = TestFleet::start().await;
    let mut first = fleet.start_member().await;
    fleet.client.publish(&JobMessage::new("m-1", &command_job(COUNTED_WAIT))).await;
    first.wait_for_effects(1).await;

    let second = fleet.start_member_beside(&first).await;
    first.kill().await;
    let id = fleet_job_id("m-1");
    expect_lost(fleet.client.wait_for_end(&id).await);

    // The dead daemon returns, and changes nothing.
    let first = first.restart().await;
    let mut jobs = fleet.jobs(&first);
    eventually("the returned daemon knows the end", async || {
        jobs.try_get(&id).await.is_ok_and(|job| job.state() == JobState::Lost)
    })
    .await;
    let ends = fleet.client.wait_for_ends(&[id]).await;
    assert_eq!(ends.into_values().next().unwrap().attempts, 1);
    assert_eq!(all_effects(&[&first, &second]), ["run"]);
}

#[tokio::test]
async fn job_that_may_be_repeated_runs_on_another_daemon() {
    let fleet = TestFleet::start().await;
    let mut first = fleet.start_member().await;
    fleet.client.publish(&JobMessage::new("m-1", &repeatable(COUNTED_WAIT))).await;
    first.wait_for_effects(1).await;
    let id = fleet_job_id("m-1");
    let claimed = fleet.client.wait_for_state(&id, FleetJobState::Claimed).await;

    let second = fleet.start_member_beside(&first).await;
    second.go();
    first.kill().await;
    let record = fleet.client.wait_for_end(&id).await;
    assert_ne!(record.daemon_id, claimed.daemon_id);
    assert_eq!((record.attempts, record.retry_if_lost), (2, true));
    assert_eq!(record.job.unwrap().state(), JobState::Succeeded);

    let first = first.restart().await;
    fleet.client.wait_for_ends(&[id]).await;
    assert_eq!(all_effects(&[&first, &second]), ["run", "run"]);
}

#[tokio::test]
async fn restarted_daemon_ends_its_own_lost_job() {
    let fleet = TestFleet::start().await;
    let member = fleet.start_member().await;
    fleet.client.publish(&JobMessage::new("once", &command_job(COUNTED_WAIT))).await;
    fleet.client.publish(&JobMessage::new("again", &repeatable(COUNTED_WAIT))).await;
    member.wait_for_effects(2).await;

    let member = member.restart().await;
    member.go();
    expect_lost(fleet.client.wait_for_end(&fleet_job_id("once")).await);
    let record = fleet.client.wait_for_end(&fleet_job_id("again")).await;
    assert_eq!(record.job.unwrap().state(), JobState::Succeeded);
    assert_eq!(member.lines("effects").len(), 3);
}

#[tokio::test]
async fn message_that_kills_each_daemon_becomes_a_dead_letter() {
    let fleet = TestFleet::start().await;
    let mut dead_letters = fleet.client.subscribe("jig.dead.>").await;
    let mut member = fleet.start_member().await;
    let message = JobMessage::new("poison", &repeatable(COUNTED_WAIT));
    fleet.client.publish(&message).await;

    // `max_deliver` is 3.
    for death in 1..=3 {
        member.wait_for_effects(death).await;
        member = member.restart().await;
    }

    let id = fleet_job_id("poison");
    let record = fleet.client.wait_for_end(&id).await;
    assert_eq!(record.attempts, 3);
    expect_lost(record);
    let letter = next_message(&mut dead_letters).await;
    assert_eq!(letter.subject.as_str(), "jig.dead.build");
    let headers = letter.headers.unwrap();
    assert_eq!(headers.get("Jig-Subject").unwrap().as_str(), "jig.jobs.build.main");
    assert_eq!(headers.get("Jig-Reason").unwrap().as_str(), "DAEMON_LOST");
    assert_eq!(headers.get("Jig-Request-Id").unwrap().as_str(), "poison");
    assert_eq!(headers.get("Jig-Job-Id").unwrap().as_str(), &*id);

    // The queue is not blocked.
    fleet.client.publish(&JobMessage::new("next", &command_job("true"))).await;
    let record = fleet.client.wait_for_end(&fleet_job_id("next")).await;
    assert_eq!(record.job.unwrap().state(), JobState::Succeeded);
    assert_eq!(member.lines("effects").len(), 3);
}

#[tokio::test]
async fn waiters_learn_of_a_lost_job() {
    let fleet = TestFleet::start().await;
    let observer = fleet.start_observer().await;
    let mut first = fleet.start_member_beside(&observer).await;
    let mut jobs = fleet.jobs(&observer);
    let id = jobs.submit("m-1", fleet_job(COUNTED_WAIT)).await.job_id;
    first.wait_for_effects(1).await;

    let waiting = tokio::spawn(async move { jobs.wait(&id).await });
    let second = fleet.start_member_beside(&observer).await;
    first.kill().await;
    let job = waiting.await.unwrap();
    assert_eq!(job.state(), JobState::Lost, "{job:?}");
    assert_eq!(all_effects(&[&first, &second]), ["run"]);
}

/// A server that dies with a job in progress loses neither the job nor its result.
#[tokio::test]
async fn server_death_does_not_disturb_a_running_job() {
    let mut fleet = TestFleet::start().await;
    let member = fleet.start_member().await;
    fleet.client.publish(&JobMessage::new("m-1", &command_job(COUNTED_WAIT))).await;
    member.wait_for_effects(1).await;

    // The job ends while there is no server.
    fleet.server.kill();
    member.go();
    let local = "the job has ended at its daemon";
    eventually_within(MAX_FLEET_TIME, local, async || {
        member.local_states(&fleet).await == [JobState::Succeeded]
    })
    .await;

    fleet.restart_server(&[&member]).await;
    let record = fleet.client.wait_for_end(&fleet_job_id("m-1")).await;
    assert_eq!(record.job.unwrap().state(), JobState::Succeeded);
    assert_eq!((record.attempts, member.lines("effects").len()), (1, 1));
}

/// After an outage that is longer than the heartbeats last, daemons do not take each other for dead.
#[tokio::test]
async fn long_outage_of_the_server_ends_no_job() {
    let mut fleet = TestFleet::start().await;
    let first = fleet.start_member().await;
    let second = fleet.start_member_beside(&first).await;
    let third = fleet.start_member_beside(&first).await;
    let members = [&first, &second, &third];
    let mut ids = Vec::new();
    for number in 0..12 {
        let name = format!("m-{number}");
        fleet.client.publish(&JobMessage::new(&name, &command_job(COUNTED_WAIT))).await;
        ids.push(fleet_job_id(&name));
    }
    eventually_within(MAX_FLEET_TIME, "all jobs run", async || all_effects(&members).len() == 12)
        .await;

    fleet.server.kill();
    // Lets `lost_after` pass, 3 s.
    sleep(Duration::from_secs(5)).await;
    fleet.restart_server(&members).await;
    // Lets redelivered messages reach other daemons, which wait for `lost_after`.
    sleep(Duration::from_secs(5)).await;
    for member in members {
        member.go();
    }
    for (id, record) in fleet.client.wait_for_ends(&ids).await {
        assert_eq!(record.job.unwrap().state(), JobState::Succeeded, "{id}");
        assert_eq!(record.attempts, 1, "{id}");
    }
    assert_eq!(all_effects(&members).len(), 12);
}

impl Member {
    /// States of the jobs that this daemon has stored.
    pub(super) async fn local_states(&self, fleet: &TestFleet) -> Vec<JobState> {
        let mut jobs = fleet.jobs(self);
        let request = with_key(&jobs.key, ListJobsRequest::default());
        let response = jobs.client.list_jobs(request).await.unwrap().into_inner();
        response.jobs.iter().map(Job::state).collect()
    }
}
