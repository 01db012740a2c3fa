//! Streams of a deleted workspace must not show a later workspace of its name.

use std::{
    io::{BufRead as _, BufReader, Read as _},
    process::Stdio,
    sync::Arc,
};

use jig::api::v1::{
    DeleteWorkspaceRequest, ListApprovalsRequest, WatchApprovalsRequest, WatchEventsRequest,
    approval_service_client::ApprovalServiceClient, event_service_client::EventServiceClient,
    watch_approvals_response::Event,
};
use tonic::{Request, Streaming};

use super::{Creating, named, with_metadata_pair};
use crate::support::{
    KeyFile, Refusal, Setup, curl_command, eventually, promptly, shell, with_key,
};

impl Creating {
    async fn start_with_keys(keys: &Arc<KeyFile>, more: &str) -> Self {
        let path = keys.path();
        let setup = Setup::new().arguments(&["--keys", path.to_str().unwrap()]);
        Self::start(setup.with_resource(Arc::clone(keys) as _), more).await
    }

    async fn delete_as(&self, key: &str, name: &str) {
        let request = with_key(key, DeleteWorkspaceRequest { name: name.to_owned() });
        self.service().delete_workspace(request).await.unwrap();
    }
}

fn in_workspace_as<T>(key: &str, workspace: &str, message: T) -> Request<T> {
    with_metadata_pair("jig-workspace", workspace, with_key(key, message))
}

/// Reads a stream to its error. Returns the texts of the messages, and the reason.
async fn read_to_error<T: std::fmt::Debug>(mut stream: Streaming<T>) -> (String, String) {
    promptly("the stream ends", async {
        let mut texts = String::new();
        loop {
            match stream.message().await {
                Ok(Some(message)) => texts.push_str(&format!("{message:?}")),
                Ok(None) => panic!("the stream ended without an error: {texts}"),
                Err(status) => return (texts, Refusal::from_status(&status).reason),
            }
        }
    })
    .await
}

#[tokio::test]
async fn event_streams_end_with_their_workspace() {
    let keys = Arc::new(KeyFile::new());
    let [first, second] =
        ["first", "second"].map(|name| keys.add_key(name, "invoke", &["--create-workspaces"]));
    let creating = Creating::start_with_keys(&keys, "").await;
    creating.create(with_key(&first, named("w"))).await;
    let in_session = |key: &str, session: &str, command: &str| {
        with_metadata_pair("jig-session", session, in_workspace_as(key, "w", shell(command)))
    };
    creating.daemon.run(in_session(&first, "used", "echo own")).await;

    let watch = async |session: &str| {
        let request = WatchEventsRequest { with_results: true, ..WatchEventsRequest::default() };
        let request = in_workspace_as(&first, "w", request);
        let request = with_metadata_pair("jig-session", session, request);
        let mut events = EventServiceClient::new(creating.daemon.channel());
        events.watch_events(request).await.unwrap().into_inner()
    };
    let [unused, used] = [watch("default").await, watch("used").await];
    let header = format!("x-api-key: {first}");
    let path = "/v1/sessions/default/events?workspace=w&with_results=true";
    let mut curl = curl_command(&creating.daemon, &["--include", "--header", &header], path)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut sent = BufReader::new(curl.stdout.take().unwrap());
    let mut status = String::new();
    sent.read_line(&mut status).unwrap();
    assert!(status.contains("200"), "{status}");

    creating.delete_as(&first, "w").await;
    creating.create(with_key(&second, named("w"))).await;
    for session in ["default", "used"] {
        creating.daemon.run(in_session(&second, session, "echo secret")).await;
    }

    for stream in [unused, used] {
        let (texts, reason) = read_to_error(stream).await;
        assert_eq!(reason, "UNKNOWN_WORKSPACE");
        assert!(!texts.contains("secret"), "{texts}");
    }
    let read = tokio::task::spawn_blocking(move || {
        let mut text = String::new();
        sent.read_to_string(&mut text).map(|_| text)
    });
    let text = promptly("the response ends", read).await.unwrap().unwrap();
    curl.wait().unwrap();
    assert!(text.contains("UNKNOWN_WORKSPACE") && !text.contains("secret"), "{text}");
}

#[tokio::test]
async fn approvals_of_a_later_workspace_are_its_owners() {
    let keys = Arc::new(KeyFile::new());
    let limited = ["--for-workspace", "workspace", "--create-workspaces"];
    let first = keys.add_key("first", "admin", &limited);
    let second = keys.add_key("second", "invoke", &["--create-workspaces"]);
    let boss = keys.add_key("boss", "admin", &[]);
    let creating = Creating::start_with_keys(&keys, "[policy]\ndangerous = \"ask\"\n").await;
    creating.create(with_key(&first, named("w"))).await;

    let approvals = || ApprovalServiceClient::new(creating.daemon.channel());
    let watched = || WatchApprovalsRequest { keep_alive_sec: Some(1) };
    let of_w = approvals().watch_approvals(in_workspace_as(&first, "w", watched())).await;
    let of_all = approvals().watch_approvals(with_key(&first, watched())).await;
    let (of_w, mut of_all) = (of_w.unwrap().into_inner(), of_all.unwrap().into_inner());
    let listed = async |key: &str, decided: bool| {
        let request = ListApprovalsRequest { decided, ..ListApprovalsRequest::default() };
        let listed = approvals().list_approvals(with_key(key, request)).await.unwrap();
        listed.into_inner().approvals.len()
    };

    creating.delete_as(&first, "w").await;
    creating.create(with_key(&second, named("w"))).await;
    let run = creating.daemon.spawn_run(in_workspace_as(&second, "w", shell("echo secret")));
    eventually("the call is pending", async || listed(&boss, false).await == 1).await;

    let (texts, reason) = read_to_error(of_w).await;
    assert_eq!(reason, "UNKNOWN_WORKSPACE");
    assert!(!texts.contains("secret"), "{texts}");
    // Two: the first may have been sent before the call was pending.
    for _ in 0..2 {
        loop {
            let message = promptly("a message arrives", of_all.message()).await;
            match message.unwrap().unwrap().event.unwrap() {
                Event::KeepAlive(keep_alive) => break assert_eq!(keep_alive.pending, 0),
                Event::Listed(_) => {}
                Event::Approval(approval) => panic!("{approval:?}"),
            }
        }
    }
    assert_eq!([listed(&first, false).await, listed(&first, true).await], [0, 0]);

    creating.delete_as(&second, "w").await;
    let refused = promptly("the pending call ends", run).await.unwrap().unwrap_err();
    assert_eq!(Refusal::from_status(&refused).reason, "UNKNOWN_WORKSPACE");
    creating.create(with_key(&first, named("w"))).await;
    for key in [&first, &boss] {
        assert_eq!([listed(key, false).await, listed(key, true).await], [0, 0]);
    }
}
