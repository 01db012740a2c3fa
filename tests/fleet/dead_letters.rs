//! Dead letters: an operator sees whose job it was, and can publish it again.

use async_nats::{HeaderMap, Message};
use jig::api::v1::JobState;
use prost::Message as _;

use super::{
    SIGNING_KEY, TestFleet,
    plain_client::{JobMessage, fleet_job_id, next_message},
};
use crate::{jobs::command_job, support::Daemon};

const TRACEPARENT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
/// Largest message that the server accepts, with its headers.
const MAX_MESSAGE_BYTES: usize = 1 << 20;

fn header<'a>(letter: &'a Message, name: &str) -> Option<&'a str> {
    letter.headers.as_ref().and_then(|headers| headers.get(name)).map(|value| value.as_str())
}

#[tokio::test]
async fn dead_letter_can_be_published_again() {
    let fleet = TestFleet::start().await;
    let client = &fleet.client;
    let mut dead_letters = client.subscribe("jig.dead.>").await;
    let member = fleet.start_member().await;
    let request = command_job("echo run >> effects");
    let message = JobMessage::new("m-1", &request)
        .header("Jig-Session", "nightly")
        .header("traceparent", TRACEPARENT)
        .signed(SIGNING_KEY, "key:developer");
    client.publish(&message).await;

    // No daemon has the key yet.
    let letter = next_message(&mut dead_letters).await;
    let id = fleet_job_id("m-1");
    for (name, value) in [
        ("Jig-Reason", "FORBIDDEN"),
        ("Jig-Job-Id", &*id),
        ("Jig-Subject", "jig.jobs.build.main"),
        ("Jig-Request-Id", "m-1"),
        ("Jig-Session", "nightly"),
        ("Jig-Principal", "key:developer"),
        ("traceparent", TRACEPARENT),
    ] {
        assert_eq!(header(&letter, name), Some(value), "{name}");
    }
    assert_eq!(letter.payload, request.encode_to_vec());
    client.wait_for_end(&id).await;

    // The operator adds it, deletes the record, and publishes the letter.
    fleet.keys.add_key("developer", "invoke", &[]);
    member.daemon.reload_config(Daemon::RELOADED).await;
    client.records().await.purge(&id).await.unwrap();
    let subject = header(&letter, "Jig-Subject").unwrap().to_owned();
    let mut headers = HeaderMap::new();
    for name in ["Jig-Request-Id", "Jig-Session", "Jig-Principal", "Jig-Signature"] {
        headers.insert(name, header(&letter, name).unwrap());
    }
    let publishing = client.jetstream().publish_with_headers(subject, headers, letter.payload);
    publishing.await.unwrap().await.unwrap();
    let job = client.wait_for_end(&id).await.job.unwrap();
    assert_eq!((job.state(), &*job.principal), (JobState::Succeeded, "key:developer"));
    assert_eq!(job.session, "nightly");
    assert_eq!(member.lines("effects"), ["run"]);
}

#[tokio::test]
async fn hostile_headers_are_not_copied() {
    let fleet = TestFleet::start().await;
    let client = &fleet.client;
    let mut dead_letters = client.subscribe("jig.dead.>").await;
    let _member = fleet.start_member().await;
    let message = JobMessage::new("m-1", &command_job("true"))
        .header("Jig-Session", &"s".repeat(10_000))
        .header("Jig-Principal", "key:ci")
        .header("Jig-Principal", "key:root")
        .header("Jig-Reason", "FORGED")
        .header("Jig-Subject", "jig.jobs.forged")
        .header("Jig-Job-Id", "fleet-forged");
    client.publish(&message).await;

    let letter = next_message(&mut dead_letters).await;
    assert_eq!(header(&letter, "Jig-Request-Id"), Some("m-1"));
    assert_eq!(header(&letter, "Jig-Reason"), Some("INVALID_PARAMS"));
    assert_eq!(header(&letter, "Jig-Subject"), Some("jig.jobs.build.main"));
    assert_eq!(header(&letter, "Jig-Job-Id"), Some(&*fleet_job_id("m-1")));
    for name in ["Jig-Session", "Jig-Principal", "Jig-Signature"] {
        assert_eq!(header(&letter, name), None, "{name}");
    }
    let headers = letter.headers.unwrap();
    assert_eq!(headers.get_all("Jig-Reason").count(), 1);
}

/// With the headers of a dead letter, the message is larger than the server accepts.
#[tokio::test]
async fn largest_message_has_a_dead_letter_without_its_body() {
    let fleet = TestFleet::start().await;
    let client = &fleet.client;
    let mut dead_letters = client.subscribe("jig.dead.>").await;
    let _member = fleet.start_member().await;
    let body = vec![0xff; MAX_MESSAGE_BYTES - 100];
    client.publish(&JobMessage::with_body("m-1", body)).await;

    let letter = next_message(&mut dead_letters).await;
    assert_eq!(header(&letter, "Jig-Request-Id"), Some("m-1"));
    assert_eq!(letter.payload.len(), 0);
    let text = header(&letter, "Jig-Message").unwrap();
    assert!(text.contains("without the body"), "{text}");
    let record = client.wait_for_end(&fleet_job_id("m-1")).await;
    assert_eq!(record.workspace, "main");
    client.wait_for_ends(&[]).await;
}
