//! Who may see what goes on, and what is not to be seen.

use std::{collections::HashMap, sync::Arc};

use jig::api::v1::{
    ListSessionsRequest, RunRequest, event_service_client::EventServiceClient,
    tool_service_client::ToolServiceClient,
};
use tonic::Request;

use super::{Watching, request, so_far};
use crate::{
    callers::with_keys,
    support::{Daemon, KeyFile, Setup, shell, with_key},
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
        [
            &"key:other".into(),
            &"other".into(),
            &serde_json::Value::from(1)
        ]
    );
    for key in [&first, &looks, &other] {
        let listed = sessions(&daemon, with_key(key, ListSessionsRequest::default())).await;
        assert_eq!(listed, ["default"]);
        let events = Watching::of(&daemon, with_key(key, so_far(0)))
            .await
            .rest()
            .await;
        assert_eq!(events.len(), 2);
    }
    let mut hidden = with_key(&looks, request(0));
    let name = "other".parse().unwrap();
    hidden.metadata_mut().insert("jig-workspace", name);
    let refusal = Watching::try_of(&daemon, hidden).await.err().unwrap();
    assert_eq!(refusal.reason, "UNKNOWN_WORKSPACE");
}

#[tokio::test]
async fn what_may_be_secret_is_seen_by_nobody() {
    const HIDDEN: &str = "n0t-t0-be-seen";
    let daemon = Daemon::start().await;
    let request = RunRequest {
        env: HashMap::from([("SECRET".to_owned(), HIDDEN.to_owned())])
            .into_iter()
            .collect(),
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
