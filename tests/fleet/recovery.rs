//! Restarted daemons that cannot store the end of one of their jobs as usual: their other jobs begin
//! and end.

use jig::api::v1::{FleetJobRecord, FleetJobState, JobState};
use prost::Message as _;

use super::{
    COUNTED_WAIT, Member, TestFleet,
    nats_server::NatsServer,
    plain_client::{JobMessage, MAX_FLEET_TIME, fleet_job_id},
    postgres::repeatable,
    starts::{end_of, publish_two, start_slow_member},
};
use crate::{jobs::command_job, support::eventually_within};

/// Waits until a record that was damaged is that of an ended job.
async fn wait_for_end_of_damaged(fleet: &TestFleet, id: &str) -> FleetJobRecord {
    let records = fleet.client.records().await;
    let mut ended = None;
    eventually_within(MAX_FLEET_TIME, "an end replaces a damaged record", async || {
        let value = records.get(id).await.unwrap().unwrap();
        let record = FleetJobRecord::decode(value).ok();
        ended = record.filter(|record| record.state() == FleetJobState::Ended);
        ended.is_some()
    })
    .await;
    ended.unwrap()
}

/// A program that may use JetStream can damage records.
#[tokio::test]
async fn damaged_records_end_with_the_ends_that_their_daemon_knows() {
    let mut fleet = TestFleet::start().await;
    let mut member = start_slow_member(&mut fleet).await;
    publish_two(&fleet, &member).await;
    member.kill().await;
    let records = fleet.client.records().await;
    let ids = ["running", "queued"].map(fleet_job_id);
    for id in &ids {
        records.put(id, vec![0xff].into()).await.unwrap();
    }

    let member = member.restart().await;
    let mut jobs = fleet.jobs(&member);
    for (id, expected) in ids.iter().zip([JobState::Lost, JobState::Succeeded]) {
        let record = wait_for_end_of_damaged(&fleet, id).await;
        assert_eq!(record.principal, "key:slow");
        assert_eq!(record.job.unwrap().state(), expected);
        assert_eq!(jobs.try_get(id).await.unwrap().state(), expected);
    }
    assert_eq!(member.lines("effects"), ["run", "queued"]);
    // The messages are acknowledged, and become no dead letters.
    fleet.client.wait_for_ends(&ids).await;
    let mut letters = fleet.client.jetstream().get_stream("JIG_JOBS_dead").await.unwrap();
    assert_eq!(letters.info().await.unwrap().state.messages, 0);
}

/// Its message is for the daemons that take jobs of the queue.
#[tokio::test]
async fn last_attempt_ends_although_its_daemon_takes_no_more_jobs() {
    let mut fleet = TestFleet::start().await;
    fleet.settings = fleet.settings.replace("max_deliver = 3", "max_deliver = 1");
    let first = fleet.start_member().await;
    fleet.client.publish(&JobMessage::new("m-1", &repeatable(COUNTED_WAIT))).await;
    first.wait_for_effects(1).await;
    let Member { daemon, proxy } = first;
    let observer = fleet.setup(&[&proxy.url()], "");
    let first = Member { daemon: daemon.restart_with(|_| observer).await, proxy };
    let _second = fleet.start_member_beside(&first).await;

    assert_eq!(end_of(&fleet, "m-1").await, (JobState::Lost, 1));
    fleet.client.wait_for_ends(&[fleet_job_id("m-1")]).await;
    let mut letters = fleet.client.jetstream().get_stream("JIG_JOBS_dead").await.unwrap();
    assert_eq!(letters.info().await.unwrap().state.messages, 1);
    assert_eq!(first.lines("effects"), ["run"]);
}

#[tokio::test]
async fn result_without_room_delays_no_other_job_after_a_restart() {
    let server = NatsServer::start_with_config("max_payload: 65536\n").await;
    let mut fleet = TestFleet::with_server(server).await;
    let mut member = start_slow_member(&mut fleet).await;
    fleet.client.records().await;
    fleet.client.set_max_bytes("OBJ_JIG_JOBS_results", 1).await;
    let large = command_job("head -c 300000 /dev/zero | tr '\\0' x");
    fleet.client.publish(&JobMessage::new("large", &large)).await;
    eventually_within(MAX_FLEET_TIME, "the result cannot be stored", async || {
        member.daemon.log().contains("cannot store the result of a fleet job yet")
    })
    .await;
    publish_two(&fleet, &member).await;
    member.kill().await;

    let member = member.restart().await;
    assert_eq!(end_of(&fleet, "queued").await.0, JobState::Succeeded);
    assert_eq!(end_of(&fleet, "running").await.0, JobState::Lost);
    assert_eq!(member.lines("effects"), ["run", "queued"]);
    fleet.client.set_max_bytes("OBJ_JIG_JOBS_results", -1).await;
    assert_eq!(end_of(&fleet, "large").await.0, JobState::Succeeded);
}
