//! Two daemons with one `fleet.daemon_id`: the one that started last takes jobs, the other one ends
//! those that it has.

use std::time::{Duration, Instant};

use jig::api::v1::JobState;
use rustix::process::Signal;

use super::{
    COUNTED_WAIT, TestFleet,
    plain_client::{JobMessage, MAX_FLEET_TIME, fleet_job_id},
};
use crate::{
    jobs::command_job,
    support::{eventually, eventually_within},
};

const TAKEN: &str = "another daemon of the fleet has the id of this one";
/// Heartbeats over which the name must stay with one daemon.
const HEARTBEATS: u64 = 5;

#[tokio::test]
async fn the_last_daemon_of_a_name_takes_jobs_until_it_has_gone() {
    let mut fleet = TestFleet::start().await;
    fleet.add_settings("daemon_id = \"twin\"\n");
    let client = &fleet.client;
    let mut first = fleet.start_member().await;
    client.publish(&JobMessage::new("m-1", &command_job(COUNTED_WAIT))).await;
    first.wait_for_effects(1).await;
    let (before, _) = client.heartbeat("twin").await.unwrap();

    let mut second = fleet.start_member_beside(&first).await;
    let yields = "the first daemon yields";
    eventually_within(MAX_FLEET_TIME, yields, async || first.daemon.log().contains(TAKEN)).await;
    let (after, revision) = client.heartbeat("twin").await.unwrap();
    assert_ne!(before.start_id, after.start_id);
    for number in 0..4 {
        let name = format!("second-{number}");
        client.publish(&JobMessage::new(&name, &command_job("echo run >> effects"))).await;
        client.wait_for_end(&fleet_job_id(&name)).await;
    }
    assert_eq!((first.lines("effects").len(), second.lines("effects").len()), (1, 4));

    // They do not take the name from each other in turn.
    eventually_within(MAX_FLEET_TIME, "the second daemon keeps the name", async || {
        let (record, current) = client.heartbeat("twin").await.unwrap();
        assert_eq!(record.start_id, after.start_id);
        current >= revision + HEARTBEATS
    })
    .await;
    assert_eq!(first.daemon.log().matches(TAKEN).count(), 1);
    assert!(!second.daemon.log().contains(TAKEN));

    // The first daemon ends what it has.
    first.go();
    let job = client.wait_for_end(&fleet_job_id("m-1")).await.job.unwrap();
    assert_eq!(job.state(), JobState::Succeeded);

    // When the second has gone, the first takes jobs again.
    second.kill().await;
    client.publish(&JobMessage::new("m-2", &command_job("echo run >> effects"))).await;
    client.wait_for_end(&fleet_job_id("m-2")).await;
    assert_eq!((first.lines("effects").len(), second.lines("effects").len()), (2, 4));

    // A daemon without the name does not delete the heartbeat of the one that has it.
    let second = second.restart().await;
    eventually_within(MAX_FLEET_TIME, "the first daemon yields again", async || {
        first.daemon.log().matches(TAKEN).count() == 2
    })
    .await;
    let (last, _) = client.heartbeat("twin").await.unwrap();
    first.daemon.signal(Signal::TERM);
    assert!(first.daemon.wait_for_exit().await.success());
    let (record, _) = client.heartbeat("twin").await.unwrap();
    assert_eq!(record.start_id, last.start_id);
    assert!(!second.daemon.log().contains(TAKEN));
}

#[tokio::test]
async fn killed_daemon_takes_its_name_again_without_delay() {
    let mut fleet = TestFleet::start().await;
    fleet.set_times("1s", "120s");
    fleet.add_settings("daemon_id = \"one\"\n");
    let member = fleet.start_member().await;
    fleet.client.publish(&JobMessage::new("m-1", &command_job("echo run >> effects"))).await;
    fleet.client.wait_for_end(&fleet_job_id("m-1")).await;

    let member = member.restart().await;
    let restarted = Instant::now();
    fleet.client.publish(&JobMessage::new("m-2", &command_job("echo run >> effects"))).await;
    fleet.client.wait_for_end(&fleet_job_id("m-2")).await;
    // The heartbeat of the killed start lasts for two minutes.
    assert!(restarted.elapsed() < Duration::from_secs(40), "{:?}", restarted.elapsed());
    assert!(!member.daemon.log().contains(TAKEN));

    // A daemon that leaves deletes its heartbeat.
    let mut member = member;
    member.daemon.signal(Signal::TERM);
    assert!(member.daemon.wait_for_exit().await.success());
    eventually("the heartbeat is gone", async || fleet.client.heartbeat("one").await.is_none())
        .await;
}
