//! Who may see what goes on, and what is not to be seen.

use std::{collections::HashMap, sync::Arc};

use jig::api::v1::{
    ListSessionsRequest, ReadFileRequest, RunRequest, UploadRequest, UploadStart,
    WatchEventsRequest, event_service_client::EventServiceClient,
    tool_service_client::ToolServiceClient, transfer_service_client::TransferServiceClient,
    upload_request::Part, watch_events_response::Item,
};
use tonic::Request;

use super::{Watching, records, request, sequences, so_far};
use crate::{
    callers::with_keys,
    support::{Daemon, KeyFile, Refusal, Setup, eventually, shell, with_key},
};

async fn sessions(daemon: &Daemon, request: Request<ListSessionsRequest>) -> Vec<String> {
    let mut client = EventServiceClient::new(daemon.channel());
    let listed = client.list_sessions(request).await.unwrap().into_inner();
    let sessions = listed.sessions.into_iter();
    sessions.map(|session| session.session).collect()
}

#[tokio::test]
async fn a_key_for_another_workspace_sees_nothing() {
    let folder = tempfile::TempDir::with_prefix("jig-test-other-").unwrap();
    let keys = Arc::new(KeyFile::new());
    let first = keys.add("first", "invoke", &["--for-workspace", "workspace"]);
    let other = keys.add("other", "invoke", &["--for-workspace", "other"]);
    let looks = keys.add("looks", "read", &["--for-workspace", "workspace"]);
    let named = format!("other={}", folder.path().display());
    let setup = Setup::new().arguments(&["--workspace", &named]);
    let daemon = with_keys(setup, &keys).await;
    let mut watches = Watching::of(&daemon, with_key(&looks, request(0))).await;
    let mut elsewhere = Watching::of(&daemon, with_key(&other, request(0))).await;
    daemon.run(with_key(&first, shell("echo 1"))).await;
    let event = watches.event().await;
    assert_eq!(super::record(&event)["principal"], "key:first");
    watches.event().await;
    daemon.run(with_key(&other, shell("echo 2"))).await;
    let event = super::record(&elsewhere.event().await);
    assert_eq!(
        [&event["principal"], &event["workspace"], &event["sequence"]],
        [&"key:other".into(), &"other".into(), &serde_json::Value::from(1)]
    );
    for key in [&first, &looks, &other] {
        let listed = sessions(&daemon, with_key(key, ListSessionsRequest::default())).await;
        assert_eq!(listed, ["default"]);
        let events = Watching::of(&daemon, with_key(key, so_far(0))).await.rest().await;
        assert_eq!(events.len(), 2);
    }
    let mut hidden = with_key(&looks, request(0));
    let name = "other".parse().unwrap();
    hidden.metadata_mut().insert("jig-workspace", name);
    let refusal = Watching::try_of(&daemon, hidden).await.err().unwrap();
    assert_eq!(refusal.reason, "UNKNOWN_WORKSPACE");
}

/// Whoever makes such a call is asked about it.
const ASKED: &str =
    "[[policy.rules]]\nname = \"ask\"\ntool = \"run\"\npattern = \"asked\"\naction = \"ask\"";

#[tokio::test]
async fn a_key_for_some_tools_sees_the_calls_of_these_only() {
    let keys = Arc::new(KeyFile::new());
    let all = keys.add("all", "admin", &[]);
    let reads = keys.add("reads", "invoke", &["--for-tool", "read_file"]);
    let admin = keys.add("admin", "admin", &["--for-tool", "read_file"]);
    let writes = keys.add("writes", "invoke", &["--for-tool", "write_file"]);
    let daemon = with_keys(Setup::new().workspace_table(ASKED), &keys).await;
    std::fs::write(daemon.file("f"), "text").unwrap();
    let follow = WatchEventsRequest { keep_alive_sec: Some(1), ..request(0) };
    let mut follows = Watching::of(&daemon, with_key(&reads, follow)).await;
    let written = async |count| {
        let are_there = async || records(&daemon, "default").len() == count;
        eventually("it is recorded", are_there).await;
    };
    daemon.run(with_key(&all, shell("echo hidden"))).await;
    let mut asked = with_key(&all, shell("echo asked"));
    asked.set_timeout(std::time::Duration::from_millis(300));
    daemon.try_run(asked).await.unwrap_err();
    written(4).await;
    let read = ReadFileRequest { path: "f".to_owned(), ..ReadFileRequest::default() };
    let read = daemon.tools().read_file(with_key(&all, read)).await;
    read.unwrap();
    let start = Part::Start(UploadStart {
        path: "g".to_owned(),
        size_bytes: 10,
        sha256: "0".repeat(64),
        ..UploadStart::default()
    });
    let parts = tokio_stream::iter([UploadRequest { part: Some(start) }]);
    let mut transfers = TransferServiceClient::new(daemon.channel());
    let cut_off = transfers.upload(with_key(&writes, parts)).await;
    cut_off.unwrap_err();
    written(8).await;

    let told = async |key: &str, request| {
        let mut watching = Watching::of(&daemon, with_key(key, request)).await;
        sequences(&watching.rest().await)
    };
    assert_eq!(told(&all, so_far(0)).await, (1..=8).collect::<Vec<_>>());
    for key in [&reads, &admin] {
        assert_eq!(told(key, so_far(0)).await, [5, 6]);
        assert_eq!(told(key, so_far(5)).await, [6], "it goes on there");
        let of_types = WatchEventsRequest {
            types: vec!["tool_call_started".to_owned(), "approval_requested".to_owned()],
            ..so_far(0)
        };
        assert_eq!(told(key, of_types).await, [5]);
    }
    assert_eq!(told(&writes, so_far(0)).await, [7, 8]);
    // Who follows is told how far that is, and of no gap.
    let mut seen = Vec::new();
    loop {
        match follows.next().await.unwrap() {
            Item::Event(event) => seen.push(event.sequence),
            Item::KeepAlive(place) if place.last_sequence < 8 => {}
            Item::KeepAlive(place) => break assert_eq!(place.last_sequence, 8),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(seen, [5, 6]);
    let beyond = Watching::try_of(&daemon, with_key(&reads, so_far(9))).await;
    let refusal: Refusal = beyond.err().unwrap();
    assert_eq!(refusal.reason, "INVALID_PARAMS");
}

#[tokio::test]
async fn what_may_be_secret_is_seen_by_nobody() {
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
    let events = Watching::of(&daemon, so_far(0)).await.rest().await;
    assert!(!format!("{events:?}").contains(HIDDEN), "{events:?}");
    let started = super::record(&events[0]);
    assert_eq!(started["params"]["stdin"], "<14 bytes>");
}
