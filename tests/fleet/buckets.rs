//! Buckets that the servers lose, or that store nothing for a while, or little in a message: no job is
//! lost, and none stays.

use std::time::Duration;

use jig::api::v1::{FleetJobRecord, FleetJobState, JobState, SubmitJobRequest};
use tokio::time::sleep;

use super::{
    COUNTED_WAIT, Member, TestFleet, all_effects, fleet_job,
    nats_server::NatsServer,
    plain_client::{JobMessage, MAX_FLEET_TIME, fleet_job_id},
    server_access::start_fleet_with_limited_daemons,
};
use crate::{
    jobs::command_job,
    support::{eventually, eventually_within},
};

#[tokio::test]
async fn deleted_buckets_are_made_again() {
    let fleet = TestFleet::start().await;
    let member = fleet.start_member().await;
    let mut jobs = fleet.jobs(&member);
    for bucket in
        ["KV_JIG_JOBS_daemons", "KV_JIG_JOBS_records", "OBJ_JIG_JOBS_results", "JIG_JOBS_dead"]
    {
        let before = fleet.client.publish(&JobMessage::new(bucket, &command_job("true"))).await;
        assert!(!before);
        fleet.client.wait_for_end(&fleet_job_id(bucket)).await;

        fleet.client.jetstream().delete_stream(bucket).await.unwrap();
        let request_id = format!("after-{bucket}");
        let mut id = None;
        eventually_within(MAX_FLEET_TIME, "a job is accepted again", async || {
            let job = SubmitJobRequest { store_artifacts: true, ..fleet_job("echo stored") };
            id = jobs.try_submit(&request_id, job).await.ok().map(|job| job.job_id);
            id.is_some()
        })
        .await;
        assert_eq!(jobs.wait(&id.unwrap()).await.state(), JobState::Succeeded);
        eventually_within(MAX_FLEET_TIME, "it is there again", async || {
            fleet.client.jetstream().get_stream(bucket).await.is_ok()
        })
        .await;
    }
}

/// Attempts to claim a job that fail are no deaths of daemons, however many there are.
#[tokio::test]
async fn job_runs_after_records_could_not_be_stored_for_long() {
    let mut fleet = TestFleet::start().await;
    fleet.add_settings("max_deliver = 1\n");
    fleet.settings = fleet.settings.replace("max_deliver = 3\n", "");
    let member = fleet.start_member().await;
    fleet.client.records().await;
    let jetstream = fleet.client.jetstream();
    fleet.client.set_max_bytes("KV_JIG_JOBS_records", 1).await;
    fleet.client.publish(&JobMessage::new("m-1", &command_job("echo run >> effects"))).await;
    let stream = jetstream.get_stream("JIG_JOBS").await.unwrap();
    eventually_within(MAX_FLEET_TIME, "the job was delivered 12 times", async || {
        let consumer = stream.consumer_info("build@main").await;
        consumer.is_ok_and(|consumer| consumer.delivered.consumer_sequence >= 12)
    })
    .await;

    fleet.client.set_max_bytes("KV_JIG_JOBS_records", -1).await;
    let record = fleet.client.wait_for_end(&fleet_job_id("m-1")).await;
    assert_eq!((record.job.unwrap().state(), record.attempts), (JobState::Succeeded, 1));
    assert_eq!(member.lines("effects"), ["run"]);
}

/// The record of a job that runs for longer than the servers store records stays.
#[tokio::test]
async fn running_job_outlives_the_retention() {
    let mut fleet = TestFleet::start().await;
    fleet.add_settings("result_retention = \"4s\"\n");
    let observer = fleet.start_observer().await;
    let member = fleet.start_member_beside(&observer).await;
    let mut jobs = fleet.jobs(&member);
    let id = jobs.submit("m-1", fleet_job(COUNTED_WAIT)).await.job_id;
    member.wait_for_effects(1).await;
    let records = fleet.client.records().await;
    let claimed = records.entry(&id).await.unwrap().unwrap();
    fleet.client.wait_for_old_message(2).await;
    eventually("the record is stored again and again", async || {
        let found = records.entry(&id).await.unwrap().unwrap();
        found.revision >= claimed.revision + 3 && found.value == claimed.value
    })
    .await;

    let again = fleet.jobs(&observer).submit("m-1", fleet_job(COUNTED_WAIT)).await;
    assert_eq!((again.job_id.as_str(), again.state()), (&*id, JobState::Running));
    member.go();
    assert_eq!(jobs.wait(&id).await.state(), JobState::Succeeded);
    assert_eq!(member.lines("effects"), ["run"]);
}

/// The message of a job that runs for longer than the server stores messages is published again.
#[tokio::test]
async fn job_that_outlives_the_retention_runs_again() {
    let mut fleet = start_fleet_with_limited_daemons().await;
    fleet.add_settings("result_retention = \"6s\"\n");
    let member = fleet.start_member().await;
    let request = SubmitJobRequest { retry_if_lost: true, ..command_job(COUNTED_WAIT) };
    // The longest id of a request.
    let name = "\u{1f980}".repeat(120);
    fleet.client.publish(&JobMessage::new(&name, &request)).await;
    member.wait_for_effects(1).await;
    fleet.client.wait_for_old_message(3).await;

    let member = member.restart().await;
    member.wait_for_effects(2).await;
    member.go();
    let id = fleet_job_id(&name);
    let record = fleet.client.wait_for_end(&id).await;
    assert_eq!((record.job.unwrap().state(), record.attempts), (JobState::Succeeded, 2));
    // The copies of the message run nothing, and are acknowledged.
    fleet.client.wait_for_ends(&[id]).await;
    assert_eq!(member.lines("effects"), ["run", "run"]);
    assert!(!fleet.server.log().contains("Violation"), "{}", fleet.server.log());
}

/// Without its record, the job would run again if its daemon died.
#[tokio::test]
async fn deleted_record_of_a_running_job_is_made_again() {
    let fleet = TestFleet::start().await;
    let member = fleet.start_member().await;
    fleet.client.publish(&JobMessage::new("m-1", &command_job(COUNTED_WAIT))).await;
    member.wait_for_effects(1).await;
    let id = fleet_job_id("m-1");
    let claimed = fleet.client.wait_for_state(&id, FleetJobState::Claimed).await;

    fleet.client.jetstream().delete_stream("KV_JIG_JOBS_records").await.unwrap();
    assert_eq!(fleet.client.wait_for_state(&id, FleetJobState::Claimed).await, claimed);
    member.go();
    assert_eq!(fleet.client.wait_for_end(&id).await.job.unwrap().state(), JobState::Succeeded);
    assert_eq!(member.lines("effects"), ["run"]);
}

/// A message that is delivered before its record is made again begins nothing.
#[tokio::test]
async fn job_whose_record_was_deleted_does_not_begin_again() {
    let mut fleet = TestFleet::start().await;
    let (first, message, claimed) = start_full_member(&mut fleet).await;
    let id = fleet_job_id("m-1");
    // Only the second daemon has a place for the copy. It hands it back again and again.
    let second = fleet.start_member_beside(&first).await;
    fleet.client.publish(&copy_of(&message)).await;
    let jetstream = fleet.client.jetstream();
    let jobs = jetstream.get_stream("JIG_JOBS").await.unwrap();
    eventually("the copy was delivered", async || {
        let consumer = jobs.consumer_info("build@main").await.unwrap();
        consumer.delivered.consumer_sequence >= 2
    })
    .await;

    delete_and_make_again(&fleet, "KV_JIG_JOBS_records").await;
    assert_eq!(fleet.client.wait_for_state(&id, FleetJobState::Claimed).await, claimed);
    first.go();
    assert_eq!(fleet.client.wait_for_end(&id).await.job.unwrap().state(), JobState::Succeeded);
    fleet.client.wait_for_ends(&[id]).await;
    assert_eq!(all_effects(&[&first, &second]), ["run"]);
}

/// Starts a daemon whose only place has the job `m-1`. Returns the message of the job, and its record.
async fn start_full_member(fleet: &mut TestFleet) -> (Member, JobMessage, FleetJobRecord) {
    fleet.set_queues(&fleet.queues.replace("places = 4", "places = 1"));
    let member = fleet.start_member().await;
    let message = JobMessage::new("m-1", &command_job(COUNTED_WAIT));
    fleet.client.publish(&message).await;
    member.wait_for_effects(1).await;
    let claimed = fleet.client.wait_for_state(&fleet_job_id("m-1"), FleetJobState::Claimed).await;
    (member, message, claimed)
}

/// The message that is published when a job has run for long.
fn copy_of(message: &JobMessage) -> JobMessage {
    let copy = message.clone().without_header("Nats-Msg-Id").header("Nats-Msg-Id", "again");
    copy.header("Jig-Request-Id", "m-1")
}

async fn delete_and_make_again(fleet: &TestFleet, bucket: &str) {
    let jetstream = fleet.client.jetstream();
    let stream = jetstream.get_stream(bucket).await.unwrap();
    jetstream.delete_stream(bucket).await.unwrap();
    jetstream.create_stream(stream.cached_info().config.clone()).await.unwrap();
}

/// A new bucket lacks the heartbeats of daemons that live.
#[tokio::test]
async fn no_daemon_is_dead_because_its_heartbeat_was_deleted() {
    let mut fleet = TestFleet::start().await;
    let (first, message, claimed) = start_full_member(&mut fleet).await;
    let id = fleet_job_id("m-1");
    let second = fleet.start_member_beside(&first).await;
    fleet.client.wait_for_free_places(&[0, 1]).await;
    // Lets `lost_after` pass, 3 s: before, the second daemon takes no other one for dead.
    sleep(Duration::from_secs(4)).await;
    // A heartbeat that is lost with the bucket would be stored again after more than `lost_after`.
    let beat = fleet.client.heartbeat(&claimed.daemon_id).await;
    eventually("the first daemon has renewed its heartbeat", async || {
        fleet.client.heartbeat(&claimed.daemon_id).await != beat
    })
    .await;

    delete_and_make_again(&fleet, "KV_JIG_JOBS_daemons").await;
    // The first daemon has no place for it.
    fleet.client.publish(&copy_of(&message)).await;
    eventually("the first daemon has a heartbeat again", async || {
        fleet.client.heartbeat(&claimed.daemon_id).await.is_some()
    })
    .await;
    assert_eq!(fleet.client.record(&id).await, Some(claimed));
    first.go();
    let record = fleet.client.wait_for_end(&id).await;
    assert_eq!(record.job.unwrap().state(), JobState::Succeeded);
    fleet.client.wait_for_ends(&[id]).await;
    assert_eq!(all_effects(&[&first, &second]), ["run"]);
}

/// The messages of the server are smaller than the usual chunk of an object.
#[tokio::test]
async fn result_is_stored_in_small_messages() {
    let server = NatsServer::start_with_config("max_payload: 65536\n").await;
    let fleet = TestFleet::with_server(server).await;
    let member = fleet.start_member().await;
    let mut jobs = fleet.jobs(&member);
    let job = fleet_job("head -c 300000 /dev/zero | tr '\\0' x");
    let id = jobs.submit("m-1", job).await.job_id;
    let job = jobs.wait(&id).await;
    assert_eq!(job.state(), JobState::Succeeded);
    let record = fleet.client.record(&id).await.unwrap();
    assert!(!record.result_object.is_empty(), "{record:?}");
    assert!(job.result.is_some());
    fleet.client.wait_for_free_places(&[4]).await;
}
