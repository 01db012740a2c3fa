//! Back-pressure: a daemon claims only jobs that it would begin now, and every idle daemon can wait for
//! them.

use std::{ops::Range, time::Duration};

use jig::api::v1::JobState;
use serde_json::json;

use super::{
    COUNTED_WAIT, TestFleet, all_effects,
    plain_client::{JobMessage, fleet_job_id, queue_job_id},
};
use crate::{jobs::command_job, support::eventually};

/// Requests for messages that a NATS server lets wait at a consumer by default.
const DEFAULT_MAX_WAITING: usize = 512;

async fn publish(fleet: &TestFleet, numbers: Range<usize>) -> Vec<String> {
    let mut ids = Vec::new();
    for number in numbers {
        let name = format!("m-{number}");
        let message = JobMessage::new(&name, &command_job("echo run >> effects"));
        fleet.client.publish(&message).await;
        ids.push(fleet_job_id(&name));
    }
    ids
}

async fn require_success(fleet: &TestFleet, ids: &[String]) {
    for record in fleet.client.wait_for_ends(ids).await.values() {
        assert_eq!(record.job.as_ref().unwrap().state(), JobState::Succeeded, "{record:?}");
    }
}

/// The tables of queues, and of a daemon that runs `slots` jobs at once.
pub(super) fn queues_with_slots(names: &[&str], slots: usize) -> String {
    let queue = |name: &&str| {
        format!("[[fleet.queues]]\nname = {name:?}\nkey = \"ci\"\nplaces = {slots}\n")
    };
    let tables: String = names.iter().map(queue).collect();
    format!("{tables}[jobs]\nconcurrency = {slots}\n")
}

#[tokio::test]
async fn daemon_that_is_busy_with_jobs_of_its_own_claims_none() {
    let mut fleet = TestFleet::start().await;
    let queues = fleet.queues.clone();
    fleet.set_queues(&format!("{}[jobs]\nconcurrency = 4\n", queues));
    let busy = fleet.start_member().await;
    fleet.client.wait_for_free_places(&[4]).await;
    let mut own_jobs = fleet.jobs(&busy);
    for number in 0..4 {
        own_jobs.submit(&format!("own-{number}"), command_job(COUNTED_WAIT)).await;
    }
    busy.wait_for_effects(4).await;
    fleet.client.wait_for_free_places(&[0]).await;

    fleet.set_queues(&queues);
    let mut idle = fleet.start_member_beside(&busy).await;
    require_success(&fleet, &publish(&fleet, 0..12).await).await;
    assert_eq!((busy.lines("effects").len(), idle.lines("effects").len()), (4, 12));

    // It claims jobs as soon as its own have ended.
    idle.kill().await;
    let ids = publish(&fleet, 12..14).await;
    busy.go();
    require_success(&fleet, &ids).await;
    assert_eq!(busy.lines("effects").len(), 6);
}

#[tokio::test]
async fn queues_of_a_daemon_share_its_slots() {
    let mut fleet = TestFleet::start().await;
    fleet.set_queues(&queues_with_slots(&["build", "other"], 2));
    let first = fleet.start_member().await;
    let wait = |name: &str| JobMessage::new(name, &command_job(COUNTED_WAIT));
    for name in ["m-0", "m-1"] {
        fleet.client.publish(&wait(name)).await;
    }
    first.wait_for_effects(2).await;

    // The jobs of the other queue run elsewhere.
    let second = fleet.start_member_beside(&first).await;
    for name in ["o-0", "o-1"] {
        fleet.client.publish(&wait(name).subject("jig.jobs.other.main")).await;
    }
    second.wait_for_effects(2).await;
    assert_eq!(all_effects(&[&first, &second]).len(), 4);
    first.go();
    second.go();
    let ids = ["o-0", "o-1"].map(|name| queue_job_id("other", name));
    let ids = [&["m-0", "m-1"].map(fleet_job_id)[..], &ids[..]].concat();
    require_success(&fleet, &ids).await;
}

#[tokio::test]
async fn queues_of_a_daemon_do_not_claim_for_the_same_slot() {
    let mut fleet = TestFleet::start().await;
    let names = ["build", "q-1", "q-2", "q-3"];
    fleet.set_queues(&queues_with_slots(&names, 1));
    // This start makes the stream.
    let mut first = fleet.start_member().await;
    fleet.client.wait_for_free_places(&[1]).await;
    first.kill().await;
    let mut ids = Vec::new();
    for name in names {
        let wait = JobMessage::new(name, &command_job(COUNTED_WAIT));
        fleet.client.publish(&wait.subject(&format!("jig.jobs.{name}.main"))).await;
        ids.push(queue_job_id(name, name));
    }
    let first = fleet.start_member().await;
    first.wait_for_effects(1).await;

    // Each of the others finds a daemon that begins it.
    let second = fleet.start_member_beside(&first).await;
    let third = fleet.start_member_beside(&first).await;
    let fourth = fleet.start_member_beside(&first).await;
    for member in [&first, &second, &third, &fourth] {
        member.wait_for_effects(1).await;
    }
    for member in [&first, &second, &third, &fourth] {
        member.go();
    }
    require_success(&fleet, &ids).await;
}

#[tokio::test]
async fn more_daemons_can_wait_than_a_server_allows_by_default() {
    let fleet = TestFleet::start().await;
    let _member = fleet.start_member().await;
    fleet.client.wait_for_free_places(&[4]).await;
    let (client, stream) = {
        let jetstream = fleet.client.jetstream();
        (jetstream.client(), jetstream.get_stream("JIG_JOBS").await.unwrap())
    };
    eventually("the daemon waits", async || {
        stream.consumer_info("build@main").await.is_ok_and(|consumer| consumer.num_waiting > 0)
    })
    .await;

    // A request without interest in its replies does not wait.
    let _replies = client.subscribe("_INBOX.>").await.unwrap();
    let expires = Duration::from_secs(60).as_nanos();
    let request = json!({ "batch": 1, "expires": expires }).to_string();
    for _ in 0..DEFAULT_MAX_WAITING {
        let subject = "$JS.API.CONSUMER.MSG.NEXT.JIG_JOBS.build@main";
        let reply = client.new_inbox();
        client.publish_with_reply(subject, reply, request.clone().into()).await.unwrap();
    }
    eventually("all wait", async || {
        let consumer = stream.consumer_info("build@main").await.unwrap();
        consumer.num_waiting > DEFAULT_MAX_WAITING
    })
    .await;
}
