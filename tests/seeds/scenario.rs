//! The scenarios of the documents, and of the contract: reading them, and playing them.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
    path::{Path, PathBuf},
};

use jig::api::v1::{InvokeRequest, InvokeResponse, InvokeStatus, ToolFormat};
use serde::Deserialize;
use serde_json::{Value as Json, json};

use super::{
    batch::BatchScenario,
    fixture::{DaemonVariant, Fixture, invoke, json_of, list_tools, structure_of},
    matching::{abbreviate, difference, expand},
    schemas::Schemas,
};
use crate::support::full_size;

/// A row, by the names of its scenarios.
#[derive(Debug, Deserialize)]
struct Row {
    /// The tool, where a scenario names no other.
    tool: Option<String>,
    /// What models are told of tools.
    #[serde(default)]
    listed: Vec<ListedTool>,
    /// Several calls at once.
    #[serde(default)]
    batch: BTreeMap<String, BatchScenario>,
    #[serde(flatten)]
    scenarios: BTreeMap<String, Scenario>,
}

/// What the catalog says of one tool in one format.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ListedTool {
    tool: String,
    /// As the contract names it, without `TOOL_FORMAT_`.
    format: String,
    /// The part of it that is meant, as a JSON pointer; empty for all of it.
    #[serde(default)]
    part: String,
    /// What it must be, as JSON text.
    json: String,
}

/// One scenario. What it does not say is not looked at.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Scenario {
    #[serde(default)]
    start: DaemonVariant,
    /// Whether it takes so long that it is played at full size only.
    #[serde(default)]
    is_long: bool,
    #[serde(default)]
    files: BTreeMap<String, Json>,
    /// Calls before, which must succeed unless they are commands.
    #[serde(default)]
    before: Vec<(String, String)>,
    tool: Option<String>,
    /// Parameters as JSON text.
    params: String,
    /// Whether they are sent as that text, or as a structure.
    #[serde(default)]
    as_struct: bool,
    /// Whether the tool takes what its schema does not say: numbers as texts, null for what need not be given.
    #[serde(default)]
    beyond_schema: bool,
    /// The result as JSON text; `none` where there must be none.
    data: Option<String>,
    text: Option<String>,
    /// Bytes of the text.
    size: Option<usize>,
    /// What the text must have in it.
    #[serde(default)]
    says: Vec<String>,
    /// Code of the error, for a call that fails.
    error: Option<String>,
    /// What is worth knowing of a call that does not.
    told: Option<String>,
    message: Option<String>,
    suggestion: Option<String>,
    /// `details` of the error, as JSON text.
    details: Option<String>,
    exit_code: Option<i32>,
    /// What its artifacts hold.
    stdout: Option<Json>,
    stderr: Option<Json>,
    #[serde(default)]
    after: BTreeMap<String, Json>,
    /// Whether no tool of the contract is called, which would leave records.
    #[serde(default)]
    is_silent: bool,
    /// Whether the answer lacks something that would not fit.
    #[serde(default)]
    truncated: bool,
}

/// What is named `contract` here is the dialect without a name.
pub(super) fn dialect_of(document: &str) -> &str {
    match document {
        "contract" => "",
        document => document,
    }
}

/// The rows of a document: those of its file, and of those in the folder of its name.
fn read_rows(document: &str) -> BTreeMap<String, Row> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/seeds");
    let folder = std::fs::read_dir(root.join(document));
    let entries = folder.into_iter().flatten();
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    let file = root.join(format!("{document}.toml"));
    paths.extend(file.exists().then_some(file));
    let mut rows = BTreeMap::new();
    for path in paths {
        let text = std::fs::read_to_string(&path).unwrap();
        let of_file: BTreeMap<String, Row> =
            toml::from_str(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        for (name, row) in of_file {
            let twice = rows.insert(name.clone(), row);
            assert!(twice.is_none(), "{name} is in two files");
        }
    }
    rows
}

/// Checks that every row has its test.
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

/// Plays all scenarios of a row, and tells all that went wrong.
pub(super) async fn play(document: &str, row: &str) {
    let row_of = read_rows(document).remove(row).expect("a row of the document");
    let mut wrong = String::new();
    let only = std::env::var("JIG_TEST_SCENARIO").ok();
    let mut scenes: BTreeMap<DaemonVariant, Vec<_>> = BTreeMap::new();
    for (name, scenario) in &row_of.scenarios {
        if scenario.is_long && full_size(1, 0) == 0
            || only.as_ref().is_some_and(|only| only != name)
        {
            continue;
        }
        scenes.entry(scenario.start).or_default().push((name, scenario));
    }
    for batch in row_of.batch.values() {
        scenes.entry(batch.start).or_default();
    }
    if !row_of.listed.is_empty() {
        scenes.entry(DaemonVariant::Plain).or_default();
    }
    // One daemon after the other: whoever has one must not wait for another.
    for (start, scenarios) in scenes {
        let stage = Fixture::new(start).await;
        let schemas = Schemas::of(&stage, document).await;
        for (name, scenario) in scenarios {
            let tool = scenario.tool.as_ref().or(row_of.tool.as_ref()).unwrap();
            let session = format!("{row}-{name}");
            let unlike = scenario.play(&stage, &schemas, document, tool, &session);
            if let Some(why) = unlike.await {
                writeln!(wrong, "\n{row}.{name}: {why}").unwrap();
            }
        }
        let batches = row_of.batch.iter();
        for (name, batch) in batches.filter(|(_, batch)| batch.start == start) {
            if let Some(why) = batch.mismatch(&stage, document).await {
                writeln!(wrong, "\n{row}.{name}: {why}").unwrap();
            }
        }
        let listed = row_of.listed.iter().filter(|_| start == DaemonVariant::Plain);
        for listed in listed {
            if let Some(why) = listed.mismatch(&stage, document).await {
                let ListedTool { tool, format, .. } = listed;
                writeln!(wrong, "\n{row}.{tool} for {format}: {why}").unwrap();
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
}

impl ListedTool {
    async fn mismatch(&self, stage: &Fixture, document: &str) -> Option<String> {
        let format = format!("TOOL_FORMAT_{}", self.format);
        let format = ToolFormat::from_str_name(&format).expect("a format");
        let listed = list_tools(stage.daemon(), dialect_of(document), format).await;
        let tools: Json = serde_json::from_str(&listed.tools_json).unwrap();
        let mut all = tools.as_array().unwrap().clone();
        if format == ToolFormat::Gemini {
            // Each by itself, as the document has it.
            let declared = all.iter().flat_map(|tools| tools["functionDeclarations"].as_array());
            let declared = declared.flatten().cloned();
            all = declared.map(|tool| json!({ "functionDeclarations": [tool] })).collect();
        }
        let names = ["/name", "/function/name", "/functionDeclarations/0/name"];
        let found = all.into_iter().find(|tool| {
            let mut names = names.iter().filter_map(|name| tool.pointer(name));
            names.any(|name| *name == self.tool)
        });
        let Some(found) = found else {
            return Some(format!("it is not there: {}", abbreviate(&tools)));
        };
        let part = found.pointer(&self.part).unwrap_or(&Json::Null);
        difference(&parse(&self.json), part, "it")
            .map(|why| format!("{why}\n  {}", abbreviate(&found)))
    }
}

pub(super) fn parse(text: &str) -> Json {
    let json = serde_json::from_str(text).unwrap_or_else(|error| panic!("{text}: {error}"));
    expand(json)
}

impl Scenario {
    /// Plays it; answers what was not as it must be.
    async fn play(
        &self,
        stage: &Fixture,
        schemas: &Schemas,
        document: &str,
        tool: &str,
        session: &str,
    ) -> Option<String> {
        stage.reset_workspace(&self.files);
        for (number, (tool, params)) in self.before.iter().enumerate() {
            let id = format!("{session}-{number}");
            let request = request(document, tool, &id, parse(params));
            let response = invoke(stage.daemon(), session, request).await;
            let is_well =
                response.status() == InvokeStatus::Success || !response.stdout_path.is_empty();
            if !is_well {
                return Some(format!("before: {response:?}"));
            }
        }
        let mut request = request(document, tool, session, parse(&self.params));
        if self.as_struct {
            let params = serde_json::from_str(&request.params_json).unwrap();
            request.params = Some(structure_of(params));
            request.params_json.clear();
        }
        let response = invoke(stage.daemon(), session, request).await;
        let shown: String = format!("{response:?}").chars().take(1500).collect();
        let difference = self
            .schema_mismatch(&response, schemas, tool)
            .or_else(|| self.response_mismatch(response, document, tool, session))
            .or_else(|| self.records_mismatch(stage, session));
        let mut why = difference.or_else(|| stage.files_mismatch(&self.after));
        for (name, wanted) in [("stdout", &self.stdout), ("stderr", &self.stderr)] {
            if let (None, Some(wanted)) = (&why, wanted) {
                let step = self.before.len() + 1;
                let path = format!("logs/tool_step_{step:04}_{name}.txt");
                let (bytes, _) = stage.daemon().artifact_of_session(session, &path).await.unwrap();
                let found = String::from_utf8_lossy(&bytes);
                let is_so = expand(wanted.clone()) == *found;
                why = (!is_so).then(|| format!("{path}: {found:.500?}"));
            }
        }
        why.map(|why| format!("{why}\n  {shown}"))
    }

    /// What is taken and answered is what the tool's definition says.
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
            let unlike = schemas.params_mismatch(tool, &params, self.beyond_schema);
            if unlike.is_some() {
                return unlike;
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
            return Some("it has no times".to_owned());
        };
        let time = |time: prost_types::Timestamp| time.seconds as f64 + f64::from(time.nanos) / 1e9;
        let took = time(ended) - time(started);
        if (request_id.as_str(), called.as_str()) != (id, tool) {
            return Some("it is the answer of another call".to_owned());
        }
        if duration_sec < 0.0 || (took - duration_sec).abs() > 1e-3 {
            return Some(format!("{duration_sec} are not {took}"));
        }
        if truncated != self.truncated {
            return Some(format!("truncated is {truncated}"));
        }
        let is_error = status == i32::from(InvokeStatus::Error);
        if is_error != self.error.is_some() {
            return Some(format!("the status is {status}"));
        }
        let data = data.map(json_of);
        if let Some(wanted) = &self.data {
            let why = match (wanted.as_str(), &data) {
                ("none", None) => None,
                ("none", Some(data)) => Some(format!("there is data: {}", abbreviate(data))),
                (_, None) => Some("there is no data".to_owned()),
                (wanted, Some(data)) => difference(&parse(wanted), data, "data"),
            };
            if why.is_some() {
                return why;
            }
        }
        // What goes to the model is the same, as JSON.
        if let (Some(data), false, false) =
            (&data, ["dracode", "anthropic"].contains(&document), truncated)
        {
            let text_json: Json = match serde_json::from_str(&text) {
                Ok(json) => json,
                Err(error) => return Some(format!("the text is no JSON: {error}")),
            };
            let why = match document {
                // Models are shown what they need of it.
                "contract" if is_subset(data, &text_json) => None,
                _ => difference(data, &text_json, "text"),
            };
            if why.is_some() {
                return why;
            }
        }
        if self.text.as_ref().is_some_and(|wanted| *wanted != text) {
            return Some(format!("the text is {text:.1000?}"));
        }
        if self.size.is_some_and(|size| size != text.len()) {
            return Some(format!("the text has {} bytes", text.len()));
        }
        if let Some(part) = self.says.iter().find(|part| !text.contains(part.as_str())) {
            return Some(format!("the text does not say {part:?}: {text:.1000?}"));
        }
        if self.exit_code.is_some() && exit_code != self.exit_code {
            return Some(format!("the exit code is {exit_code:?}"));
        }
        let code = self.error.as_ref().or(self.told.as_ref());
        let Some(error) = error else {
            return code.map(|code| format!("{code} is not told"));
        };
        if Some(&error.error_type) != code {
            return Some(format!("the error is {}", error.error_type));
        }
        let pairs = [(&self.message, error.message), (&self.suggestion, error.suggestion)];
        for (wanted, found) in pairs {
            // "…" stands for whatever comes there.
            let is_so = |wanted: &String| match wanted.split_once('…') {
                Some((before, after)) => found.starts_with(before) && found.ends_with(after),
                None => *wanted == found,
            };
            if wanted.as_ref().is_some_and(|wanted| !is_so(wanted)) || found.is_empty() {
                return Some(format!("it says {found:?}"));
            }
        }
        let details = error.details.map(json_of).unwrap_or_default();
        let wanted = self.details.as_deref().map(parse);
        wanted.and_then(|wanted| difference(&wanted, &details, "details"))
    }

    /// Each call of a tool has its two records, under the id that the envelope has.
    fn records_mismatch(&self, stage: &Fixture, id: &str) -> Option<String> {
        let records = stage.records(id);
        let of = |event: &str| {
            let of = |record: &&Json| record["event"] == event && record["request_id"] == id;
            records.iter().filter(of).collect::<Vec<_>>()
        };
        let (started, finished) = (of("tool_call_started"), of("tool_call_finished"));
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

/// A call of a tool of a document.
fn request(document: &str, tool: &str, id: &str, params: Json) -> InvokeRequest {
    InvokeRequest {
        request_id: id.to_owned(),
        tool: tool.to_owned(),
        params_json: params.to_string(),
        dialect: dialect_of(document).to_owned(),
        ..InvokeRequest::default()
    }
}

/// Whether an answer has all that a text shows of it.
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
