//! RauskuClaw (row E): what its registry lists, and the scenarios of its tools. What it says of batches is in
//! `tests/invoke/batch.rs`.

use jig::api::v1::ToolFormat;
use serde_json::json;

use super::{rows, stage::list_tools};
use crate::{
    invoke::{call, invoke},
    support::Setup,
};

rows!("rauskuclaw":
    e01_registry e02_data_file_read e02_tools_file_search e02_tool_exec e05_unknown_tool e07_validation
);

#[tokio::test]
async fn e01_only_what_is_enabled_is_listed() {
    for (policy, names) in [
        (
            "",
            &["data_file_read", "tools_file_search", "tool_exec"][..],
        ),
        (
            "[policy]\ndeny_tools = [\"run\"]",
            &["data_file_read", "tools_file_search"],
        ),
        (
            "[policy]\ndeny_tools = [\"tool_exec\", \"list_files\"]",
            &["data_file_read"],
        ),
    ] {
        let daemon = Setup::new().workspace_table(policy).start().await;
        let listed = list_tools(&daemon, "rauskuclaw", ToolFormat::OpenaiChat).await;
        assert_eq!(listed.names, names, "{policy}");
    }
}

#[tokio::test]
async fn e05_a_type_of_job_that_is_disabled_is_told() {
    let policy = "[policy]\ndeny_tools = [\"run\", \"tools_file_search\"]";
    let daemon = Setup::new().workspace_table(policy).start().await;
    for (tool, params, message) in [
        (
            "tool_exec",
            json!({"command": "true"}),
            "Job type 'tool.exec' is disabled",
        ),
        (
            "tools_file_search",
            json!({"query": "x"}),
            "Job type 'tools.file_search' is disabled",
        ),
    ] {
        let response = invoke(&daemon, call("rauskuclaw", tool, params)).await;
        assert_eq!(response.data, None);
        let error = response.error.unwrap();
        assert_eq!(
            (&*error.error_type, &*error.message),
            ("JOB_TYPE_DISABLED", message)
        );
    }
}
