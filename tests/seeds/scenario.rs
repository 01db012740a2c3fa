//! Reads and runs the scenarios of the documents and of the contract.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
    path::{Path, PathBuf},
};

use jig::api::v1::{InvokeRequest, InvokeResponse, InvokeStatus, ToolError, ToolFormat};
use serde::Deserialize;
use serde_json::{Value as Json, json};

use super::{
    batch::BatchScenario,
    fixture::{DaemonVariant, Fixture, invoke, json_of, list_tools, structure_of},
    matching::{abbreviate, difference, expand},
    schemas::Schemas,
};
use crate::support::full_size;

/// A row of a document, with its scenarios by name.
#[derive(Debug, Deserialize)]
struct Row {
    /// The tool of scenarios that name none.
    tool: Option<String>,
    /// Expected definitions of tools.
    #[serde(default)]
    listed: Vec<ListedTool>,
    #[serde(default)]
    batch: BTreeMap<String, BatchScenario>,
    #[serde(flatten)]
    scenarios: BTreeMap<String, Scenario>,
}

/// The expected definition of one tool in one format.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ListedTool {
    tool: String,
    /// The name of the format in the contract, without `TOOL_FORMAT_`.
    format: String,
    /// The compared part of the definition, as a JSON pointer. Empty for all of it.
    #[serde(default)]
    part: String,
    /// The expected part, as JSON text.
    json: String,
}

/// One scenario. Only the fields it sets are checked.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Scenario {
    #[serde(default)]
    start: DaemonVariant,
    /// Whether the scenario is slow and runs at full size only.
    #[serde(default)]
    is_long: bool,
    #[serde(default)]
    files: BTreeMap<String, Json>,
    /// Earlier calls, as tool and parameters. They must succeed unless they are commands.
    #[serde(default)]
    before: Vec<(String, String)>,
    tool: Option<String>,
    /// Parameters as JSON text.
    params: String,
    /// Whether they are sent as a structure instead of text.
    #[serde(default)]
    as_struct: bool,
    /// Whether the tool accepts parameters that its schema rejects: numbers as strings, null for
    /// optional ones.
    #[serde(default)]
    beyond_schema: bool,
    /// The result as JSON text, or `none` if there must be none.
    data: Option<String>,
    text: Option<String>,
    /// Size of the text in bytes.
    size: Option<usize>,
    /// Parts that the text must contain.
    #[serde(default)]
    says: Vec<String>,
    /// The error code of a failed call.
    error: Option<String>,
    /// The error code that a successful call reports.
    told: Option<String>,
    message: Option<String>,
    suggestion: Option<String>,
    /// `details` of the error, as JSON text.
    details: Option<String>,
    exit_code: Option<i32>,
    /// The content of its artifacts.
    stdout: Option<Json>,
    stderr: Option<Json>,
    #[serde(default)]
    after: BTreeMap<String, Json>,
    /// Whether the call leaves no records, because it calls no tool of the contract.
    #[serde(default)]
    is_silent: bool,
    /// Whether the response is truncated.
    #[serde(default)]
    truncated: bool,
}

/// The dialect of a document. `contract` stands for the dialect without a name.
pub(super) fn dialect_of(document: &str) -> &str {
    match document {
        "contract" => "",
        document => document,
    }
}

/// The rows of a document: from its file, and from the files in the directory of its name.
fn read_rows(document: &str) -> BTreeMap<String, Row> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/seeds");
    let directory = std::fs::read_dir(root.join(document));
    let entries = directory.into_iter().flatten();
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    let file = root.join(format!("{document}.toml"));
    paths.extend(file.exists().then_some(file));

    let mut rows = BTreeMap::new();
    for path in paths {
        let text = std::fs::read_to_string(&path).unwrap();
        let file_rows: BTreeMap<String, Row> =
            toml::from_str(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        for (name, row) in file_rows {
            let previous = rows.insert(name.clone(), row);
            assert!(previous.is_none(), "{name} is in two files");
        }
    }

    rows
}

/// Checks that every row has a test.
pub(super) fn check(document: &str, tests: &[&str]) {
    let rows = read_rows(document);
    let names: BTreeSet<&str> = rows.keys().map(String::as_str).collect();
    assert_eq!(names, tests.iter().copied().collect());
}

/// How many scenarios each tool of a document has.
pub(super) fn scenario_counts(document: &str) -> BTreeMap<String, usize> {
    let mut counts = BTreeMap::new();
    for row in read_rows(document).into_values() {
        for scenario in row.scenarios.into_values() {
            let tool = scenario.tool.or_else(|| row.tool.clone()).unwrap();
            *counts.entry(tool).or_insert(0) += 1;
        }
    }
    counts
}

/// Runs all scenarios of a row and reports all mismatches.
pub(super) async fn play(document: &str, row: &str) {
    let row_of = read_rows(document).remove(row).expect("a row of the document");
    let mut report = String::new();
    let selected = std::env::var("JIG_TEST_SCENARIO").ok();
    let mut by_variant: BTreeMap<DaemonVariant, Vec<_>> = BTreeMap::new();
    for (name, scenario) in &row_of.scenarios {
        if scenario.is_long && full_size(1, 0) == 0
            || selected.as_ref().is_some_and(|selected| selected != name)
        {
            continue;
        }
        by_variant.entry(scenario.start).or_default().push((name, scenario));
    }

    for batch in row_of.batch.values() {
        by_variant.entry(batch.start).or_default();
    }

    if !row_of.listed.is_empty() {
        by_variant.entry(DaemonVariant::Plain).or_default();
    }

    // One daemon after the other: a test that holds one must not wait for another.
    for (start, scenarios) in by_variant {
        let fixture = Fixture::new(start).await;
        let schemas = Schemas::of(&fixture, document).await;
        for (name, scenario) in scenarios {
            let tool = scenario.tool.as_ref().or(row_of.tool.as_ref()).unwrap();
            let session = format!("{row}-{name}");
            let mismatch = scenario.play(&fixture, &schemas, document, tool, &session);
            if let Some(why) = mismatch.await {
                writeln!(report, "\n{row}.{name}: {why}").unwrap();
            }
        }

        let batches = row_of.batch.iter();
        for (name, batch) in batches.filter(|(_, batch)| batch.start == start) {
            if let Some(why) = batch.mismatch(&fixture, document).await {
                writeln!(report, "\n{row}.{name}: {why}").unwrap();
            }
        }

        let listed = row_of.listed.iter().filter(|_| start == DaemonVariant::Plain);
        for listed in listed {
            if let Some(why) = listed.mismatch(&fixture, document).await {
                let ListedTool { tool, format, .. } = listed;
                writeln!(report, "\n{row}.{tool} for {format}: {why}").unwrap();
            }
        }
    }

    assert!(report.is_empty(), "{report}");
}

impl ListedTool {
    async fn mismatch(&self, fixture: &Fixture, document: &str) -> Option<String> {
        let format = format!("TOOL_FORMAT_{}", self.format);
        let format = ToolFormat::from_str_name(&format).expect("a format");
        let listed = list_tools(fixture.daemon(), dialect_of(document), format).await;
        let tools: Json = serde_json::from_str(&listed.tools_json).unwrap();
        let mut definitions = tools.as_array().unwrap().clone();
        if format == ToolFormat::Gemini {
            // One declaration per entry, as in the document.
            let declared =
                definitions.iter().flat_map(|tools| tools["functionDeclarations"].as_array());
            let declared = declared.flatten().cloned();
            definitions = declared.map(|tool| json!({ "functionDeclarations": [tool] })).collect();
        }

        let names = ["/name", "/function/name", "/functionDeclarations/0/name"];
        let found = definitions.into_iter().find(|tool| {
            let mut names = names.iter().filter_map(|name| tool.pointer(name));
            names.any(|name| *name == self.tool)
        });
        let Some(found) = found else {
            return Some(format!("the tool is missing: {}", abbreviate(&tools)));
        };

        let part = found.pointer(&self.part).unwrap_or(&Json::Null);
        difference(&parse(&self.json), part, "definition")
            .map(|why| format!("{why}\n  {}", abbreviate(&found)))
    }
}

pub(super) fn parse(text: &str) -> Json {
    let json = serde_json::from_str(text).unwrap_or_else(|error| panic!("{text}: {error}"));
    expand(json)
}

impl Scenario {
    /// Runs the scenario. Returns the first mismatch.
    async fn play(
        &self,
        fixture: &Fixture,
        schemas: &Schemas,
        document: &str,
        tool: &str,
        session: &str,
    ) -> Option<String> {
        fixture.reset_workspace(&self.files);
        for (number, (tool, params)) in self.before.iter().enumerate() {
            let id = format!("{session}-{number}");
            let request = request(document, tool, &id, parse(params));
            let response = invoke(fixture.daemon(), session, request).await;
            let is_success_or_command =
                response.status() == InvokeStatus::Success || !response.stdout_path.is_empty();
            if !is_success_or_command {
                return Some(format!("before: {response:?}"));
            }
        }

        let mut request = request(document, tool, session, parse(&self.params));
        if self.as_struct {
            let params = serde_json::from_str(&request.params_json).unwrap();
            request.params = Some(structure_of(params));
            request.params_json.clear();
        }

        let response = invoke(fixture.daemon(), session, request).await;
        let response_text: String = format!("{response:?}").chars().take(1500).collect();
        let difference = self
            .schema_mismatch(&response, schemas, tool)
            .or_else(|| self.response_mismatch(response, document, tool, session))
            .or_else(|| self.records_mismatch(fixture, session));
        let mut why = difference.or_else(|| fixture.files_mismatch(&self.after));
        for (name, wanted) in [("stdout", &self.stdout), ("stderr", &self.stderr)] {
            if let (None, Some(wanted)) = (&why, wanted) {
                let step = self.before.len() + 1;
                let path = format!("logs/tool_step_{step:04}_{name}.txt");
                let (bytes, _) =
                    fixture.daemon().artifact_of_session(session, &path).await.unwrap();
                let found = String::from_utf8_lossy(&bytes);
                let is_expected = expand(wanted.clone()) == *found;
                why = (!is_expected).then(|| format!("{path}: {found:.500?}"));
            }
        }

        why.map(|why| format!("{why}\n  {response_text}"))
    }

    /// Compares parameters and result with the definition of the tool.
    fn schema_mismatch(
        &self,
        response: &InvokeResponse,
        schemas: &Schemas,
        tool: &str,
    ) -> Option<String> {
        let details = response.error.as_ref().and_then(|error| error.details.as_ref());
        let is_refused = details.is_some_and(|details| details.fields.contains_key("fields"));
        if !is_refused {
            let params = parse(&self.params);
            let mismatch = schemas.params_mismatch(tool, &params, self.beyond_schema);
            if mismatch.is_some() {
                return mismatch;
            }
        }

        let is_success = response.status() == InvokeStatus::Success;
        let data = response.data.clone().filter(|_| is_success);
        schemas.answer_mismatch(tool, &json_of(data?))
    }

    fn response_mismatch(
        &self,
        response: InvokeResponse,
        document: &str,
        tool: &str,
        id: &str,
    ) -> Option<String> {
        let InvokeResponse {
            request_id,
            tool: called,
            status,
            started_at: Some(started),
            ended_at: Some(ended),
            duration_sec,
            data,
            text,
            error,
            exit_code,
            truncated,
            ..
        } = response
        else {
            return Some("the response has no times".to_owned());
        };
        let time = |time: prost_types::Timestamp| time.seconds as f64 + f64::from(time.nanos) / 1e9;
        let elapsed = time(ended) - time(started);

        if (request_id.as_str(), called.as_str()) != (id, tool) {
            return Some("the response is that of another call".to_owned());
        }

        if duration_sec < 0.0 || (elapsed - duration_sec).abs() > 1e-3 {
            return Some(format!("duration_sec is {duration_sec}, expected {elapsed}"));
        }

        if truncated != self.truncated {
            return Some(format!("truncated is {truncated}"));
        }

        let is_error = status == i32::from(InvokeStatus::Error);
        if is_error != self.error.is_some() {
            return Some(format!("the status is {status}"));
        }

        let data = data.map(json_of);
        self.data_mismatch(data.as_ref())
            .or_else(|| {
                let is_json = !["dracode", "anthropic"].contains(&document) && !truncated;
                data.filter(|_| is_json).and_then(|data| text_json_mismatch(&data, &text, document))
            })
            .or_else(|| self.text_mismatch(&text))
            .or_else(|| self.exit_code_mismatch(exit_code))
            .or_else(|| self.error_mismatch(error))
    }

    fn data_mismatch(&self, data: Option<&Json>) -> Option<String> {
        match (self.data.as_deref()?, data) {
            ("none", None) => None,
            ("none", Some(data)) => Some(format!("there is data: {}", abbreviate(data))),
            (_, None) => Some("there is no data".to_owned()),
            (wanted, Some(data)) => difference(&parse(wanted), data, "data"),
        }
    }

    fn text_mismatch(&self, text: &str) -> Option<String> {
        if self.text.as_ref().is_some_and(|wanted| *wanted != text) {
            return Some(format!("the text is {text:.1000?}"));
        }

        if self.size.is_some_and(|size| size != text.len()) {
            return Some(format!("the text has {} bytes", text.len()));
        }

        let missing = self.says.iter().find(|part| !text.contains(part.as_str()));
        missing.map(|part| format!("the text does not contain {part:?}: {text:.1000?}"))
    }

    fn exit_code_mismatch(&self, exit_code: Option<i32>) -> Option<String> {
        let differs = self.exit_code.is_some() && exit_code != self.exit_code;
        differs.then(|| format!("the exit code is {exit_code:?}"))
    }

    fn error_mismatch(&self, error: Option<ToolError>) -> Option<String> {
        let code = self.error.as_ref().or(self.told.as_ref());
        let Some(error) = error else {
            return code.map(|code| format!("{code} is not reported"));
        };
        if Some(&error.error_type) != code {
            return Some(format!("the error is {}", error.error_type));
        }

        let pairs = [(&self.message, error.message), (&self.suggestion, error.suggestion)];
        for (wanted, found) in pairs {
            // "…" stands for any text.
            let is_expected = |wanted: &String| match wanted.split_once('…') {
                Some((before, after)) => found.starts_with(before) && found.ends_with(after),
                None => *wanted == found,
            };
            if wanted.as_ref().is_some_and(|wanted| !is_expected(wanted)) || found.is_empty() {
                return Some(format!("the error has {found:?}"));
            }
        }

        let details = error.details.map(json_of).unwrap_or_default();
        let wanted = self.details.as_deref().map(parse);
        wanted.and_then(|wanted| difference(&wanted, &details, "details"))
    }

    /// Checks that each call of a tool has its two records, with the request id of the envelope.
    fn records_mismatch(&self, fixture: &Fixture, id: &str) -> Option<String> {
        let records = fixture.records(id);
        let records_of = |event: &str| {
            let matches = |record: &&Json| record["event"] == event && record["request_id"] == id;
            records.iter().filter(matches).collect::<Vec<_>>()
        };
        let (started, finished) =
            (records_of("tool_call_started"), records_of("tool_call_finished"));
        let is_whole = started.len() == finished.len()
            && (self.error.is_some() || started.is_empty() == self.is_silent)
            && started
                .iter()
                .all(|record| record["tool"].is_string() && record["params"].is_object())
            && finished.iter().all(|record| {
                record["tool"].is_string()
                    && matches!(record["status"].as_str(), Some("success" | "error"))
                    && record["duration_sec"].as_f64().is_some_and(|time| time >= 0.0)
            });

        (!is_whole).then(|| format!("the records: {records:?}"))
    }
}

fn request(document: &str, tool: &str, id: &str, params: Json) -> InvokeRequest {
    InvokeRequest {
        request_id: id.to_owned(),
        tool: tool.to_owned(),
        params_json: params.to_string(),
        dialect: dialect_of(document).to_owned(),
        ..InvokeRequest::default()
    }
}

/// Compares the text for the model, which is the data as JSON.
fn text_json_mismatch(data: &Json, text: &str, document: &str) -> Option<String> {
    let text_json: Json = match serde_json::from_str(text) {
        Ok(json) => json,
        Err(error) => return Some(format!("the text is no JSON: {error}")),
    };
    // In the contract, the text may be a subset of the data.
    if document == "contract" && is_subset(data, &text_json) {
        return None;
    }
    difference(data, &text_json, "text")
}

/// Whether `part` is contained in `whole`, field by field.
fn is_subset(whole: &Json, part: &Json) -> bool {
    match (whole, part) {
        (Json::Object(whole), Json::Object(part)) => {
            let mut part = part.iter();
            part.all(|(name, value)| whole.get(name).is_some_and(|whole| is_subset(whole, value)))
        }
        (Json::Array(whole), Json::Array(part)) => {
            whole.len() == part.len()
                && whole.iter().zip(part).all(|(whole, part)| is_subset(whole, part))
        }
        (Json::Number(whole), Json::Number(part)) => whole.as_f64() == part.as_f64(),
        _ => whole == part,
    }
}
