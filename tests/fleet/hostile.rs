//! Hostile messages: none runs more than its principal may, each that is rejected becomes a dead
//! letter with a reason, and the queue serves the next one.

use std::{collections::BTreeMap, fs};

use async_nats::{
    Message,
    jetstream::consumer::{AckPolicy, push},
};
use bytes::Bytes;
use futures_util::StreamExt as _;
use jig::api::v1::{FleetJobRecord, FleetJobState, JobState, SubmitJobRequest};
use prost::Message as _;
use serde_json::json;
use sha2::{Digest as _, Sha256};

use super::{
    COUNTED_WAIT, SIGNING_KEY, TestFleet, fleet_job,
    plain_client::{JobMessage, MAX_FLEET_TIME, PlainClient, fleet_job_id, next_message},
};
use crate::{
    jobs::{command_job, tool_job},
    support::{eventually, eventually_within},
};

/// A request that must not run.
fn effect() -> SubmitJobRequest {
    command_job("echo run >> effects")
}

/// Publishes messages that must be rejected. Returns the reasons of their dead letters by request
/// id. Checks that their jobs failed, that nothing ran, and that the queue still works.
async fn rejections(
    fleet: &TestFleet,
    messages: &[(&str, JobMessage)],
) -> BTreeMap<String, String> {
    let client = &fleet.client;
    let mut dead_letters = client.subscribe("jig.dead.>").await;
    let member = fleet.start_member().await;
    let mut reasons = BTreeMap::new();
    for (name, message) in messages {
        client.publish(message).await;
        let letter = next_message(&mut dead_letters).await;
        assert_eq!(letter.subject.as_str(), "jig.dead.build", "{name}");
        reasons.insert((*name).to_owned(), header(&letter, "Jig-Reason"));
    }

    for (name, _) in messages {
        let record = client.wait_for_end(&fleet_job_id(name)).await;
        let job = record.job.unwrap();
        assert_eq!(job.state(), JobState::Failed, "{name}: {job:?}");
        let error = job.result.unwrap().error.unwrap();
        assert!(!error.message.is_empty(), "{name}: {error:?}");
    }
    client.publish(&JobMessage::new("next", &command_job("true"))).await;
    let record = client.wait_for_end(&fleet_job_id("next")).await;
    assert_eq!(record.job.unwrap().state(), JobState::Succeeded);
    client.wait_for_ends(&[]).await;
    assert_eq!(member.lines("effects"), [""; 0]);

    reasons
}

fn header(message: &Message, name: &str) -> String {
    let value = message.headers.as_ref().and_then(|headers| headers.get(name));
    value.unwrap_or_else(|| panic!("{name} in {:?}", message.headers)).to_string()
}

#[tokio::test]
async fn malformed_requests_are_rejected() {
    let fleet = TestFleet::start().await;
    let other_queue = SubmitJobRequest { queue: Some("other".to_owned()), ..effect() };
    let both = SubmitJobRequest { params: Some(prost_types::Struct::default()), ..effect() };
    let deep = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));
    let messages = [
        ("garbage", JobMessage::with_body("garbage", vec![0xff; 100])),
        ("huge", JobMessage::with_body("huge", vec![0xff; 1_000_000])),
        ("empty", JobMessage::with_body("empty", Vec::new())),
        ("cut", {
            let mut body = effect().encode_to_vec();
            body.truncate(body.len() - 3);
            JobMessage::with_body("cut", body)
        }),
        ("tool", JobMessage::new("tool", &tool_job("no_such_tool", json!({})))),
        ("params", JobMessage::new("params", &tool_job("run", json!({ "comand": "true" })))),
        ("types", JobMessage::new("types", &tool_job("run", json!({ "command": 3 })))),
        ("deep", {
            let request = SubmitJobRequest { params_json: deep, ..effect() };
            JobMessage::new("deep", &request)
        }),
        ("queue", JobMessage::new("queue", &other_queue)),
        ("both", JobMessage::new("both", &both)),
        ("session", JobMessage::new("session", &effect()).header("Jig-Session", "../../etc")),
        ("priority", {
            let request = SubmitJobRequest { priority: Some(1 << 20), ..effect() };
            JobMessage::new("priority", &request)
        }),
        ("dialect", {
            let request = SubmitJobRequest { dialect: "x".repeat(10_000), ..effect() };
            JobMessage::new("dialect", &request)
        }),
    ];
    let reasons = rejections(&fleet, &messages).await;
    assert_eq!(reasons["tool"], "UNKNOWN_TOOL");
    for name in ["garbage", "empty", "params", "types", "deep", "queue", "both", "session"] {
        assert_eq!(reasons[name], "INVALID_PARAMS", "{name}");
    }
}

/// The server stores the names of a job in its record, which must fit into a message.
#[tokio::test]
async fn huge_names_jam_no_place() {
    let fleet = TestFleet::start().await;
    let name = "x".repeat(900_000);
    let request = |change: fn(&mut SubmitJobRequest, String)| {
        let mut request = effect();
        change(&mut request, name.clone());
        request
    };
    let messages = [
        ("tool", request(|request, name| request.tool = name)),
        ("dialect", request(|request, name| request.dialect = name)),
        ("queue", request(|request, name| request.queue = Some(name))),
        ("control", request(|request, name| request.queue = Some("\u{1}".repeat(name.len())))),
        ("params", request(|request, name| request.params_json = json!({ name: 1 }).to_string())),
    ]
    .map(|(id, request)| (id, JobMessage::new(id, &request)));
    let reasons = rejections(&fleet, &messages).await;
    assert!(reasons.values().all(|reason| reason == "INVALID_PARAMS"), "{reasons:?}");
}

#[tokio::test]
async fn forged_principals_are_rejected() {
    let fleet = TestFleet::start().await;
    let _admin = fleet.keys.add_key("root", "admin", &[]);
    let message = |id: &str| JobMessage::new(id, &effect());
    let signed = |id: &str| message(id).signed(SIGNING_KEY, "key:root");
    let messages = [
        ("unsigned", message("unsigned").header("Jig-Principal", "key:root")),
        ("wrong", message("wrong").signed(b"another key, which is long enough!", "key:root")),
        ("empty", message("empty").header("Jig-Principal", "key:root").header("Jig-Signature", "")),
        ("text", message("text").header("Jig-Principal", "key:root").header("Jig-Signature", "zz")),
        ("alone", message("alone").header("Jig-Signature", &"0".repeat(64))),
        ("unknown", message("unknown").signed(SIGNING_KEY, "key:nobody")),
        // Signatures that were valid for another message.
        ("body", {
            let other = command_job("echo other >> effects");
            signed("body").with_new_body(other.encode_to_vec())
        }),
        ("id", signed("other").without_header("Nats-Msg-Id").header("Nats-Msg-Id", "id")),
        ("principal", {
            let signed = message("principal").signed(SIGNING_KEY, "key:ci");
            signed.without_header("Jig-Principal").header("Jig-Principal", "key:root")
        }),
        ("session", signed("session").header("Jig-Session", "other")),
        ("subject", signed("subject").subject("jig.jobs.build")),
        ("stripped", signed("stripped").without_header("Jig-Principal")),
    ];
    let reasons = rejections(&fleet, &messages).await;
    for (name, reason) in reasons {
        let expected = if name == "unknown" { "FORBIDDEN" } else { "UNAUTHENTICATED" };
        assert_eq!(reason, expected, "{name}");
    }
}

#[tokio::test]
async fn messages_beyond_the_rights_of_the_queues_key_are_rejected() {
    let mut fleet = TestFleet::start().await;
    let _elsewhere = fleet.keys.add_key("elsewhere", "admin", &["--for-workspace", "other"]);
    let _reader = fleet.keys.add_key("reader", "read", &[]);
    fleet.set_queues(
        "[[fleet.queues]]\nname = \"build\"\nkey = \"elsewhere\"\nworkspaces = [\"main\"]\n",
    );
    let messages = [
        // The queue's key is limited to another workspace, and a message cannot name a better one.
        ("workspace", JobMessage::new("workspace", &effect())),
        // The key has too few rights.
        ("role", JobMessage::new("role", &effect()).signed(SIGNING_KEY, "key:reader")),
    ];
    let client = &fleet.client;
    let mut dead_letters = client.subscribe("jig.dead.>").await;
    let member = fleet.start_member().await;
    for ((name, message), reason) in messages.iter().zip(["UNKNOWN_WORKSPACE", "FORBIDDEN"]) {
        client.publish(message).await;
        let letter = next_message(&mut dead_letters).await;
        assert_eq!(header(&letter, "Jig-Reason"), reason, "{name}");
        let job = client.wait_for_end(&fleet_job_id(name)).await.job.unwrap();
        assert_eq!(job.state(), JobState::Failed, "{name}");
    }

    let reading = tool_job("list_files", json!({}));
    let reading = JobMessage::new("reads", &reading).signed(SIGNING_KEY, "key:reader");
    client.publish(&reading).await;
    let record = client.wait_for_end(&fleet_job_id("reads")).await;
    // A key that may not submit jobs runs none, whatever their tools do.
    assert_eq!(record.job.unwrap().state(), JobState::Failed);
    assert_eq!(member.lines("effects"), [""; 0]);
}

#[tokio::test]
async fn daemon_with_another_key_ends_no_job_of_others() {
    let fleet = TestFleet::start().await;
    let observer = fleet.start_observer().await;
    let mut jobs = fleet.jobs(&observer);
    let key_file = fleet.signing_key_file();
    let key = fs::read(&key_file).unwrap();
    fs::write(&key_file, b"a signing key of another fleet, 32+ bytes").unwrap();
    let stranger = fleet.start_member_beside(&observer).await;

    // Without a daemon that has the key, a job fails at last.
    let id = jobs.submit("alone", fleet_job("echo run >> effects")).await.job_id;
    let job = jobs.wait(&id).await;
    assert_eq!(job.state(), JobState::Failed);
    assert_eq!(job.result.unwrap().error.unwrap().error_type, "unauthenticated");

    fs::write(&key_file, key).unwrap();
    let member = fleet.start_member_beside(&observer).await;
    for number in 0..8 {
        let request = fleet_job("echo run >> effects");
        let id = jobs.submit(&format!("m-{number}"), request).await.job_id;
        assert_eq!(jobs.wait(&id).await.state(), JobState::Succeeded);
    }
    assert_eq!((member.lines("effects").len(), stranger.lines("effects").len()), (8, 0));
}

/// The daemon of a long job publishes its message again. One with another key leaves it alone.
#[tokio::test]
async fn daemon_with_another_key_buries_no_copy_of_a_claimed_job() {
    let fleet = TestFleet::start().await;
    let member = fleet.start_member().await;
    let mut messages = fleet.client.subscribe("jig.jobs.>").await;
    let mut jobs = fleet.jobs(&member);
    let id = jobs.submit("m-1", fleet_job(COUNTED_WAIT)).await.job_id;
    member.wait_for_effects(1).await;
    fs::write(fleet.signing_key_file(), b"a signing key of another fleet, 32+ bytes").unwrap();
    let stranger = fleet.start_member_beside(&member).await;

    let Message { subject, headers, payload, .. } = next_message(&mut messages).await;
    let mut headers = headers.unwrap();
    headers.insert("Nats-Msg-Id", "copy");
    let jetstream = fleet.client.jetstream();
    let published = jetstream.publish_with_headers(subject, headers, payload).await.unwrap();
    assert!(!published.await.unwrap().duplicate);
    eventually("the other daemon gets the copy", async || {
        stranger.daemon.log().contains("cannot verify a job")
    })
    .await;
    member.go();
    assert_eq!(jobs.wait(&id).await.state(), JobState::Succeeded);
    fleet.client.wait_for_ends(&[id]).await;
    let mut letters = jetstream.get_stream("JIG_JOBS_dead").await.unwrap();
    assert_eq!(letters.info().await.unwrap().state.messages, 0);
}

#[tokio::test]
async fn queue_without_key_rejects_unsigned_messages() {
    let mut fleet = TestFleet::start().await;
    fleet.set_queues("[[fleet.queues]]\nname = \"build\"\nworkspaces = [\"main\"]\n");
    let client = &fleet.client;
    let mut dead_letters = client.subscribe("jig.dead.>").await;
    let member = fleet.start_member().await;
    client.publish(&JobMessage::new("unsigned", &effect())).await;
    let letter = next_message(&mut dead_letters).await;
    assert_eq!(header(&letter, "Jig-Reason"), "UNAUTHENTICATED");

    client.publish(&JobMessage::new("signed", &effect()).signed(SIGNING_KEY, "key:ci")).await;
    let record = client.wait_for_end(&fleet_job_id("signed")).await;
    assert_eq!(record.job.unwrap().state(), JobState::Succeeded);
    assert_eq!(member.lines("effects"), ["run"]);
}

/// Messages without a usable request id have no record. Each is a dead letter.
#[tokio::test]
async fn messages_without_usable_request_id_become_dead_letters() {
    let fleet = TestFleet::start().await;
    let client = &fleet.client;
    let mut dead_letters = client.subscribe("jig.dead.>").await;
    let member = fleet.start_member().await;
    let absent = JobMessage::new("", &effect()).without_header("Nats-Msg-Id");
    let long = JobMessage::new(&"x".repeat(1000), &effect());
    for message in [absent, long] {
        client.publish(&message).await;
        let letter = next_message(&mut dead_letters).await;
        assert_eq!(header(&letter, "Jig-Reason"), "INVALID_PARAMS");
        assert_eq!(header(&letter, "Jig-Subject"), "jig.jobs.build.main");
        assert_eq!(letter.payload, effect().encode_to_vec());
    }
    client.wait_for_ends(&[]).await;
    assert_eq!(member.lines("effects"), [""; 0]);
}

/// A record that no daemon wrote is not overwritten, and disturbs no other job.
#[tokio::test]
async fn damaged_record_blocks_only_its_own_job() {
    let fleet = TestFleet::start().await;
    let member = fleet.start_member().await;
    let client = &fleet.client;
    let store = client.records().await;
    let id = fleet_job_id("damaged");
    let revision = store.put(&id, vec![0xff; 1000].into()).await.unwrap();
    client.publish(&JobMessage::new("damaged", &effect())).await;

    for number in 0..4 {
        let name = format!("next-{number}");
        client.publish(&JobMessage::new(&name, &command_job("true"))).await;
        let record = client.wait_for_end(&fleet_job_id(&name)).await;
        assert_eq!(record.job.unwrap().state(), JobState::Succeeded);
    }
    assert_eq!(store.entry(&id).await.unwrap().unwrap().revision, revision);
    assert_eq!(member.lines("effects"), [""; 0]);
}

/// Bytes of another kind can decode to fields that are unknown.
#[tokio::test]
async fn record_without_known_fields_is_damaged() {
    let fleet = TestFleet::start().await;
    let member = fleet.start_member().await;
    fleet.client.publish(&JobMessage::new("m-1", &command_job(COUNTED_WAIT))).await;
    member.wait_for_effects(1).await;
    let id = fleet_job_id("m-1");
    let unknown = b"\xfa\x01\x01\x41";
    assert!(FleetJobRecord::decode(&unknown[..]).is_ok());
    fleet.client.records().await.put(&id, unknown[..].into()).await.unwrap();

    let refusal = fleet.jobs(&member).try_get(&id).await.unwrap_err();
    assert_eq!(refusal.reason, "FLEET_UNAVAILABLE", "{refusal:?}");
    member.go();
    let record = fleet.client.wait_for_end(&id).await;
    assert_eq!(record.job.unwrap().state(), JobState::Succeeded);
}

/// Plain programs read records. With the signature, they could publish the message again when the
/// record has expired.
#[tokio::test]
async fn record_does_not_show_the_signature_of_its_job() {
    let fleet = TestFleet::start().await;
    let observer = fleet.start_observer().await;
    let mut messages = fleet.client.subscribe("jig.jobs.>").await;
    let id = fleet.jobs(&observer).submit("m-1", fleet_job("true")).await.job_id;
    let signature = header(&next_message(&mut messages).await, "Jig-Signature");

    let record = fleet.client.record(&id).await.unwrap();
    assert_eq!(record.signature_sha256, Sha256::digest(&signature).to_vec());
    let encoded = record.encode_to_vec();
    assert!(!encoded.windows(signature.len()).any(|part| part == signature.as_bytes()));
}

/// A program that may create consumers can have the server deliver other messages to a watch.
#[tokio::test]
async fn watch_of_a_record_takes_no_other_one() {
    let fleet = TestFleet::start().await;
    let member = fleet.start_member().await;
    let request = SubmitJobRequest { store_artifacts: true, ..command_job("echo forged") };
    fleet.client.publish(&JobMessage::new("own", &request)).await;
    fleet.client.wait_for_end(&fleet_job_id("own")).await;

    let mut jobs = fleet.jobs(&member);
    let command = format!("{COUNTED_WAIT}; echo real");
    let id = jobs.submit("m-1", fleet_job(&command)).await.job_id;
    member.wait_for_effects(1).await;
    let waited = id.clone();
    let waiting = tokio::spawn(async move { jobs.wait(&waited).await });
    for (stream, subject) in [
        ("KV_JIG_JOBS_records", format!("$KV.JIG_JOBS_records.{}", fleet_job_id("own"))),
        ("OBJ_JIG_JOBS_results", "$O.JIG_JOBS_results.>".to_owned()),
    ] {
        let subject_start = subject.trim_end_matches('>');
        eventually_within(MAX_FLEET_TIME, "the watch gets another message", async || {
            assert!(!waiting.is_finished(), "the wait ended with another record");
            for inbox in watch_inboxes(&fleet.client, &id).await {
                deliver(&fleet.client, stream, &subject, inbox).await;
            }
            let log = member.daemon.log();
            log.lines().any(|line| line.contains("sent a message") && line.contains(subject_start))
        })
        .await;
    }

    member.go();
    let job = waiting.await.unwrap();
    assert_eq!((&*job.job_id, job.state()), (&*id, JobState::Succeeded));
    assert!(job.result.unwrap().text.contains("real"));
    assert!(!member.daemon.log().contains("panicked"));
}

/// Where the server delivers the record of a job to.
async fn watch_inboxes(client: &PlainClient, id: &str) -> Vec<String> {
    let stream = client.jetstream().get_stream("KV_JIG_JOBS_records").await.unwrap();
    let mut consumers = stream.consumers();
    let mut inboxes = Vec::new();
    while let Some(consumer) = consumers.next().await {
        let config = consumer.unwrap().config;
        if config.filter_subject.ends_with(id) {
            inboxes.extend(config.deliver_subject);
        }
    }
    inboxes
}

/// Has the server deliver messages of a stream to a subject.
async fn deliver(client: &PlainClient, stream: &str, subject: &str, to: String) {
    let stream = client.jetstream().get_stream(stream).await.unwrap();
    let config = push::Config {
        deliver_subject: to,
        filter_subject: subject.to_owned(),
        ack_policy: AckPolicy::None,
        ..push::Config::default()
    };
    stream.create_consumer(config).await.unwrap();
}

/// The server sends its reply to any subject that a request names, also to one of a bucket.
#[tokio::test]
async fn replies_that_overwrite_records_stop_no_daemon() {
    let fleet = TestFleet::start().await;
    let member = fleet.start_member().await;
    fleet.client.publish(&JobMessage::new("running", &command_job(COUNTED_WAIT))).await;
    member.wait_for_effects(1).await;
    let id = fleet_job_id("running");
    let daemon_id = fleet.client.wait_for_state(&id, FleetJobState::Claimed).await.daemon_id;

    for (bucket, key) in [("JIG_JOBS_records", &id), ("JIG_JOBS_daemons", &daemon_id)] {
        let reply = format!("$KV.{bucket}.{key}");
        let jetstream = fleet.client.jetstream();
        let store = jetstream.get_key_value(bucket).await.unwrap();
        let mut changes = store.watch(key).await.unwrap();
        let client = jetstream.client();
        client.publish_with_reply("jig.jobs.build.main", reply, Bytes::new()).await.unwrap();
        eventually("the reply is stored", async || {
            changes.next().await.unwrap().unwrap().value.starts_with(b"{")
        })
        .await;
    }

    fleet.client.publish(&JobMessage::new("next", &command_job("true"))).await;
    let next = fleet.client.wait_for_end(&fleet_job_id("next")).await;
    assert_eq!(next.job.unwrap().state(), JobState::Succeeded);
    member.go();
    let mut ended = None;
    eventually_within(MAX_FLEET_TIME, "the end replaces the damaged record", async || {
        let value = fleet.client.records().await.get(&id).await.unwrap().unwrap();
        ended = FleetJobRecord::decode(value).ok().and_then(|record| record.job);
        ended.is_some()
    })
    .await;
    assert_eq!(ended.unwrap().state(), JobState::Succeeded);
    assert!(!member.daemon.log().contains("has the id of this one"));
}

/// It would have the rights of the first one.
#[tokio::test]
async fn unsigned_copy_of_a_signed_job_is_rejected() {
    let fleet = TestFleet::start().await;
    let _developer = fleet.keys.add_key("developer", "invoke", &[]);
    let mut dead_letters = fleet.client.subscribe("jig.dead.>").await;
    let mut first = fleet.start_member().await;
    let request = SubmitJobRequest { retry_if_lost: true, ..command_job(COUNTED_WAIT) };
    let message = JobMessage::new("m-1", &request);
    fleet.client.publish(&message.clone().signed(SIGNING_KEY, "key:developer")).await;
    first.wait_for_effects(1).await;
    let second = fleet.start_member_beside(&first).await;
    first.kill().await;
    let copy = message.without_header("Nats-Msg-Id").header("Nats-Msg-Id", "copy");
    fleet.client.publish(&copy.header("Jig-Request-Id", "m-1")).await;

    let letter = next_message(&mut dead_letters).await;
    let reason = letter.headers.unwrap().get("Jig-Reason").unwrap().to_string();
    assert_eq!(reason, "REQUEST_ID_REUSED");
    second.wait_for_effects(1).await;
    second.go();
    let record = fleet.client.wait_for_end(&fleet_job_id("m-1")).await;
    assert_eq!(record.job.as_ref().unwrap().principal, "key:developer");
    assert_eq!(record.job.unwrap().state(), JobState::Succeeded);
}
