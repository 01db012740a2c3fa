//! The stream drops a message as a duplicate of any with the same `Nats-Msg-Id`. No job waits forever
//! for that.

use std::time::Duration;

use jig::api::v1::{Job, JobState, SubmitJobRequest};

use super::{
    Member, TestFleet, fleet_job,
    plain_client::{JobMessage, fleet_job_id, next_message, queue_job_id},
};
use crate::{jobs::command_job, support::eventually};

const TWO_QUEUES: &str = "[[fleet.queues]]\nname = \"build\"\nkey = \"ci\"\nworkspaces = [\"main\"]\n\
    [[fleet.queues]]\nname = \"deploy\"\nkey = \"ci\"\nworkspaces = [\"main\"]\n";

fn job_of_queue(queue: &str) -> SubmitJobRequest {
    let command = format!("echo {queue} >> effects");
    SubmitJobRequest { queue: Some(queue.to_owned()), ..fleet_job(&command) }
}

async fn submit(fleet: &TestFleet, member: &Member, id: &str, request: SubmitJobRequest) -> Job {
    fleet.jobs(member).submit(id, request).await
}

#[tokio::test]
async fn one_request_id_in_two_queues_is_two_jobs() {
    let mut fleet = TestFleet::start().await;
    fleet.set_queues("");
    // A daemon does not accept one request id twice from one caller.
    let first = fleet.start_member().await;
    let second = fleet.start_member_beside(&first).await;
    // The message of the first job is in the stream, and then it is gone.
    submit(&fleet, &first, "waiting", job_of_queue("build")).await;
    submit(&fleet, &second, "waiting", job_of_queue("deploy")).await;
    assert_eq!(fleet.client.message_count().await, Some(2));

    fleet.set_queues(TWO_QUEUES);
    let worker = fleet.start_member_beside(&first).await;
    submit(&fleet, &first, "gone", job_of_queue("build")).await;
    fleet.client.wait_for_end(&fleet_job_id("gone")).await;
    submit(&fleet, &second, "gone", job_of_queue("deploy")).await;

    let ids = ["waiting", "gone"];
    let ids = ids.map(|id| ["build", "deploy"].map(|queue| queue_job_id(queue, id))).concat();
    for record in fleet.client.wait_for_ends(&ids).await.values() {
        assert_eq!(record.job.as_ref().unwrap().state(), JobState::Succeeded, "{record:?}");
        assert!(["waiting", "gone"].contains(&&*record.request_id), "{record:?}");
    }
    let mut effects = worker.lines("effects");
    effects.sort();
    assert_eq!(effects, ["build", "build", "deploy", "deploy"]);
}

/// Another program has published a message with the same id, which no daemon can run for this job.
#[tokio::test]
async fn foreign_message_does_not_displace_a_submission() {
    let fleet = TestFleet::start().await;
    let observer = fleet.start_observer().await;
    let mut dead_letters = fleet.client.subscribe("jig.dead.>").await;
    let foreign = JobMessage::new("m-1", &command_job("echo foreign >> effects"));
    // The observer creates the stream.
    fleet.client.publish(&foreign).await;
    let id = submit(&fleet, &observer, "m-1", job_of_queue("build")).await.job_id;
    assert_eq!(fleet.client.message_count().await, Some(2));

    let worker = fleet.start_member_beside(&observer).await;
    let ends = fleet.client.wait_for_ends(std::slice::from_ref(&id)).await;
    assert_eq!(ends[&id].job.as_ref().unwrap().state(), JobState::Succeeded);
    let letter = next_message(&mut dead_letters).await;
    assert_eq!(letter.headers.unwrap().get("Jig-Reason").unwrap().as_str(), "REQUEST_ID_REUSED");
    assert_eq!(worker.lines("effects"), ["build"]);
}

/// A daemon that dies between the record and the message, or whose message is lost.
#[tokio::test]
async fn repeated_submission_publishes_a_message_that_is_missing() {
    let mut fleet = TestFleet::start().await;
    let queues = fleet.queues.clone();
    fleet.set_queues("");
    let observer = fleet.start_member().await;
    // A daemon answers a repetition by itself. Others look for the job.
    let others =
        [fleet.start_member_beside(&observer).await, fleet.start_member_beside(&observer).await];
    fleet.set_queues(&queues);
    let client = &fleet.client;
    let first = submit(&fleet, &observer, "m-1", job_of_queue("build")).await;
    let mut stream = client.jetstream().get_stream("JIG_JOBS").await.unwrap();
    let last = stream.info().await.unwrap().state.last_sequence;
    assert!(stream.delete_message(last).await.unwrap());
    assert_eq!(client.message_count().await, Some(0));

    // The stream takes it for a duplicate of the message that was lost.
    for other in &others {
        let again = submit(&fleet, other, "m-1", job_of_queue("build")).await;
        assert_eq!((again.job_id.as_str(), again.state()), (&*first.job_id, JobState::Queued));
        assert_eq!(client.message_count().await, Some(1));
    }

    // The stream has never had the message of another job.
    let second = submit(&fleet, &observer, "m-2", job_of_queue("build")).await;
    let mut config = stream.info().await.unwrap().config.clone();
    config.duplicate_window = Duration::from_millis(100);
    client.jetstream().update_stream(&config).await.unwrap();
    let probe = JobMessage::new("probe", &command_job("true"));
    client.publish(&probe).await;
    eventually("the stream forgets messages", async || !client.publish(&probe).await).await;
    stream.purge().await.unwrap();
    for (id, count) in [("m-2", 1), ("m-1", 1)] {
        submit(&fleet, &others[0], id, job_of_queue("build")).await;
        assert_eq!(client.message_count().await, Some(count), "{id}");
    }

    // The first job is published again by a daemon that has not answered for it.
    let worker = fleet.start_member_beside(&observer).await;
    submit(&fleet, &worker, "m-1", job_of_queue("build")).await;
    let ends = client.wait_for_ends(&[first.job_id, second.job_id]).await;
    assert!(ends.values().all(|record| record.attempts == 1), "{ends:?}");
    assert_eq!(worker.lines("effects"), ["build", "build"]);
}

#[tokio::test]
async fn plain_message_can_have_another_message_id() {
    let mut fleet = TestFleet::start().await;
    fleet.set_queues(TWO_QUEUES);
    let worker = fleet.start_member().await;
    let client = &fleet.client;
    for queue in ["build", "deploy"] {
        let message = JobMessage::new("m-1", &command_job(&format!("echo {queue} >> effects")))
            .subject(&format!("jig.jobs.{queue}.main"))
            .without_header("Nats-Msg-Id")
            .header("Nats-Msg-Id", &queue_job_id(queue, "m-1"))
            .header("Jig-Request-Id", "m-1");
        let signed = message.signed(super::SIGNING_KEY, "key:ci");
        assert!(!client.publish(&signed).await);
        assert!(client.publish(&signed).await, "a repetition is a duplicate");
    }

    let ids = ["build", "deploy"].map(|queue| queue_job_id(queue, "m-1"));
    for record in client.wait_for_ends(&ids).await.values() {
        assert_eq!(record.job.as_ref().unwrap().state(), JobState::Succeeded, "{record:?}");
        assert_eq!(record.request_id, "m-1");
    }
    let mut effects = worker.lines("effects");
    effects.sort();
    assert_eq!(effects, ["build", "deploy"]);
}
