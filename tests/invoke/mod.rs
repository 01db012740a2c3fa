//! Calls by tool name: the response holds the result, and also the error of a failed call.

pub(crate) mod batch;
mod batch_jobs;
mod model_output;
mod once;
mod policy;
mod stream;
mod vendors;
mod wait_job;

use jig::api::v1::{
    InvokeRequest, InvokeResponse, InvokeStatus, ListToolsRequest, ToolFormat,
    catalog_service_client::CatalogServiceClient, invoke_service_client::InvokeServiceClient,
};
use prost_types::{Struct, Value as Wrapped, value::Kind};
use serde_json::{Map, Value, json};
use tonic::{Code, IntoRequest};

use crate::support::{Daemon, KeyFile, Refusal, Setup, with_key, with_metadata};

/// A call of a tool of `dialect`. The empty dialect is the contract.
pub(crate) fn call(dialect: &str, tool: &str, params: Value) -> InvokeRequest {
    InvokeRequest {
        dialect: dialect.to_owned(),
        tool: tool.to_owned(),
        params_json: params.to_string(),
        ..InvokeRequest::default()
    }
}

pub(crate) async fn try_invoke(
    daemon: &Daemon,
    request: impl IntoRequest<InvokeRequest>,
) -> Result<InvokeResponse, Refusal> {
    let mut client = InvokeServiceClient::new(daemon.channel());
    match client.invoke(request).await {
        Ok(response) => Ok(response.into_inner()),
        Err(status) => Err(Refusal::from_status(&status)),
    }
}

/// As [`try_invoke`], for calls that the daemon accepts.
pub(crate) async fn invoke(
    daemon: &Daemon,
    request: impl IntoRequest<InvokeRequest>,
) -> InvokeResponse {
    try_invoke(daemon, request).await.unwrap()
}

/// A protobuf structure as JSON.
pub(crate) fn json_of(structure: &Struct) -> Value {
    fn value(wrapped: &Wrapped) -> Value {
        match wrapped.kind.as_ref().unwrap() {
            Kind::NullValue(_) => Value::Null,
            Kind::BoolValue(flag) => (*flag).into(),
            Kind::NumberValue(number) if number.fract() == 0.0 => {
                serde_json::from_str(&format!("{number:.0}")).unwrap()
            }
            Kind::NumberValue(number) => (*number).into(),
            Kind::StringValue(text) => text.as_str().into(),
            Kind::ListValue(list) => list.values.iter().map(value).collect(),
            Kind::StructValue(fields) => json_of(fields),
        }
    }

    let fields = structure.fields.iter();
    let fields: Map<_, _> = fields.map(|(name, wrapped)| (name.clone(), value(wrapped))).collect();
    fields.into()
}

/// The names of the tools that a key may see.
async fn tool_names(daemon: &Daemon, key: &str, dialect: &str) -> Vec<String> {
    let request = ListToolsRequest {
        dialect: dialect.to_owned(),
        format: Some(ToolFormat::OpenaiChat.into()),
        ..ListToolsRequest::default()
    };
    let mut client = CatalogServiceClient::new(daemon.channel());

    let listed = if key.is_empty() {
        client.list_tools(request).await
    } else {
        client.list_tools(with_key(key, request)).await
    };
    let listed = listed.unwrap().into_inner();
    let tools: Vec<Value> = serde_json::from_str(&listed.tools_json).unwrap();
    let function_names = tools.iter().map(|tool| tool["function"]["name"].as_str().unwrap());
    assert!(function_names.eq(listed.names.iter()));

    listed.names
}

#[tokio::test]
async fn contract_tool_returns_data_by_field_names() {
    let daemon = Setup::new().workspace_file("a.txt", "one\ntwo\n").start().await;

    // Numbers may be strings, and parameters a protobuf structure.
    for request in [
        call("", "read_file", json!({"path": "a.txt", "start_line": "2"})),
        InvokeRequest {
            params: Some(Struct {
                fields: [
                    ("path".to_owned(), Kind::StringValue("a.txt".to_owned())),
                    ("start_line".to_owned(), Kind::NumberValue(2.0)),
                ]
                .map(|(name, kind)| (name, Wrapped { kind: Some(kind) }))
                .into(),
            }),
            params_json: String::new(),
            ..call("", "read_file", Value::Null)
        },
    ] {
        let request = InvokeRequest { request_id: "one".to_owned(), ..request };
        let response = invoke(&daemon, request).await;
        assert_eq!(response.status(), InvokeStatus::Success, "{response:?}");
        assert_eq!((response.request_id.as_str(), response.tool.as_str()), ("one", "read_file"));
        let data = json_of(response.data.as_ref().unwrap());
        assert_eq!((&data["content"], &data["total_lines"]), (&json!("two\n"), &json!(2)));
        // The text for models is a subset of the data.
        let text: Value = serde_json::from_str(&response.text).unwrap();
        for (name, value) in text.as_object().unwrap() {
            assert_eq!(&data[name], value);
        }
        assert!(text.get("sha256").is_none() && text["content"] == "two\n");
        let (started, ended) = (response.started_at.unwrap(), response.ended_at.unwrap());
        assert!((started.seconds, started.nanos) <= (ended.seconds, ended.nanos));
        assert!(response.error.is_none() && response.duration_sec < 10.0);
    }

    let response = invoke(&daemon, call("", "run", json!({"command": "echo x; exit 3"}))).await;
    assert_eq!(response.status(), InvokeStatus::Success);
    assert_eq!(response.exit_code, Some(3));
    assert_eq!(response.error.unwrap().error_type, "abnormal_exit");

    let (output, _) = daemon.artifact(&response.stdout_path).await;
    assert_eq!(output, b"x\n");
}

#[tokio::test]
async fn call_errors_are_in_the_response() {
    let daemon = Daemon::start().await;
    for (tool, params, error_type, expected) in [
        ("read_file", json!({"path": "a"}), "file_not_found", "a"),
        ("read_file", json!({"path": "../a"}), "path_escape", "a"),
        ("read_file", json!({"pth": "a", "max_bytes": 0}), "invalid_params", "did you mean path?"),
        ("red_file", json!({}), "unknown_tool", "read_file"),
        (
            "run",
            json!({"command": "x", "env": [{"key": "A", "value": "1"}, {"key": "A", "value": "2"}]}),
            "invalid_params",
            "env",
        ),
        ("search", json!({"query": "(", "is_regex": true}), "invalid_regex", "unclosed"),
    ] {
        let response = invoke(&daemon, call("", tool, params)).await;
        assert_eq!(response.status(), InvokeStatus::Error, "{response:?}");
        let error = response.error.unwrap();
        assert_eq!(error.error_type, error_type, "{error:?}");
        assert!(error.message.contains(expected), "{error:?}");
        assert!(!error.suggestion.is_empty());
        assert_eq!(response.text, error.message);
        assert!(response.data.is_none() && response.started_at.is_some());
    }

    let no_json =
        InvokeRequest { params_json: "{".to_owned(), ..call("", "read_file", Value::Null) };
    let response = invoke(&daemon, no_json).await;
    assert_eq!(response.error.unwrap().error_type, "invalid_params");
}

#[tokio::test]
async fn invalid_envelope_is_an_rpc_error() {
    let daemon = Daemon::start().await;

    let both = InvokeRequest { params: Some(Struct::default()), ..call("", "run", json!({})) };
    let refusal = try_invoke(&daemon, both).await.unwrap_err();
    assert_eq!(refusal.reason, "INVALID_PARAMS");
    assert_eq!(refusal.invalid_fields(), ["params", "params_json"]);

    let long = InvokeRequest { request_id: "é".repeat(121), ..call("zulu", "", json!({})) };
    let refusal = try_invoke(&daemon, long).await.unwrap_err();
    let mut fields = refusal.invalid_fields();
    fields.sort_unstable();

    assert_eq!(fields, ["dialect", "request_id", "tool"]);
    assert!(refusal.message.contains("agentbench"), "{refusal:?}");

    let unknown_workspace =
        with_metadata("jig-workspace", "elsewhere", call("", "run", json!({"command": "true"})));
    let refusal = try_invoke(&daemon, unknown_workspace).await.unwrap_err();
    assert_eq!(refusal.reason, "UNKNOWN_WORKSPACE");

    let mut late = tonic::Request::new(call("", "run", json!({"command": "sleep 100"})));
    late.set_timeout(std::time::Duration::from_millis(300));
    let late = InvokeServiceClient::new(daemon.channel()).invoke(late).await;

    // The local client may report the deadline before the daemon.
    let code = late.unwrap_err().code();
    assert!([Code::DeadlineExceeded, Code::Cancelled].contains(&code), "{code}");
}

#[tokio::test]
async fn caller_does_not_see_forbidden_tools() {
    let keys = KeyFile::new();
    let read_key = keys.add_key("reads", "read", &[]);
    let file_key =
        keys.add_key("files", "invoke", &["--for-tool", "read_file", "--for-tool", "list_files"]);
    let path = keys.path().display().to_string();
    let daemon = Setup::new()
        .arguments(&["--keys", &path])
        .workspace_table("[policy]\ndeny_tools = [\"delete_path\", \"Bash\"]")
        .start()
        .await;

    // A read-only key sees all enabled tools.
    let names = tool_names(&daemon, &read_key, "").await;
    assert!(names.contains(&"run".to_owned()) && !names.contains(&"delete_path".to_owned()));

    let names = tool_names(&daemon, &read_key, "claude").await;
    assert!(names.contains(&"Task".to_owned()) && !names.contains(&"Bash".to_owned()), "{names:?}");
    assert_eq!(tool_names(&daemon, &file_key, "").await, ["list_files", "read_file"]);
    assert_eq!(tool_names(&daemon, &file_key, "claude").await, ["Read", "Glob"]);
    assert_eq!(
        tool_names(&daemon, &file_key, "rauskuclaw").await,
        ["data_file_read", "tools_file_search"]
    );

    let refusal =
        try_invoke(&daemon, with_key(&read_key, call("", "stat", json!({"path": "."})))).await;
    assert_eq!(refusal.unwrap_err().reason, "FORBIDDEN");

    let refusal =
        try_invoke(&daemon, with_key(&file_key, call("claude", "Write", json!({})))).await;
    assert_eq!(refusal.unwrap_err().reason, "FORBIDDEN");

    let response = invoke(&daemon, with_key(&file_key, call("claude", "Nope", json!({})))).await;
    let error = response.error.unwrap();
    assert_eq!(error.error_type, "unknown_tool");
    assert!(error.message.contains("Read, Glob") && !error.message.contains("Bash"), "{error:?}");
}
