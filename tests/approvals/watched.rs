//! Watching what waits: first what is there, then every change.

use std::{sync::Arc, time::Duration};

use jig::api::v1::{
    Approval, ApprovalState, Decision, ListApprovalsRequest, WatchApprovalsRequest,
    WatchApprovalsResponse, watch_approvals_response::Event,
};
use rustix::process::Signal;
use tonic::Streaming;

use super::{ASK, approvals, decide, decision, file, wait_for, with_policy, write};
use crate::support::{Daemon, KeyFile, Refusal, Setup, promptly, shell, with, with_key};

async fn watch(daemon: &Daemon, keep_alive_sec: u32) -> Streaming<WatchApprovalsResponse> {
    let request = WatchApprovalsRequest { keep_alive_sec: Some(keep_alive_sec) };
    approvals(daemon).watch_approvals(request).await.unwrap().into_inner()
}

async fn next(events: &mut Streaming<WatchApprovalsResponse>) -> Event {
    let message = promptly("there is an event", events.message()).await;
    message.unwrap().unwrap().event.unwrap()
}

async fn next_approval(events: &mut Streaming<WatchApprovalsResponse>) -> Approval {
    match next(events).await {
        Event::Approval(approval) => approval,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn whoever_watches_misses_nothing() {
    let daemon = with_policy(ASK).await;
    let first = daemon.begin(shell("true"));
    let before = wait_for(&daemon, 1).await;
    let mut events = watch(&daemon, 3600).await;
    assert_eq!(next_approval(&mut events).await, before[0]);
    assert!(matches!(next(&mut events).await, Event::Listed(listed) if listed.count == 1));
    let second = write(&daemon, file("f", "x"));
    let came = next_approval(&mut events).await;
    assert_eq!((came.state(), came.tool.as_str()), (ApprovalState::Pending, "write_file"));
    decide(&daemon, decision(&came, Decision::Deny)).await.unwrap();
    let went = next_approval(&mut events).await;
    assert_eq!((went.approval_id, went.decided_by.as_str()), (came.approval_id, "uid:0"));
    assert_eq!(went.state, i32::from(ApprovalState::Denied));
    second.await.unwrap().unwrap_err();
    first.abort();
    assert_eq!(next_approval(&mut events).await.state(), ApprovalState::Withdrawn);
    // Many come and go, while many watch.
    let mut watching = Vec::new();
    for _ in 0..5 {
        let mut events = watch(&daemon, 3600).await;
        watching.push(tokio::spawn(async move {
            let (mut asked, mut ended) = (Vec::new(), Vec::new());
            while ended.len() < 40 {
                if let Event::Approval(approval) = next(&mut events).await {
                    match approval.state() {
                        ApprovalState::Pending => asked.push(approval.approval_id),
                        _ => ended.push(approval.approval_id),
                    }
                }
            }
            asked.sort();
            ended.sort();
            assert_eq!(asked, ended);
            ended
        }));
    }
    let calls: Vec<_> = (0..40).map(|_| daemon.begin(shell("true"))).collect();
    let mut decided = 0;
    while decided < 40 {
        let Event::Approval(approval) = next(&mut events).await else {
            continue;
        };
        if approval.state() == ApprovalState::Pending {
            decided += 1;
            decide(&daemon, decision(&approval, Decision::Allow)).await.unwrap();
        }
    }
    for call in calls {
        promptly("it runs", call).await.unwrap().unwrap();
    }
    for watching in watching {
        promptly("all is seen", watching).await.unwrap();
    }
}

#[tokio::test]
async fn a_stream_says_that_it_lives_and_why_it_ends() {
    let mut daemon = with_policy(ASK).await;
    let mut events = watch(&daemon, 1).await;
    assert!(matches!(next(&mut events).await, Event::Listed(listed) if listed.count == 0));
    let run = daemon.begin(shell("true"));
    next_approval(&mut events).await;
    assert!(matches!(next(&mut events).await, Event::KeepAlive(alive) if alive.pending == 1));
    run.abort();
    let request = with("grpc-timeout", "200m", WatchApprovalsRequest::default());
    let mut short = approvals(&daemon).watch_approvals(request).await.unwrap().into_inner();
    let late = loop {
        match promptly("it ends", short.message()).await {
            Ok(message) => assert!(message.is_some()),
            Err(status) => break status,
        }
    };
    assert!([tonic::Code::DeadlineExceeded, tonic::Code::Cancelled].contains(&late.code()));
    daemon.signal(Signal::TERM);
    let ended = loop {
        match promptly("it ends", events.message()).await {
            Ok(message) => assert!(message.is_some()),
            Err(status) => break status,
        }
    };
    assert_eq!(Refusal::of(&ended).reason, "DRAINING");
    assert!(promptly("the daemon ends", daemon.exit()).await.success());
}

#[tokio::test]
async fn a_stream_says_that_it_lives_while_others_are_busy() {
    let folder = tempfile::tempdir().unwrap();
    let keys = Arc::new(KeyFile::new());
    let [one, other] =
        ["workspace", "other"].map(|name| keys.add(name, "admin", &["--for-workspace", name]));
    let path = keys.path().display().to_string();
    let table = format!(
        "name = \"workspace\"\n[[workspaces]]\nname = \"other\"\npath = {:?}\n{ASK}",
        folder.path()
    );
    let setup = Setup::new().workspace_table(&table);
    let daemon = setup.arguments(&["--keys", &path]).keeping(keys).start().await;
    let request = WatchApprovalsRequest { keep_alive_sec: Some(1) };
    let watching = approvals(&daemon).watch_approvals(with_key(&one, request)).await;
    let mut events = watching.unwrap().into_inner();
    assert!(matches!(next(&mut events).await, Event::Listed(_)));
    // Calls of the other workspace come and go all the time.
    let busy = async {
        loop {
            let short = with_key(&other, shell("true"));
            let ended =
                tokio::time::timeout(Duration::from_millis(50), daemon.try_run(short)).await;
            assert!(ended.is_err(), "{ended:?}");
        }
    };
    tokio::select! {
        never = busy => never,
        event = next(&mut events) => {
            assert!(matches!(&event, Event::KeepAlive(alive) if alive.pending == 0), "{event:?}");
        }
    }
}

#[tokio::test]
async fn streams_are_bounded() {
    let daemon = with_policy(ASK).await;
    let mut streams = Vec::new();
    for _ in 0..64 {
        streams.push(watch(&daemon, 3600).await);
    }
    let refused = approvals(&daemon).watch_approvals(WatchApprovalsRequest::default()).await;
    assert_eq!(Refusal::of(&refused.unwrap_err()).reason, "RESOURCE_EXHAUSTED");
    streams.pop();
    crate::support::eventually("there is room again", async || {
        approvals(&daemon).watch_approvals(WatchApprovalsRequest::default()).await.is_ok()
    })
    .await;
}

#[tokio::test]
async fn lists_have_pages() {
    let daemon = with_policy(ASK).await;
    let mut calls = Vec::new();
    for count in 1..=5 {
        calls.push(daemon.begin(shell("true")));
        wait_for(&daemon, count).await;
    }
    let pages = async |decided: bool| {
        let (mut ids, mut page_token, mut sizes) = (Vec::new(), String::new(), Vec::new());
        loop {
            let request = ListApprovalsRequest { decided, page_size: Some(2), page_token };
            let page = approvals(&daemon).list_approvals(request).await.unwrap().into_inner();
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
    let refused = approvals(&daemon).list_approvals(request).await.unwrap_err();
    assert_eq!(Refusal::of(&refused).fields(), ["page_token"]);
}
