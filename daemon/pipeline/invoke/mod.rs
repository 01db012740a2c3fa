//! `Invoke`: calls by tool name: a name of the contract or of a dialect. A failed call is a
//! normal response.
//!
//! ```text
//! name, parameters ─▶ canonical tool ──────────────────────▶ pipeline ─▶ output ─▶ envelope
//!        │                                                     ▲
//!        └─────────▶ tool of a dialect ─▶ one or more calls ───┘
//! ```
//!
//! A request id is claimed once for the invocation. Each call of a canonical tool is authorized,
//! admitted and recorded by itself.

pub(crate) mod batch;
mod invocation_tools;
mod resolve_tool;
mod result_json;

use std::{
    pin::pin,
    sync::Arc,
    time::{Duration, Instant, SystemTime},
};

use serde_json::{Map, Value};
use tokio_util::sync::CancellationToken;

pub(super) use self::invocation_tools::InvocationTools;
use super::{
    Pipeline,
    context::{CallContext, InvokeOrigin},
    dyn_tool::{DynTool, JsonToolOutput},
    envelope::{self, CallTiming, CommandExitInfo},
    idempotency::{
        Claim, OnCrash,
        reply::{decode, encode, is_final},
    },
    once::{IdempotentCall, PayloadClaimOutcome, await_reply},
    rejection::DialectRejection,
};
use crate::{
    api::v1::InvokeResponse,
    daemon::{
        dialect::{Dialect, DialectInvocation, DialectResponse, DialectTool, ResponseData},
        error::{Error, Reason},
        task,
        telemetry::access_log::{AccessLogEntry, ReportedEnd},
        tool::daemon_lost_error,
    },
};

/// The method that a request id of an invocation is bound to.
pub(crate) const INVOKE_METHOD: &str = "jig.v1.InvokeService/Invoke";
/// A timeout this close to the caller's deadline counts as caused by it.
const DEADLINE_SLACK: Duration = Duration::from_millis(200);

/// A call by tool name.
#[derive(Debug)]
pub(crate) struct Invocation {
    /// Id that the model gave the call. May be empty.
    pub(crate) id: String,
    /// The dialect. `None` for the names of the contract.
    pub(crate) dialect: Option<&'static Dialect>,
    pub(crate) tool: String,
    /// The parameters, or why they are invalid.
    pub(crate) params: Result<Map<String, Value>, Error>,
    /// Whether to return `result_json`, the object that the dialect's specification defines.
    pub(crate) with_result_json: bool,
}

/// The tool that a name resolves to.
#[derive(Clone, Copy)]
pub(super) enum ResolvedTool {
    /// A canonical tool, or one of the configuration.
    Contract(&'static dyn DynTool),
    Dialect(&'static Dialect, &'static DialectTool),
}

/// An invocation with its tool.
struct ResolvedInvocation {
    params: Result<Map<String, Value>, Error>,
    tool: Result<ResolvedTool, Error>,
    dialect: Option<&'static Dialect>,
    /// The call as the caller made it.
    invocation: DialectInvocation,
    started: SystemTime,
}

/// The outcome of an invocation.
struct InvocationOutcome {
    context: CallContext,
    result: Result<DialectResponse, Error>,
    dialect: Option<&'static Dialect>,
    invocation: DialectInvocation,
    started: SystemTime,
    /// Exit information of the last command, if any.
    exit_info: CommandExitInfo,
}

impl Pipeline {
    /// Runs a call by tool name. With `call`, it is idempotent.
    ///
    /// A failure of the tool is a response. A failure of the call itself is an error: see
    /// [`is_call_level_error`].
    pub(crate) async fn invoke(
        self: &Arc<Self>,
        context: CallContext,
        invocation: Invocation,
        call: Option<IdempotentCall>,
    ) -> Result<InvokeResponse, Error> {
        let started = SystemTime::now();
        let Invocation { id, dialect, tool, params, with_result_json } = invocation;
        let callers_dialect = dialect;
        let result_json_dialect = dialect.filter(|_| with_result_json);
        let own_dialect = self.dialect_of_tool(dialect, &tool);
        let dialect = self.answering_dialect(dialect, &tool);
        let access_log_entry = context.access_log_entry.clone();
        access_log_entry.update(|fields| {
            fields.dialect = dialect.map(|dialect| dialect.name);
            fields.called_name = Some(tool.clone());
            fields.model_call_id = Some(id.clone()).filter(|id| !id.is_empty());
        });

        // An unknown workspace is an error of the call, so it is checked before the tool.
        let invocation = self.dialect_invocation(&context, &tool, params.as_ref().ok())?;
        let resolved_tool = self.resolve_tool(&context.principal, own_dialect, &tool);
        let is_mutating = resolved_tool.as_ref().is_ok_and(|tool| tool.is_mutating(self));
        let dialect_call = match (&resolved_tool, &params) {
            (Ok(ResolvedTool::Dialect(dialect, tool)), Ok(params)) => {
                Some(self.dialect_call(&context, dialect, tool, params)?)
            }
            (Ok(_) | Err(_), _) => None,
        };
        let context = CallContext {
            invoke_origin: Some(Arc::new(InvokeOrigin {
                model_call_id: id.clone(),
                dialect_call,
                dialect: callers_dialect,
            })),
            ..context
        };

        let resolved =
            ResolvedInvocation { params, tool: resolved_tool, dialect, invocation, started };
        let response = match call.filter(|_| is_mutating) {
            Some(call) => self.invoke_once(context, resolved, call).await?,
            None => {
                let stop = CancellationToken::new();
                let deadline = context.deadline;
                let outcome = self.run_invocation(context, resolved, None, &stop).await;
                self.finish_invocation(outcome, deadline)?
            }
        };

        record_outcome(&access_log_entry, &response);
        let response = InvokeResponse { request_id: id, ..response };
        match result_json_dialect {
            Some(dialect) => result_json::with_result_json(dialect, response),
            None => Ok(response),
        }
    }

    /// As [`Self::invoke`], once for all callers with the request id.
    async fn invoke_once(
        self: &Arc<Self>,
        context: CallContext,
        resolved: ResolvedInvocation,
        call: IdempotentCall,
    ) -> Result<InvokeResponse, Error> {
        let contract_tool = match &resolved.tool {
            Ok(ResolvedTool::Contract(tool)) => Some(*tool),
            Ok(ResolvedTool::Dialect(..)) | Err(_) => None,
        };
        let (dialect, started) = (resolved.dialect, resolved.started);
        let invocation = resolved.invocation.clone();

        let outcome = self.claim_call_with_payload(call, OnCrash::Report, resolved).await?;
        let (claim, resolved) = match outcome {
            PayloadClaimOutcome::Acquired(claim, resolved) => (claim, resolved),
            PayloadClaimOutcome::Completed { reply, .. } => return decode(&reply),
            PayloadClaimOutcome::Lost(step) => {
                let lost = match contract_tool {
                    Some(tool) => tool.daemon_lost_output(self, step),
                    None => Err(daemon_lost_error(INVOKE_METHOD)),
                };
                let (result, exit_info) = match lost {
                    Ok(JsonToolOutput { fields, exit_info }) => {
                        (Ok(self.dialect_response(dialect, &invocation.tool, fields)), exit_info)
                    }
                    Err(error) => (Err(error), CommandExitInfo::default()),
                };
                let outcome =
                    InvocationOutcome { context, result, dialect, invocation, started, exit_info };
                return outcome.into_envelope(None).1;
            }
        };

        // A caller's deadline ends that caller's wait, not the work.
        let context = CallContext { deadline: None, ..context };
        let waiter = claim.waiter();
        let pipeline = Arc::clone(self);
        task::spawn_tracked("request", pipeline.run_claimed_invocation(context, resolved, claim));
        await_reply(waiter).await
    }

    /// Runs an invocation for all callers that wait on `claim`, and stores its reply.
    async fn run_claimed_invocation(
        self: Arc<Self>,
        context: CallContext,
        resolved: ResolvedInvocation,
        claim: Claim,
    ) {
        let stop = CancellationToken::new();
        let outcome = {
            let mut work = pin!(self.run_invocation(context, resolved, Some(&claim), &stop));
            tokio::select! {
                outcome = &mut work => outcome,
                () = claim.abandoned() => {
                    stop.cancel();
                    work.await
                }
            }
        };

        let keep = is_final(&outcome.result);
        let reply = self.finish_invocation(outcome, None);
        claim.complete(encode(&reply), keep).await;
    }

    async fn run_invocation(
        self: &Arc<Self>,
        context: CallContext,
        resolved: ResolvedInvocation,
        claim: Option<&Claim>,
        stop: &CancellationToken,
    ) -> InvocationOutcome {
        let ResolvedInvocation { params, tool, dialect, invocation, started } = resolved;
        let started_at = Instant::now();
        let rejection_context = dialect.map(|dialect| {
            let empty = Map::new();
            let record_params =
                dialect.redact_params(&invocation.tool, params.as_ref().unwrap_or(&empty));
            (dialect, context.clone(), record_params)
        });

        let mut tools = InvocationTools::new(self, context, claim, stop);
        let result = match (tool, params) {
            (Err(error), _) | (_, Err(error)) => Err(error),
            (Ok(ResolvedTool::Contract(tool)), Ok(mut params)) => {
                self.drop_unknown_params(dialect, &invocation.tool, &mut params);
                let data = tools.call_tool(tool, &invocation.tool, params).await;
                data.map(|data| self.dialect_response(dialect, &invocation.tool, data))
            }
            (Ok(ResolvedTool::Dialect(dialect, tool)), Ok(params)) => {
                match dialect.read_params(tool, params) {
                    Ok(params) => tool.call(params, &mut tools).await,
                    Err(error) => Err(error),
                }
            }
        };

        if let (Some((dialect, context, record_params)), Err(error)) = (rejection_context, &result)
            && !tools.has_started()
            && !is_call_level_error(error, context.deadline)
        {
            let rejection = DialectRejection {
                dialect,
                tool: &invocation.tool,
                record_params,
                duration: started_at.elapsed(),
                error,
            };
            self.record_dialect_rejection(&context, rejection).await;
        }

        let (context, exit_info) = tools.into_parts();
        InvocationOutcome { context, result, dialect, invocation, started, exit_info }
    }

    /// Builds the response, and publishes it to the watchers of the session.
    fn finish_invocation(
        &self,
        outcome: InvocationOutcome,
        deadline: Option<Instant>,
    ) -> Result<InvokeResponse, Error> {
        let dialect = outcome.dialect;
        let (context, response) = outcome.into_envelope(deadline);
        let response = response?;
        self.publish_result(&context, dialect, &response);
        Ok(response)
    }

    /// Returns the response of a contract tool, or of a custom tool as the dialect renders it.
    fn dialect_response(
        &self,
        dialect: Option<&Dialect>,
        tool: &str,
        data: Map<String, Value>,
    ) -> DialectResponse {
        match dialect {
            Some(dialect) => dialect.render_custom_tool(ResponseData::new(data)),
            None => self.contract_response(tool, data),
        }
    }

    /// Returns the response of a contract tool, with the part of it that models see.
    pub(super) fn contract_response(
        &self,
        tool: &str,
        data: Map<String, Value>,
    ) -> DialectResponse {
        DialectResponse {
            model_data: Some(self.catalog.model_view(tool, &data)),
            ..DialectResponse::data(data.into())
        }
    }
}

impl ResolvedTool {
    /// Whether repeating a call could change something a second time.
    pub(super) fn is_mutating(&self, pipeline: &Pipeline) -> bool {
        match self {
            Self::Contract(tool) => tool.is_mutating(pipeline),
            Self::Dialect(_, tool) => tool.uses.iter().any(|name| {
                let spec = pipeline.catalog.tool(name);
                spec.is_none_or(|spec| !spec.options.read_only)
            }),
        }
    }
}

impl std::fmt::Debug for ResolvedTool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Contract(_) => f.write_str("Contract"),
            Self::Dialect(dialect, tool) => write!(f, "{}/{}", dialect.name, tool.name),
        }
    }
}

impl InvocationOutcome {
    /// Builds the response. A call-level error stays an error.
    fn into_envelope(
        self,
        deadline: Option<Instant>,
    ) -> (CallContext, Result<InvokeResponse, Error>) {
        let Self { context, result, invocation, dialect, exit_info, started } = self;
        let timing = CallTiming { tool: &invocation.tool, started, ended: SystemTime::now() };
        let response = match result {
            Err(error) if is_call_level_error(&error, deadline) => Err(error),
            result => Ok(envelope::build(&timing, dialect, &invocation, result, &exit_info)),
        };
        (context, response)
    }
}

/// Sets the outcome in the access log, unless the tool has set it and the call has no error. The
/// call has a line of its own if it failed after its tool: no other line says so.
fn record_outcome(access_log_entry: &AccessLogEntry, response: &InvokeResponse) {
    let error_type = response.error.as_ref().map(|error| error.error_type.clone());
    let reason = error_type.as_deref().and_then(|name| Reason::from_name(&name.to_uppercase()));
    access_log_entry.update(|fields| {
        if reason.is_some_and(|reason| fields.reported != Some(ReportedEnd(Some(reason.name())))) {
            fields.reported = None;
        }
        let outcome = error_type.or_else(|| fields.outcome.take());
        fields.outcome = outcome.or_else(|| Some("success".to_owned()));
    });
}

/// Whether an error concerns the call itself, not the tool: its caller must act on it, not the
/// model.
pub(super) fn is_call_level_error(error: &Error, deadline: Option<Instant>) -> bool {
    let is_at_deadline =
        deadline.is_some_and(|deadline| deadline < Instant::now() + DEADLINE_SLACK);
    matches!(
        error.reason,
        Reason::Unauthenticated
            | Reason::Forbidden
            | Reason::UnknownWorkspace
            | Reason::RequestIdReused
            | Reason::ResourceExhausted
            | Reason::StateLost
            | Reason::Draining
    ) || error.reason == Reason::Timeout && is_at_deadline
}
