//! Messages with headers that the client library of the daemon cannot read: they break the connection
//! that they arrive on, and once they are delivered, they become dead letters.

use jig::api::v1::{CancelJobRequest, FleetJobState, JobState};
use prost::Message as _;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};

use super::{
    COUNTED_WAIT, Member, TestFleet,
    plain_client::{JobMessage, MAX_FLEET_TIME, fleet_job_id, next_message, queue_job_id},
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

/// A message as the protocol has it, with headers that no library would send.
struct RawMessage<'a> {
    subject: &'a str,
    headers: Vec<u8>,
    body: &'a [u8],
}

/// Publishes messages, all at once.
async fn publish_raw(port: u16, messages: &[RawMessage<'_>]) {
    let publishing = async {
        let mut stream = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
        let mut commands = b"CONNECT {\"verbose\":false,\"headers\":true}\r\n".to_vec();
        for RawMessage { subject, headers, body } in messages {
            let (length, total) = (headers.len(), headers.len() + body.len());
            let command = format!("HPUB {subject} {length} {total}\r\n");
            commands.extend([command.as_bytes(), headers, body, b"\r\n"].concat());
        }
        commands.extend(b"PING\r\n");
        stream.write_all(&commands).await.unwrap();
        let mut reply = Vec::new();
        while !reply.ends_with(b"PONG\r\n") {
            assert!(stream.read_buf(&mut reply).await.unwrap() > 0);
        }
    };
    promptly("the server reads a message", publishing).await;
}

/// Number of connections that a daemon has lost.
fn lost_connections(member: &Member) -> usize {
    member.daemon.log().matches("lost the connection to the NATS server").count()
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
        let message = RawMessage { subject: "jig.jobs.build.main", headers, body: &body };
        publish_raw(fleet.server.port(), &[message]).await;
        let letter = next_message(&mut dead_letters).await;
        assert_eq!(letter.subject.as_str(), "jig.dead.build");
        let found = letter.headers.as_ref().unwrap();
        assert_eq!(found.get("Jig-Reason").unwrap().as_str(), "INVALID_PARAMS");
        assert_eq!(found.get("Jig-Subject").unwrap().as_str(), "jig.jobs.build.main");
        assert!(found.get("Nats-Msg-Id").is_some());
        assert_eq!(letter.payload, body);
    }
    client.publish(&JobMessage::new("next", &command_job("echo next >> effects"))).await;
    let next = client.wait_for_end(&fleet_job_id("next")).await;
    assert_eq!(next.job.unwrap().state(), JobState::Succeeded);

    // All at once: more than the queue has places.
    for (index, malformed) in MALFORMED.into_iter().enumerate() {
        let headers = headers_with_id(malformed, &format!("together-{index}"));
        let message = RawMessage { subject: "jig.jobs.build", headers, body: &body };
        publish_raw(fleet.server.port(), &[message]).await;
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
            let message = RawMessage { subject: &subject, headers, body: b"" };
            publish_raw(fleet.server.port(), &[message]).await;
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

/// An operator can delete the stream of dead letters.
#[tokio::test]
async fn unreadable_message_makes_the_dead_letters_again() {
    let fleet = TestFleet::start().await;
    let member = fleet.start_member().await;
    fleet.client.publish(&JobMessage::new("first", &command_job("true"))).await;
    fleet.client.wait_for_end(&fleet_job_id("first")).await;

    fleet.client.jetstream().delete_stream("JIG_JOBS_dead").await.unwrap();
    let body = command_job("echo malformed >> effects").encode_to_vec();
    let headers = headers_with_id(MALFORMED[0], "malformed");
    let message = RawMessage { subject: "jig.jobs.build.main", headers, body: &body };
    publish_raw(fleet.server.port(), &[message]).await;
    fleet.client.publish(&JobMessage::new("next", &command_job("echo next >> effects"))).await;
    fleet.client.wait_for_end(&fleet_job_id("next")).await;
    fleet.client.wait_for_ends(&[fleet_job_id("next")]).await;
    let mut letters = fleet.client.jetstream().get_stream("JIG_JOBS_dead").await.unwrap();
    assert_eq!(letters.info().await.unwrap().state.messages, 1);
    assert_eq!(member.lines("effects"), ["next"]);
}

/// The daemon has no free place when the messages come, so that they break its connection together.
#[tokio::test]
async fn many_unreadable_messages_break_few_connections() {
    let mut fleet = TestFleet::start().await;
    fleet.set_times("10m", "10m");
    let client = &fleet.client;
    let member = fleet.start_member().await;
    for number in 0..4 {
        let name = format!("running-{number}");
        client.publish(&JobMessage::new(&name, &command_job(COUNTED_WAIT))).await;
    }
    member.wait_for_effects(4).await;

    let mut dead_letters = client.subscribe("jig.dead.>").await;
    let messages: Vec<_> = (0..40)
        .map(|number| {
            let headers = headers_with_id(("NATS/1.0", b"foo"), &format!("bad-{number}"));
            RawMessage { subject: "jig.jobs.build.main", headers, body: b"" }
        })
        .collect();
    publish_raw(fleet.server.port(), &messages).await;
    client.publish(&JobMessage::new("next", &command_job("echo next >> effects"))).await;
    member.go();
    for _ in &messages {
        next_message(&mut dead_letters).await;
    }
    client.wait_for_end(&fleet_job_id("next")).await;
    // At most one for each of the two subjects, and one for a batch.
    let lost = lost_connections(&member);
    assert!((1..=3).contains(&lost), "{lost}");
}

#[tokio::test]
async fn unreadable_messages_delay_no_other_queue() {
    let mut fleet = TestFleet::start().await;
    fleet.set_times("10m", "10m");
    let other = fleet.queues.replace("build", "other");
    fleet.set_queues(&format!("{}{other}", fleet.queues.clone()));
    let client = &fleet.client;
    let mut dead_letters = client.subscribe("jig.dead.>").await;
    let _member = fleet.start_member().await;
    client.publish(&JobMessage::new("first", &command_job("true"))).await;
    client.wait_for_end(&fleet_job_id("first")).await;

    let body = command_job("true").encode_to_vec();
    for round in 0..20 {
        let good = format!("good-{round}");
        let bad = headers_with_id(("NATS/1.0", b"foo"), &format!("bad-{round}"));
        let messages = [
            RawMessage { subject: "jig.jobs.build.main", headers: bad, body: &body },
            RawMessage {
                subject: "jig.jobs.other.main",
                headers: headers_with_id(("NATS/1.0", b"foo: x"), &good),
                body: &body,
            },
        ];
        publish_raw(fleet.server.port(), &messages).await;
        next_message(&mut dead_letters).await;
        client.wait_for_end(&queue_job_id("other", &good)).await;
    }
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
        let message = RawMessage { subject: "jig.jobs.build.main", headers, body: b"" };
        publish_raw(fleet.server.port(), &[message]).await;
        next_message(&mut dead_letters).await;
    }
    client.publish(&JobMessage::new("last", &command_job("true"))).await;
    client.wait_for_end(&fleet_job_id("last")).await;
    let log = member.daemon.log();
    assert!(!log.contains("cannot take jobs of the fleet"), "{log}");
}

/// The net for messages that break the connection although the daemon takes them for readable ones.
#[tokio::test]
async fn unexplained_breaks_are_reported() {
    let fleet = TestFleet::start().await;
    let client = &fleet.client;
    let member = fleet.start_member().await;
    client.publish(&JobMessage::new("running", &command_job(COUNTED_WAIT))).await;
    member.wait_for_effects(1).await;
    let is_reported = || member.daemon.log().contains("no message is unreadable");
    for round in 0..3 {
        assert!(!is_reported());
        let lost = lost_connections(&member);
        member.proxy.cut_queue();
        eventually_within(MAX_FLEET_TIME, "a connection breaks", async || {
            lost_connections(&member) > lost
        })
        .await;
        let name = format!("next-{round}");
        client.publish(&JobMessage::new(&name, &command_job("true"))).await;
        client.wait_for_end(&fleet_job_id(&name)).await;
    }
    assert!(is_reported());
}
