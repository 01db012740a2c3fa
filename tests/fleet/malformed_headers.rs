//! Messages with headers that the client library of the daemon cannot read: they break the connection
//! that they arrive on, and once they are delivered, they become dead letters.

use jig::api::v1::{CancelJobRequest, FleetJobState, JobState};
use prost::Message as _;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};

use super::{
    COUNTED_WAIT, TestFleet,
    plain_client::{JobMessage, MAX_FLEET_TIME, fleet_job_id, next_message},
};
use crate::{
    jobs::command_job,
    support::{eventually_within, promptly, with_key},
};

/// First line of headers, and a line after the id of the message.
const MALFORMED: [(&str, &[u8]); 9] = [
    // The library panics.
    ("NATS/1.0", b"Jig-Session: a\rb"),
    ("NATS/1.0", b"Jig-Session: M\xfcller"),
    ("NATS/1.0", b"foo"),
    ("NATS/1.0", b"foo bar: x"),
    ("NATS/1.0", b"M\xc3\xbcller: x"),
    ("NATS/2.0", b""),
    // A line that begins with a blank, and continues no value.
    ("NATS/1.0\r\n foo", b""),
    ("NATS/1.0", b"\r\n foo"),
    ("NATS/1.0", b"\r\n\x0b: x"),
];

/// Returns headers with a message id of their own.
fn headers_with_id((version, line): (&str, &[u8]), id: &str) -> Vec<u8> {
    let start = format!("{version}\r\nNats-Msg-Id: {id}\r\n");
    [start.as_bytes(), line, b"\r\n\r\n"].concat()
}

/// Publishes a message whose headers no library would send.
async fn publish_raw(port: u16, subject: &str, headers: &[u8], body: &[u8]) {
    let publishing = async {
        let mut stream = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
        let (length, total) = (headers.len(), headers.len() + body.len());
        let connect = r#"CONNECT {"verbose":false,"headers":true}"#;
        let command = format!("{connect}\r\nHPUB {subject} {length} {total}\r\n");
        let parts = [command.as_bytes(), headers, body, b"\r\nPING\r\n"];
        stream.write_all(&parts.concat()).await.unwrap();
        let mut reply = Vec::new();
        while !reply.ends_with(b"PONG\r\n") {
            assert!(stream.read_buf(&mut reply).await.unwrap() > 0);
        }
    };
    promptly("the server reads a message", publishing).await;
}

#[tokio::test]
async fn messages_with_malformed_headers_become_dead_letters() {
    let fleet = TestFleet::start().await;
    let client = &fleet.client;
    let mut dead_letters = client.subscribe("jig.dead.>").await;
    let member = fleet.start_member().await;
    client.publish(&JobMessage::new("running", &command_job(COUNTED_WAIT))).await;
    member.wait_for_effects(1).await;

    let body = command_job("echo malformed >> effects").encode_to_vec();
    for (index, malformed) in MALFORMED.into_iter().enumerate() {
        let headers = headers_with_id(malformed, &format!("single-{index}"));
        publish_raw(fleet.server.port(), "jig.jobs.build.main", &headers, &body).await;
        let letter = next_message(&mut dead_letters).await;
        assert_eq!(letter.subject.as_str(), "jig.dead.build");
        let found = letter.headers.as_ref().unwrap();
        assert_eq!(found.get("Jig-Reason").unwrap().as_str(), "INVALID_PARAMS");
        assert_eq!(found.get("Jig-Subject").unwrap().as_str(), "jig.jobs.build.main");
        assert_eq!(letter.payload, body);
    }
    client.publish(&JobMessage::new("next", &command_job("echo next >> effects"))).await;
    let next = client.wait_for_end(&fleet_job_id("next")).await;
    assert_eq!(next.job.unwrap().state(), JobState::Succeeded);

    // All at once: more than the queue has places.
    for (index, malformed) in MALFORMED.into_iter().enumerate() {
        let headers = headers_with_id(malformed, &format!("together-{index}"));
        publish_raw(fleet.server.port(), "jig.jobs.build", &headers, &body).await;
    }
    for _ in MALFORMED {
        next_message(&mut dead_letters).await;
    }
    client.publish(&JobMessage::new("last", &command_job("echo last >> effects"))).await;
    let last = client.wait_for_end(&fleet_job_id("last")).await;
    assert_eq!(last.job.unwrap().state(), JobState::Succeeded);

    // The claim was kept all the time.
    member.go();
    let running = client.wait_for_end(&fleet_job_id("running")).await;
    assert_eq!((running.job.unwrap().state(), running.attempts), (JobState::Succeeded, 1));
    client.wait_for_ends(&[]).await;
    assert_eq!(member.lines("effects"), ["run", "next", "last"]);
}

#[tokio::test]
async fn requests_with_malformed_headers_do_not_deafen_a_daemon() {
    let fleet = TestFleet::start().await;
    let observer = fleet.start_observer().await;
    let member = fleet.start_member_beside(&observer).await;
    fleet.client.publish(&JobMessage::new("running", &command_job(COUNTED_WAIT))).await;
    member.wait_for_effects(1).await;
    let id = fleet_job_id("running");
    let record = fleet.client.wait_for_state(&id, FleetJobState::Claimed).await;
    for malformed in MALFORMED {
        for subject in ["jig.cancel", "jig.watch"] {
            let subject = format!("{subject}.{}", record.daemon_id);
            let headers = headers_with_id(malformed, "request");
            publish_raw(fleet.server.port(), &subject, &headers, b"").await;
        }
    }

    let mut jobs = fleet.jobs(&observer);
    eventually_within(MAX_FLEET_TIME, "the job can be cancelled", async || {
        let request = CancelJobRequest { job_id: id.clone() };
        let request = with_key(&jobs.key, request);
        let _unavailable = jobs.client.cancel_job(request).await;
        let record = fleet.client.record(&id).await;
        record.is_some_and(|record| record.state() == FleetJobState::Ended)
    })
    .await;
    let record = fleet.client.wait_for_end(&id).await;
    assert_eq!((record.job.unwrap().state(), record.attempts), (JobState::Cancelled, 1));
}

/// The library's task ends, as it does not with other malformed headers. That is no failure of the
/// server, after which the daemon would wait.
#[tokio::test]
async fn carriage_returns_are_no_failure_of_the_server() {
    let fleet = TestFleet::start().await;
    let client = &fleet.client;
    let mut dead_letters = client.subscribe("jig.dead.>").await;
    let member = fleet.start_member().await;
    client.publish(&JobMessage::new("first", &command_job("true"))).await;
    client.wait_for_end(&fleet_job_id("first")).await;
    for round in 0..15 {
        let headers = headers_with_id(MALFORMED[0], &format!("bad-{round}"));
        publish_raw(fleet.server.port(), "jig.jobs.build.main", &headers, b"").await;
        next_message(&mut dead_letters).await;
    }
    client.publish(&JobMessage::new("last", &command_job("true"))).await;
    client.wait_for_end(&fleet_job_id("last")).await;
    let log = member.daemon.log();
    assert!(!log.contains("cannot take jobs of the fleet"), "{log}");
}
