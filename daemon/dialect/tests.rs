//! Responses of dialects to results of canonical tools, including results that are hard to provoke.

use std::{
    collections::{BTreeSet, VecDeque},
    future,
    slice::from_ref,
    task::{Context, Poll, Waker},
    time::Duration,
};

use serde_json::{Value as Json, json};

use super::{
    parameter::{ParameterDefault, ParameterKind, ParameterSpec, object_schema},
    *,
};
use crate::daemon::{catalog::Catalog, error::Reason, task::BoxFuture};

/// Records the calls and responds with prepared results, in order.
#[derive(Default)]
struct RecordingTools {
    calls: Vec<CanonicalCall>,
    responses: VecDeque<Json>,
}

impl RecordingTools {
    fn record(&mut self, call: CanonicalCall) -> Result<Json, Error> {
        self.calls.push(call);
        let response = self.responses.pop_front();
        response.ok_or_else(|| Error::internal("no response prepared"))
    }
}

impl CanonicalTools for RecordingTools {
    fn call(&mut self, call: CanonicalCall) -> BoxFuture<'_, Result<ResponseData, Error>> {
        let response = self
            .record(call)
            .map(|data| ResponseData::new(data.as_object().cloned().unwrap_or_default()));
        Box::pin(future::ready(response))
    }

    fn submit(&mut self, call: CanonicalCall) -> BoxFuture<'_, Result<String, Error>> {
        let response = self.record(call);
        Box::pin(future::ready(response.map(|id| id.to_string())))
    }
}

/// The response of a dialect's tool, with prepared responses of the tools that it calls.
fn respond(
    dialect: &str,
    tool: &str,
    params: Json,
    responses: &[Json],
) -> (Result<DialectResponse, Error>, RecordingTools) {
    let dialect = find(dialect).unwrap();
    let definition = dialect.tool(tool, |_| true).unwrap();
    let params = dialect.read_params(definition, params.as_object().unwrap().clone());
    let mut tools = RecordingTools {
        responses: responses.iter().cloned().collect(),
        ..RecordingTools::default()
    };

    let mut call = definition.call(params.unwrap(), &mut tools);
    // The prepared responses are ready, so the call never waits.
    let Poll::Ready(response) = call.as_mut().poll(&mut Context::from_waker(Waker::noop())) else {
        panic!("{tool} waits")
    };
    drop(call);
    (response, tools)
}

/// The text or the data of the response, and the code of its failure.
fn result(dialect: &str, tool: &str, params: Json, responses: &[Json]) -> (Json, Option<String>) {
    let response = respond(dialect, tool, params, responses).0.unwrap();
    let code = response.failure.map(|failure| failure.code);
    let result = match (response.text, response.data) {
        (Some(text), _) => text.into(),
        (None, data) => Json::Object(data.unwrap_or_default()),
    };
    (result, code)
}

#[test]
fn c13_tools_have_the_timeouts_of_their_document() {
    let file = json!({"path": "a", "content": ""});
    for (tool, params, seconds) in [
        ("Read", json!({"path": "a"}), Some(30)),
        ("Write", file, Some(30)),
        ("Bash", json!({"command": "true"}), Some(120)),
        ("Bash", json!({"command": "true", "timeout": 300_000}), Some(300)),
    ] {
        let (_, tools) = respond("claude", tool, params, &[]);
        let timeout = tools.calls.first().unwrap().timeout;
        assert_eq!(timeout, seconds.map(Duration::from_secs), "{tool}");
    }
}

#[test]
fn dialects_use_existing_tools_and_unique_names() {
    let catalog = Catalog::load().unwrap();
    let mut names = BTreeSet::new();
    for dialect in DIALECTS {
        assert!(names.insert(dialect.name), "{} twice", dialect.name);
        assert!(!dialect.tools.is_empty());

        let mut tools = BTreeSet::new();
        for tool in dialect.tools {
            assert!(tools.insert(tool.name), "{} twice", tool.name);
            assert!(!tool.uses.is_empty() && !tool.description.is_empty());
            assert!(format!("{tool:?}").contains(tool.name));
            for name in tool.uses {
                assert!(catalog.tool(name).is_some(), "{name}");
            }

            let mut parameters = BTreeSet::new();
            for parameter in tool.parameters {
                assert!(parameters.insert(parameter.name), "{}", parameter.name);
            }

            let definition = dialect.definition(tool, &catalog);
            assert_eq!(definition.input_schema["type"], "object");
        }
    }
    assert!(find("zulu").unwrap_err().message.contains("agentbench"));
}

#[test]
fn search_timeout_is_reported() {
    let found = json!({"matches": [{"file": "a", "line": 1, "content": "x"}], "total_matches": 1, "timed_out": true});
    for (dialect, tool, params, notice) in [
        ("claude", "Grep", json!({"pattern": "x"}), "\"truncated\":true"),
        (
            "cli_agent",
            "grep_search",
            json!({"pattern": "x"}),
            "Search timed out after 30s, returning partial results",
        ),
    ] {
        let (result, code) = result(dialect, tool, params, from_ref(&found));
        let result = result.to_string();
        assert!(result.contains("x") && result.contains(notice), "{result}");
        assert_eq!(code, None);
    }

    // This document's text has no field for a truncation; the response message reports it.
    let params = json!({"query": "x"});
    let response = respond("dracode", "search_code", params, from_ref(&found)).0.unwrap();
    assert_eq!(response.text.as_deref(), Some("a:1: x"));
    assert!(response.is_truncated && response.failure.unwrap().message.contains("timed out"));

    let (_, code) = result("agentbench", "search", json!({"query": "x"}), &[found]);
    assert_eq!(code.as_deref(), Some("timeout"));
}

#[test]
fn endless_listing_is_truncated() {
    let page = json!({"files": ["a"], "entries": [{"name": "a"}], "next_page_token": "more"});
    let pages = vec![page; 10_000];

    let response = respond("dracode", "list_files", json!({}), &pages).0.unwrap();
    assert_eq!(response.text.unwrap().lines().count(), 10);
    assert!(
        response.is_truncated && response.failure.unwrap().message.contains("the first 10 files")
    );
    let (found, _) = result("cli_agent", "file_search", json!({"pattern": "*"}), &pages);
    assert_eq!(found["metadata"]["matches"], 100);
    let (entries, _) = result("claude", "LS", json!({"path": "."}), &pages);
    assert_eq!(entries["truncated"], true);
}

#[test]
fn command_of_a_lost_daemon_has_failed() {
    let lost = json!({"outcome": "OUTCOME_DAEMON_LOST"});
    for (dialect, tool, code) in [
        ("agentbench", "run", "sandbox_error"),
        ("claude", "Bash", "daemon_lost"),
        ("cli_agent", "run_in_terminal", "command_ended"),
        ("anthropic", "bash", "daemon_lost"),
    ] {
        let (result, failure) = result(dialect, tool, json!({"command": "x"}), from_ref(&lost));
        assert_eq!(failure.as_deref(), Some(code), "{result}");
        // The exit code is unknown.
        assert!(result.get("exitCode").is_none_or(Json::is_null), "{result}");
    }
}

#[test]
fn timeout_notice_follows_the_output_on_its_own_line() {
    let late = json!({"outcome": "OUTCOME_TIMED_OUT", "stdout": "a", "signal": "SIGKILL"});
    let (text, code) = result("anthropic", "bash", json!({"command": "x"}), &[late]);
    assert_eq!(text, "a\ntimed out: the command was ended after 120 seconds");
    assert_eq!(code.as_deref(), Some("timeout"));
}

#[test]
fn partially_read_file_is_not_changed() {
    let read = json!({"content": "a\n", "start_line": 1, "truncated": true});
    for (dialect, tool, params) in [
        (
            "anthropic",
            "str_replace_based_edit_tool",
            json!({"command": "insert", "path": "a", "insert_line": 0, "insert_text": "b"}),
        ),
        (
            "openai",
            "apply_patch",
            json!({"operation": {"type": "update_file", "path": "a", "diff": "@@\n-a\n+b"}}),
        ),
    ] {
        let (response, tools) = respond(dialect, tool, params, from_ref(&read));
        assert_eq!(response.unwrap_err().reason, Reason::FileTooLarge);
        assert_eq!(tools.calls.len(), 1);
    }
}

#[test]
fn parameters_appear_in_the_schema_as_defined() {
    let parameters = [
        ParameterSpec::new("a", ParameterKind::String, "A.").required().redacted(),
        ParameterSpec::new("b", ParameterKind::Integer(1, 9), "B.")
            .with_default(ParameterDefault::Integer(3)),
        ParameterSpec::new("c", ParameterKind::Enum(&["x", "y"]), "C."),
    ];
    let expected = json!({
        "type": "object",
        "properties": {
            "a": {"type": "string", "description": "A."},
            "b": {"type": "integer", "minimum": 1, "maximum": 9, "description": "B.", "default": 3},
            "c": {"type": "string", "enum": ["x", "y"], "description": "C."},
        },
        "required": ["a"],
        "additionalProperties": false,
    });
    assert_eq!(Json::Object(object_schema(&parameters, true)), expected);
    assert!(parameters.first().unwrap().is_redacted);
}

/// Words in a text that only programs can use. These are names of types and methods, and constants
/// that are no values of the schema.
fn names_for_programs(text: &str, schema: &Json) -> Vec<String> {
    let values = schema.to_string();
    let words = text.split(|letter: char| !letter.is_alphanumeric() && letter != '_');
    let is_for_programs = |word: &&str| {
        let is_constant = word.contains('_') && *word == word.to_uppercase();
        let hump = |pair: &[char]| pair[0].is_lowercase() && pair[1].is_uppercase();
        let letters: Vec<_> = word.chars().collect();
        let is_type = letters.windows(2).any(hump) && !matches!(*word, "MiB" | "KiB" | "GiB");
        let is_plain = matches!(*word, "RPC" | "metadata");
        is_plain || is_type || is_constant && !values.contains(&format!("\"{word}\""))
    };
    words.filter(is_for_programs).map(str::to_owned).collect()
}

/// Collects the descriptions in a schema.
fn descriptions(schema: &Json, found: &mut Vec<String>) {
    match schema {
        Json::Object(fields) => {
            for (name, value) in fields {
                if let (Json::String(text), "description") = (value, name.as_str()) {
                    found.push(text.clone());
                } else {
                    descriptions(value, found);
                }
            }
        }
        Json::Array(items) => items.iter().for_each(|item| descriptions(item, found)),
        Json::Null | Json::Bool(_) | Json::Number(_) | Json::String(_) => {}
    }
}

#[test]
fn descriptions_contain_only_terms_for_models() {
    let schema = json!({"enum": ["WRITE_MODE_APPEND"]});
    let text = "See `RunResponse.outcome` of ReadArtifact, 3 MiB: WRITE_MODE_APPEND or STALE_FILE.";
    let found = names_for_programs(text, &schema);
    assert_eq!(found, ["RunResponse", "ReadArtifact", "STALE_FILE"]);

    let catalog = Catalog::load().unwrap();
    let contract_tools = catalog.tool_names().map(|name| catalog.definition(name).unwrap());
    let dialect_tools = DIALECTS
        .into_iter()
        .flat_map(|dialect| dialect.tools().iter().map(|tool| dialect.definition(tool, &catalog)));

    let mut bytes = 0;
    for tool in contract_tools.chain(dialect_tools) {
        let schema = json!([tool.input_schema, tool.output_schema]);
        let mut texts = vec![tool.description.clone()];
        descriptions(&schema, &mut texts);
        for text in texts {
            let forbidden = names_for_programs(&text, &schema);
            assert_eq!(forbidden, Vec::<String>::new(), "{}: {text}", tool.name);
        }
        assert!(tool.description.len() < 400, "{}", tool.name);
        bytes += tool.description.len();
    }
    assert!(bytes < 10_000, "{bytes}");
}
