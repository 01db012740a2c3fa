//! The context of a call: everything that a frontend knows apart from the request.

use std::{
    sync::{Arc, OnceLock},
    time::{Duration, Instant},
};

use opentelemetry::{Context, KeyValue, trace::TraceContextExt as _};
use serde_json::Value;
use tokio::sync::watch;

use super::{access::principal::Principal, observer::CallObserver, policy::request::DialectCall};
use crate::{
    api::v1::Risk,
    daemon::{
        dialect::Dialect,
        error::{Error, LIMIT_KIND, Violation},
        store::session::SessionId,
        telemetry::{access_log::AccessLogEntry, semconv},
        tool::{JobContext, WorkspaceContext},
    },
};

pub(crate) const MAX_REQUEST_ID_CHARS: usize = 120;

#[derive(Debug, Clone)]
pub(crate) struct CallContext {
    /// A ULID, created by the daemon.
    pub(crate) call_id: String,
    pub(crate) principal: Arc<Principal>,
    /// When the caller stops waiting.
    pub(crate) deadline: Option<Instant>,
    /// The workspace that the caller named.
    pub(crate) workspace: Option<String>,
    /// The workspace that was found first. The call stays with it: after its deletion, another
    /// caller may create one of the same name.
    pub(crate) found_workspace: Arc<OnceLock<Arc<WorkspaceContext>>>,
    pub(crate) session: SessionId,
    /// The idempotency key that the caller gave.
    pub(crate) request_id: Option<String>,
    /// The job that makes the call, if any.
    pub(crate) job: Option<JobContext>,
    /// The `Invoke` call that makes this call, if any.
    pub(crate) invoke_origin: Option<Arc<InvokeOrigin>>,
    /// Follows the progress of the call, if its frontend streams it.
    pub(crate) observer: Option<CallObserver>,
    /// The custom tool in whose name this call is made, if any.
    pub(crate) alias: Option<ToolAlias>,
    /// Replaces the default timeout of the tool.
    pub(crate) timeout: Option<Duration>,
    /// Replaces the operator's limit on each output artifact. Also creates empty artifacts.
    pub(crate) max_artifact_bytes: Option<u64>,
    /// Whether a command runs in the default shell: bash, or `/bin/sh` if there is none.
    pub(crate) in_default_shell: bool,
    pub(crate) parent_span: Context,
    /// What the access log records of the call.
    pub(crate) access_log_entry: AccessLogEntry,
}

/// A custom tool that calls another tool. Policy and records see the custom one.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ToolAlias {
    pub(crate) tool: &'static str,
    pub(crate) risk: Risk,
}

/// The origin of a call that was made by tool name (`Invoke`, batches and jobs).
#[derive(Debug, Clone, Default)]
pub(crate) struct InvokeOrigin {
    /// Id that the model gave the call, to match results. May be empty.
    pub(crate) model_call_id: String,
    /// The call as the model made it, if in a dialect.
    pub(crate) dialect_call: Option<Arc<DialectCall>>,
    /// The dialect of the caller, if it is not the contract's.
    pub(crate) dialect: Option<&'static Dialect>,
}

impl CallContext {
    /// Reads and checks the call metadata. `get` looks up a metadata key.
    pub(crate) fn new<'a>(
        call_id: String,
        principal: Arc<Principal>,
        deadline: Option<Instant>,
        (parent_span, access_log_entry): (Context, AccessLogEntry),
        get: impl Fn(&str) -> Option<&'a str>,
    ) -> Result<Self, Vec<Violation>> {
        let mut violations = Vec::new();
        let session = parse_session(get("jig-session"), &mut violations);
        let request_id = parse_request_id(get("jig-request-id"), &mut violations);
        let Some(session) = session.filter(|_| violations.is_empty()) else {
            return Err(violations);
        };

        let session_name = session.as_str().to_owned();
        let workspace = get("jig-workspace").map(str::to_owned);
        parent_span
            .span()
            .set_attribute(KeyValue::new(semconv::GEN_AI_CONVERSATION_ID, session_name.clone()));
        access_log_entry.update(|fields| {
            fields.session = Some(session_name);
            fields.workspace.clone_from(&workspace);
            fields.request_id.clone_from(&request_id);
        });

        Ok(Self {
            call_id,
            principal,
            deadline,
            workspace,
            found_workspace: Arc::default(),
            session,
            request_id,
            job: None,
            invoke_origin: None,
            observer: None,
            alias: None,
            timeout: None,
            max_artifact_bytes: None,
            in_default_shell: false,
            parent_span,
            access_log_entry,
        })
    }

    /// Notes what an RPC that calls no tool is about, for the audit log.
    pub(crate) fn note_params<const N: usize>(&self, params: [(&str, Option<&str>); N]) {
        let params = params
            .into_iter()
            .filter_map(|(name, value)| Some((name.to_owned(), Value::from(value?))));
        let params = Value::Object(params.collect());
        self.access_log_entry.update(|fields| fields.params = Some(params));
    }

    /// Returns the channel to notify when the command of the call has written output.
    pub(super) fn output_notifier(&self) -> Option<watch::Sender<()>> {
        let of_job = self.job.as_ref().map(|job| &job.output_written);
        of_job.or_else(|| self.observer.as_ref().map(CallObserver::output_notifier)).cloned()
    }

    /// Returns the id that the model gave the call, or else the call id.
    pub(crate) fn model_call_id(&self) -> &str {
        let id = self.invoke_origin.as_deref().map(|call| call.model_call_id.as_str());
        id.filter(|id| !id.is_empty()).unwrap_or(&self.call_id)
    }

    /// Returns the call as the model made it, if in a dialect.
    pub(crate) fn dialect_call(&self) -> Option<Arc<DialectCall>> {
        self.invoke_origin.as_ref()?.dialect_call.clone()
    }

    /// Returns the name of the tool for policy and records, if `tool` does the work.
    pub(super) fn effective_tool(&self, tool: &'static str) -> &'static str {
        self.alias.map_or(tool, |alias| alias.tool)
    }

    /// Returns the span id of the RPC.
    pub(crate) fn span_id(&self) -> String {
        self.parent_span.span().span_context().span_id().to_string()
    }

    /// Returns the trace id of the RPC.
    pub(crate) fn trace_id(&self) -> String {
        self.parent_span.span().span_context().trace_id().to_string()
    }

    /// Sets on the span of the RPC why a call was rejected, and how long it was queued.
    /// Returns the limit or the reason.
    pub(super) fn record_rejection_in_span(&self, error: &Error, queued_at: Instant) -> String {
        let limit = error.metadata.iter().find(|(name, _)| name == LIMIT_KIND);
        let denied_by = limit
            .map_or_else(|| error.reason.name().to_owned(), |(_, kind)| format!("limit:{kind}"));

        let span = self.parent_span.span();
        span.set_attribute(KeyValue::new(semconv::DENIED_BY, denied_by.clone()));
        let queued = queued_at.elapsed().as_secs_f64();
        span.set_attribute(KeyValue::new(semconv::QUEUE_WAIT_DURATION, queued));
        denied_by
    }
}

fn parse_session(text: Option<&str>, violations: &mut Vec<Violation>) -> Option<SessionId> {
    let Some(text) = text else {
        return Some(SessionId::default());
    };

    let session = SessionId::parse(text);
    if session.is_none() {
        violations.push(Violation::new(
            "jig-session",
            "must have 1 to 64 letters, digits, dots, underscores and hyphens, and not begin with a dot",
        ));
    }
    session
}

fn parse_request_id(text: Option<&str>, violations: &mut Vec<Violation>) -> Option<String> {
    let id = text?;
    // The only control character that headers may have.
    if id.is_empty() || id.chars().count() > MAX_REQUEST_ID_CHARS || id.contains('\t') {
        let text = "must have 1 to 120 characters, none of them a tab";
        violations.push(Violation::new("jig-request-id", text));
    }
    Some(id.to_owned())
}
