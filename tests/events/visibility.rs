//! Visibility of events: by workspace, by tool, and without secrets.

use std::{collections::HashMap, sync::Arc};

use jig::api::v1::{
    ListSessionsRequest, ReadFileRequest, RunRequest, UploadRequest, UploadStart,
    WatchEventsRequest, event_service_client::EventServiceClient,
    tool_service_client::ToolServiceClient, transfer_service_client::TransferServiceClient,
    upload_request::Part, watch_events_response::Item,
};
use tonic::Request;

use super::{EventWatch, records, sequences, snapshot_request, watch_request};
use crate::{
    callers::start_daemon_with_keys,
    support::{Daemon, KeyFile, Refusal, Setup, eventually, shell, with_key},
};

async fn session_names(daemon: &Daemon, request: Request<ListSessionsRequest>) -> Vec<String> {
    let mut client = EventServiceClient::new(daemon.channel());
    let listed = client.list_sessions(request).await.unwrap().into_inner();
    let sessions = listed.sessions.into_iter();
    sessions.map(|session| session.session).collect()
}

#[tokio::test]
async fn key_of_other_workspace_sees_no_events() {
    let directory = tempfile::TempDir::with_prefix("jig-test-other-").unwrap();
    let keys = Arc::new(KeyFile::new());
    let first_key = keys.add_key("first", "invoke", &["--for-workspace", "workspace"]);
    let other_key = keys.add_key("other", "invoke", &["--for-workspace", "other"]);
    let read_key = keys.add_key("looks", "read", &["--for-workspace", "workspace"]);

    let named = format!("other={}", directory.path().display());
    let setup = Setup::new().arguments(&["--workspace", &named]);
    let daemon = start_daemon_with_keys(setup, &keys).await;
    let mut watch = EventWatch::of(&daemon, with_key(&read_key, watch_request(0))).await;
    let mut other_watch = EventWatch::of(&daemon, with_key(&other_key, watch_request(0))).await;
    daemon.run(with_key(&first_key, shell("echo 1"))).await;

    let event = watch.next_event().await;
    assert_eq!(super::event_record(&event)["principal"], "key:first");

    watch.next_event().await;
    daemon.run(with_key(&other_key, shell("echo 2"))).await;
    let event = super::event_record(&other_watch.next_event().await);
    assert_eq!(
        [&event["principal"], &event["workspace"], &event["sequence"]],
        [&"key:other".into(), &"other".into(), &serde_json::Value::from(1)]
    );

    for key in [&first_key, &read_key, &other_key] {
        let listed = session_names(&daemon, with_key(key, ListSessionsRequest::default())).await;
        assert_eq!(listed, ["default"]);
        let events = EventWatch::of(&daemon, with_key(key, snapshot_request(0)))
            .await
            .remaining_events()
            .await;
        assert_eq!(events.len(), 2);
    }

    let mut hidden = with_key(&read_key, watch_request(0));
    let name = "other".parse().unwrap();
    hidden.metadata_mut().insert("jig-workspace", name);
    let refusal = EventWatch::try_of(&daemon, hidden).await.err().unwrap();
    assert_eq!(refusal.reason, "UNKNOWN_WORKSPACE");
}

/// A rule that requires approval for commands with the text `asked`.
const ASK_RULE_TABLE: &str =
    "[[policy.rules]]\nname = \"ask\"\ntool = \"run\"\npattern = \"asked\"\naction = \"ask\"";

/// Starts an upload that ends before its data.
async fn upload_nothing(daemon: &Daemon, key: &str) {
    let start = Part::Start(UploadStart {
        path: "g".to_owned(),
        size_bytes: 10,
        sha256: "0".repeat(64),
        ..UploadStart::default()
    });
    let parts = tokio_stream::iter([UploadRequest { part: Some(start) }]);
    let mut transfers = TransferServiceClient::new(daemon.channel());
    let result = transfers.upload(with_key(key, parts)).await;
    result.unwrap_err();
}

/// The numbers of the events that a watch gets up to record `last`, and no gap.
async fn followed_sequences(watch: &mut EventWatch, last: u64) -> Vec<u64> {
    let mut followed = Vec::new();
    loop {
        match watch.next().await.unwrap() {
            Item::Event(event) => followed.push(event.sequence),
            Item::KeepAlive(keep_alive) if keep_alive.last_sequence < last => {}
            Item::KeepAlive(keep_alive) => {
                assert_eq!(keep_alive.last_sequence, last);
                return followed;
            }
            item => panic!("{item:?}"),
        }
    }
}

#[tokio::test]
async fn key_limited_to_tools_sees_only_their_calls() {
    let keys = Arc::new(KeyFile::new());
    let unlimited_key = keys.add_key("all", "admin", &[]);
    let reader_key = keys.add_key("reads", "invoke", &["--for-tool", "read_file"]);
    let reader_admin_key = keys.add_key("admin", "admin", &["--for-tool", "read_file"]);
    let writer_key = keys.add_key("writes", "invoke", &["--for-tool", "write_file"]);
    let daemon = start_daemon_with_keys(Setup::new().workspace_table(ASK_RULE_TABLE), &keys).await;

    std::fs::write(daemon.file("f"), "text").unwrap();
    let follow = WatchEventsRequest { keep_alive_sec: Some(1), ..watch_request(0) };
    let mut following = EventWatch::of(&daemon, with_key(&reader_key, follow)).await;
    let wait_for_records = async |count| {
        let recorded = async || records(&daemon, "default").len() == count;
        eventually("the calls are recorded", recorded).await;
    };
    daemon.run(with_key(&unlimited_key, shell("echo hidden"))).await;

    let mut unapproved = with_key(&unlimited_key, shell("echo asked"));
    unapproved.set_timeout(std::time::Duration::from_millis(300));
    daemon.try_run(unapproved).await.unwrap_err();
    wait_for_records(4).await;

    let read = ReadFileRequest { path: "f".to_owned(), ..ReadFileRequest::default() };
    let read = daemon.tools().read_file(with_key(&unlimited_key, read)).await;
    read.unwrap();
    upload_nothing(&daemon, &writer_key).await;
    wait_for_records(8).await;

    let watched_sequences = async |key: &str, request| {
        let mut watching = EventWatch::of(&daemon, with_key(key, request)).await;
        sequences(&watching.remaining_events().await)
    };
    assert_eq!(
        watched_sequences(&unlimited_key, snapshot_request(0)).await,
        (1..=8).collect::<Vec<_>>()
    );

    for key in [&reader_key, &reader_admin_key] {
        assert_eq!(watched_sequences(key, snapshot_request(0)).await, [5, 6]);
        assert_eq!(
            watched_sequences(key, snapshot_request(5)).await,
            [6],
            "the watch resumes after record 5"
        );
        let of_types = WatchEventsRequest {
            types: vec!["tool_call_started".to_owned(), "approval_requested".to_owned()],
            ..snapshot_request(0)
        };
        assert_eq!(watched_sequences(key, of_types).await, [5]);
    }

    assert_eq!(watched_sequences(&writer_key, snapshot_request(0)).await, [7, 8]);

    // A following watch gets the position in keep-alives, and no gap.
    assert_eq!(followed_sequences(&mut following, 8).await, [5, 6]);

    let beyond = EventWatch::try_of(&daemon, with_key(&reader_key, snapshot_request(9))).await;
    let refusal: Refusal = beyond.err().unwrap();
    assert_eq!(refusal.reason, "INVALID_PARAMS");
}

#[tokio::test]
async fn events_omit_environment_and_stdin() {
    const HIDDEN: &str = "n0t-t0-be-seen";

    let daemon = Daemon::start().await;
    let request = RunRequest {
        env: HashMap::from([("SECRET".to_owned(), HIDDEN.to_owned())]).into_iter().collect(),
        stdin: HIDDEN.to_owned().into_bytes().into(),
        ..shell("cat > /dev/null")
    };
    daemon.run(request).await;
    let last = ToolServiceClient::new(daemon.channel())
        .last_command(jig::api::v1::LastCommandRequest {})
        .await
        .unwrap();

    assert!(!format!("{last:?}").contains(HIDDEN), "{last:?}");

    let events = EventWatch::of(&daemon, snapshot_request(0)).await.remaining_events().await;
    assert!(!format!("{events:?}").contains(HIDDEN), "{events:?}");

    let started = super::event_record(&events[0]);
    assert_eq!(started["params"]["stdin"], "<14 bytes>");
}
