//! Artifacts that the daemon of a fleet job stores with its result, for other daemons and plain
//! clients.

use std::fs;

use async_nats::jetstream::object_store::ObjectInfo;
use jig::api::v1::{
    ArtifactInfo, FleetArtifact, FleetJobRecord, FleetJobState, JobState, ListArtifactsRequest,
    ReadArtifactRequest, SubmitJobRequest, artifact_service_client::ArtifactServiceClient,
};
use sha2::{Digest as _, Sha256};
use tokio::io::AsyncReadExt as _;

use super::{
    COUNTED_WAIT, Member, TestFleet, fleet_job,
    plain_client::{JobMessage, MAX_FLEET_TIME, PlainClient, fleet_job_id},
};
use crate::{
    jobs::command_job,
    support::{Refusal, eventually_within, promptly, with_key},
};

/// A command with several MiB of binary output, which it keeps in the workspace too.
const BINARY_OUTPUT: &str = "head -c 5000000 /dev/urandom | tee output; echo warning >&2";
/// The stream of the object store.
const OBJECT_STREAM: &str = "OBJ_JIG_JOBS_results";

/// A submission whose artifacts are stored.
fn storing(command: &str) -> SubmitJobRequest {
    SubmitJobRequest { store_artifacts: true, ..fleet_job(command) }
}

/// The artifact at a path of the first step.
fn of_job(job_id: &str, path: &str) -> ReadArtifactRequest {
    ReadArtifactRequest {
        job_id: job_id.to_owned(),
        path: path.to_owned(),
        ..ReadArtifactRequest::default()
    }
}

/// Reads an artifact. Returns its bytes and the size that the daemon reports.
async fn read(
    member: &Member,
    key: &str,
    request: ReadArtifactRequest,
) -> Result<(Vec<u8>, u64), Refusal> {
    let mut client = ArtifactServiceClient::new(member.daemon.channel());
    let mut next_offset = request.offset;
    let opened = promptly("a read begins", client.read_artifact(with_key(key, request))).await;
    let mut messages = opened.map_err(|status| Refusal::from_status(&status))?.into_inner();
    let (mut bytes, mut size) = (Vec::new(), None);
    loop {
        let message = promptly("a part arrives", messages.message()).await;
        match message.map_err(|status| Refusal::from_status(&status))? {
            Some(message) => {
                assert_eq!(message.offset, next_offset, "parts are contiguous");
                next_offset += message.data.len() as u64;
                bytes.extend_from_slice(&message.data);
                size = Some(message.size_bytes);
            }
            None => return Ok((bytes, size.expect("the stream had no message"))),
        }
    }
}

async fn list(
    member: &Member,
    key: &str,
    request: ListArtifactsRequest,
) -> Result<(Vec<ArtifactInfo>, String), Refusal> {
    let mut client = ArtifactServiceClient::new(member.daemon.channel());
    match promptly("a list", client.list_artifacts(with_key(key, request))).await {
        Ok(response) => {
            let page = response.into_inner();
            Ok((page.artifacts, page.next_page_token))
        }
        Err(status) => Err(Refusal::from_status(&status)),
    }
}

fn list_of(job_id: &str) -> ListArtifactsRequest {
    ListArtifactsRequest { job_id: job_id.to_owned(), ..ListArtifactsRequest::default() }
}

/// The artifact of a record at a path.
fn artifact<'a>(record: &'a FleetJobRecord, name: &str) -> &'a FleetArtifact {
    let mut artifacts = record.artifacts.iter();
    artifacts.find(|artifact| artifact.path.ends_with(name)).unwrap_or_else(|| panic!("{record:?}"))
}

/// Reads an object with a plain client, which checks its digest.
async fn read_object(client: &PlainClient, name: &str) -> Vec<u8> {
    let store = client.jetstream().get_object_store("JIG_JOBS_results").await.unwrap();
    let mut object = store.get(name).await.unwrap();
    let mut bytes = Vec::new();
    promptly("an object", object.read_to_end(&mut bytes)).await.unwrap();
    bytes
}

async fn find_object(client: &PlainClient, name: &str) -> Option<ObjectInfo> {
    let store = client.jetstream().get_object_store("JIG_JOBS_results").await.ok()?;
    store.info(name).await.ok()
}

/// Messages and bytes of the object store.
async fn object_stream_state(client: &PlainClient) -> (u64, u64) {
    let mut stream = client.jetstream().get_stream(OBJECT_STREAM).await.unwrap();
    let state = &stream.info().await.unwrap().state;
    (state.messages, state.bytes)
}

#[tokio::test]
async fn any_reader_gets_the_artifacts_of_a_dead_daemon() {
    let fleet = TestFleet::start().await;
    let observer = fleet.start_observer().await;
    let mut worker = fleet.start_member_beside(&observer).await;
    let mut jobs = fleet.jobs(&observer);
    let id = jobs.submit("m-1", storing(BINARY_OUTPUT)).await.job_id;
    let step = jobs.wait(&id).await.step.unwrap();
    let expected = fs::read(worker.daemon.file("output")).unwrap();
    assert_eq!(expected.len(), 5_000_000);
    worker.kill().await;

    let record = fleet.client.wait_for_end(&id).await;
    let stdout = artifact(&record, "_stdout.txt");
    assert_eq!(stdout.path, format!("logs/tool_step_{step:04}_stdout.txt"));
    assert_eq!((stdout.size_bytes, &*stdout.missing_reason), (5_000_000, ""));
    assert_eq!(stdout.sha256, Sha256::digest(&expected).to_vec());
    assert_eq!(read_object(&fleet.client, &stdout.object).await, expected);

    let (bytes, size) = read(&observer, &fleet.ci, of_job(&id, &stdout.path)).await.unwrap();
    assert_eq!((bytes == expected, size), (true, 5_000_000));
    for (offset, limit) in [
        (0, Some(0)),
        (1, Some(1)),
        (131_071, Some(2)),
        (4_000_000, Some(700_001)),
        (4_999_999, None),
        (5_000_000, None),
        (u64::MAX, None),
    ] {
        let request = ReadArtifactRequest { offset, limit, ..of_job(&id, &stdout.path) };
        let (bytes, size) = read(&observer, &fleet.ci, request).await.unwrap();
        let start = expected.len().min(offset.try_into().unwrap());
        let rest = &expected[start..];
        let length = limit.map_or(rest.len(), |limit| rest.len().min(limit.try_into().unwrap()));
        assert_eq!((&*bytes, size), (&rest[..length], 5_000_000), "{offset} {limit:?}");
    }
    let stderr = artifact(&record, "_stderr.txt").path.clone();
    let (bytes, size) = read(&observer, &fleet.ci, of_job(&id, &stderr)).await.unwrap();
    assert_eq!((&*bytes, size), (&b"warning\n"[..], 8));

    let (all, token) = list(&observer, &fleet.ci, list_of(&id)).await.unwrap();
    let paths: Vec<_> = all.iter().map(|listed| (&*listed.path, listed.size_bytes)).collect();
    assert_eq!(paths, [(&*stderr, 8), (&*stdout.path, 5_000_000)]);
    assert!(all.iter().all(|listed| listed.step == step && listed.modify_time.is_some()));
    assert_eq!(token, "");
    let page = ListArtifactsRequest { page_size: Some(1), ..list_of(&id) };
    let (first, token) = list(&observer, &fleet.ci, page.clone()).await.unwrap();
    let next = ListArtifactsRequest { page_token: Some(token), ..page };
    let (second, token) = list(&observer, &fleet.ci, next).await.unwrap();
    assert_eq!(([first, second].concat(), &*token), (all, ""));
    let other_step = ListArtifactsRequest { step: Some(step + 1), ..list_of(&id) };
    assert_eq!(list(&observer, &fleet.ci, other_step).await.unwrap().0, []);
}

#[tokio::test]
async fn artifacts_are_visible_as_their_job_is() {
    let fleet = TestFleet::start().await;
    let elsewhere = fleet.keys.add_key("elsewhere", "admin", &["--for-workspace", "other"]);
    let reader = fleet.keys.add_key("reader", "read", &[]);
    let narrow = fleet.keys.add_key("narrow", "invoke", &["--for-tool", "read_file"]);
    let other = fleet.keys.add_key("other", "invoke", &["--for-tool", "run"]);
    let member = fleet.start_member().await;
    let mut jobs = fleet.jobs(&member);
    let id = jobs.submit("m-1", storing("echo hello")).await.job_id;
    jobs.wait(&id).await;
    let record = fleet.client.wait_for_end(&id).await;
    let path = &artifact(&record, "_stdout.txt").path;

    for key in [&fleet.ci, &other] {
        assert_eq!(read(&member, key, of_job(&id, path)).await.unwrap().0, b"hello\n");
    }
    for key in [&reader, &narrow] {
        let refusal = read(&member, key, of_job(&id, path)).await.unwrap_err();
        assert_eq!(refusal.reason, "FORBIDDEN", "{refusal:?}");
    }
    assert_eq!(list(&member, &reader, list_of(&id)).await.unwrap().0.len(), 1);
    for key in [&narrow, &elsewhere] {
        let refusal = list(&member, key, list_of(&id)).await.unwrap_err();
        assert_eq!(refusal.reason, "JOB_NOT_FOUND", "{refusal:?}");
    }
    let refusal = read(&member, &elsewhere, of_job(&id, path)).await.unwrap_err();
    assert_eq!(refusal.reason, "JOB_NOT_FOUND", "{refusal:?}");

    let local = jobs.submit("local", command_job("true")).await.job_id;
    let hostile = [
        (of_job(&fleet_job_id("unknown"), path), "JOB_NOT_FOUND"),
        (of_job(&local, path), "INVALID_PARAMS"),
        (of_job(&"x".repeat(65), path), "INVALID_PARAMS"),
        (of_job(&id, "../../secret"), "PATH_ESCAPE"),
        (of_job(&id, "logs/tool_step_9999_stdout.txt"), "ARTIFACT_NOT_FOUND"),
    ];
    for (request, reason) in hostile {
        let refusal = read(&member, &fleet.ci, request.clone()).await.unwrap_err();
        assert_eq!(refusal.reason, reason, "{request:?}: {refusal:?}");
    }
    let refusal = list(&member, &fleet.ci, list_of(&local)).await.unwrap_err();
    assert_eq!(refusal.invalid_fields(), ["job_id"], "{refusal:?}");
}

#[tokio::test]
async fn only_requested_artifacts_of_ended_jobs_are_stored() {
    let fleet = TestFleet::start().await;
    let member = fleet.start_member().await;
    let mut jobs = fleet.jobs(&member);
    let without = jobs.submit("m-1", fleet_job("echo hello")).await.job_id;
    jobs.wait(&without).await;
    assert_eq!(fleet.client.wait_for_end(&without).await.artifacts, []);
    assert_eq!(object_stream_state(&fleet.client).await.0, 0);
    let path = "logs/tool_step_0001_stdout.txt";
    let refusal = read(&member, &fleet.ci, of_job(&without, path)).await.unwrap_err();
    assert_eq!(refusal.reason, "ARTIFACT_NOT_FOUND");
    assert!(refusal.message.contains("without store_artifacts"), "{refusal:?}");

    // As a plain message, and without output.
    let request = SubmitJobRequest { store_artifacts: true, ..command_job(COUNTED_WAIT) };
    fleet.client.publish(&JobMessage::new("m-2", &request)).await;
    member.wait_for_effects(1).await;
    let id = fleet_job_id("m-2");
    let refusal = list(&member, &fleet.ci, list_of(&id)).await.unwrap_err();
    assert!(refusal.message.contains("has not ended"), "{refusal:?}");
    member.go();
    let record = fleet.client.wait_for_end(&id).await;
    let empty = artifact(&record, "_stdout.txt");
    assert_eq!((empty.size_bytes, &*empty.object, &*empty.missing_reason), (0, "", ""));
    assert_eq!(read(&member, &fleet.ci, of_job(&id, &empty.path)).await.unwrap(), (vec![], 0));
    assert_eq!(list(&member, &fleet.ci, list_of(&id)).await.unwrap().0, []);

    // A patch is an artifact too.
    fs::write(member.daemon.file("a"), "1\n").unwrap();
    let diff = "--- a/a\n+++ b/a\n@@ -1 +1 @@\n-1\n+2\n";
    let params = serde_json::json!({ "unified_diff": diff });
    let request = SubmitJobRequest {
        fleet: true,
        queue: Some("build".to_owned()),
        store_artifacts: true,
        ..crate::jobs::tool_job("apply_patch", params)
    };
    let id = jobs.submit("m-3", request).await.job_id;
    assert_eq!(jobs.wait(&id).await.state(), JobState::Succeeded);
    let record = fleet.client.wait_for_end(&id).await;
    let patch = artifact(&record, ".patch");
    let (bytes, _size) = read(&member, &fleet.ci, of_job(&id, &patch.path)).await.unwrap();
    assert_eq!(bytes, read_object(&fleet.client, &patch.object).await);
    assert!(String::from_utf8_lossy(&bytes).contains("+2"), "{bytes:?}");
}

#[tokio::test]
async fn full_object_store_leaves_artifacts_out_and_ends_the_job() {
    let fleet = TestFleet::start().await;
    let member = fleet.start_member().await;
    let mut jobs = fleet.jobs(&member);
    let first = jobs.submit("m-1", storing("echo first")).await.job_id;
    jobs.wait(&first).await;
    let mut stream = fleet.client.jetstream().get_stream(OBJECT_STREAM).await.unwrap();
    let mut config = stream.info().await.unwrap().config.clone();
    config.max_bytes = 2 << 20;
    fleet.client.jetstream().update_stream(config).await.unwrap();

    let full = jobs.submit("m-2", storing(BINARY_OUTPUT)).await.job_id;
    assert_eq!(jobs.wait(&full).await.state(), JobState::Succeeded);
    let record = fleet.client.wait_for_end(&full).await;
    let stdout = artifact(&record, "_stdout.txt");
    assert!(stdout.missing_reason.contains("maximum bytes exceeded"), "{stdout:?}");
    assert_eq!((&*stdout.object, stdout.size_bytes), ("", 0));
    let refusal = read(&member, &fleet.ci, of_job(&full, &stdout.path)).await.unwrap_err();
    assert_eq!(refusal.reason, "ARTIFACT_NOT_FOUND");
    assert!(refusal.message.contains("maximum bytes exceeded"), "{refusal:?}");

    // What was there stays, and the parts of the other one are gone.
    let stderr = &artifact(&record, "_stderr.txt").path;
    assert_eq!(read(&member, &fleet.ci, of_job(&full, stderr)).await.unwrap().0, b"warning\n");
    let (_messages, bytes) = object_stream_state(&fleet.client).await;
    assert!(bytes < 64 << 10, "{bytes} bytes remain");
    let last = jobs.submit("m-3", storing("head -c 1000000 /dev/zero")).await.job_id;
    jobs.wait(&last).await;
    for id in [&first, &last] {
        let record = fleet.client.wait_for_end(id).await;
        assert_eq!(artifact(&record, "_stdout.txt").missing_reason, "", "{record:?}");
    }
}

#[tokio::test]
async fn artifacts_wait_for_the_server() {
    let mut fleet = TestFleet::start().await;
    let member = fleet.start_member().await;
    let line = format!("{COUNTED_WAIT}; seq 200000");
    let id = fleet.jobs(&member).submit("m-1", storing(&line)).await.job_id;
    member.wait_for_effects(1).await;
    fleet.server.kill();
    member.go();
    let ended = "the job has ended at its daemon";
    eventually_within(MAX_FLEET_TIME, ended, async || {
        member.local_states(&fleet).await == [JobState::Succeeded]
    })
    .await;

    fleet.restart_server(&[&member]).await;
    let record = fleet.client.wait_for_end(&id).await;
    assert_eq!((record.attempts, record.job.as_ref().unwrap().state()), (1, JobState::Succeeded));
    let expected: String = (1..=200_000).map(|number| format!("{number}\n")).collect();
    let path = &artifact(&record, "_stdout.txt").path;
    let (bytes, _size) = read(&member, &fleet.ci, of_job(&id, path)).await.unwrap();
    assert!(bytes == expected.into_bytes(), "{} bytes", bytes.len());
}

/// The daemon dies after it has stored the artifacts, and before it has stored the end of the job.
#[tokio::test]
async fn death_between_artifacts_and_record_stores_them_once() {
    let fleet = TestFleet::start().await;
    let observer = fleet.start_observer().await;
    let mut worker = fleet.start_member_beside(&observer).await;
    let line = format!("{COUNTED_WAIT}; seq 100000");
    let id = fleet.jobs(&observer).submit("m-1", storing(&line)).await.job_id;
    worker.wait_for_effects(1).await;
    let claimed = fleet.client.wait_for_state(&id, FleetJobState::Claimed).await;

    // From here on, the server refuses each change of a record.
    let mut stream = fleet.client.jetstream().get_stream("KV_JIG_JOBS_records").await.unwrap();
    let config = stream.info().await.unwrap().config.clone();
    let mut refusing = config.clone();
    refusing.max_message_size = 1;
    fleet.client.jetstream().update_stream(refusing).await.unwrap();
    worker.go();
    let name = format!("{id}.{}.1/logs/tool_step_0001_stdout.txt", claimed.daemon_id);
    let mut stored = None;
    eventually_within(MAX_FLEET_TIME, "the artifact is stored", async || {
        stored = find_object(&fleet.client, &name).await;
        stored.is_some()
    })
    .await;
    let state = object_stream_state(&fleet.client).await;
    worker.kill().await;
    fleet.client.jetstream().update_stream(config).await.unwrap();

    let worker = worker.restart().await;
    let record = fleet.client.wait_for_end(&id).await;
    assert_eq!((record.attempts, record.job.as_ref().unwrap().state()), (1, JobState::Succeeded));
    assert_eq!(artifact(&record, "_stdout.txt").object, name);
    assert_eq!(find_object(&fleet.client, &name).await, stored);
    assert_eq!(object_stream_state(&fleet.client).await, state);
    let path = &artifact(&record, "_stdout.txt").path;
    let (bytes, _size) = read(&observer, &fleet.ci, of_job(&id, path)).await.unwrap();
    assert_eq!(bytes.len(), 588_895);
    assert_eq!(worker.lines("effects"), ["run"]);
}

#[tokio::test]
async fn repeated_job_has_the_artifacts_of_its_last_attempt() {
    let fleet = TestFleet::start().await;
    let observer = fleet.start_observer().await;
    let mut first = fleet.start_member_beside(&observer).await;
    let line = format!("echo $RANDOM$RANDOM | tee output; {COUNTED_WAIT}");
    let request = SubmitJobRequest { retry_if_lost: true, ..storing(&line) };
    let id = fleet.jobs(&observer).submit("m-1", request).await.job_id;
    first.wait_for_effects(1).await;
    let second = fleet.start_member_beside(&observer).await;
    second.go();
    first.kill().await;

    let record = fleet.client.wait_for_end(&id).await;
    let stdout = artifact(&record, "_stdout.txt");
    let prefix = format!("{id}.{}.2/", record.daemon_id);
    assert!(stdout.object.starts_with(&prefix), "{stdout:?}");
    let expected = fs::read(second.daemon.file("output")).unwrap();
    let (bytes, _size) = read(&observer, &fleet.ci, of_job(&id, &stdout.path)).await.unwrap();
    assert_eq!(bytes, expected);
}
