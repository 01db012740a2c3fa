//! Calls by the names of their tools, in the vocabulary of the contract or in another: what comes of one is in
//! its answer, also where it failed.
//!
//! ```text
//! name, parameters ─▶ tool of the contract ────────────────▶ pipeline ─▶ answer ─▶ envelope
//!        │                                                     ▲
//!        └─────────▶ tool of a dialect ─▶ one or more calls ───┘
//! ```
//!
//! A request id is claimed for the whole of it, and each call of a tool of the contract is permitted, admitted and
//! recorded by itself.

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
    once::IdempotentCall,
    once_claim::PayloadClaimOutcome,
    rejection::DialectRejection,
};
use crate::{
    api::v1::InvokeResponse,
    daemon::{
        dialect::{Dialect, DialectInvocation, DialectResponse, DialectTool, ResponseData},
        error::{Error, Reason},
        task,
        tool::daemon_lost_error,
    },
};

/// What a request id was used for that made a call by name.
pub(crate) const INVOKE_METHOD: &str = "jig.v1.InvokeService/Invoke";
/// A call whose time is up has failed by its caller's deadline where that is no further away.
const DEADLINE_SLACK: Duration = Duration::from_millis(200);

/// A call by name.
#[derive(Debug)]
pub(crate) struct Invocation {
    /// Id that its caller gave it; may be empty.
    pub(crate) id: String,
    /// The vocabulary, where it is not that of the contract.
    pub(crate) dialect: Option<&'static Dialect>,
    /// Name of the tool.
    pub(crate) tool: String,
    /// Its parameters, if they could be read.
    pub(crate) params: Result<Map<String, Value>, Error>,
    /// Whether its result is wanted as the object that the document of the dialect has.
    pub(crate) with_result_json: bool,
}

/// What does it.
#[derive(Clone, Copy)]
pub(super) enum ResolvedTool {
    /// A tool of the contract.
    Contract(&'static dyn DynTool),
    /// A tool of a dialect.
    Dialect(&'static Dialect, &'static DialectTool),
}

/// A call by name, and what does it.
struct ResolvedInvocation {
    params: Result<Map<String, Value>, Error>,
    tool: Result<ResolvedTool, Error>,
    dialect: Option<&'static Dialect>,
    /// What it was called as.
    invocation: DialectInvocation,
    started: SystemTime,
}

/// What came of a call.
struct InvocationOutcome {
    context: CallContext,
    result: Result<DialectResponse, Error>,
    dialect: Option<&'static Dialect>,
    invocation: DialectInvocation,
    started: SystemTime,
    /// Its command, if it ran one.
    exit_info: CommandExitInfo,
}

impl Pipeline {
    /// Makes a call by name. `call` is what makes it one that can be repeated. What is about the call, and not
    /// about the tool, is an error.
    pub(crate) async fn invoke(
        self: &Arc<Self>,
        context: CallContext,
        invocation: Invocation,
        call: Option<IdempotentCall>,
    ) -> Result<InvokeResponse, Error> {
        let started = SystemTime::now();
        let Invocation { id, dialect, tool, params, with_result_json } = invocation;
        let spoken_in = dialect;
        let result_of = dialect.filter(|_| with_result_json);
        let own = self.dialect_of_tool(dialect, &tool);
        let dialect = self.answering_dialect(dialect, &tool);
        let facts = context.facts.clone();
        facts.update(|facts| {
            facts.dialect = dialect.map(|dialect| dialect.name);
            facts.called_name = Some(tool.clone());
            facts.model_call_id = Some(id.clone()).filter(|id| !id.is_empty());
        });
        // A workspace that there is not is no matter of the tool.
        let said = self.dialect_invocation(&context, &tool, params.as_ref().ok())?;
        let resolved_tool = self.resolve_tool(&context.principal, own, &tool);
        let changes = resolved_tool.as_ref().is_ok_and(|doing| doing.is_mutating(self));
        let spoken = match (&resolved_tool, &params) {
            (Ok(ResolvedTool::Dialect(dialect, tool)), Ok(params)) => {
                Some(self.dialect_call(&context, dialect, tool, params)?)
            }
            (Ok(_) | Err(_), _) => None,
        };
        let context = CallContext {
            invoke_origin: Some(Arc::new(InvokeOrigin {
                model_call_id: id.clone(),
                dialect_call: spoken,
                dialect: spoken_in,
            })),
            ..context
        };
        let resolved =
            ResolvedInvocation { params, tool: resolved_tool, dialect, invocation: said, started };
        let response = match call.filter(|_| changes) {
            Some(call) => self.invoke_once(context, resolved, call).await,
            None => {
                let stop = CancellationToken::new();
                let deadline = context.deadline;
                let performed = self.run_invocation(context, resolved, None, &stop).await;
                self.finish_invocation(performed, deadline)
            }
        };
        let response = response?;
        let failed = response.error.as_ref().map(|error| error.error_type.clone());
        facts.update(|facts| {
            let outcome = failed.or_else(|| facts.outcome.take());
            facts.outcome = outcome.or_else(|| Some("success".to_owned()));
        });
        let response = InvokeResponse { request_id: id, ..response };
        Ok(match result_of {
            Some(dialect) => result_json::with_result_json(dialect, response)?,
            None => response,
        })
    }

    /// As [`Self::invoke`], for all who have its request id.
    async fn invoke_once(
        self: &Arc<Self>,
        context: CallContext,
        resolved: ResolvedInvocation,
        call: IdempotentCall,
    ) -> Result<InvokeResponse, Error> {
        let canonical = match &resolved.tool {
            Ok(ResolvedTool::Contract(tool)) => Some(*tool),
            Ok(ResolvedTool::Dialect(..)) | Err(_) => None,
        };
        let (dialect, said, started) =
            (resolved.dialect, resolved.invocation.clone(), resolved.started);
        let claim = self.claim_call_with_payload(call, OnCrash::Report, resolved);
        let (ticket, errand) = match claim.await? {
            PayloadClaimOutcome::Acquired(ticket, errand) => (ticket, errand),
            PayloadClaimOutcome::Completed { reply: answer, .. } => return decode(&answer),
            PayloadClaimOutcome::Lost(step) => {
                let lost = match canonical {
                    Some(tool) => tool.daemon_lost_output(self, step),
                    None => Err(daemon_lost_error(INVOKE_METHOD)),
                };
                let (result, ran) = match lost {
                    Ok(JsonToolOutput { fields: data, exit_info: ran }) => {
                        (Ok(self.dialect_answer(dialect, &said.tool, data)), ran)
                    }
                    Err(error) => (Err(error), CommandExitInfo::default()),
                };
                let performed = InvocationOutcome {
                    context,
                    exit_info: ran,
                    result,
                    dialect,
                    invocation: said,
                    started,
                };
                return performed.into_envelope(None).1;
            }
        };
        // Each caller's deadline ends its own wait, and not the work.
        let context = CallContext { deadline: None, ..context };
        let caller = ticket.waiter();
        let pipeline = Arc::clone(self);
        task::spawn_tracked("request", async move {
            let stop = CancellationToken::new();
            let performed = {
                let mut work = pin!(pipeline.run_invocation(context, errand, Some(&ticket), &stop));
                tokio::select! {
                    performed = &mut work => performed,
                    () = ticket.abandoned() => {
                        stop.cancel();
                        work.await
                    }
                }
            };
            let is_kept = is_final(&performed.result);
            let answer = pipeline.finish_invocation(performed, None);
            ticket.complete(encode(&answer), is_kept).await;
        });
        match caller.wait().await {
            Some(answer) => decode(&answer),
            None => Err(Error::internal("work with a request id was not answered")),
        }
    }

    async fn run_invocation(
        self: &Arc<Self>,
        context: CallContext,
        resolved: ResolvedInvocation,
        claim: Option<&Claim>,
        stop: &CancellationToken,
    ) -> InvocationOutcome {
        let ResolvedInvocation { params, tool: doing, dialect, invocation: said, started } =
            resolved;
        let begun = Instant::now();
        let refusal = dialect.map(|dialect| {
            let none = Map::new();
            let given = dialect.redact_params(&said.tool, params.as_ref().unwrap_or(&none));
            (dialect, context.clone(), given)
        });
        let mut tools = InvocationTools::new(self, context, claim, stop);
        let result = match (doing, params) {
            (Err(error), _) | (_, Err(error)) => Err(error),
            (Ok(ResolvedTool::Contract(tool)), Ok(mut params)) => {
                self.drop_unknown_params(dialect, &said.tool, &mut params);
                let data = tools.call_tool(tool, &said.tool, params).await;
                data.map(|data| self.dialect_answer(dialect, &said.tool, data))
            }
            (Ok(ResolvedTool::Dialect(dialect, tool)), Ok(params)) => {
                match dialect.read_params(tool, params) {
                    Ok(params) => tool.call(params, &mut tools).await,
                    Err(error) => Err(error),
                }
            }
        };
        if let (Some((dialect, incoming, given)), Err(error)) = (refusal, &result)
            && !tools.has_started()
            && !is_call_level_error(error, incoming.deadline)
        {
            let refusal = DialectRejection {
                dialect,
                tool: &said.tool,
                record_params: given,
                duration: begun.elapsed(),
                error,
            };
            self.record_dialect_rejection(&incoming, refusal).await;
        }
        let (incoming, ran) = tools.into_parts();
        InvocationOutcome {
            context: incoming,
            result,
            dialect,
            invocation: said,
            started,
            exit_info: ran,
        }
    }

    /// The answer, which those get who watch the session, too.
    fn finish_invocation(
        &self,
        performed: InvocationOutcome,
        deadline: Option<Instant>,
    ) -> Result<InvokeResponse, Error> {
        let dialect = performed.dialect;
        let (incoming, response) = performed.into_envelope(deadline);
        let response = response?;
        self.publish_result(&incoming, dialect, &response);
        Ok(response)
    }

    /// What a tool of the contract has answered, or one of the configuration as the dialect has it.
    fn dialect_answer(
        &self,
        dialect: Option<&Dialect>,
        tool: &str,
        data: Map<String, Value>,
    ) -> DialectResponse {
        match dialect {
            Some(dialect) => dialect.render_custom_tool(ResponseData::new(data)),
            None => self.contract_answer(tool, data),
        }
    }

    /// What a tool of the contract has answered, and what models are shown of it.
    pub(super) fn contract_answer(&self, tool: &str, data: Map<String, Value>) -> DialectResponse {
        DialectResponse {
            model_data: Some(self.catalog.model_view(tool, &data)),
            ..DialectResponse::data(data.into())
        }
    }
}

impl ResolvedTool {
    /// Whether it would do something a second time.
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
            Self::Contract(_) => f.write_str("Canonical"),
            Self::Dialect(dialect, tool) => write!(f, "{}/{}", dialect.name, tool.name),
        }
    }
}

impl InvocationOutcome {
    /// The call, and its answer; an error where that is about the call, and not about the tool.
    fn into_envelope(
        self,
        deadline: Option<Instant>,
    ) -> (CallContext, Result<InvokeResponse, Error>) {
        let Self { context: incoming, result, invocation: said, dialect, exit_info: ran, started } =
            self;
        let call = CallTiming { tool: &said.tool, started, ended: SystemTime::now() };
        let response = match result {
            Err(error) if is_call_level_error(&error, deadline) => Err(error),
            result => Ok(envelope::build(&call, dialect, &said, result, &ran)),
        };
        (incoming, response)
    }
}

/// Whether an error is about the call, and not about the tool.
pub(super) fn is_call_level_error(error: &Error, deadline: Option<Instant>) -> bool {
    let is_late = deadline.is_some_and(|deadline| deadline < Instant::now() + DEADLINE_SLACK);
    matches!(
        error.reason,
        Reason::Unauthenticated
            | Reason::Forbidden
            | Reason::UnknownWorkspace
            | Reason::RequestIdReused
            | Reason::ResourceExhausted
            | Reason::StateLost
            | Reason::Draining
    ) || error.reason == Reason::Timeout && is_late
}
