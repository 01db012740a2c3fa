//! DraCode (rows B): message formats of its vendors, and the scenarios of its tools.

use jig::api::v1::{
    BatchCall, InvokeBatchRequest, ToolFormat, invoke_service_client::InvokeServiceClient,
};
use serde_json::{Value as Json, json};

use super::{
    fixture::{list_tools, structure_of},
    rows,
};
use crate::support::Daemon;

rows!("dracode":
    b01_list_files b02_read_file b03_write_file b04_search_code b05_run_command b06_schemas
    b07_tool_results b08_path_safety b10_errors b11_parameters
);

/// The id of the document's `tool_use`.
const TOOL_USE_ID: &str = "toolu_01A2B3C4D5E6F7";

/// The messages for a vendor's model that has called `read_file` for `Program.cs`.
async fn read_program(daemon: &Daemon, format: ToolFormat) -> Json {
    let call = BatchCall {
        call_id: TOOL_USE_ID.to_owned(),
        name: "read_file".to_owned(),
        arguments: Some(structure_of(json!({"file_path": "Program.cs"}))),
        ..BatchCall::default()
    };
    let request = InvokeBatchRequest {
        calls: vec![call],
        dialect: "dracode".to_owned(),
        result_format: Some(format.into()),
        ..InvokeBatchRequest::default()
    };
    let mut client = InvokeServiceClient::new(daemon.channel());

    let answer = client.invoke_batch(request).await.unwrap().into_inner();
    serde_json::from_str(&answer.messages_json).unwrap()
}

#[tokio::test]
async fn b06_every_tool_is_listed_for_each_vendor() {
    let daemon = Daemon::start().await;
    let names = ["list_files", "read_file", "write_file", "search_code", "run_command"];
    for format in [
        ToolFormat::JsonSchema,
        ToolFormat::OpenaiChat,
        ToolFormat::OpenaiResponses,
        ToolFormat::Anthropic,
        ToolFormat::Gemini,
        ToolFormat::Mcp,
    ] {
        let listed = list_tools(&daemon, "dracode", format).await;
        assert_eq!(listed.names, names);
        for name in names {
            assert!(listed.tools_json.contains(name), "{name} for {format:?}");
        }
    }
}

#[tokio::test]
async fn b07_a_tool_use_is_answered_by_a_tool_result() {
    let daemon = Daemon::start().await;
    let content = "using System;\n\nnamespace MyApp\n{\n    class Program...";
    std::fs::write(daemon.file("Program.cs"), content).unwrap();
    assert_eq!(
        read_program(&daemon, ToolFormat::Anthropic).await,
        json!([{"type": "tool_result", "tool_use_id": TOOL_USE_ID, "content": content}])
    );
    assert_eq!(
        read_program(&daemon, ToolFormat::OpenaiChat).await,
        json!([{"role": "tool", "tool_call_id": TOOL_USE_ID, "content": content}])
    );
}

#[tokio::test]
async fn b07_error_is_returned_as_tool_result() {
    let daemon = Daemon::start().await;
    let content = "Error reading file: Could not find file 'Program.cs'";
    assert_eq!(
        read_program(&daemon, ToolFormat::Anthropic).await,
        json!([{"type": "tool_result", "tool_use_id": TOOL_USE_ID, "content": content}])
    );
}
