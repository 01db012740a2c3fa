//! That no tool of any vocabulary has fewer scenarios than it must.

use std::collections::BTreeMap;

use serde_json::json;

use super::{
    scenario::{counts, dialect_of},
    stage::{Stage, Start, list_tools},
};
use crate::invoke::{call, try_invoke};
use jig::api::v1::ToolFormat;

/// Fewest scenarios of a tool.
const FEWEST: usize = 10;

/// All vocabularies.
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
/// Jobs are waited for in eight vocabularies, and by keys that may and may not, by the tests of `tests/invoke/rest.rs`.
const IN_RUST: [(&str, &str, usize); 2] = [("claude", "Task", 11), ("contract", "wait_job", 8)];

#[tokio::test]
async fn every_tool_has_its_scenarios() {
    let stage = Stage::new(Start::Web).await;
    let refusal = try_invoke(stage.daemon(), call("zulu", "x", json!({}))).await;
    let told = refusal.unwrap_err().message;
    let (_, known) = told.split_once("use one of ").unwrap();
    for dialect in DOCUMENTS.map(dialect_of) {
        assert!(known.contains(dialect), "{told}");
    }
    assert_eq!(known.matches(", ").count() + 2, DOCUMENTS.len(), "{told}");
    let mut of_contract = BTreeMap::new();
    for document in DOCUMENTS {
        let mut counts = counts(document);
        for (of, tool, count) in IN_RUST {
            if of == document {
                *counts.entry(tool.to_owned()).or_insert(0) += count;
            }
        }
        let dialect = dialect_of(document);
        let listed = list_tools(stage.daemon(), dialect, ToolFormat::JsonSchema).await;
        for tool in listed.names {
            // A vocabulary may borrow tools of the contract, which comes first.
            let count = counts.get(&tool).or_else(|| of_contract.get(&tool));
            let count = count.copied().unwrap_or_default();
            assert!(count >= FEWEST, "{document} {tool}: {count} scenarios");
        }
        if document == "contract" {
            of_contract = counts;
        }
    }
}
