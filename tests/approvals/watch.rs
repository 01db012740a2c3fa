//! `WatchApprovals`: first the pending approvals, then every change.

use std::{sync::Arc, time::Duration};

use jig::api::v1::{
    Approval, ApprovalState, Decision, ListApprovalsRequest, WatchApprovalsRequest,
    WatchApprovalsResponse, watch_approvals_response::Event,
};
use rustix::process::Signal;
use tonic::Streaming;

use super::{
    ASK_POLICY, approval_client, decide, decide_request, spawn_write, start_with_policy,
    wait_for_pending_approvals, write_request,
};
use crate::support::{
    Daemon, KeyFile, Refusal, Setup, eventually, promptly, shell, with_key, with_metadata,
};

async fn watch_approvals(
    daemon: &Daemon,
    keep_alive_sec: u32,
) -> Streaming<WatchApprovalsResponse> {
    let request = WatchApprovalsRequest { keep_alive_sec: Some(keep_alive_sec) };
    approval_client(daemon).watch_approvals(request).await.unwrap().into_inner()
}

async fn next_event(events: &mut Streaming<WatchApprovalsResponse>) -> Event {
    let message = promptly("an event arrives", events.message()).await;
    message.unwrap().unwrap().event.unwrap()
}

async fn next_approval(events: &mut Streaming<WatchApprovalsResponse>) -> Approval {
    match next_event(events).await {
        Event::Approval(approval) => approval,
        other => panic!("{other:?}"),
    }
}

/// Reads events until `count` approvals have ended. Each of them must have been requested.
async fn read_ended(mut events: Streaming<WatchApprovalsResponse>, count: usize) {
    let (mut requested_ids, mut ended_ids) = (Vec::new(), Vec::new());
    while ended_ids.len() < count {
        if let Event::Approval(approval) = next_event(&mut events).await {
            match approval.state() {
                ApprovalState::Pending => requested_ids.push(approval.approval_id),
                _ => ended_ids.push(approval.approval_id),
            }
        }
    }

    requested_ids.sort();
    ended_ids.sort();
    assert_eq!(requested_ids, ended_ids);
}

#[tokio::test]
async fn watchers_receive_every_change() {
    let daemon = start_with_policy(ASK_POLICY).await;
    let first = daemon.spawn_run(shell("true"));
    let pending = wait_for_pending_approvals(&daemon, 1).await;
    let mut events = watch_approvals(&daemon, 3600).await;
    assert_eq!(next_approval(&mut events).await, pending[0]);
    assert!(matches!(next_event(&mut events).await, Event::Listed(listed) if listed.count == 1));

    let second = spawn_write(&daemon, write_request("f", "x"));
    let requested = next_approval(&mut events).await;
    assert_eq!(
        (requested.state(), requested.tool.as_str()),
        (ApprovalState::Pending, "write_file")
    );

    decide(&daemon, decide_request(&requested, Decision::Deny)).await.unwrap();
    let decided_approval = next_approval(&mut events).await;
    assert_eq!(
        (decided_approval.approval_id, decided_approval.decided_by.as_str()),
        (requested.approval_id, "uid:0")
    );
    assert_eq!(decided_approval.state, i32::from(ApprovalState::Denied));

    second.await.unwrap().unwrap_err();
    first.abort();
    assert_eq!(next_approval(&mut events).await.state(), ApprovalState::Withdrawn);

    // Many calls, watched by many streams.
    let mut watchers = Vec::new();
    for _ in 0..5 {
        let events = watch_approvals(&daemon, 3600).await;
        watchers.push(tokio::spawn(read_ended(events, 40)));
    }

    let calls: Vec<_> = (0..40).map(|_| daemon.spawn_run(shell("true"))).collect();
    let mut decided = 0;
    while decided < 40 {
        let Event::Approval(approval) = next_event(&mut events).await else {
            continue;
        };
        if approval.state() == ApprovalState::Pending {
            decided += 1;
            decide(&daemon, decide_request(&approval, Decision::Allow)).await.unwrap();
        }
    }

    for call in calls {
        promptly("the command runs", call).await.unwrap().unwrap();
    }

    for watcher in watchers {
        promptly("the watcher has seen every approval", watcher).await.unwrap();
    }
}

#[tokio::test]
async fn stream_sends_keep_alives_and_its_end_reason() {
    let mut daemon = start_with_policy(ASK_POLICY).await;
    let mut events = watch_approvals(&daemon, 1).await;
    assert!(matches!(next_event(&mut events).await, Event::Listed(listed) if listed.count == 0));

    let run = daemon.spawn_run(shell("true"));
    next_approval(&mut events).await;
    assert!(matches!(next_event(&mut events).await, Event::KeepAlive(alive) if alive.pending == 1));

    run.abort();
    let request = with_metadata("grpc-timeout", "200m", WatchApprovalsRequest::default());

    let mut limited_events =
        approval_client(&daemon).watch_approvals(request).await.unwrap().into_inner();
    let timed_out = loop {
        match promptly("the stream ends", limited_events.message()).await {
            Ok(message) => assert!(message.is_some()),
            Err(status) => break status,
        }
    };
    assert!([tonic::Code::DeadlineExceeded, tonic::Code::Cancelled].contains(&timed_out.code()));

    daemon.signal(Signal::TERM);
    let status = loop {
        match promptly("the stream ends", events.message()).await {
            Ok(message) => assert!(message.is_some()),
            Err(status) => break status,
        }
    };
    assert_eq!(Refusal::from_status(&status).reason, "DRAINING");
    assert!(promptly("the daemon ends", daemon.wait_for_exit()).await.success());
}

#[tokio::test]
async fn stream_sends_keep_alives_while_another_workspace_is_busy() {
    let directory = tempfile::tempdir().unwrap();
    let keys = Arc::new(KeyFile::new());
    let [key, other_key] =
        ["workspace", "other"].map(|name| keys.add_key(name, "admin", &["--for-workspace", name]));
    let path = keys.path().display().to_string();
    let table = format!(
        "name = \"workspace\"\n[[workspaces]]\nname = \"other\"\npath = {:?}\n{ASK_POLICY}",
        directory.path()
    );
    let setup = Setup::new().workspace_table(&table);
    let daemon = setup.arguments(&["--keys", &path]).with_resource(keys).start().await;
    let request = WatchApprovalsRequest { keep_alive_sec: Some(1) };
    let response = approval_client(&daemon).watch_approvals(with_key(&key, request)).await;
    let mut events = response.unwrap().into_inner();
    assert!(matches!(next_event(&mut events).await, Event::Listed(_)));

    // The other workspace has new calls all the time.
    let traffic = async {
        loop {
            let call = with_key(&other_key, shell("true"));
            let result =
                tokio::time::timeout(Duration::from_millis(50), daemon.try_run(call)).await;
            assert!(result.is_err(), "{result:?}");
        }
    };

    tokio::select! {
        never = traffic => never,
        event = next_event(&mut events) => {
            assert!(matches!(&event, Event::KeepAlive(alive) if alive.pending == 0), "{event:?}");
        }
    }
}

#[tokio::test]
async fn streams_are_limited() {
    let daemon = start_with_policy(ASK_POLICY).await;
    let mut streams = Vec::new();
    for _ in 0..64 {
        streams.push(watch_approvals(&daemon, 3600).await);
    }

    let result = approval_client(&daemon).watch_approvals(WatchApprovalsRequest::default()).await;
    assert_eq!(Refusal::from_status(&result.unwrap_err()).reason, "RESOURCE_EXHAUSTED");

    streams.pop();
    eventually("the limit admits a stream again", async || {
        approval_client(&daemon).watch_approvals(WatchApprovalsRequest::default()).await.is_ok()
    })
    .await;
}

#[tokio::test]
async fn list_approvals_returns_pages() {
    let daemon = start_with_policy(ASK_POLICY).await;
    let mut calls = Vec::new();
    for count in 1..=5 {
        calls.push(daemon.spawn_run(shell("true")));
        wait_for_pending_approvals(&daemon, count).await;
    }

    let pages = async |decided: bool| {
        let (mut ids, mut page_token, mut sizes) = (Vec::new(), String::new(), Vec::new());
        loop {
            let request = ListApprovalsRequest { decided, page_size: Some(2), page_token };
            let page = approval_client(&daemon).list_approvals(request).await.unwrap().into_inner();
            sizes.push(page.approvals.len());
            ids.extend(page.approvals.into_iter().map(|approval| approval.approval_id));
            page_token = page.next_page_token;
            if page_token.is_empty() {
                return (ids, sizes);
            }
        }
    };

    let (oldest_first, sizes) = pages(false).await;
    assert_eq!(sizes, [2, 2, 1]);

    let (newest_first, sizes) = pages(true).await;
    assert_eq!(sizes, [2, 2, 1]);
    assert!(oldest_first.is_sorted() && newest_first.iter().rev().eq(&oldest_first));

    let request = ListApprovalsRequest { page_token: "2".to_owned(), ..Default::default() };
    let status = approval_client(&daemon).list_approvals(request).await.unwrap_err();
    assert_eq!(Refusal::from_status(&status).invalid_fields(), ["page_token"]);
}
