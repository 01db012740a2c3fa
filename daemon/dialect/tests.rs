//! What dialects make of the answers of tools, also of those that are hard to bring about.

use std::{
    collections::{BTreeSet, VecDeque},
    future,
    slice::from_ref,
    task::{Context, Poll, Waker},
    time::Duration,
};

use serde_json::{Value as Json, json};

use super::{
    parameter::{ParameterDefault as Otherwise, ParameterKind, ParameterSpec, object_schema},
    *,
};
use crate::daemon::{catalog::Catalog, error::Reason};

/// Tools that hear what they are called for, and answer what they are told to, one after the other.
#[derive(Default)]
struct RecordingTools {
    calls: Vec<CanonicalCall>,
    answers: VecDeque<Json>,
}

impl RecordingTools {
    fn record(&mut self, call: CanonicalCall) -> Result<Json, Error> {
        self.calls.push(call);
        let answer = self.answers.pop_front();
        answer.ok_or_else(|| Error::internal("it was only heard"))
    }
}

impl CanonicalTools for RecordingTools {
    fn call(&mut self, call: CanonicalCall) -> DialectFuture<'_, Result<ResponseData, Error>> {
        let answer = self.record(call);
        let answer =
            answer.map(|data| ResponseData::new(data.as_object().cloned().unwrap_or_default()));
        Box::pin(future::ready(answer))
    }

    fn submit(&mut self, call: CanonicalCall) -> DialectFuture<'_, Result<String, Error>> {
        let answer = self.record(call);
        Box::pin(future::ready(answer.map(|id| id.to_string())))
    }
}

/// What a tool of a dialect answers, where those that it calls answer so.
fn answer(
    dialect: &str,
    tool: &str,
    params: Json,
    answers: &[Json],
) -> (Result<DialectResponse, Error>, RecordingTools) {
    let dialect = find(dialect).unwrap();
    let known = dialect.tool(tool, |_| true).unwrap();
    let params = dialect.read_params(known, params.as_object().unwrap().clone());
    let mut heard =
        RecordingTools { answers: answers.iter().cloned().collect(), ..RecordingTools::default() };
    let mut called = known.call(params.unwrap(), &mut heard);
    // All that it calls is answered at once.
    let Poll::Ready(answer) = called.as_mut().poll(&mut Context::from_waker(Waker::noop())) else {
        panic!("{tool} waits")
    };
    drop(called);
    (answer, heard)
}

/// What it answers in the end: its text or its data, and the code of its failure.
fn told(dialect: &str, tool: &str, params: Json, answers: &[Json]) -> (Json, Option<String>) {
    let answer = answer(dialect, tool, params, answers).0.unwrap();
    let code = answer.failure.map(|failure| failure.code);
    let told = match (answer.text, answer.data) {
        (Some(text), _) => text.into(),
        (None, data) => Json::Object(data.unwrap_or_default()),
    };
    (told, code)
}

#[test]
fn c13_tools_have_the_time_that_their_document_gives_them() {
    let file = json!({"path": "a", "content": ""});
    for (tool, params, seconds) in [
        ("Read", json!({"path": "a"}), Some(30)),
        ("Write", file, Some(30)),
        ("Bash", json!({"command": "true"}), Some(120)),
        ("Bash", json!({"command": "true", "timeout": 300_000}), Some(300)),
    ] {
        let (_, heard) = answer("claude", tool, params, &[]);
        let limit = heard.calls.first().unwrap().timeout;
        assert_eq!(limit, seconds.map(Duration::from_secs), "{tool}");
    }
}

#[test]
fn every_dialect_is_over_tools_that_there_are() {
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
fn a_search_that_took_too_long_is_told_of() {
    let found = json!({"matches": [{"file": "a", "line": 1, "content": "x"}], "total_matches": 1, "timed_out": true});
    for (dialect, tool, params, told_so) in [
        ("claude", "Grep", json!({"pattern": "x"}), "\"truncated\":true"),
        (
            "cli_agent",
            "grep_search",
            json!({"pattern": "x"}),
            "Search timed out after 30s, returning partial results",
        ),
    ] {
        let (answer, code) = told(dialect, tool, params, from_ref(&found));
        let answer = answer.to_string();
        assert!(answer.contains("x") && answer.contains(told_so), "{answer}");
        assert_eq!(code, None);
    }
    // The text of this one's document has no place for that; the envelope says so.
    let params = json!({"query": "x"});
    let answer = answer("dracode", "search_code", params, from_ref(&found)).0.unwrap();
    assert_eq!(answer.text.as_deref(), Some("a:1: x"));
    assert!(answer.is_truncated && answer.failure.unwrap().message.contains("timed out"));
    let (_, code) = told("agentbench", "search", json!({"query": "x"}), &[found]);
    assert_eq!(code.as_deref(), Some("timeout"));
}

#[test]
fn a_listing_without_end_is_cut() {
    let page = json!({"files": ["a"], "entries": [{"name": "a"}], "next_page_token": "more"});
    let pages = vec![page; 10_000];
    let answer = answer("dracode", "list_files", json!({}), &pages).0.unwrap();
    assert_eq!(answer.text.unwrap().lines().count(), 10);
    assert!(answer.is_truncated && answer.failure.unwrap().message.contains("the first 10 files"));
    let (answer, _) = told("cli_agent", "file_search", json!({"pattern": "*"}), &pages);
    assert_eq!(answer["metadata"]["matches"], 100);
    let (answer, _) = told("claude", "LS", json!({"path": "."}), &pages);
    assert_eq!(answer["truncated"], true);
}

#[test]
fn a_command_whose_daemon_has_died_has_failed() {
    let lost = json!({"outcome": "OUTCOME_DAEMON_LOST"});
    for (dialect, tool, code) in [
        ("agentbench", "run", "sandbox_error"),
        ("claude", "Bash", "daemon_lost"),
        ("cli_agent", "run_in_terminal", "command_ended"),
        ("anthropic", "bash", "daemon_lost"),
    ] {
        let (answer, failed) = told(dialect, tool, json!({"command": "x"}), from_ref(&lost));
        assert_eq!(failed.as_deref(), Some(code), "{answer}");
        // Nobody knows how it ended.
        assert!(answer.get("exitCode").is_none_or(Json::is_null), "{answer}");
    }
}

#[test]
fn what_a_command_wrote_until_its_time_was_up_stands_on_lines_of_its_own() {
    let late = json!({"outcome": "OUTCOME_TIMED_OUT", "stdout": "a", "signal": "SIGKILL"});
    let (answer, code) = told("anthropic", "bash", json!({"command": "x"}), &[late]);
    assert_eq!(answer, "a\ntimed out: the command was ended after 120 seconds");
    assert_eq!(code.as_deref(), Some("timeout"));
}

#[test]
fn a_file_of_which_only_a_part_was_read_is_not_changed() {
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
        let (refused, heard) = answer(dialect, tool, params, from_ref(&read));
        assert_eq!(refused.unwrap_err().reason, Reason::FileTooLarge);
        assert_eq!(heard.calls.len(), 1);
    }
}

#[test]
fn a_parameter_is_listed_as_it_was_made() {
    let made = [
        ParameterSpec::new("a", ParameterKind::String, "A.").required().redacted(),
        ParameterSpec::new("b", ParameterKind::Integer(1, 9), "B.")
            .with_default(Otherwise::Integer(3)),
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
    assert_eq!(Json::Object(object_schema(&made, true)), expected);
    assert!(made.first().unwrap().is_redacted);
}

/// Names that only programs can use: of types and methods, and constants that are no values of the schema.
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

/// The texts of descriptions.
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
fn descriptions_are_for_models() {
    let schema = json!({"enum": ["WRITE_MODE_APPEND"]});
    let text = "See `RunResponse.outcome` of ReadArtifact, 3 MiB: WRITE_MODE_APPEND or STALE_FILE.";
    let found = names_for_programs(text, &schema);
    assert_eq!(found, ["RunResponse", "ReadArtifact", "STALE_FILE"]);
    let catalog = Catalog::load().unwrap();
    let of_contract = catalog.tool_names().map(|name| catalog.definition(name).unwrap());
    let of_dialects = DIALECTS.into_iter().flat_map(|dialect| {
        let tools = dialect.tools().iter();
        tools.map(|tool| dialect.definition(tool, &catalog))
    });
    let mut bytes = 0;
    for tool in of_contract.chain(of_dialects) {
        let schema = json!([tool.input_schema, tool.output_schema]);
        let mut texts = vec![tool.description.clone()];
        descriptions(&schema, &mut texts);
        for text in texts {
            let found = names_for_programs(&text, &schema);
            assert_eq!(found, Vec::<String>::new(), "{}: {text}", tool.name);
        }
        assert!(tool.description.len() < 400, "{}", tool.name);
        bytes += tool.description.len();
    }
    assert!(bytes < 10_000, "{bytes}");
}
