//! A daemon that shuts down gives back the jobs that it has not begun, and ends those that run.

use jig::api::v1::{FleetJobState, JobState};
use rustix::process::Signal;

use super::{
    COUNTED_WAIT, TestFleet, all_effects,
    plain_client::{JobMessage, MAX_FLEET_TIME, fleet_job_id},
    postgres::repeatable,
};
use crate::{jobs::command_job, support::eventually_within};

#[tokio::test]
async fn drain_gives_back_queued_jobs_and_ends_running_ones() {
    let mut fleet = TestFleet::start().await;
    // A daemon claims four jobs and runs one of them.
    fleet.keys.add_key("slow", "invoke", &["--concurrent-calls", "1"]);
    fleet.set_queues(
        "[[fleet.queues]]\nname = \"build\"\nkey = \"slow\"\nworkspaces = [\"main\"]\nplaces = 4\n",
    );
    let client = &fleet.client;
    let mut first =
        fleet.start_member_with(|setup| setup.arguments(&["--drain-timeout", "120s"])).await;
    let ids: Vec<_> = (0..4).map(|number| fleet_job_id(&format!("m-{number}"))).collect();
    for number in 0..4 {
        let request = command_job(COUNTED_WAIT);
        client.publish(&JobMessage::new(&format!("m-{number}"), &request)).await;
    }
    first.wait_for_effects(1).await;
    let claimed = "the daemon has claimed all jobs";
    eventually_within(MAX_FLEET_TIME, claimed, async || {
        let mut count = 0;
        for id in &ids {
            count += usize::from(client.record(id).await.is_some_and(|job| job.attempts == 1));
        }
        count == 4
    })
    .await;

    let second = fleet.start_member_beside(&first).await;
    second.go();
    first.daemon.signal(Signal::TERM);

    // The others end on the second daemon while the first one still runs its job.
    eventually_within(MAX_FLEET_TIME, "three jobs run elsewhere", async || {
        second.lines("effects").len() == 3
    })
    .await;
    assert_eq!(first.lines("effects").len(), 1);
    first.go();

    let ends = client.wait_for_ends(&ids).await;
    for record in ends.values() {
        assert_eq!(record.job.as_ref().unwrap().state(), JobState::Succeeded, "{record:?}");
        assert_eq!(record.attempts, 1, "a job that was given back has not begun: {record:?}");
    }
    assert!(first.daemon.wait_for_exit().await.success());
    assert_eq!(all_effects(&[&first, &second]).len(), 4);
}

#[tokio::test]
async fn job_that_outlasts_the_drain_is_cancelled_once() {
    let fleet = TestFleet::start().await;
    let mut first = fleet.start_member().await;
    fleet.client.publish(&JobMessage::new("m-1", &command_job(COUNTED_WAIT))).await;
    first.wait_for_effects(1).await;
    let second = fleet.start_member_beside(&first).await;

    first.daemon.signal(Signal::TERM);
    assert!(first.daemon.wait_for_exit().await.success());
    let id = fleet_job_id("m-1");
    let ends = fleet.client.wait_for_ends(std::slice::from_ref(&id)).await;
    assert_eq!(ends[&id].job.as_ref().unwrap().state(), JobState::Cancelled);
    assert_eq!(all_effects(&[&first, &second]), ["run"]);
}

#[tokio::test]
async fn job_that_is_cancelled_during_a_drain_is_not_given_back() {
    let fleet = TestFleet::start().await;
    let mut first =
        fleet.start_member_with(|setup| setup.arguments(&["--drain-timeout", "120s"])).await;
    fleet.client.publish(&JobMessage::new("m-1", &repeatable(COUNTED_WAIT))).await;
    first.wait_for_effects(1).await;
    let id = fleet_job_id("m-1");
    fleet.client.wait_for_state(&id, FleetJobState::Claimed).await;
    let second = fleet.start_member_beside(&first).await;
    second.go();

    first.daemon.signal(Signal::TERM);
    eventually_within(MAX_FLEET_TIME, "the daemon drains", async || {
        !first.daemon.socket().exists()
    })
    .await;
    let cancelled = fleet.jobs(&second).try_cancel(&id).await.unwrap();
    assert_eq!(cancelled.state(), JobState::Cancelled);
    let record = fleet.client.wait_for_end(&id).await;
    assert_eq!((record.attempts, record.job.unwrap().state()), (1, JobState::Cancelled));
    assert!(first.daemon.wait_for_exit().await.success());
    assert_eq!(all_effects(&[&first, &second]), ["run"]);
}

/// Other daemons would take a daemon without a heartbeat for dead.
#[tokio::test]
async fn restarted_daemon_drains_with_the_claims_of_its_last_start() {
    let mut fleet = TestFleet::start().await;
    fleet.keys.add_key("slow", "invoke", &["--concurrent-calls", "1"]);
    fleet.set_queues(&fleet.queues.replace("\"ci\"", "\"slow\""));
    let first =
        fleet.start_member_with(|setup| setup.arguments(&["--drain-timeout", "120s"])).await;
    let client = &fleet.client;
    for name in ["m-0", "m-1"] {
        client.publish(&JobMessage::new(name, &command_job(COUNTED_WAIT))).await;
    }
    let ids = ["m-0", "m-1"].map(fleet_job_id);
    for id in &ids {
        client.wait_for_state(id, FleetJobState::Claimed).await;
    }
    first.wait_for_effects(1).await;

    let mut first = first.restart().await;
    first.wait_for_effects(2).await;
    let daemon_id = client.record(&ids[1]).await.unwrap().daemon_id;
    first.daemon.signal(Signal::TERM);
    eventually_within(MAX_FLEET_TIME, "the daemon drains", async || {
        !first.daemon.socket().exists()
    })
    .await;
    let (_, revision) = client.heartbeat(&daemon_id).await.unwrap();
    eventually_within(MAX_FLEET_TIME, "the daemon renews its heartbeat", async || {
        client.heartbeat(&daemon_id).await.is_some_and(|(_, found)| found >= revision + 2)
    })
    .await;
    first.go();
    assert!(first.daemon.wait_for_exit().await.success());
    let mut ended = Vec::new();
    for id in &ids {
        ended.push(client.wait_for_end(id).await.job.unwrap().state());
    }
    // Either may have begun first.
    ended.sort();
    let mut expected = [JobState::Succeeded, JobState::Lost];
    expected.sort();
    assert_eq!(ended, expected);
    assert_eq!(first.lines("effects").len(), 2);
}

#[tokio::test]
async fn draining_daemon_takes_no_job() {
    let fleet = TestFleet::start().await;
    let first =
        fleet.start_member_with(|setup| setup.arguments(&["--drain-timeout", "120s"])).await;
    let client = &fleet.client;
    client.publish(&JobMessage::new("m-1", &command_job(COUNTED_WAIT))).await;
    first.wait_for_effects(1).await;
    first.daemon.signal(Signal::TERM);
    eventually_within(MAX_FLEET_TIME, "the daemon drains", async || {
        !first.daemon.socket().exists()
    })
    .await;

    let second = fleet.start_member_beside(&first).await;
    second.go();
    let ids: Vec<_> = (2..12).map(|number| fleet_job_id(&format!("m-{number}"))).collect();
    for number in 2..12 {
        let request = command_job("echo run >> effects");
        client.publish(&JobMessage::new(&format!("m-{number}"), &request)).await;
    }
    for id in &ids {
        client.wait_for_end(id).await;
    }
    assert_eq!((first.lines("effects").len(), second.lines("effects").len()), (1, 10));
    first.go();
    client.wait_for_ends(&[fleet_job_id("m-1")]).await;
}
