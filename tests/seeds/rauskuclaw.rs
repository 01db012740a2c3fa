//! RauskuClaw (row E): what its registry lists, and the scenarios of its tools and batches. What becomes of the jobs
//! of batches is in `tests/invoke/batch.rs`.

use jig::api::v1::ToolFormat;

use super::{rows, stage::list_tools};
use crate::support::Setup;

rows!("rauskuclaw":
    e01_registry e02_data_file_read e02_tools_file_search e02_tool_exec e02_sync e03_async e04_pending e05_errors
    e07_validation e08_limits e10_call_ids
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
