//! The definition of a dialect: its tools, and how they call canonical tools.

use std::{fmt, time::Duration};

use serde_json::{Map, Value as Json};

use super::{
    error_terms::{self, FieldAliases},
    invocation::DialectInvocation,
    parameter::{self, DialectParams, ParameterSpec, UnknownParams},
    redact,
    response::{DialectResponse, ResponseData},
};
use crate::daemon::{
    catalog::{
        Catalog,
        definition::{ToolDefinition, ToolHints},
        suggest,
    },
    error::{Error, Reason},
    task::BoxFuture,
};

#[derive(Debug)]
pub(crate) struct Dialect {
    pub(crate) name: &'static str,
    /// In the order of the source document.
    pub(super) tools: &'static [DialectTool],
    /// How parameters that a tool does not have are handled.
    pub(super) unknown_params: UnknownParams,
    /// Whether schemas set `additionalProperties` to false.
    pub(super) closed_schemas: bool,
    /// Writes an error as the source document does.
    pub(super) render_error: fn(&DialectInvocation, &Error) -> DialectResponse,
    /// The type of a job that calls a tool of this name.
    pub(super) job_type: fn(&str) -> String,
    /// Whether the text for the model identifies an error by itself.
    pub(crate) marks_errors: bool,
    /// The tool that reads artifacts, for texts that models read.
    pub(crate) artifact_reader: &'static str,
    /// Canonical tools that are listed with the dialect's own. Empty if the document defines the
    /// complete list.
    pub(crate) borrowed_tools: &'static [&'static str],
    /// Whether the document has a preview in place of a long result of a batch.
    pub(crate) has_previews: bool,
    /// Whether job ids are UUIDs.
    pub(crate) uuid_job_ids: bool,
    /// The error code of a tool that completed, if the dialect reports that result as a failure.
    /// Reads the fields of the call's record.
    pub(super) failure_code: fn(&Map<String, Json>) -> Option<&'static str>,
    /// Writes a complete result as the document's object. `None` if the document has no such
    /// object.
    pub(super) render_result: Option<ResultRenderer>,
    /// Writes the result of a custom tool's command. `None` if such tools respond as in the
    /// contract.
    pub(super) render_custom_tool: Option<fn(&ResponseData) -> DialectResponse>,
    /// Event names that differ from the contract's: the contract's name and the dialect's.
    pub(super) event_names: &'static [(&'static str, &'static str)],
}

/// Defaults that most dialects share. Unknown parameters are rejected, and errors have the
/// contract's texts.
pub(super) const BASE_DIALECT: Dialect = Dialect {
    name: "",
    tools: &[],
    unknown_params: UnknownParams::Reject,
    closed_schemas: true,
    render_error: DialectResponse::from_error,
    job_type: str::to_owned,
    marks_errors: true,
    artifact_reader: "read_file",
    borrowed_tools: &[],
    has_previews: false,
    uuid_job_ids: false,
    failure_code: timeout_code,
    render_result: None,
    render_custom_tool: None,
    event_names: &[],
};

/// The error code of a command that timed out.
fn timeout_code(record: &Map<String, Json>) -> Option<&'static str> {
    let outcome = record.get("outcome").and_then(Json::as_str);
    (outcome == Some("TIMED_OUT")).then_some("timeout")
}

/// A tool of a dialect.
pub(crate) struct DialectTool {
    pub(crate) name: &'static str,
    /// Description for models.
    pub(super) description: &'static str,
    pub(super) parameters: &'static [ParameterSpec],
    /// The canonical tools that it calls. A caller without access to all of them does not see it.
    pub(crate) uses: &'static [&'static str],
    pub(super) call:
        for<'a> fn(DialectParams, &'a mut dyn CanonicalTools) -> DialectResponseFuture<'a>,
}

pub(crate) type DialectResponseFuture<'a> = BoxFuture<'a, Result<DialectResponse, Error>>;

/// A call of a canonical tool.
#[derive(Debug, Clone)]
pub(crate) struct CanonicalCall {
    pub(crate) tool: &'static str,
    /// Parameters; null counts as missing.
    pub(crate) params: Map<String, Json>,
    /// Time limit, if it is not the contract's default.
    pub(crate) timeout: Option<Duration>,
    /// Bytes of each stream that artifacts store, up to the operator's limit. With a value,
    /// artifacts exist even if empty.
    pub(crate) artifact_bytes: Option<u64>,
    /// Whether the command runs in the default shell: bash, or `/bin/sh` if there is none.
    pub(crate) in_default_shell: bool,
    /// The dialect's names of fields, where they differ.
    aliases: FieldAliases,
}

/// Writes a complete result as a document's object, with the data of the call.
type ResultRenderer = fn(&DialectCallSummary<'_>, Option<Map<String, Json>>) -> Json;

/// Code, message and details of an error.
type ErrorParts<'a> = (&'a str, &'a str, Option<Map<String, Json>>);

/// The outcome of a call, for the result object of a document.
#[derive(Debug)]
pub(crate) struct DialectCallSummary<'a> {
    pub(crate) request_id: &'a str,
    pub(crate) tool: &'a str,
    pub(crate) is_success: bool,
    /// RFC 3339.
    pub(crate) started_at: String,
    /// RFC 3339.
    pub(crate) ended_at: String,
    pub(crate) duration_sec: f64,
    pub(crate) error: Option<ErrorParts<'a>>,
    pub(crate) exit_code: Option<i32>,
    /// Empty if no command ran.
    pub(crate) stdout_path: &'a str,
    /// Empty if no command ran.
    pub(crate) stderr_path: &'a str,
    pub(crate) text: &'a str,
}

/// The canonical tools, as one call of a dialect's tool reaches them.
pub(crate) trait CanonicalTools: Send {
    fn call(&mut self, call: CanonicalCall) -> BoxFuture<'_, Result<ResponseData, Error>>;

    /// Submits a call as a job and returns the job's id.
    fn submit(&mut self, call: CanonicalCall) -> BoxFuture<'_, Result<String, Error>>;
}

// === impl Dialect ===

impl Dialect {
    pub(crate) fn tools(&self) -> &'static [DialectTool] {
        self.tools
    }

    /// The dialect's own tool of this name.
    pub(crate) fn own(&self, name: &str) -> Option<&'static DialectTool> {
        self.tools.iter().find(|tool| tool.name == name)
    }

    /// The tool of this name, or an error that suggests names. `is_visible` selects the tools that
    /// the caller may know of.
    pub(crate) fn tool(
        &self,
        name: &str,
        is_visible: impl Fn(&DialectTool) -> bool,
    ) -> Result<&'static DialectTool, Error> {
        self.own(name).ok_or_else(|| {
            let visible = self.tools.iter().filter(|tool| is_visible(tool));
            let known: Vec<_> = visible.map(|tool| tool.name).collect();
            let text = format!("{}: {}", self.name, suggest::unknown_tool_message(name, &known));
            Error::new(Reason::UnknownTool, text).with_metadata("tool", name)
        })
    }

    /// The definition of a tool for models. Hints and risk combine those of the canonical tools
    /// that it uses.
    pub(crate) fn definition(&self, tool: &DialectTool, catalog: &Catalog) -> ToolDefinition {
        let used = tool.uses.iter().filter_map(|name| catalog.tool(name));
        let hints = used.map(|spec| ToolHints::from_options(&spec.options));
        let risks = tool.uses.iter().map(|name| catalog.risk(name));

        ToolDefinition {
            name: tool.name.to_owned(),
            title: String::new(),
            description: tool.description.to_owned(),
            input_schema: parameter::object_schema(tool.parameters, self.closed_schemas),
            output_schema: None,
            hints: hints.reduce(ToolHints::merge).unwrap_or(ToolHints::WORST_CASE),
            risk: risks.max().unwrap_or_default(),
            requires_approval: false,
        }
    }

    /// Validates the parameters of a call.
    pub(crate) fn read_params(
        &self,
        tool: &DialectTool,
        params: Map<String, Json>,
    ) -> Result<DialectParams, Error> {
        DialectParams::read(tool.parameters, self.unknown_params, params)
    }

    /// The response of a call that failed.
    pub(crate) fn render_error(
        &self,
        invocation: &DialectInvocation,
        error: &Error,
    ) -> DialectResponse {
        let mut response = (self.render_error)(invocation, error);

        let parameters = self.own(&invocation.tool).map_or(&[][..], |tool| tool.parameters);
        if let (Some(failure), Some(suggestion)) =
            (&mut response.failure, error_terms::suggestion(parameters, error.reason))
        {
            failure.suggestion = Some(suggestion.to_owned());
        }
        response
    }

    /// The error code of a tool that completed, if the dialect reports that result as a failure.
    pub(crate) fn failure_code(&self, record: &Map<String, Json>) -> Option<&'static str> {
        (self.failure_code)(record)
    }

    /// The dialect's name of an event.
    pub(crate) fn event_name(&self, name: &'static str) -> &'static str {
        let mut events = self.event_names.iter();
        events.find(|(contract_name, _)| *contract_name == name).map_or(name, |(_, own)| own)
    }

    /// The parameters as given, for a record.
    pub(crate) fn redact_params(&self, tool: &str, params: &Map<String, Json>) -> Json {
        let tool = self.own(tool);
        redact::redact_params(tool.map_or(&[], |tool| tool.parameters), params)
    }

    /// Whether the dialect has a result format of its own for custom tools.
    pub(crate) fn renders_custom_tools(&self) -> bool {
        self.render_custom_tool.is_some()
    }

    /// The response of a custom tool, from the result of its command.
    pub(crate) fn render_custom_tool(&self, result: ResponseData) -> DialectResponse {
        match self.render_custom_tool {
            Some(render) => render(&result),
            None => DialectResponse::data(result.into_fields().into()),
        }
    }

    /// Whether parameters that a tool does not have are ignored.
    pub(crate) fn ignores_unknown_params(&self) -> bool {
        self.unknown_params == UnknownParams::Ignore
    }

    /// The complete result as the document's object, if the document has one.
    pub(crate) fn render_result(
        &self,
        summary: &DialectCallSummary<'_>,
        data: Option<Map<String, Json>>,
    ) -> Option<Json> {
        Some(self.render_result?(summary, data))
    }

    /// The type of a job that calls a tool of this name.
    pub(crate) fn job_type(&self, tool: &str) -> String {
        (self.job_type)(tool)
    }
}

// === impl DialectTool ===

impl DialectTool {
    pub(crate) fn call<'a>(
        &self,
        params: DialectParams,
        tools: &'a mut dyn CanonicalTools,
    ) -> DialectResponseFuture<'a> {
        (self.call)(params, tools)
    }

    /// Names and values of a call's parameters, for people. Long and secret values appear with
    /// their size only.
    pub(crate) fn display_params(&self, params: &Map<String, Json>) -> Vec<(String, String)> {
        redact::display_params(self.parameters, params)
    }
}

impl fmt::Debug for DialectTool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DialectTool").field("name", &self.name).finish_non_exhaustive()
    }
}

// === impl CanonicalCall ===

impl CanonicalCall {
    /// A call of `tool` with the fields of a JSON object.
    pub(crate) fn new(tool: &'static str, params: Json) -> Self {
        let params = match params {
            Json::Object(params) => params,
            Json::Null | Json::Bool(_) | Json::Number(_) | Json::String(_) | Json::Array(_) => {
                Map::new()
            }
        };
        Self {
            tool,
            params,
            timeout: None,
            artifact_bytes: None,
            in_default_shell: false,
            aliases: &[],
        }
    }

    /// Sets the dialect's names of fields, for errors.
    pub(super) fn with_aliases(self, aliases: FieldAliases) -> Self {
        Self { aliases, ..self }
    }

    /// Rewrites an error of this call with the dialect's names.
    pub(crate) fn translate_error(&self, error: Error) -> Error {
        error_terms::translate_error(self.aliases, error)
    }

    /// Limits the bytes of each stream that artifacts store. The artifacts exist even if empty.
    pub(super) fn with_artifact_bytes(self, artifact_bytes: u64) -> Self {
        Self { artifact_bytes: Some(artifact_bytes), ..self }
    }

    /// Runs the command in the default shell: bash, or `/bin/sh` if there is none.
    pub(super) fn in_default_shell(self) -> Self {
        Self { in_default_shell: true, ..self }
    }

    /// Sets the time limit.
    pub(crate) fn with_timeout(self, timeout: Duration) -> Self {
        Self { timeout: Some(timeout), ..self }
    }
}
