//! The limit on concurrent file operations.

use std::{fs, time::Duration};

use jig::api::v1::{ListDirectoryRequest, SearchRequest};
use tonic::Request;

use super::{start_without_keys, wait_for_call_counts};
use crate::support::{Daemon, Refusal, eventually, promptly};

/// A search that runs until it is cancelled.
fn slow_search() -> SearchRequest {
    SearchRequest {
        query: "(?:a|b)*a(?:a|b){500}[c-y]".to_owned(),
        is_regex: Some(true),
        ..SearchRequest::default()
    }
}

/// Writes a file with lines that each take long to search.
fn write_large_file(daemon: &Daemon) {
    let mut bits = 1_u64;
    let letters = (0..20_000_000).map(|letter| {
        bits ^= bits << 13;
        bits ^= bits >> 7;
        bits ^= bits << 17;
        if letter % 2000 == 0 { b'\n' } else { b'a' + u8::from(bits & 1 == 1) }
    });
    fs::write(daemon.file("large"), letters.collect::<Vec<_>>()).unwrap();
}

#[tokio::test]
async fn file_operation_waits_for_permit_and_completes() {
    let daemon = start_without_keys("concurrent_file_operations = 1\n").await;

    write_large_file(&daemon);
    let mut tools = daemon.tools();
    let search = tokio::spawn(async move { tools.search(slow_search()).await });
    let list_soon = async || {
        let mut request = Request::new(ListDirectoryRequest::default());
        request.set_timeout(Duration::from_secs(1));
        daemon.tools().list_directory(request).await
    };
    eventually("the search has the permit", async || list_soon().await.is_err()).await;

    wait_for_call_counts(&daemon, None, (1, 0)).await;

    // A waiting file operation does not block other calls.
    let mut tools = daemon.tools();
    let waiting =
        tokio::spawn(async move { tools.list_directory(ListDirectoryRequest::default()).await });
    wait_for_call_counts(&daemon, None, (2, 0)).await;

    promptly("a command runs", daemon.run(crate::support::shell("true"))).await;
    list_soon().await.unwrap_err();
    assert!(!waiting.is_finished());

    search.abort();
    let listed = promptly("the listing completes", waiting).await.unwrap().unwrap();
    assert_eq!(listed.into_inner().file_count, 1);

    wait_for_call_counts(&daemon, None, (0, 0)).await;
}

#[tokio::test]
async fn slow_searches_return_partial_results() {
    let daemon = start_without_keys("concurrent_file_operations = 4\n").await;

    write_large_file(&daemon);
    let mut calls = Vec::new();
    for _ in 0..30 {
        let mut tools = daemon.tools();
        let mut request = Request::new(slow_search());
        request.set_timeout(Duration::from_secs(3));
        calls.push(tokio::spawn(async move { tools.search(request).await }));
    }

    let (mut timed_out, mut refused) = (0, 0);
    for call in calls {
        match promptly("the search ends", call).await.unwrap() {
            Ok(answer) => timed_out += i32::from(answer.into_inner().timed_out),
            Err(status) if status.code() == tonic::Code::ResourceExhausted => {
                let refusal = Refusal::from_status(&status);
                assert!(refusal.retry_after.is_some(), "{refusal:?}");
                refused += 1;
            }
            // A deadline, reported by the local client or by the daemon.
            Err(_) => {}
        }
    }

    assert!(timed_out <= 4, "{timed_out} timed out, {refused} rejected");

    wait_for_call_counts(&daemon, None, (0, 0)).await;
    let mut tools = daemon.tools();
    let listed = tools.list_directory(ListDirectoryRequest::default());
    assert_eq!(listed.await.unwrap().into_inner().file_count, 1);
}
