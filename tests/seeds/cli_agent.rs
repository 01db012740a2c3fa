//! The CLI agent (rows D): pages, properties of its tools, and their scenarios.

use jig::api::v1::{InvokeRequest, InvokeStatus, ToolFormat};
use serde_json::{Value as Json, json};

use super::{
    fixture::{invoke, json_of, list_tools, structure_of},
    rows,
};
use crate::support::Daemon;

rows!("cli_agent":
    d02_create_file d03_read_file d04_replace_string_in_file d05_list_dir d06_file_search
    d07_grep_search d08_run_in_terminal d09_terminal_last_command d10_create_directory d11_fetch_webpage d12_errors
    d16_function_format
);

fn request(tool: &str, params: Json) -> InvokeRequest {
    InvokeRequest {
        tool: tool.to_owned(),
        params: Some(structure_of(params)),
        dialect: "cli_agent".to_owned(),
        ..InvokeRequest::default()
    }
}

#[tokio::test]
async fn d01_each_tool_states_whether_it_is_read_only() {
    let daemon = Daemon::start().await;
    let listed = list_tools(&daemon, "cli_agent", ToolFormat::JsonSchema).await;
    let tools: Json = serde_json::from_str(&listed.tools_json).unwrap();

    for (name, is_read_only) in [
        ("create_file", false),
        ("read_file", true),
        ("replace_string_in_file", false),
        ("list_dir", true),
        ("file_search", true),
        ("grep_search", true),
        ("run_in_terminal", false),
        ("terminal_last_command", true),
        ("create_directory", false),
    ] {
        let mut entries = tools.as_array().unwrap().iter();
        let tool = entries.find(|tool| tool["name"] == name).unwrap();
        assert_eq!(tool["read_only"], is_read_only, "{tool}");
        assert!(tool["description"].is_string() && tool["input_schema"].is_object(), "{tool}");
    }
}

#[tokio::test]
async fn d05_a_large_directory_is_listed_page_by_page() {
    let daemon = Daemon::start().await;

    for number in 0..2500 {
        std::fs::write(daemon.file(&format!("f{number:04}")), "").unwrap();
    }

    let mut listed = Vec::new();
    let mut token = Json::Null;
    for is_last_page in [false, false, true] {
        let params = json!({ "page_token": token });
        let page = invoke(&daemon, "s", request("list_dir", params)).await;
        assert_eq!(page.status(), InvokeStatus::Success, "{page:?}");

        let data = json_of(page.data.unwrap());
        let output = data["output"].as_str().unwrap();
        let names = output.lines().filter_map(|line| line.strip_prefix("  f"));
        listed.extend(names.map(|name| name.parse::<u32>().unwrap()));

        assert_eq!(data["metadata"]["total_entries"], 2500.0);

        token = data["metadata"]["next_page_token"].clone();
        assert_eq!(token.is_null(), is_last_page);
    }

    assert!(listed.into_iter().eq(0..2500));
}
