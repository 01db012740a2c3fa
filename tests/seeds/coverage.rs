//! Every tool of every dialect has a minimum number of scenarios.

use std::collections::BTreeMap;

use serde_json::json;

use super::{
    fixture::{DaemonVariant, Fixture, list_tools},
    scenario::{dialect_of, scenario_counts},
};
use crate::invoke::{call, try_invoke};
use jig::api::v1::ToolFormat;

const MIN_SCENARIOS_PER_TOOL: usize = 10;

const DOCUMENTS: [&str; 8] = [
    "contract",
    "agentbench",
    "dracode",
    "claude",
    "cli_agent",
    "rauskuclaw",
    "openai",
    "anthropic",
];

/// Numbers of scenarios that are tests in Rust, by dialect and tool. `Task` continues after its
/// response: the tests `c09_…` of `tests/seeds/claude.rs` watch it, cancel it, and have it rejected
/// for nine reasons. The tests of `tests/invoke/wait_job.rs` call `wait_job` in eight dialects,
/// and with keys that may and may not use it.
const RUST_SCENARIO_COUNTS: [(&str, &str, usize); 2] =
    [("claude", "Task", 11), ("contract", "wait_job", 8)];

#[tokio::test]
async fn every_tool_has_enough_scenarios() {
    let fixture = Fixture::new(DaemonVariant::Web).await;
    let refusal = try_invoke(fixture.daemon(), call("zulu", "x", json!({}))).await;
    let message = refusal.unwrap_err().message;
    let (_, dialects) = message.split_once("or one of ").unwrap();

    for dialect in DOCUMENTS.map(dialect_of) {
        assert!(dialects.contains(dialect), "{message}");
    }
    assert_eq!(dialects.matches(", ").count() + 2, DOCUMENTS.len(), "{message}");

    let mut contract_counts = BTreeMap::new();
    for document in DOCUMENTS {
        let mut counts = scenario_counts(document);
        for (tool_document, tool, count) in RUST_SCENARIO_COUNTS {
            if tool_document == document {
                *counts.entry(tool.to_owned()).or_insert(0) += count;
            }
        }

        let dialect = dialect_of(document);
        let listed = list_tools(fixture.daemon(), dialect, ToolFormat::JsonSchema).await;
        for tool in listed.names {
            // A dialect may include tools of the contract, whose counts come first.
            let count = counts.get(&tool).or_else(|| contract_counts.get(&tool));
            let count = count.copied().unwrap_or_default();
            assert!(count >= MIN_SCENARIOS_PER_TOOL, "{document} {tool}: {count} scenarios");
        }

        if document == "contract" {
            contract_counts = counts;
        }
    }
}
