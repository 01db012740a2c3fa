//! Batches: keys (E6), and what the scenarios of `tests/seeds` do not cover.

use std::time::{Duration, Instant};

use jig::api::v1::{
    BatchCall, BatchMode, BatchResult, InvokeBatchRequest, InvokeBatchResponse, JobState,
    ToolFormat, invoke_service_client::InvokeServiceClient,
};
use serde_json::{Value, json};
use tonic::IntoRequest;

use super::json_of;
use crate::{
    jobs::Jobs,
    support::{Daemon, KeyFile, Refusal, Setup, with_key, with_metadata},
};

pub(super) fn batch_request(dialect: &str, calls: &[(&str, &str, Value)]) -> InvokeBatchRequest {
    let calls = calls.iter().map(|(id, name, arguments)| BatchCall {
        call_id: (*id).to_owned(),
        name: (*name).to_owned(),
        arguments_json: arguments.to_string(),
        ..BatchCall::default()
    });
    InvokeBatchRequest {
        dialect: dialect.to_owned(),
        calls: calls.collect(),
        ..InvokeBatchRequest::default()
    }
}

pub(super) async fn try_invoke_batch(
    daemon: &Daemon,
    request: impl IntoRequest<InvokeBatchRequest>,
) -> Result<InvokeBatchResponse, Refusal> {
    let mut client = InvokeServiceClient::new(daemon.channel());
    match client.invoke_batch(request).await {
        Ok(response) => Ok(response.into_inner()),
        Err(status) => Err(Refusal::from_status(&status)),
    }
}

pub(super) async fn invoke_batch(
    daemon: &Daemon,
    request: impl IntoRequest<InvokeBatchRequest>,
) -> InvokeBatchResponse {
    try_invoke_batch(daemon, request).await.unwrap()
}

/// A result in the form of its source document.
pub(crate) fn batch_result_json(result: &BatchResult) -> Value {
    let mut json_result = json!({"call_id": result.call_id, "name": result.name, "ok": result.ok});
    if result.pending {
        json_result["pending"] = true.into();
    }

    for (name, text) in [("job_id", &result.job_id), ("job_type", &result.job_type)] {
        if !text.is_empty() {
            json_result[name] = text.as_str().into();
        }
    }

    if let Some(output) = &result.output {
        json_result["output"] = json_of(output);
    }

    if let Some(error) = &result.error {
        json_result["error"] = json!({"code": error.code, "message": error.message});
    }

    json_result
}

pub(super) fn tool_messages(response: &InvokeBatchResponse) -> Value {
    let messages = response.tool_messages.iter();
    messages
        .map(|message| {
            json!({
                "role": message.role,
                "tool_call_id": message.tool_call_id,
                "name": message.name,
                "content": message.content,
            })
        })
        .collect()
}

#[tokio::test]
async fn e07_invalid_batch_is_reported_by_field() {
    let daemon = Daemon::start().await;

    let long = "é".repeat(121);
    let request = InvokeBatchRequest {
        wait_ms: Some(99),
        queue: Some("No Queue".to_owned()),
        ..batch_request("zulu", &[(&long, "", json!({})), ("", "x", json!({}))])
    };
    let refusal = try_invoke_batch(&daemon, request).await.unwrap_err();
    assert_eq!(refusal.reason, "INVALID_PARAMS");

    let mut fields = refusal.invalid_fields();
    fields.sort_unstable();
    assert_eq!(
        fields,
        ["calls[0].call_id", "calls[0].name", "calls[1].call_id", "dialect", "queue", "wait_ms"]
    );
}

#[tokio::test]
async fn duplicate_call_ids_are_rejected() {
    let daemon = Daemon::start().await;

    let stat = |id| (id, "stat", json!({"path": "."}));
    let (long, other) = ("x".repeat(481), "é".repeat(120));
    let ids = [&*long, "a", &other, "a", &other, "a"];
    let request = batch_request("", &ids.map(stat));
    let refusal = try_invoke_batch(&daemon, request).await.unwrap_err();
    assert_eq!(refusal.reason, "INVALID_PARAMS");

    let violations: Vec<_> = refusal
        .violations
        .iter()
        .map(|violation| (violation.field.as_str(), violation.description.as_str()))
        .collect();
    assert_eq!(
        violations,
        [
            ("calls[0].call_id", "must have at most 120 characters"),
            ("calls[3].call_id", "is that of calls[1]: each call must have an id of its own"),
            ("calls[4].call_id", "is that of calls[2]: each call must have an id of its own"),
            ("calls[5].call_id", "is that of calls[1]: each call must have an id of its own"),
        ]
    );
}

#[tokio::test]
async fn custom_tools_use_error_codes_of_the_dialect() {
    let tool = r#"
[[tools]]
name = "say_word"
description = "Says a word."
argv = ["echo", "{word}"]
[tools.schema]
required = ["word"]
properties.word = { type = "string", description = "The word." }
"#;
    let daemon = Setup::new().workspace_table(tool).start().await;
    let calls = [("a", "say_word", json!({"word": "hello"})), ("b", "say_word", json!({}))];

    for (dialect, code) in
        [("", "INVALID_PARAMS"), ("claude", "INVALID_PARAMS"), ("rauskuclaw", "VALIDATION_ERROR")]
    {
        let response = invoke_batch(&daemon, batch_request(dialect, &calls)).await;
        let [completed, refused] = &response.results[..] else {
            panic!("{response:?}");
        };
        let output = json_of(completed.output.as_ref().unwrap());
        assert_eq!((completed.ok, &output["stdout"]), (true, &"hello\n".into()));
        assert_eq!(refused.error.as_ref().unwrap().code, code, "{dialect}");

        // A custom tool has no name in the dialect: the job type is its own name.
        let request = InvokeBatchRequest {
            mode: Some(BatchMode::Async.into()),
            ..batch_request(dialect, &calls[..1])
        };
        let response = invoke_batch(&daemon, request).await;
        assert_eq!(response.results[0].job_type, "say_word", "{dialect}");
    }
}

/// A dialect with text results returns text in every format, also in those with structured
/// content.
#[tokio::test]
async fn text_results_stay_text_in_every_format() {
    let daemon = Setup::new().workspace_file("a.txt", "x").start().await;
    for (format, path, pointer, expected) in [
        (ToolFormat::Gemini, "a.txt", "/0/functionResponse/response/output", Some("x")),
        (ToolFormat::Mcp, "a.txt", "/0/content/0/text", Some("x")),
        (ToolFormat::Mcp, "a.txt", "/0/structuredContent", None),
        (ToolFormat::Mcp, "none", "/0/structuredContent", None),
    ] {
        let call = ("a", "read_file", json!({"file_path": path}));
        let request = InvokeBatchRequest {
            result_format: Some(format.into()),
            ..batch_request("dracode", &[call])
        };
        let response = invoke_batch(&daemon, request).await;
        let messages: Value = serde_json::from_str(&response.messages_json).unwrap();
        let text = messages.pointer(pointer).and_then(Value::as_str);
        assert_eq!(text, expected, "{messages}");
    }
}

#[tokio::test]
async fn e06_read_only_key_cannot_invoke() {
    let keys = KeyFile::new();
    let key = keys.add_key("reads", "read", &[]);
    let path = keys.path().display().to_string();
    let daemon = Setup::new().arguments(&["--keys", &path]).start().await;
    let request = batch_request("rauskuclaw", &[("a", "data_file_read", json!({"path": "x"}))]);
    let refusal = try_invoke_batch(&daemon, with_key(&key, request)).await.unwrap_err();
    assert_eq!(refusal.reason, "FORBIDDEN");
}

#[tokio::test]
async fn e08_long_output_is_previewed_by_its_beginning() {
    let daemon = Setup::new().workspace_file("long.txt", &"é\n".repeat(20_000)).start().await;

    let request =
        batch_request("rauskuclaw", &[("a", "data_file_read", json!({"path": "long.txt"}))]);
    let response = invoke_batch(&daemon, request).await;
    let output = json_of(response.results[0].output.as_ref().unwrap());
    assert_eq!(output["truncated"], true);
    assert!(output["bytes"].as_u64().unwrap() > 60_000, "{output}");

    let preview = output["preview"].as_str().unwrap();
    assert!(preview.starts_with(r#"{"content_text":"é"#));
    assert_eq!(preview.chars().count(), 12_000);

    let content: Value = serde_json::from_str(&response.tool_messages[0].content).unwrap();
    assert_eq!(content, json!({"ok": true, "result": output}));
}

/// Twenty calls: five fail, three do not end in time, and two name unknown tools.
#[tokio::test]
async fn a_batch_takes_as_long_as_its_slowest_call() {
    let daemon = Setup::new().workspace_file("a.txt", "x").start().await;

    let mut calls = Vec::new();
    for number in 0..20 {
        calls.push(match number {
            2 | 5 | 8 | 11 | 14 => ("read_file", json!({"path": "missing"})),
            3 | 9 | 15 => ("run", json!({"command": "until [ -e go ]; do sleep 0.05; done"})),
            6 | 12 => ("unknown", json!({})),
            _ => ("run", json!({"command": format!("sleep 0.5; echo {number}")})),
        });
    }

    let ids: Vec<_> = (0..20).map(|number| format!("call-{number}")).collect();
    let calls: Vec<_> =
        ids.iter().zip(calls).map(|(id, (name, params))| (id.as_str(), name, params)).collect();
    let request = InvokeBatchRequest { wait_ms: Some(4000), ..batch_request("", &calls) };
    let begun = Instant::now();
    let response = invoke_batch(&daemon, request).await;
    let elapsed = begun.elapsed();
    assert!(elapsed < Duration::from_secs(10), "{elapsed:?}");

    for (number, result) in response.results.iter().enumerate() {
        assert_eq!(result.call_id, ids[number]);
        assert_eq!(response.tool_messages[number].tool_call_id, ids[number]);

        let code = result.error.as_ref().map(|error| error.code.as_str());
        let expected = match calls[number].1 {
            "read_file" => Some("FILE_NOT_FOUND"),
            "unknown" => Some("UNKNOWN_TOOL"),
            _ if [3, 9, 15].contains(&number) => Some("TIMEOUT"),
            _ => None,
        };
        assert_eq!(code, expected, "{number}: {result:?}");
        assert_eq!(result.ok, expected.is_none());
        assert_eq!(result.pending, expected == Some("TIMEOUT"));

        if expected.is_none() {
            let output = json_of(result.output.as_ref().unwrap());
            assert_eq!(output["stdout"], format!("{number}\n"));
        }
    }

    std::fs::write(daemon.file("go"), "").unwrap();
    let mut jobs = Jobs::of(&daemon);
    for number in [3, 9, 15] {
        let job = jobs.wait(&response.results[number].job_id).await;
        assert_eq!(job.state(), JobState::Succeeded);
    }
}

#[tokio::test]
async fn b07_results_use_message_format_of_each_vendor() {
    let daemon = Setup::new().workspace_file("Program.cs", "using System;").start().await;
    let id = "toolu_01A2B3C4D5E6F7";
    for (format, path, expected) in [
        (
            ToolFormat::Anthropic,
            "Program.cs",
            json!([{"type": "tool_result", "tool_use_id": id, "content": "using System;"}]),
        ),
        (
            ToolFormat::Anthropic,
            "Nope.cs",
            json!([{"type": "tool_result", "tool_use_id": id, "content": "Error reading file: Could not find file 'Nope.cs'"}]),
        ),
        (
            ToolFormat::OpenaiChat,
            "Program.cs",
            json!([{"role": "tool", "tool_call_id": id, "content": "using System;"}]),
        ),
        (
            ToolFormat::OpenaiResponses,
            "Program.cs",
            json!([{"type": "function_call_output", "call_id": id, "output": "using System;"}]),
        ),
    ] {
        let request = InvokeBatchRequest {
            result_format: Some(format.into()),
            ..batch_request("dracode", &[(id, "read_file", json!({"file_path": path}))])
        };
        let response = invoke_batch(&daemon, request).await;
        let messages: Value = serde_json::from_str(&response.messages_json).unwrap();
        assert_eq!(messages, expected);
    }
}

#[tokio::test]
async fn repeated_batch_runs_once() {
    let daemon = Daemon::start().await;

    let request = || {
        let append = json!({"command": "echo x >> a.txt"});
        let calls = [("a", "run", append.clone()), ("b", "run", append)];
        with_metadata("jig-request-id", "batch", batch_request("", &calls))
    };
    let first = invoke_batch(&daemon, request()).await;
    assert_eq!(invoke_batch(&daemon, request()).await, first);

    let daemon = daemon.restart().await;
    assert_eq!(invoke_batch(&daemon, request()).await, first);
    assert_eq!(std::fs::read_to_string(daemon.file("a.txt")).unwrap(), "x\nx\n");
}
