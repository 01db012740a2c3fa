//! What a vocabulary is: its tools, and how they call those of the contract.

use std::{fmt, future::Future, pin::Pin, time::Duration};

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
};

/// A vocabulary.
#[derive(Debug)]
pub(crate) struct Dialect {
    /// Its name.
    pub(crate) name: &'static str,
    /// Its tools, in the order in which its document has them.
    pub(super) tools: &'static [DialectTool],
    /// What becomes of parameters that a tool does not have.
    pub(super) unknown_params: UnknownParams,
    /// Whether the schemas of its tools say that there are no others.
    pub(super) closed_schemas: bool,
    /// Says why a call could not do what it was to, as its document does.
    pub(super) render_error: fn(&DialectInvocation, &Error) -> DialectResponse,
    /// What a job is called that calls a tool of this name.
    pub(super) job_type: fn(&str) -> String,
    /// Whether what goes back to a model says by itself that it is an error.
    pub(crate) marks_errors: bool,
    /// The tool that reads artifacts, as texts for models name it.
    pub(crate) artifact_reader: &'static str,
    /// Tools of the contract that are listed beside its own. Its document names no others only where there are none.
    pub(crate) borrowed_tools: &'static [&'static str],
    /// Whether its document has a preview stand for a result of a batch that is too long.
    pub(crate) has_previews: bool,
    /// Whether ids of jobs are UUIDs.
    pub(crate) uuid_job_ids: bool,
    /// Error code of a tool that has done its work, where the dialect answers that as a failure. Reads the record's
    /// facts.
    pub(super) failure_code: fn(&Map<String, Json>) -> Option<&'static str>,
    /// Writes a whole result as the document has it; none where it has no object for that.
    pub(super) render_result: Option<ResultRenderer>,
    /// Answers a call of a tool of the configuration, from what its command has left. None where such tools answer as
    /// the contract does.
    pub(super) render_custom_tool: Option<fn(&ResponseData) -> DialectResponse>,
    /// Names of events that the document calls something else: the contract's, and its own.
    pub(super) event_names: &'static [(&'static str, &'static str)],
}

/// What most vocabularies have in common: parameters that a tool does not have are refused, and so are
/// calls, with the words of the contract.
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

/// Whether a command's time was up.
fn timeout_code(facts: &Map<String, Json>) -> Option<&'static str> {
    let outcome = facts.get("outcome").and_then(Json::as_str);
    (outcome == Some("TIMED_OUT")).then_some("timeout")
}

/// One tool of a vocabulary.
pub(crate) struct DialectTool {
    /// Its name.
    pub(crate) name: &'static str,
    /// What models are told of it.
    pub(super) description: &'static str,
    /// What it takes.
    pub(super) parameters: &'static [ParameterSpec],
    /// The canonical tools that it calls: who may not call them all does not have it.
    pub(crate) uses: &'static [&'static str],
    /// Does what it does.
    pub(super) call:
        for<'a> fn(DialectParams, &'a mut dyn CanonicalTools) -> DialectResponseFuture<'a>,
}

/// What a tool answers, some time.
pub(crate) type DialectResponseFuture<'a> = DialectFuture<'a, Result<DialectResponse, Error>>;

/// What comes some time.
pub(crate) type DialectFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// A call of a canonical tool.
#[derive(Debug, Clone)]
pub(crate) struct CanonicalCall {
    /// The tool.
    pub(crate) tool: &'static str,
    /// Its parameters; null is as good as not given.
    pub(crate) params: Map<String, Json>,
    /// How long it may take, where the contract's default is not meant.
    pub(crate) timeout: Option<Duration>,
    /// Bytes that its artifacts keep of a stream, where that is not the operator's limit. They exist even if empty.
    pub(crate) artifact_bytes: Option<u64>,
    /// Whether its command is for the shell that users log in with.
    pub(crate) in_default_shell: bool,
    /// What its fields are called in the vocabulary, where that is something else.
    aliases: FieldAliases,
}

/// Writes a whole result as a document has it, with the data of the call.
type ResultRenderer = fn(&DialectCallSummary<'_>, Option<Map<String, Json>>) -> Json;

/// Code, message and details of an error.
type ErrorParts<'a> = (&'a str, &'a str, Option<Map<String, Json>>);

/// What came of a call, for the object that a document has for it.
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
    /// Code, message, details.
    pub(crate) error: Option<ErrorParts<'a>>,
    pub(crate) exit_code: Option<i32>,
    /// Empty where no command ran.
    pub(crate) stdout_path: &'a str,
    /// Empty where no command ran.
    pub(crate) stderr_path: &'a str,
    pub(crate) text: &'a str,
}

/// The canonical tools, for one call of a dialect.
pub(crate) trait CanonicalTools: Send {
    /// Calls one of them.
    fn call(&mut self, call: CanonicalCall) -> DialectFuture<'_, Result<ResponseData, Error>>;

    /// Has one of them called as a job that nobody waits for. Answers its id.
    fn submit(&mut self, call: CanonicalCall) -> DialectFuture<'_, Result<String, Error>>;
}

// === impl Dialect ===

impl Dialect {
    /// Its tools.
    pub(crate) fn tools(&self) -> &'static [DialectTool] {
        self.tools
    }

    /// Its tool of this name, if it has one.
    pub(crate) fn own(&self, name: &str) -> Option<&'static DialectTool> {
        self.tools.iter().find(|tool| tool.name == name)
    }

    /// The tool of this name. `is_open` says which there are for who asks.
    pub(crate) fn tool(
        &self,
        name: &str,
        is_open: impl Fn(&DialectTool) -> bool,
    ) -> Result<&'static DialectTool, Error> {
        self.own(name).ok_or_else(|| {
            let known = self.tools.iter().filter(|tool| is_open(tool));
            let known: Vec<_> = known.map(|tool| tool.name).collect();
            let text = format!("{} has {}", self.name, suggest::unknown_tool_message(name, &known));
            Error::new(Reason::UnknownTool, text).with_metadata("tool", name)
        })
    }

    /// What models are told of a tool.
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

    /// Reads the parameters of a call.
    pub(crate) fn read_params(
        &self,
        tool: &DialectTool,
        params: Map<String, Json>,
    ) -> Result<DialectParams, Error> {
        DialectParams::read(tool.parameters, self.unknown_params, params)
    }

    /// What a call answers that could not do what it was to.
    pub(crate) fn render_error(
        &self,
        invocation: &DialectInvocation,
        error: &Error,
    ) -> DialectResponse {
        let mut answer = (self.render_error)(invocation, error);
        let tool = self.own(&invocation.tool);
        let parameters = tool.map_or(&[][..], |tool| tool.parameters);
        if let (Some(failure), Some(suggestion)) =
            (&mut answer.failure, error_terms::suggestion(parameters, error.reason))
        {
            failure.suggestion = Some(suggestion.to_owned());
        }
        answer
    }

    /// Error code of a tool that has done its work, where the dialect answers that as a failure.
    pub(crate) fn failure_code(&self, facts: &Map<String, Json>) -> Option<&'static str> {
        (self.failure_code)(facts)
    }

    /// What the dialect calls an event of the contract.
    pub(crate) fn event_name(&self, name: &'static str) -> &'static str {
        let mut events = self.event_names.iter();
        events.find(|(of_contract, _)| *of_contract == name).map_or(name, |(_, own)| own)
    }

    /// Parameters as they were given, for a record.
    pub(crate) fn redact_params(&self, tool: &str, params: &Map<String, Json>) -> Json {
        let tool = self.own(tool);
        redact::redact_params(tool.map_or(&[], |tool| tool.parameters), params)
    }

    /// Whether tools of the configuration answer as the dialect does.
    pub(crate) fn renders_custom_tools(&self) -> bool {
        self.render_custom_tool.is_some()
    }

    /// Answers a call of a tool of the configuration.
    pub(crate) fn render_custom_tool(&self, ran: ResponseData) -> DialectResponse {
        match self.render_custom_tool {
            Some(custom) => custom(&ran),
            None => DialectResponse::data(ran.into_fields().into()),
        }
    }

    /// Whether parameters that a tool does not have are left out of account.
    pub(crate) fn ignores_unknown_params(&self) -> bool {
        self.unknown_params == UnknownParams::Ignore
    }

    /// A whole result as the document has it, if it has an object for that.
    pub(crate) fn render_result(
        &self,
        invoked: &DialectCallSummary<'_>,
        data: Option<Map<String, Json>>,
    ) -> Option<Json> {
        Some(self.render_result?(invoked, data))
    }

    /// What a job is called that calls a tool of this name.
    pub(crate) fn job_type(&self, tool: &str) -> String {
        (self.job_type)(tool)
    }
}

// === impl DialectTool ===

impl DialectTool {
    /// Does what it does.
    pub(crate) fn call<'a>(
        &self,
        params: DialectParams,
        tools: &'a mut dyn CanonicalTools,
    ) -> DialectResponseFuture<'a> {
        (self.call)(params, tools)
    }

    /// What is told of parameters of a call: names and values, of those that are long or may be secret the
    /// size.
    pub(crate) fn display_params(&self, params: &Map<String, Json>) -> Vec<(String, String)> {
        redact::display_params(self.parameters, params)
    }
}

impl fmt::Debug for DialectTool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DialectTool").field("name", &self.name).finish_non_exhaustive()
    }
}

// === impl Call ===

impl CanonicalCall {
    /// Of this tool, with the fields of this object.
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

    /// The same, of whose fields these are called something else in the vocabulary.
    pub(super) fn with_aliases(self, names: FieldAliases) -> Self {
        Self { aliases: names, ..self }
    }

    /// What is wrong with the call, by the names that its caller knows.
    pub(crate) fn translate_error(&self, error: Error) -> Error {
        error_terms::translate_error(self.aliases, error)
    }

    /// The same, whose artifacts exist even if empty, and keep so many bytes of a stream.
    pub(super) fn with_artifact_bytes(self, artifact_bytes: u64) -> Self {
        Self { artifact_bytes: Some(artifact_bytes), ..self }
    }

    /// The same, whose command is for the shell that users log in with.
    pub(super) fn in_default_shell(self) -> Self {
        Self { in_default_shell: true, ..self }
    }

    /// The same, within this time.
    pub(crate) fn with_timeout(self, limit: Duration) -> Self {
        Self { timeout: Some(limit), ..self }
    }
}
