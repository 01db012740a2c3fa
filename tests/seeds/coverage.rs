//! That no tool of any dialect has fewer scenarios than it must.

use std::collections::BTreeMap;

use serde_json::json;

use super::{
    fixture::{DaemonVariant, Fixture, list_tools},
    scenario::{dialect_of, scenario_counts},
};
use crate::invoke::{call, try_invoke};
use jig::api::v1::ToolFormat;

/// Fewest scenarios of a tool.
const MIN_SCENARIOS_PER_TOOL: usize = 10;

/// All dialects.
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

/// Tools whose scenarios are tests in Rust, with how many they are. `Task` goes on when it is answered: it is
/// followed, cancelled, and refused for nine reasons, by the tests `c09_…` of `tests/seeds/claude.rs`.
/// Jobs are waited for in eight dialects, and by keys that may and may not, by the tests of `tests/invoke/model_output.rs`.
const RUST_SCENARIO_COUNTS: [(&str, &str, usize); 2] =
    [("claude", "Task", 11), ("contract", "wait_job", 8)];

#[tokio::test]
async fn every_tool_has_enough_scenarios() {
    let stage = Fixture::new(DaemonVariant::Web).await;
    let refusal = try_invoke(stage.daemon(), call("zulu", "x", json!({}))).await;
    let message = refusal.unwrap_err().message;
    let (_, known) = message.split_once("use one of ").unwrap();
    for dialect in DOCUMENTS.map(dialect_of) {
        assert!(known.contains(dialect), "{message}");
    }
    assert_eq!(known.matches(", ").count() + 2, DOCUMENTS.len(), "{message}");
    let mut of_contract = BTreeMap::new();
    for document in DOCUMENTS {
        let mut counts = scenario_counts(document);
        for (of, tool, count) in RUST_SCENARIO_COUNTS {
            if of == document {
                *counts.entry(tool.to_owned()).or_insert(0) += count;
            }
        }
        let dialect = dialect_of(document);
        let listed = list_tools(stage.daemon(), dialect, ToolFormat::JsonSchema).await;
        for tool in listed.names {
            // A dialect may borrow tools of the contract, which comes first.
            let count = counts.get(&tool).or_else(|| of_contract.get(&tool));
            let count = count.copied().unwrap_or_default();
            assert!(count >= MIN_SCENARIOS_PER_TOOL, "{document} {tool}: {count} scenarios");
        }
        if document == "contract" {
            of_contract = counts;
        }
    }
}
