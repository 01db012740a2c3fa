//! Calls that are rejected before their message is decoded: unknown methods, wrong protocols,
//! invalid messages. Their errors have the same details as all others.

use std::{
    pin::Pin,
    task::{Context, Poll},
};

use bytes::Bytes;
use http::{HeaderMap, Response};
use http_body::{Body as HttpBody, Frame};
use jig::api::v1::{
    ReadArtifactRequest, RunRequest, artifact_service_client::ArtifactServiceClient,
};
use prost::Message as _;
use tonic::{Code, Status, body::Body};
use tonic_health::pb::{HealthCheckRequest, health_client::HealthClient};
use tonic_types::StatusExt as _;
use tower::ServiceExt as _;

use crate::support::{Daemon, Refusal, promptly, shell};

const RUN_PATH: &str = "/jig.v1.ToolService/Run";

/// A body of one chunk.
struct SingleChunkBody(Option<Bytes>);

impl HttpBody for SingleChunkBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        Poll::Ready(self.0.take().map(|bytes| Ok(Frame::data(bytes))))
    }
}

/// A gRPC frame: flag, length, content.
fn grpc_frame(flag: u8, length: usize, content: &[u8]) -> Vec<u8> {
    let mut frame = vec![flag];
    frame.extend_from_slice(&u32::try_from(length).unwrap().to_be_bytes());
    frame.extend_from_slice(content);
    frame
}

/// A valid request for [`RUN_PATH`].
fn valid_body() -> Vec<u8> {
    let message = shell("touch /workspace/ran").encode_to_vec();
    grpc_frame(0, message.len(), &message)
}

/// Sends bytes to a method. The headers add to or replace the usual ones.
async fn send_raw(
    daemon: &Daemon,
    path: &str,
    headers: &[(&'static str, &str)],
    body: Vec<u8>,
) -> Response<Body> {
    let mut request = http::Request::post(format!("http://daemon{path}"))
        .header("te", "trailers")
        .body(Body::new(SingleChunkBody(Some(body.into()))))
        .unwrap();
    let usual = [("content-type", "application/grpc")];
    for (name, value) in usual.iter().chain(headers) {
        request.headers_mut().insert(*name, value.parse().unwrap());
    }

    let answer = daemon.channel().oneshot(request);
    promptly("the daemon answers", answer).await.unwrap()
}

/// The status of a response without messages.
fn trailers_only_status(headers: &HeaderMap) -> Status {
    assert!(headers.contains_key("jig-call-id"), "{headers:?}");
    Status::from_header_map(headers).expect("the response is not a status without messages")
}

async fn send_refused(
    daemon: &Daemon,
    path: &str,
    headers: &[(&'static str, &str)],
    body: Vec<u8>,
) -> Status {
    let response = send_raw(daemon, path, headers, body).await;
    assert_eq!(response.status(), 200);
    trailers_only_status(response.headers())
}

#[tokio::test]
async fn unknown_method_is_named_in_the_error() {
    let daemon = Daemon::start().await;
    for path in [
        "/jig.v1.ToolService/Nothing",
        "/jig.v1.NoService/Run",
        "/grpc.health.v1.Health/Nothing",
        "/jig.v1.ToolService/",
        "/",
    ] {
        let status = send_refused(&daemon, path, &[], valid_body()).await;
        // Clients detect missing methods by this code, which no reason of the contract uses.
        assert_eq!(status.code(), Code::Unimplemented, "{path}");
        let info = status.get_details_error_info().expect(path);
        assert_eq!((info.reason.as_str(), info.domain.as_str()), ("UNKNOWN_TOOL", "jig.v1"));
        assert!(status.message().contains(path.trim_start_matches('/')), "{status:?}");
    }
}

#[tokio::test]
async fn undecodable_message_is_invalid_params() {
    let daemon = Daemon::start().await;
    for (fault, body) in [
        ("another message type", grpc_frame(0, 3, b"\xff\xff\xff")),
        ("text that is not UTF-8", grpc_frame(0, 4, b"\x0a\x02\xff\xfe")),
        ("shorter than its length", grpc_frame(0, 100, b"\x0a\x01a")),
        ("no message", Vec::new()),
        ("compressed without encoding", grpc_frame(1, 3, b"\x0a\x01a")),
        ("invalid gRPC flag", grpc_frame(9, 3, b"\x0a\x01a")),
    ] {
        for path in [RUN_PATH, "/jig.v1.ArtifactService/ReadArtifact"] {
            let status = send_refused(&daemon, path, &[], body.clone()).await;
            let refusal = Refusal::from_status(&status);
            assert_eq!(refusal.reason, "INVALID_PARAMS", "{fault}: {refusal:?}");
            assert!(refusal.message.contains(path.trim_start_matches('/')), "{fault}: {refusal:?}");
        }
    }
}

#[tokio::test]
async fn oversized_message_is_rejected_with_the_limit() {
    let daemon = Daemon::start().await;

    let limit = 16 << 20;
    let status = send_refused(&daemon, RUN_PATH, &[], grpc_frame(0, limit + 1, b"")).await;
    let refused = Refusal::from_status(&status);
    assert_eq!(refused.reason, "RESOURCE_EXHAUSTED");
    assert!(refused.message.contains(&limit.to_string()), "{refused:?}");

    // The same for a client that sends the whole message.
    let request = RunRequest { stdin: vec![0; limit].into(), ..shell("true") };
    daemon.run_failing(request, "RESOURCE_EXHAUSTED").await;
}

#[tokio::test]
async fn unknown_compression_is_rejected_with_supported_ones() {
    let daemon = Daemon::start().await;

    let response = send_raw(&daemon, RUN_PATH, &[("grpc-encoding", "br")], valid_body()).await;
    assert_eq!(response.headers()["grpc-accept-encoding"], "identity");

    let status = trailers_only_status(response.headers());
    assert_eq!(status.code(), Code::Unimplemented);
    assert!(status.message().contains("br"), "{status:?}");

    let info = status.get_details_error_info().unwrap();
    assert_eq!((info.reason.as_str(), info.domain.as_str()), ("INVALID_PARAMS", "jig.v1"));
    assert!(!daemon.file("ran").exists());
}

#[tokio::test]
async fn other_content_types_are_rejected() {
    let daemon = Daemon::start().await;

    for content_type in ["text/plain", "application/connect+json", "application/grpc+json"] {
        let response =
            send_raw(&daemon, RUN_PATH, &[("content-type", content_type)], valid_body()).await;
        assert_eq!(response.status(), 415, "{content_type}");
        let refusal = Refusal::from_status(&trailers_only_status(response.headers()));
        assert_eq!(refusal.reason, "INVALID_PARAMS");
        assert_eq!(refusal.invalid_fields(), ["content-type"]);
    }
    assert!(!daemon.file("ran").exists());

    let response =
        send_raw(&daemon, RUN_PATH, &[("content-type", "application/grpc+proto")], valid_body())
            .await;
    assert_eq!(response.status(), 200);
    assert!(!response.headers().contains_key("grpc-status"), "{response:?}");
    assert!(daemon.file("ran").exists());
}

#[tokio::test]
async fn health_service_and_streams_keep_their_error_codes() {
    let daemon = Daemon::start().await;

    let request = HealthCheckRequest { service: "jig.v1.NoService".to_owned() };
    let unknown = HealthClient::new(daemon.channel()).check(request).await;
    assert_eq!(unknown.unwrap_err().code(), Code::NotFound);

    let mut artifacts = ArtifactServiceClient::new(daemon.channel());
    let request = ReadArtifactRequest {
        path: "logs/tool_step_0001_stdout.txt".to_owned(),
        ..ReadArtifactRequest::default()
    };
    let missing = artifacts.read_artifact(request).await.unwrap_err();
    assert_eq!(Refusal::from_status(&missing).reason, "ARTIFACT_NOT_FOUND");

    let response = daemon.run(shell("echo kept")).await;
    assert_eq!(daemon.artifact(&response.stdout_path).await.0, b"kept\n");
}
