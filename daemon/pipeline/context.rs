//! What a door knows about a call beside its request.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use opentelemetry::{Context, KeyValue, trace::TraceContextExt as _};

use super::{access::principal::Principal, policy::request::DialectCall};
use crate::{
    api::v1::Risk,
    daemon::{
        dialect::Dialect,
        error::Violation,
        store::session::SessionId,
        telemetry::{access_log::AccessLogEntry, semconv},
        tool::JobContext,
    },
};

/// Longest `jig-request-id`, in characters.
pub(crate) const MAX_REQUEST_ID_CHARS: usize = 120;

/// A call that came in.
#[derive(Debug, Clone)]
pub(crate) struct CallContext {
    /// Its id, made here (a ULID).
    pub(crate) call_id: String,
    /// Whose it is.
    pub(crate) principal: Arc<Principal>,
    /// When its caller stops waiting.
    pub(crate) deadline: Option<Instant>,
    /// The workspace that it names.
    pub(crate) workspace: Option<String>,
    /// The session that it belongs to.
    pub(crate) session: SessionId,
    /// The id that the caller gave it.
    pub(crate) request_id: Option<String>,
    /// The job that makes it, where one does.
    pub(crate) job: Option<JobContext>,
    /// The call by name that makes it, where one does.
    pub(crate) invoke_origin: Option<Arc<InvokeOrigin>>,
    /// What it is called as, where a tool of the configuration does it by calling another.
    pub(crate) alias: Option<ToolAlias>,
    /// How long it may take, where that of its tool is not meant.
    pub(crate) timeout: Option<Duration>,
    /// Bytes that its artifacts keep of a stream, where that is not the operator's limit. They exist even if empty.
    pub(crate) max_artifact_bytes: Option<u64>,
    /// Whether its command is for the shell that users log in with.
    pub(crate) in_default_shell: bool,
    /// The span of the RPC.
    pub(crate) parent_span: Context,
    /// What its line in the log says.
    pub(crate) facts: AccessLogEntry,
}

/// A tool of the configuration, in whose name another is called: it is judged and recorded as that one.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ToolAlias {
    /// Its name.
    pub(crate) tool: &'static str,
    /// Its risk.
    pub(crate) risk: Risk,
}

/// A call that was made by the name of a tool.
#[derive(Debug, Clone, Default)]
pub(crate) struct InvokeOrigin {
    /// Id that its caller gave it, to tell answers apart; may be empty.
    pub(crate) model_call_id: String,
    /// What it was made as, where that was in a dialect.
    pub(crate) dialect_call: Option<Arc<DialectCall>>,
    /// The vocabulary that its caller speaks, where that is not the contract's.
    pub(crate) dialect: Option<&'static Dialect>,
}

impl CallContext {
    /// Checks what metadata says. `get` looks a key up.
    pub(crate) fn new<'a>(
        call_id: String,
        principal: Arc<Principal>,
        deadline: Option<Instant>,
        (parent, facts): (Context, AccessLogEntry),
        get: impl Fn(&str) -> Option<&'a str>,
    ) -> Result<Self, Vec<Violation>> {
        let mut violations = Vec::new();
        let mut report = |field: &str, description: &str| {
            violations
                .push(Violation { field: field.to_owned(), description: description.to_owned() })
        };
        let session = match get("jig-session") {
            None => Some(SessionId::default()),
            Some(text) => SessionId::parse(text),
        };
        if session.is_none() {
            report(
                "jig-session",
                "must have 1 to 64 letters, digits, dots, underscores and hyphens, and not begin with a dot",
            );
        }
        let request_id = get("jig-request-id").map(str::to_owned);
        if request_id
            .as_ref()
            .is_some_and(|id| id.is_empty() || id.chars().count() > MAX_REQUEST_ID_CHARS)
        {
            report("jig-request-id", "must have 1 to 120 characters");
        }
        match session {
            Some(session) if violations.is_empty() => {
                let span = parent.span();
                let name = session.as_str().to_owned();
                span.set_attribute(KeyValue::new(semconv::GEN_AI_CONVERSATION_ID, name.clone()));
                facts.update(|facts| {
                    facts.session = Some(name);
                    facts.workspace = get("jig-workspace").map(str::to_owned);
                    facts.request_id.clone_from(&request_id);
                });
                Ok(Self {
                    call_id,
                    principal,
                    deadline,
                    workspace: get("jig-workspace").map(str::to_owned),
                    session,
                    request_id,
                    job: None,
                    invoke_origin: None,
                    alias: None,
                    timeout: None,
                    max_artifact_bytes: None,
                    in_default_shell: false,
                    parent_span: parent.clone(),
                    facts,
                })
            }
            _ => Err(violations),
        }
    }

    /// The id that the model gave it; its own, where there is none.
    pub(crate) fn model_call_id(&self) -> &str {
        let given = self.invoke_origin.as_deref().map(|call| call.model_call_id.as_str());
        given.filter(|id| !id.is_empty()).unwrap_or(&self.call_id)
    }

    /// What it was made as, where that was in a dialect.
    pub(crate) fn dialect_call(&self) -> Option<Arc<DialectCall>> {
        self.invoke_origin.as_ref()?.dialect_call.clone()
    }

    /// The tool that it is a call of, where `tool` does it.
    pub(super) fn effective_tool(&self, tool: &'static str) -> &'static str {
        self.alias.map_or(tool, |alias| alias.tool)
    }

    /// Id of the RPC's span.
    pub(crate) fn span_id(&self) -> String {
        self.parent_span.span().span_context().span_id().to_string()
    }

    /// Id of the trace that the call is part of.
    pub(crate) fn trace_id(&self) -> String {
        self.parent_span.span().span_context().trace_id().to_string()
    }
}
