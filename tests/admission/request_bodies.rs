//! Requests that are still arriving: too large announcements, stalled bodies, and messages that
//! decode to much more memory than their length.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::Bytes;
use http::HeaderMap;
use http_body::{Body as HttpBody, Frame};
use jig::api::v1::{RunRequest, StatPathRequest, SubmitJobRequest};
use prost_types::{ListValue, Struct, Value, value::Kind};
use tokio::{
    sync::mpsc::{Receiver, Sender, channel},
    task::JoinHandle,
    time::timeout,
};
use tonic::{Status, body::Body};
use tower::ServiceExt as _;

use super::{start_limited, stat};
use crate::support::{Daemon, KeyFile, Refusal, eventually, promptly, shell, with_key};

const RUN_PATH: &str = "/jig.v1.ToolService/Run";
const STAT_PATH: &str = "/jig.v1.ToolService/StatPath";

/// A body that ends when its sender is dropped.
struct ChannelBody(Receiver<Bytes>);

impl HttpBody for ChannelBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let received = ready!(self.0.poll_recv(context));
        Poll::Ready(received.map(|bytes| Ok(Frame::data(bytes))))
    }
}

/// Sends a request that announces `bytes` bytes, and no body yet. Returns the sender of the body
/// and the headers of the answer.
async fn announce_request(
    daemon: &Daemon,
    key: &str,
    path: &str,
    bytes: u32,
) -> (Sender<Bytes>, JoinHandle<HeaderMap>) {
    let (sender, receiver) = channel(1);
    let request = http::Request::post(format!("http://daemon{path}"))
        .header("te", "trailers")
        .header("content-type", "application/grpc")
        .header("x-api-key", key)
        .body(Body::new(ChannelBody(receiver)))
        .unwrap();
    let answer = daemon.channel().oneshot(request);
    let answer = tokio::spawn(async move { answer.await.unwrap().headers().clone() });
    let prefix = [&[0][..], &bytes.to_be_bytes()].concat();
    sender.send(prefix.into()).await.unwrap();

    (sender, answer)
}

/// The rejection of a request whose body has not arrived.
async fn early_refusal(answer: JoinHandle<HeaderMap>) -> Refusal {
    let headers = promptly("the daemon answers", answer).await.unwrap();
    Refusal::from_status(&Status::from_header_map(&headers).expect("an answer without messages"))
}

#[tokio::test]
async fn request_size_limit_follows_field_limits() {
    let keys = Arc::new(KeyFile::new());
    let key = keys.add_key("caller", "invoke", &[]);
    let daemon = start_limited("", &keys).await;

    let (_body, answer) = announce_request(&daemon, &key, STAT_PATH, 1 << 20).await;
    let refusal = early_refusal(answer).await;
    assert_eq!(refusal.reason, "RESOURCE_EXHAUSTED");

    let limit: u32 = refusal.metadata["limit"].parse().unwrap();
    assert!(limit < 128 << 10, "{refusal:?}");
    assert!(refusal.message.contains("StatPath"), "{refusal:?}");

    // A slightly too long request gets the field that is too long.
    let path = "x".repeat(5000);
    let request = with_key(&key, StatPathRequest { path });
    let status = daemon.tools().stat_path(request).await.unwrap_err();
    assert_eq!(Refusal::from_status(&status).invalid_fields(), ["path"]);
}

#[tokio::test]
async fn announced_bytes_are_limited_per_caller() {
    let keys = Arc::new(KeyFile::new());
    let [key, other] = ["one", "another"].map(|name| keys.add_key(name, "invoke", &[]));
    let daemon = start_limited("", &keys).await;

    let mut pending = Vec::new();
    let refusal = loop {
        let (body, mut answer) = announce_request(&daemon, &key, RUN_PATH, 15 << 20).await;

        // An accepted announcement gets no answer yet.
        if timeout(Duration::from_secs(1), &mut answer).await.is_err() {
            pending.push((body, answer));
            assert!(pending.len() < 10, "the daemon rejects no announcement");
            continue;
        }

        // Another one, whose answer is awaited.
        let (_body, answer) = announce_request(&daemon, &key, RUN_PATH, 15 << 20).await;
        break early_refusal(answer).await;
    };
    assert_eq!(pending.len(), 4);
    assert_eq!(refusal.reason, "RESOURCE_EXHAUSTED");
    assert!(refusal.retry_after.is_some(), "{refusal:?}");

    // Small requests and other callers still fit.
    stat(&daemon, &key).await.unwrap();
    let (other_body, _answer) = announce_request(&daemon, &other, RUN_PATH, 15 << 20).await;
    let stdin = vec![0; 8 << 20].into();
    let large = RunRequest { stdin, ..shell("wc -c") };
    let response = daemon.try_run(with_key(&other, large)).await.unwrap();
    assert_eq!(response.stdout, "8388608\n");

    drop((pending, other_body));
    eventually("an announcement is accepted again", async || {
        let (_body, mut answer) = announce_request(&daemon, &key, RUN_PATH, 15 << 20).await;
        timeout(Duration::from_millis(500), &mut answer).await.is_err()
    })
    .await;
}

#[tokio::test]
async fn rate_limit_counts_call_before_its_body_arrives() {
    let keys = Arc::new(KeyFile::new());
    let flags = ["--calls-per-second", "1", "--burst", "1"];
    let key = keys.add_key("slow", "invoke", &flags);
    let daemon = start_limited("", &keys).await;

    eventually("an announcement exceeds the rate", async || {
        while stat(&daemon, &key).await.is_ok() {}
        let (_body, mut answer) = announce_request(&daemon, &key, RUN_PATH, 15 << 20).await;
        // An announcement is accepted, and not answered, if a second has passed.
        let answered = timeout(Duration::from_secs(2), &mut answer).await;
        answered.is_ok_and(|headers| {
            let status = Status::from_header_map(&headers.unwrap()).unwrap();
            Refusal::from_status(&status).message.contains("per second")
        })
    })
    .await;
}

#[tokio::test]
async fn stalled_request_times_out() {
    let keys = Arc::new(KeyFile::new());
    let key = keys.add_key("caller", "invoke", &[]);
    let daemon = start_limited("", &keys).await;

    let (body, answer) = announce_request(&daemon, &key, RUN_PATH, 1 << 20).await;
    body.send(Bytes::from_static(b"x")).await.unwrap();

    // The daemon waits 30 seconds for the body.
    let answer = timeout(Duration::from_secs(60), answer).await;
    let headers = answer.expect("the daemon does not end the request").unwrap();
    let refusal = Refusal::from_status(&Status::from_header_map(&headers).unwrap());
    assert_eq!(refusal.reason, "TIMEOUT");
    assert!(refusal.message.contains("30 seconds"), "{refusal:?}");
}

#[tokio::test]
async fn oversized_lists_are_not_decoded() {
    let daemon = Daemon::start().await;

    let argv = vec![String::new(); 4 << 20];
    let request = RunRequest { argv, ..RunRequest::default() };
    let before = daemon.peak_bytes();
    let status = daemon.tools().run(request).await.unwrap_err();
    let refusal = Refusal::from_status(&status);
    assert_eq!(
        (refusal.reason.as_str(), &refusal.invalid_fields()[..]),
        ("INVALID_PARAMS", &["argv"][..])
    );

    let value = Value { kind: Some(Kind::BoolValue(true)) };
    let list = Value { kind: Some(Kind::ListValue(ListValue { values: vec![value; 2 << 20] })) };
    let request = SubmitJobRequest {
        tool: "run".to_owned(),
        params: Some(Struct { fields: [("argv".to_owned(), list)].into() }),
        ..SubmitJobRequest::default()
    };

    let mut jobs = jig::api::v1::job_service_client::JobServiceClient::new(daemon.channel());
    let status = jobs.submit_job(request).await.unwrap_err();
    let refusal = Refusal::from_status(&status);
    assert_eq!(
        (refusal.reason.as_str(), &refusal.invalid_fields()[..]),
        ("INVALID_PARAMS", &["params"][..])
    );

    // Decoded, each of these requests takes more than a hundred megabytes.
    let grown = daemon.peak_bytes() - before;
    assert!(grown < 96 << 20, "{grown} bytes");
}
