//! Custom tools in the catalog: in every format and in every dialect.

use jig::api::v1::{
    BatchCall, InvokeBatchRequest, InvokeStatus, JobState, ListToolsRequest, SubmitJobRequest,
    ToolFormat, catalog_service_client::CatalogServiceClient,
    invoke_service_client::InvokeServiceClient,
};
use serde_json::{Value, json};

use super::{start_with_tools, stdout};
use crate::{
    invoke::{call, invoke},
    jobs::Jobs,
    support::Daemon,
};

async fn list_tools_json(daemon: &Daemon, dialect: &str, format: ToolFormat) -> Value {
    let request = ListToolsRequest {
        dialect: dialect.to_owned(),
        format: Some(format.into()),
        ..ListToolsRequest::default()
    };
    let mut client = CatalogServiceClient::new(daemon.channel());
    let listed = client.list_tools(request).await.unwrap().into_inner();
    assert!(listed.names.iter().any(|name| name == "say_arguments"));

    serde_json::from_str(&listed.tools_json).unwrap()
}

/// Calls from their ids, tools and parameters.
fn batch_calls<const N: usize>(calls: [(&str, &str, Value); N]) -> Vec<BatchCall> {
    let calls = calls.map(|(id, name, params)| BatchCall {
        call_id: id.to_owned(),
        name: name.to_owned(),
        arguments_json: params.to_string(),
        ..BatchCall::default()
    });
    calls.into()
}

fn job_request(dialect: &str, tool: &str, params: Value) -> SubmitJobRequest {
    SubmitJobRequest {
        dialect: dialect.to_owned(),
        tool: tool.to_owned(),
        params_json: params.to_string(),
        ..SubmitJobRequest::default()
    }
}

fn find_say_arguments<'a>(tools: &'a Value, name_pointer: &str) -> &'a Value {
    let mut tools = tools.as_array().unwrap().iter();
    let tool = tools.find(|tool| tool.pointer(name_pointer) == Some(&"say_arguments".into()));
    tool.unwrap()
}

#[tokio::test]
async fn b9_tool_is_listed_in_every_format() {
    let daemon = start_with_tools().await;
    let list = async |format| list_tools_json(&daemon, "", format).await;
    let plain = list(ToolFormat::JsonSchema).await;
    let plain = find_say_arguments(&plain, "/name");
    assert_eq!(plain["description"], "Says its arguments, a line each.");
    assert_eq!((&plain["read_only"], &plain["destructive"]), (&json!(true), &json!(false)));

    let properties = json!({
        "word": {"type": "string", "description": "A word.", "maxLength": 100},
        "rest": {"type": "array", "items": {"type": "string"}, "description": "More."},
        "number": {"type": "integer", "minimum": 0, "default": 7, "description": "A number."},
    });
    let schema = json!({
        "type": "object",
        "required": ["word"],
        "properties": properties,
        "additionalProperties": false,
    });
    assert_eq!(plain["input_schema"], schema);
    assert!(plain["output_schema"]["properties"]["stdout"].is_object());

    let chat = list(ToolFormat::OpenaiChat).await;
    assert_eq!(find_say_arguments(&chat, "/function/name")["function"]["parameters"], schema);

    let responses = list(ToolFormat::OpenaiResponses).await;
    let responses = find_say_arguments(&responses, "/name");
    assert_eq!(responses["strict"], true);
    assert_eq!(responses["parameters"]["required"].as_array().unwrap().len(), 3);

    let anthropic = list(ToolFormat::Anthropic).await;
    let word = &find_say_arguments(&anthropic, "/name")["input_schema"]["properties"]["word"];
    assert_eq!(word["description"], "A word.\n\n{maxLength: 100}");

    let gemini = list(ToolFormat::Gemini).await;
    let gemini = find_say_arguments(&gemini[0]["functionDeclarations"], "/name");
    assert_eq!(gemini["parameters"]["properties"]["word"]["maxLength"], "100");

    let mcp = list(ToolFormat::Mcp).await;
    let mcp = find_say_arguments(&mcp, "/name");
    assert_eq!(mcp["inputSchema"], schema);
    assert_eq!(mcp["annotations"]["readOnlyHint"], true);
}

#[tokio::test]
async fn b9_tool_is_callable_in_every_dialect() {
    let daemon = start_with_tools().await;
    for dialect in
        ["agentbench", "dracode", "claude", "cli_agent", "rauskuclaw", "openai", "anthropic"]
    {
        let tools = list_tools_json(&daemon, dialect, ToolFormat::Mcp).await;
        find_say_arguments(&tools, "/name");
        let response = invoke(&daemon, call(dialect, "say_arguments", json!({"word": "w"}))).await;
        let output = match dialect {
            "dracode" => response.text,
            _ => stdout(&response),
        };
        assert!(output.starts_with("<first=w>"), "{dialect}: {output}");

        let response = invoke(&daemon, call(dialect, "say_arguments", json!({}))).await;
        let error = response.error.unwrap();
        assert_eq!(error.error_type, "invalid_params", "{dialect}");
    }
}

#[tokio::test]
async fn b9_tool_runs_in_a_batch() {
    let daemon = start_with_tools().await;
    let calls = [("1", "say_arguments", json!({"word": "a"})), ("2", "say_arguments", json!({}))];

    let request = InvokeBatchRequest { calls: batch_calls(calls), ..InvokeBatchRequest::default() };

    let mut client = InvokeServiceClient::new(daemon.channel());
    let response = client.invoke_batch(request).await.unwrap().into_inner();
    let outcomes: Vec<_> = response
        .results
        .iter()
        .map(|result| (result.ok, result.error.as_ref().map(|error| error.code.clone())))
        .collect();
    assert_eq!(outcomes, [(true, None), (false, Some("INVALID_PARAMS".to_owned()))]);
}

#[tokio::test]
async fn b13_dracode_batches_and_jobs_match_single_calls() {
    let daemon = start_with_tools().await;
    let calls = [
        ("said", "say_arguments", json!({"word": "w", "number": 1, "extra": 1})),
        ("found", "grep_word", json!({"word": "x", "file": "missing"})),
        ("late", "take_long", json!({})),
        ("wrong", "say_arguments", json!({"extra": 1})),
    ];

    let request = InvokeBatchRequest {
        dialect: "dracode".to_owned(),
        wait_ms: Some(20_000),
        calls: batch_calls(calls.clone()),
        ..InvokeBatchRequest::default()
    };

    let mut client = InvokeServiceClient::new(daemon.channel());
    let batch = client.invoke_batch(request).await.unwrap().into_inner();
    let messages: Value = serde_json::from_str(&batch.messages_json).unwrap();
    assert_eq!(batch.results.len(), calls.len());

    for (number, (id, tool, params)) in calls.into_iter().enumerate() {
        let single = invoke(&daemon, call("dracode", tool, params.clone())).await;
        let result = &batch.results[number];
        assert_eq!(result.ok, single.status() == InvokeStatus::Success, "{id}");
        assert_eq!(messages[number]["content"], single.text, "{id}");

        let code = result.error.as_ref().map(|error| error.code.to_lowercase());
        let single_error = single.error.filter(|_| !result.ok);
        assert_eq!(code, single_error.map(|error| error.error_type), "{id}");

        if id == "wrong" {
            continue;
        }

        let mut jobs = Jobs::of(&daemon);
        let id = jobs.submit(job_request("dracode", tool, params)).await;
        let job = jobs.wait(&id).await;
        let state = job.state();
        let job_result = job.result.unwrap();
        assert_eq!(job_result.text, single.text, "{id}");
        assert_eq!((job_result.data, job_result.status), (single.data, single.status), "{id}");
        assert_eq!(state == JobState::Succeeded, result.ok, "{id}");
    }
}

#[tokio::test]
async fn b13_dracode_call_responds_like_dracode_tools() {
    let daemon = start_with_tools().await;
    let call = async |tool, params| invoke(&daemon, call("dracode", tool, params)).await;
    let params = json!({"word": "w", "number": 1, "extra": {"a": 1}});
    let response = call("say_arguments", params).await;
    assert_eq!(response.status(), InvokeStatus::Success, "{response:?}");
    assert_eq!(response.data, None);
    assert_eq!(response.text, "<first=w>\n<-->\n<w>\n<n1>\n<{word}>\n");

    // The dialect ignores exit codes.
    let failed_search = call("grep_word", json!({"word": "x", "file": "missing"})).await;
    assert_eq!(failed_search.status(), InvokeStatus::Success);
    assert!(failed_search.text.contains("missing: No such file"), "{}", failed_search.text);

    let timed_out = call("take_long", json!({})).await;
    assert_eq!(timed_out.status(), InvokeStatus::Error);
    assert_eq!(timed_out.text, "Error: Process timed out");

    let rejected = call("say_arguments", json!({"extra": 1})).await;
    assert_eq!(rejected.status(), InvokeStatus::Error);
    assert!(rejected.text.starts_with("Error: word: is required"), "{}", rejected.text);
    assert!(!rejected.text.contains("extra"), "{}", rejected.text);
}
