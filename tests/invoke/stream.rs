//! `InvokeStream`: the progress of a call before its result.

use std::fs;

use jig::api::v1::{
    Decision, InvokeRequest, InvokeResponse, InvokeStatus, InvokeStreamRequest,
    InvokeStreamResponse, invoke_service_client::InvokeServiceClient,
    invoke_stream_response::Event,
};
use serde_json::{Value, json};
use tonic::{IntoRequest, Streaming};

use super::{call, invoke};
use crate::{
    approvals::{ASK_POLICY, decide, decide_request, wait_for_pending_approval},
    requests::with_request_id,
    support::{Daemon, Mark, Refusal, Setup, promptly},
};

/// The same call as `request`, streamed.
fn streamed(request: InvokeRequest) -> InvokeStreamRequest {
    InvokeStreamRequest {
        request_id: request.request_id,
        tool: request.tool,
        params: request.params,
        params_json: request.params_json,
        dialect: request.dialect,
        with_result_json: request.with_result_json,
        keep_alive_sec: None,
    }
}

async fn open(
    daemon: &Daemon,
    request: impl IntoRequest<InvokeStreamRequest>,
) -> Streaming<InvokeStreamResponse> {
    let mut client = InvokeServiceClient::new(daemon.channel());
    client.invoke_stream(request).await.unwrap().into_inner()
}

async fn next(stream: &mut Streaming<InvokeStreamResponse>) -> Option<Event> {
    let message = promptly("a message arrives", stream.message()).await.unwrap();
    message.map(|message| message.event.unwrap())
}

/// Reads a stream to its end. Returns both outputs and the result.
async fn read_to_end(
    stream: &mut Streaming<InvokeStreamResponse>,
) -> ([Vec<u8>; 2], InvokeResponse) {
    let [mut stdout, mut stderr] = [Vec::new(), Vec::new()];
    let mut result = None;
    while let Some(event) = next(stream).await {
        assert!(result.is_none(), "the result is the last message");
        match event {
            Event::Stdout(output) => {
                assert_eq!(output.offset, stdout.len() as u64);
                stdout.extend(output.data);
            }
            Event::Stderr(output) => stderr.extend(output.data),
            Event::Result(response) => result = Some(response),
            Event::PendingApproval(_) | Event::KeepAlive(_) => {}
        }
    }
    ([stdout, stderr], result.unwrap())
}

fn command(line: &str) -> Value {
    json!({ "command": line })
}

#[tokio::test]
async fn output_comes_live_and_the_result_last() {
    let daemon = Daemon::start().await;
    for (dialect, tool) in [("", "run"), ("claude", "Bash"), ("openai", "shell")] {
        let line = "echo first; until [ -e go ]; do sleep 0.05; done; seq 20000; echo err >&2";
        let params = if dialect == "openai" { json!({"commands": [line]}) } else { command(line) };
        fs::remove_file(daemon.file("go")).ok();
        let mut stream = open(&daemon, streamed(call(dialect, tool, params))).await;
        let Some(Event::Stdout(output)) = next(&mut stream).await else { panic!("{tool}") };
        assert_eq!(&output.data[..], b"first\n", "{tool}");

        fs::write(daemon.file("go"), "").unwrap();
        let mut rest = Vec::new();
        let mut response = None;
        while let Some(event) = next(&mut stream).await {
            match event {
                Event::Stdout(output) => rest.extend(output.data),
                Event::Result(result) => response = Some(result),
                _ => {}
            }
        }
        let expected: String = (1..=20_000).map(|number| format!("{number}\n")).collect();
        assert_eq!(String::from_utf8(rest).unwrap(), expected, "{tool}");
        assert_eq!(response.unwrap().status(), InvokeStatus::Success);
    }
}

#[tokio::test]
async fn other_tools_stream_only_their_result() {
    let daemon = Daemon::start().await;
    fs::write(daemon.file("a.txt"), "text").unwrap();
    for (path, status) in [("a.txt", InvokeStatus::Success), ("none", InvokeStatus::Error)] {
        let request = call("", "read_file", json!({ "path": path }));
        let unary = invoke(&daemon, request.clone()).await;
        let (outputs, response) = read_to_end(&mut open(&daemon, streamed(request)).await).await;
        assert!(outputs.iter().all(Vec::is_empty), "{outputs:?}");
        assert_eq!((response.status(), &response.data), (status, &unary.data));
    }
}

#[tokio::test]
async fn dropped_stream_leaves_no_process() {
    let daemon = Daemon::start().await;
    let mark = Mark::new();
    let line = format!("export {}; sleep 1000 & sleep 1000", mark.variable());
    let stream = open(&daemon, streamed(call("", "run", command(&line)))).await;
    mark.wait_for_processes(2).await;
    drop(stream);
    mark.wait_until_gone().await;
}

#[tokio::test]
async fn deadline_ends_the_stream_and_the_command() {
    let daemon = Daemon::start().await;
    let mark = Mark::new();
    let line = format!("export {}; sleep 1000", mark.variable());
    let mut request = streamed(call("", "run", command(&line))).into_request();
    request.set_timeout(std::time::Duration::from_secs(2));
    let mut stream = open(&daemon, request).await;
    let status = promptly("the stream ends", stream.message()).await.unwrap_err();
    assert_eq!(status.code(), tonic::Code::DeadlineExceeded, "{status:?}");
    mark.wait_until_gone().await;
}

#[tokio::test]
async fn pending_approval_is_reported() {
    let daemon = Setup::new().workspace_table(ASK_POLICY).start().await;
    let request = call("", "write_file", json!({"path": "a.txt", "content": "text"}));
    let mut stream = open(&daemon, streamed(request)).await;
    let Some(Event::PendingApproval(pending)) = next(&mut stream).await else { panic!() };

    let approval = wait_for_pending_approval(&daemon).await;
    assert_eq!(approval.approval_id, pending.approval_id);
    decide(&daemon, decide_request(&approval, Decision::Allow)).await.unwrap();
    let (_, response) = read_to_end(&mut stream).await;
    assert_eq!(response.status(), InvokeStatus::Success, "{response:?}");
}

#[tokio::test]
async fn request_ids_are_shared_with_invoke() {
    let daemon = Daemon::start().await;
    let request = || call("", "run", command("echo x >> a.txt; cat a.txt"));
    let first = open(&daemon, with_request_id("one", streamed(request()))).await;
    let (outputs, first) = read_to_end(&mut { first }).await;
    assert_eq!(outputs[0], b"x\n");

    let repeated = open(&daemon, with_request_id("one", streamed(request()))).await;
    let (outputs, repeated) = read_to_end(&mut { repeated }).await;
    assert_eq!((&outputs[0][..], &repeated), (&b""[..], &first));
    assert_eq!(invoke(&daemon, with_request_id("one", request())).await, first);
    assert_eq!(fs::read_to_string(daemon.file("a.txt")).unwrap(), "x\n");
}

#[tokio::test]
async fn invalid_request_is_rejected_at_once() {
    let daemon = Daemon::start().await;
    let mut client = InvokeServiceClient::new(daemon.channel());
    for (request, field) in [
        (
            InvokeStreamRequest { keep_alive_sec: Some(0), ..streamed(call("", "run", json!({}))) },
            "keep_alive_sec",
        ),
        (streamed(call("klingon", "run", json!({}))), "dialect"),
        (streamed(call("", "", json!({}))), "tool"),
    ] {
        let refusal = Refusal::from_status(&client.invoke_stream(request).await.unwrap_err());
        assert_eq!(refusal.reason, "INVALID_PARAMS");
        assert_eq!(refusal.invalid_fields(), [field]);
    }
}
