//! The tools of dialects. Parameters that a schema permits reach the contract's tools unchanged,
//! and errors name only parameters of the schema.

use std::collections::BTreeSet;

use fastrand::Rng;
use jig::api::v1::{ListToolsRequest, ToolFormat, catalog_service_client::CatalogServiceClient};
use serde_json::{Map, Value as Json, json};

use super::{
    Case, case_seeds,
    contract::Contract,
    fixture::{PropertyFixture, UNREACHABLE_URL},
    frontends::{Frontend, call_by_name},
    generators,
};

const DIALECTS: [&str; 7] =
    ["agentbench", "dracode", "claude", "cli_agent", "rauskuclaw", "openai", "anthropic"];

/// A dialect, one of its tools, and the parameters that arrive unchanged, each with the field of
/// the first call. `[]` marks an element of a list.
type ParameterRow = (&'static str, &'static str, &'static [(&'static str, &'static str)]);

/// The rows of all tools.
const UNCHANGED_PARAMETERS: &[ParameterRow] = &[
    ("agentbench", "list_files", &[("root", "root"), ("glob", "glob")]),
    (
        "agentbench",
        "read_file",
        &[("path", "path"), ("start_line", "start_line"), ("end_line", "end_line")],
    ),
    (
        "agentbench",
        "search",
        &[
            ("query", "query"),
            ("glob", "globs[]"),
            // `max_results` has no bound here, and is lowered to the contract's maximum.
            ("context_lines", "context_lines"),
            ("is_regex", "is_regex"),
        ],
    ),
    ("agentbench", "apply_patch", &[]),
    ("agentbench", "run", &[("command", "command"), ("timeout_sec", "timeout_sec")]),
    ("dracode", "list_files", &[("directory", "root")]),
    ("dracode", "read_file", &[("file_path", "path")]),
    (
        "dracode",
        "write_file",
        &[("file_path", "path"), ("create_directories", "create_directories")],
    ),
    (
        "dracode",
        "search_code",
        &[
            ("query", "query"),
            ("directory", "path"),
            ("regex", "is_regex"),
            ("case_sensitive", "case_sensitive"),
        ],
    ),
    ("dracode", "run_command", &[("command", "argv[]")]),
    ("claude", "Read", &[("path", "path")]),
    ("claude", "Write", &[("path", "path")]),
    ("claude", "Edit", &[("path", "path")]),
    ("claude", "MultiEdit", &[("path", "path")]),
    ("claude", "Glob", &[("pattern", "glob"), ("cwd", "root")]),
    (
        "claude",
        "Grep",
        &[
            ("pattern", "query"),
            ("path", "path"),
            ("include", "globs[]"),
            ("exclude", "exclude_globs[]"),
        ],
    ),
    ("claude", "LS", &[("path", "path")]),
    ("claude", "Bash", &[("command", "command"), ("cwd", "cwd")]),
    ("claude", "Task", &[("command", "command"), ("cwd", "cwd")]),
    (
        "claude",
        "NotebookRead",
        &[("path", "path"), ("cell_id", "cell_id"), ("cell_index", "cell_index")],
    ),
    (
        "claude",
        "NotebookEdit",
        &[("path", "path"), ("cell_id", "cell_id"), ("cell_index", "cell_index")],
    ),
    ("cli_agent", "create_file", &[("path", "path")]),
    (
        "cli_agent",
        "read_file",
        &[("path", "path"), ("start_line", "start_line"), ("end_line", "end_line")],
    ),
    ("cli_agent", "replace_string_in_file", &[("path", "path")]),
    ("cli_agent", "list_dir", &[("path", "path")]),
    ("cli_agent", "file_search", &[("pattern", "glob"), ("base_path", "root")]),
    (
        "cli_agent",
        "grep_search",
        &[
            ("pattern", "query"),
            ("is_regex", "is_regex"),
            ("file_pattern", "globs[]"),
            ("max_results", "max_results"),
        ],
    ),
    ("cli_agent", "run_in_terminal", &[("command", "command")]),
    ("cli_agent", "terminal_last_command", &[]),
    ("cli_agent", "create_directory", &[("path", "path")]),
    ("cli_agent", "fetch_webpage", &[("url", "url"), ("timeout_seconds", "timeout_sec")]),
    ("rauskuclaw", "data_file_read", &[("path", "path"), ("max_bytes", "max_bytes")]),
    ("rauskuclaw", "tools_file_search", &[("path", "root"), ("include_hidden", "hidden")]),
    ("rauskuclaw", "tool_exec", &[("command", "command"), ("cwd", "cwd")]),
    ("openai", "shell", &[("max_output_length", "max_output_bytes")]),
    ("openai", "apply_patch", &[]),
    ("anthropic", "bash", &[("command", "command")]),
    ("anthropic", "str_replace_based_edit_tool", &[("path", "path")]),
];

/// A tool of a dialect with its schema.
#[derive(Debug)]
struct SchemaTool {
    dialect: &'static str,
    name: String,
    schema: Json,
}

#[tokio::test]
async fn params_valid_by_dialect_schema_reach_the_contract() {
    let (fixture, contract) = (PropertyFixture::new().await, Contract::load());
    let tools = list_dialect_tools(&fixture).await;
    for seed in case_seeds(150, 4) {
        for tool in &tools {
            let case_name = format!("{}/{}", tool.dialect, tool.name);
            let (_case, mut rng) = Case::new(&case_name, seed);
            let params = random_params(&tool.schema, &mut rng);
            check_tool(&fixture, &contract, tool, seed, &params).await;
        }
    }

    assert!(!fixture.daemon.log().contains("internal error in a call"));
}

#[tokio::test]
async fn every_frontend_rejects_params_invalid_by_dialect_schema() {
    let (fixture, contract) = (PropertyFixture::new().await, Contract::load());
    fixture.reset_workspace();

    let tools = list_dialect_tools(&fixture).await;
    for seed in case_seeds(50, 3) {
        for tool in &tools {
            let case_name = format!("{}/{}", tool.dialect, tool.name);
            let (_case, mut rng) = Case::new(&case_name, seed);
            let params = random_params(&tool.schema, &mut rng);
            let Some((param, params)) = break_one_param(tool, params, &mut rng) else {
                continue;
            };
            let session = session_name(tool, seed, "wrong");

            let name = (tool.dialect, tool.name.as_str());
            let mut first = None;
            for frontend in Frontend::ALL {
                let outcome =
                    call_by_name(&fixture, &contract, frontend, name, &session, &params).await;
                let json = Json::Object(params.clone());
                let error =
                    outcome.err().unwrap_or_else(|| panic!("{case_name}: {param} in {json}"));
                let is_named = error.fields.keys().any(|field| field.starts_with(&param));
                assert!(is_named, "{case_name} through {frontend:?}: {param} in {json}: {error:?}");

                // The contract rejects a job's parameters before the dialect checks them.
                let fields = error.fields;
                let expected = first.get_or_insert_with(|| fields.clone());
                assert_eq!(
                    &fields, expected,
                    "{case_name} through {frontend:?}: {param} in {json}"
                );
            }

            assert!(fixture.started_calls(&session).is_empty(), "{case_name}: {param}");
        }
    }
}

async fn list_dialect_tools(fixture: &PropertyFixture) -> Vec<SchemaTool> {
    let mut client = CatalogServiceClient::new(fixture.daemon.channel());
    let mut tools = Vec::new();
    for dialect in DIALECTS {
        let request = ListToolsRequest {
            dialect: dialect.to_owned(),
            format: Some(ToolFormat::JsonSchema.into()),
            ..ListToolsRequest::default()
        };
        let list = client.list_tools(request).await.unwrap().into_inner();
        let list: Vec<Json> = serde_json::from_str(&list.tools_json).unwrap();
        tools.extend(list.into_iter().map(|tool| SchemaTool {
            dialect,
            name: tool["name"].as_str().unwrap().to_owned(),
            schema: tool["input_schema"].clone(),
        }));
    }

    // The vendors' dialects borrow these tools from the contract.
    let borrowed = ["read_file", "wait_job"];
    let is_vendors = |tool: &SchemaTool| matches!(tool.dialect, "openai" | "anthropic");
    tools.retain(|tool| !is_vendors(tool) || !borrowed.contains(&&*tool.name));
    let rows = UNCHANGED_PARAMETERS.iter().map(|(dialect, name, _)| (*dialect, *name));
    let names = tools.iter().map(|tool| (tool.dialect, tool.name.as_str()));
    assert!(names.eq(rows), "UNCHANGED_PARAMETERS needs one row for each tool: {tools:#?}");

    tools
}

async fn check_tool(
    fixture: &PropertyFixture,
    contract: &Contract,
    tool: &SchemaTool,
    seed: u64,
    params: &Map<String, Json>,
) {
    let (dialect, name) = (tool.dialect, tool.name.as_str());
    let request = format!("{dialect}/{name} of {:.3000}", Json::Object(params.clone()).to_string());
    let mut first = None;
    for frontend in [Frontend::Struct, Frontend::Json] {
        fixture.reset_workspace();
        let session = session_name(tool, seed, &format!("{frontend:?}"));
        let outcome =
            call_by_name(fixture, contract, frontend, (dialect, name), &session, params).await;
        let error = outcome.as_ref().err();
        assert!(error.is_none_or(|error| error.reason != "INTERNAL"), "{request}: {error:?}");

        let properties = tool.schema["properties"].as_object().unwrap();
        for field in error.iter().flat_map(|error| error.fields.keys()) {
            let end = field.find(['.', '[']).unwrap_or(field.len());
            let is_known = properties.contains_key(&field[..end]);
            assert!(is_known, "{request} reports the unknown parameter {field}: {error:?}");
        }

        let started = fixture.started_calls(&session);
        if let Some((_, fields)) = started.first()
            && !generators::has_reversed_line_range(params)
        {
            check_values(tool, params, fields, &request);
        }

        if outcome.is_ok() {
            check_files(params, &fixture.tree(), &request);
        }

        let observation = (started, error.cloned(), fixture.tree());
        let expected = first.get_or_insert_with(|| observation.clone());
        assert!(
            observation == *expected || name == "Task",
            "{request}: {observation:#?} is not {expected:#?}"
        );
    }
}

/// The name of a session for one case.
fn session_name(tool: &SchemaTool, seed: u64, suffix: &str) -> String {
    let name: String = tool.name.chars().take(24).collect();
    format!("{}-{name}-{seed:x}-{suffix}", tool.dialect)
}

/// Checks that the parameters have arrived unchanged.
fn check_values(tool: &SchemaTool, params: &Map<String, Json>, fields: &Json, request: &str) {
    let mut rows = UNCHANGED_PARAMETERS.iter();
    let row = rows.find(|(dialect, name, _)| (*dialect, *name) == (tool.dialect, &*tool.name));
    for (parameter, field) in row.unwrap().2 {
        let Some(sent) = params.get(*parameter) else {
            continue;
        };
        let received = match field.strip_suffix("[]") {
            Some(field) => &fields[field][0],
            None => &fields[field],
        };
        assert_eq!(sent, received, "{request}: {parameter} is not {field}: {fields}");
    }

    // Records contain only the sizes of values that may be secret.
    for (name, value) in params.get("env").and_then(Json::as_object).into_iter().flatten() {
        let size = format!("<{} bytes>", value.as_str().unwrap().len());
        assert_eq!(fields["env"][name], size, "{request}: {name}: {fields}");
    }
}

/// Checks that files have the given content, of which records contain only the size.
fn check_files(params: &Map<String, Json>, tree: &crate::support::Tree, request: &str) {
    let is_text = params.get("encoding").is_none_or(|encoding| encoding != "base64");
    for (name, is_whole, command) in [
        ("content", true, None),
        ("new_string", false, None),
        ("file_text", true, Some("create")),
        ("new_str", false, Some("str_replace")),
        ("insert_text", false, Some("insert")),
    ] {
        let applies = command.is_none_or(|command| {
            let actual = params.get("command");
            actual.is_some_and(|actual| actual == command)
        });
        let text = params.get(name).filter(|_| applies && is_text);
        let Some(text) = text.map(|text| text.as_str().unwrap()) else {
            continue;
        };
        let has_text = |content: &[u8]| {
            if is_whole {
                content == text.as_bytes()
            } else {
                str::from_utf8(content).is_ok_and(|content| content.contains(text))
            }
        };

        let is_found = tree.values().any(|(_, content)| has_text(content));
        assert!(is_found, "{request}: {name} is in no file");
    }
}

/// Parameters that a schema permits. Optional ones may be missing.
fn random_params(schema: &Json, rng: &mut Rng) -> Map<String, Json> {
    let properties = schema["properties"].as_object().unwrap();
    let required: BTreeSet<_> = array_strings(&schema["required"]).collect();
    let mut params = Map::new();
    for (name, schema) in properties {
        if required.contains(name.as_str()) || rng.bool() {
            params.insert(name.clone(), random_value(name, schema, rng));
        }
    }

    params
}

fn random_value(name: &str, schema: &Json, rng: &mut Rng) -> Json {
    let choices = schema["enum"].as_array();
    if let Some(choices) = choices {
        return choices[rng.usize(..choices.len())].clone();
    }

    match schema["type"].as_str().unwrap() {
        "string" => random_text(name, rng).into(),
        "boolean" => rng.bool().into(),
        "integer" if name.starts_with("timeout") => json!(60),
        "integer" => {
            let min = schema["minimum"].as_i64().unwrap_or(-5);
            let max = schema["maximum"].as_i64().unwrap_or(50);
            let number = match rng.u8(..4) {
                0 => min,
                1 => max,
                2 => rng.i64(min..=max),
                _ => rng.i64(min..=max.min(min + 20)),
            };
            number.into()
        }
        // Long enough for a slow machine, in seconds or in milliseconds.
        "number" => generators::pick(rng, &[86_400, 60_000]).into(),
        "array" => {
            let count = rng.usize(..4);
            (0..count).map(|_| random_value(name, &schema["items"], rng)).collect()
        }
        "object" if schema.get("properties").is_some() => Json::Object(random_params(schema, rng)),
        "object" => {
            let count = rng.usize(..4);
            let entries = (0..count).map(|_| {
                let value = generators::text(rng);
                (generators::variable(rng), value.into())
            });
            Json::Object(entries.collect())
        }
        kind => panic!("{kind} has no generator"),
    }
}

fn random_text(name: &str, rng: &mut Rng) -> String {
    match name {
        _ if rng.u8(..24) == 0 => String::new(),
        "path" | "file_path" | "directory" | "root" | "cwd" | "base_path" => generators::path(rng),
        "command" | "commands" => generators::command(rng),
        "glob" | "pattern" | "include" | "exclude" | "file_pattern" => generators::glob(rng),
        "url" if rng.bool() => UNREACHABLE_URL.to_owned(),
        "old_string" | "old_str" if rng.bool() => "two".to_owned(),
        _ => generators::text(rng),
    }
}

/// Makes one parameter violate the schema, and returns its name. `None` if the schema permits
/// everything.
fn break_one_param(
    tool: &SchemaTool,
    mut params: Map<String, Json>,
    rng: &mut Rng,
) -> Option<(String, Map<String, Json>)> {
    let properties = tool.schema["properties"].as_object().unwrap();
    let required: Vec<_> = array_strings(&tool.schema["required"]).collect();
    let is_closed = tool.schema["additionalProperties"] == json!(false);
    let mut faults: Vec<(String, Json)> = Vec::new();
    if is_closed {
        faults.push(("zulu".to_owned(), json!("x")));
    }

    for name in required {
        faults.push((name.to_owned(), Json::Null));
    }

    for (name, schema) in properties {
        let invalid = match schema["type"].as_str().unwrap() {
            "string" if schema.get("enum").is_some() => json!("nonsense"),
            "string" => json!(["x"]),
            "boolean" => json!("maybe"),
            "integer" => match (schema.get("minimum"), schema.get("maximum")) {
                (Some(min), _) if rng.bool() => json!(min.as_i64().unwrap() - 1),
                (_, Some(max)) if rng.bool() => json!(max.as_i64().unwrap() + 1),
                (_, _) => json!(1.5),
            },
            "number" => json!("much"),
            "array" | "object" => json!("x"),
            kind => panic!("{kind}"),
        };

        faults.push((name.clone(), invalid));
    }

    if faults.is_empty() {
        return None;
    }

    let (name, value) = faults.swap_remove(rng.usize(..faults.len()));
    params.insert(name.clone(), value);
    Some((name, params))
}

fn array_strings(json: &Json) -> impl Iterator<Item = &str> {
    json.as_array().into_iter().flatten().map(|name| name.as_str().unwrap())
}
