//! The interface of a tool without its request and response types: JSON in, JSON out. `TypedTool`
//! implements it for the canonical tools, `CustomTool` for configured ones.

use std::sync::Arc;

use serde_json::{Map, Value};
use tokio_util::sync::CancellationToken;

use super::super::{
    AdmittedCall, Pipeline, access::principal::Principal, admission::AdmissionRequest,
    context::CallContext, envelope::CommandExitInfo, idempotency::Claim,
};
use crate::daemon::{error::Error, task::BoxFuture, tool::CallApproval};

/// Cost of validating a byte of JSON, in bytes of a message: it is parsed, then converted into one.
pub(super) const JSON_COST_PER_BYTE: usize = 4;

/// A canonical tool, or one of the configuration.
pub(in super::super) trait DynTool: Send + Sync {
    /// Requires that `principal` may call the tool, by its own name or by its name in a dialect.
    fn require_access(
        &self,
        pipeline: &Pipeline,
        principal: &Principal,
        dialect_tool: Option<&str>,
    ) -> Result<(), Error>;

    /// Returns the cost of validating a byte of its parameters, in bytes of plain text.
    fn cost_per_byte(&self) -> usize;

    /// Validates a call, without doing anything. May take long for large parameters.
    fn validate(
        &self,
        pipeline: &Pipeline,
        context: CallContext,
        params: &Map<String, Value>,
    ) -> Result<Box<dyn DynValidatedCall>, Error>;

    /// Whether repeating a call could change something a second time.
    fn is_mutating(&self, pipeline: &Pipeline) -> bool;

    /// Returns the result of a repeated call if the daemon died during the first one, at `step`.
    fn daemon_lost_output(
        &self,
        pipeline: &Pipeline,
        step: Option<u64>,
    ) -> Result<JsonToolOutput, Error>;
}

/// A type-erased [`ValidatedCall`](crate::daemon::pipeline::ValidatedCall).
pub(in super::super) trait DynValidatedCall: Send {
    /// Authorizes the call. Waits for a decision where approval is needed.
    fn authorize(
        self: Box<Self>,
        pipeline: &Arc<Pipeline>,
    ) -> BoxFuture<'_, Result<Box<dyn DynAuthorizedCall>, Error>>;

    /// Authorizes, admits and starts the call. All callers that hold the request id of `claim` wait
    /// for it.
    fn start<'a>(
        self: Box<Self>,
        pipeline: &'a Arc<Pipeline>,
        claim: Option<&'a Claim>,
    ) -> BoxFuture<'a, Result<RunningCall, Error>>;
}

/// A type-erased [`AuthorizedCall`](crate::daemon::pipeline::AuthorizedCall).
pub(in super::super) trait DynAuthorizedCall: Send {
    /// Returns the approval, if a person approved the call.
    fn approval(&self) -> Option<CallApproval>;

    /// Whether the call would be authorized now.
    fn still_authorized(&self, pipeline: &Arc<Pipeline>)
    -> BoxFuture<'static, Result<bool, Error>>;

    /// Returns what the call asks of admission, without a deadline.
    fn admission_request<'a>(&'a self, principal: &'a Principal) -> AdmissionRequest<'a>;

    /// Reauthorizes the call, records its start, and starts it.
    fn start(
        self: Box<Self>,
        pipeline: &Arc<Pipeline>,
        admitted: AdmittedCall,
    ) -> BoxFuture<'_, Result<RunningCall, Error>>;
}

pub(in super::super) struct RunningCall {
    /// The step of its session.
    pub(in super::super) step: u64,
    /// Cancels the tool at once.
    pub(in super::super) abandon_token: CancellationToken,
    /// The output. Dropping this future cancels the tool.
    pub(in super::super) output: BoxFuture<'static, Result<JsonToolOutput, Error>>,
}

/// The output of a tool as JSON.
pub(in super::super) struct JsonToolOutput {
    /// The fields of the response.
    pub(in super::super) fields: Map<String, Value>,
    /// The exit information of a command, otherwise empty.
    pub(in super::super) exit_info: CommandExitInfo,
}
