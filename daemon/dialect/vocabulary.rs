//! What a vocabulary is: its tools, and how they call those of the contract.

use std::{fmt, future::Future, pin::Pin, time::Duration};

use serde_json::{Map, Value as Json};

use super::{
    answer::{Answer, Data},
    given,
    parameter::{self, Parameter, Params, Unknown},
    said::Said,
    told::{self, Names},
};
use crate::daemon::{
    catalog::{
        Catalog,
        definition::{Definition, Hints},
        nearest,
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
    pub(super) unknown: Unknown,
    /// Whether the schemas of its tools say that there are no others.
    pub(super) is_closed: bool,
    /// Says why a call could not do what it was to, as its document does.
    pub(super) refuse: fn(&Said, &Error) -> Answer,
    /// What a job is called that calls a tool of this name.
    pub(super) job_type: fn(&str) -> String,
    /// Whether what goes back to a model says by itself that it is an error.
    pub(crate) marks_errors: bool,
    /// The tool that reads artifacts, as texts for models name it.
    pub(crate) reader: &'static str,
    /// Tools of the contract that are listed beside its own. Its document names no others only where there are none.
    pub(crate) borrowed: &'static [&'static str],
    /// Whether its document has a preview stand for a result of a batch that is too long.
    pub(crate) has_previews: bool,
    /// Whether ids of jobs are UUIDs.
    pub(crate) has_uuids: bool,
    /// Error code of a tool that has done its work, where the dialect answers that as a failure. Reads the record's
    /// facts.
    pub(super) failure: fn(&Map<String, Json>) -> Option<&'static str>,
    /// Writes a whole result as the document has it; none where it has no object for that.
    pub(super) result: Option<WriteResult>,
    /// Answers a call of a tool of the configuration, from what its command has left. None where such tools answer as
    /// the contract does.
    pub(super) custom: Option<fn(&Data) -> Answer>,
    /// Names of events that the document calls something else: the contract's, and its own.
    pub(super) events: &'static [(&'static str, &'static str)],
}

/// What most vocabularies have in common: parameters that a tool does not have are refused, and so are
/// calls, with the words of the contract.
pub(super) const PLAIN: Dialect = Dialect {
    name: "",
    tools: &[],
    unknown: Unknown::Refused,
    is_closed: true,
    refuse: Answer::refused,
    job_type: str::to_owned,
    marks_errors: true,
    reader: "read_file",
    borrowed: &[],
    has_previews: false,
    has_uuids: false,
    failure: timed_out,
    result: None,
    custom: None,
    events: &[],
};

/// Whether a command's time was up.
fn timed_out(facts: &Map<String, Json>) -> Option<&'static str> {
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
    pub(super) parameters: &'static [Parameter],
    /// The canonical tools that it calls: who may not call them all does not have it.
    pub(crate) uses: &'static [&'static str],
    /// Does what it does.
    pub(super) call: for<'a> fn(Params, &'a mut dyn Tools) -> Answering<'a>,
}

/// What a tool answers, some time.
pub(crate) type Answering<'a> = Boxed<'a, Result<Answer, Error>>;

/// What comes some time.
pub(crate) type Boxed<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// A call of a canonical tool.
#[derive(Debug, Clone)]
pub(crate) struct Call {
    /// The tool.
    pub(crate) tool: &'static str,
    /// Its parameters; null is as good as not given.
    pub(crate) params: Map<String, Json>,
    /// How long it may take, where the contract's default is not meant.
    pub(crate) limit: Option<Duration>,
    /// Bytes that its artifacts keep of a stream, where that is not the operator's limit. They exist even if empty.
    pub(crate) artifact_bytes: Option<u64>,
    /// Whether its command is for the shell that users log in with.
    pub(crate) in_default_shell: bool,
    /// What its fields are called in the vocabulary, where that is something else.
    names: Names,
}

/// Writes a whole result as a document has it, with the data of the call.
type WriteResult = fn(&Invoked<'_>, Option<Map<String, Json>>) -> Json;

/// Code, message and details of an error.
type ErrorParts<'a> = (&'a str, &'a str, Option<Map<String, Json>>);

/// What came of a call, for the object that a document has for it.
#[derive(Debug)]
pub(crate) struct Invoked<'a> {
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
pub(crate) trait Tools: Send {
    /// Calls one of them.
    fn call(&mut self, call: Call) -> Boxed<'_, Result<Data, Error>>;

    /// Has one of them called as a job that nobody waits for. Answers its id.
    fn submit(&mut self, call: Call) -> Boxed<'_, Result<String, Error>>;
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
            let text = format!("{} has {}", self.name, nearest::no_tool(name, &known));
            Error::new(Reason::UnknownTool, text).with("tool", name)
        })
    }

    /// What models are told of a tool.
    pub(crate) fn definition(&self, tool: &DialectTool, catalog: &Catalog) -> Definition {
        let used = tool.uses.iter().filter_map(|name| catalog.tool(name));
        let hints = used.map(|spec| Hints::of(&spec.options));
        let risks = tool.uses.iter().map(|name| catalog.risk(name));
        Definition {
            name: tool.name.to_owned(),
            title: String::new(),
            description: tool.description.to_owned(),
            input: parameter::schema_of(tool.parameters, self.is_closed),
            output: None,
            hints: hints.reduce(Hints::and).unwrap_or(Hints::WORST),
            risk: risks.max().unwrap_or_default(),
            requires_approval: false,
        }
    }

    /// Reads the parameters of a call.
    pub(crate) fn read(
        &self,
        tool: &DialectTool,
        params: Map<String, Json>,
    ) -> Result<Params, Error> {
        Params::read(tool.parameters, self.unknown, params)
    }

    /// What a call answers that could not do what it was to.
    pub(crate) fn refuse(&self, said: &Said, error: &Error) -> Answer {
        let mut answer = (self.refuse)(said, error);
        let tool = self.own(&said.tool);
        let parameters = tool.map_or(&[][..], |tool| tool.parameters);
        if let (Some(failure), Some(suggestion)) =
            (&mut answer.failure, told::suggestion(parameters, error.reason))
        {
            failure.suggestion = Some(suggestion.to_owned());
        }
        answer
    }

    /// Error code of a tool that has done its work, where the dialect answers that as a failure.
    pub(crate) fn failure(&self, facts: &Map<String, Json>) -> Option<&'static str> {
        (self.failure)(facts)
    }

    /// What the dialect calls an event of the contract.
    pub(crate) fn event(&self, name: &'static str) -> &'static str {
        let mut events = self.events.iter();
        events.find(|(of_contract, _)| *of_contract == name).map_or(name, |(_, own)| own)
    }

    /// Parameters as they were given, for a record.
    pub(crate) fn given(&self, tool: &str, params: &Map<String, Json>) -> Json {
        let tool = self.own(tool);
        given::recorded(tool.map_or(&[], |tool| tool.parameters), params)
    }

    /// Whether tools of the configuration answer as the dialect does.
    pub(crate) fn has_custom(&self) -> bool {
        self.custom.is_some()
    }

    /// Answers a call of a tool of the configuration.
    pub(crate) fn custom(&self, ran: Data) -> Answer {
        match self.custom {
            Some(custom) => custom(&ran),
            None => Answer::data(ran.into_fields().into()),
        }
    }

    /// Whether parameters that a tool does not have are left out of account.
    pub(crate) fn ignores_unknown(&self) -> bool {
        self.unknown == Unknown::Ignored
    }

    /// A whole result as the document has it, if it has an object for that.
    pub(crate) fn result(
        &self,
        invoked: &Invoked<'_>,
        data: Option<Map<String, Json>>,
    ) -> Option<Json> {
        Some(self.result?(invoked, data))
    }

    /// What a job is called that calls a tool of this name.
    pub(crate) fn job_type(&self, tool: &str) -> String {
        (self.job_type)(tool)
    }
}

// === impl DialectTool ===

impl DialectTool {
    /// Does what it does.
    pub(crate) fn call<'a>(&self, params: Params, tools: &'a mut dyn Tools) -> Answering<'a> {
        (self.call)(params, tools)
    }

    /// What is told of parameters of a call: names and values, of those that are long or may be secret the
    /// size.
    pub(crate) fn shown(&self, params: &Map<String, Json>) -> Vec<(String, String)> {
        given::shown(self.parameters, params)
    }
}

impl fmt::Debug for DialectTool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DialectTool").field("name", &self.name).finish_non_exhaustive()
    }
}

// === impl Call ===

impl Call {
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
            limit: None,
            artifact_bytes: None,
            in_default_shell: false,
            names: &[],
        }
    }

    /// The same, of whose fields these are called something else in the vocabulary.
    pub(super) fn naming(self, names: Names) -> Self {
        Self { names, ..self }
    }

    /// What is wrong with the call, by the names that its caller knows.
    pub(crate) fn told(&self, error: Error) -> Error {
        told::told(self.names, error)
    }

    /// The same, whose artifacts exist even if empty, and keep so many bytes of a stream.
    pub(super) fn keeping(self, artifact_bytes: u64) -> Self {
        Self { artifact_bytes: Some(artifact_bytes), ..self }
    }

    /// The same, whose command is for the shell that users log in with.
    pub(super) fn in_default_shell(self) -> Self {
        Self { in_default_shell: true, ..self }
    }

    /// The same, within this time.
    pub(crate) fn within(self, limit: Duration) -> Self {
        Self { limit: Some(limit), ..self }
    }
}
