//! The tools of the contract, for one call by name.

use std::sync::Arc;

use serde_json::{Map, Value};
use tokio_util::sync::CancellationToken;

use super::super::{
    Pipeline,
    context::CallContext,
    dyn_tool::{self, DynTool, JsonToolOutput},
    envelope::{CommandExitInfo, encoded_size_of_fields},
    idempotency::Claim,
    once::abandoned_error,
};
use crate::daemon::{
    dialect::{CanonicalCall, CanonicalTools, DialectFuture, ResponseData},
    error::Error,
};

/// The tools, as they are called.
pub(in crate::daemon::pipeline) struct InvocationTools<'a> {
    pipeline: &'a Arc<Pipeline>,
    context: CallContext,
    /// Who waits for the work, where it has a request id.
    claim: Option<&'a Claim>,
    /// Tells the work to end: nobody waits for it any more.
    stop: &'a CancellationToken,
    /// What the last command has left.
    exit_info: CommandExitInfo,
    /// Whether a call has begun, and has records therefore.
    has_started: bool,
}

impl<'a> InvocationTools<'a> {
    /// For one call.
    pub(in crate::daemon::pipeline) fn new(
        pipeline: &'a Arc<Pipeline>,
        context: CallContext,
        claim: Option<&'a Claim>,
        stop: &'a CancellationToken,
    ) -> Self {
        Self {
            pipeline,
            context,
            claim,
            stop,
            exit_info: CommandExitInfo::default(),
            has_started: false,
        }
    }

    /// Whether a call has begun, and has records therefore.
    pub(super) fn has_started(&self) -> bool {
        self.has_started
    }

    /// The call that they were for, and what the last command has left.
    pub(in crate::daemon::pipeline) fn into_parts(self) -> (CallContext, CommandExitInfo) {
        (self.context, self.exit_info)
    }

    /// Calls one of them.
    pub(super) async fn call_tool(
        &mut self,
        tool: &'static dyn DynTool,
        name: &str,
        params: Map<String, Value>,
    ) -> Result<Map<String, Value>, Error> {
        if self.stop.is_cancelled() {
            return Err(abandoned_error(name));
        }
        let bytes = encoded_size_of_fields(&params);
        let checked = {
            let pipeline = Arc::clone(self.pipeline);
            let check =
                move |context: &CallContext| tool.validate(&pipeline, context.clone(), &params);
            let sizes = (bytes, bytes.saturating_mul(tool.cost_per_byte()));
            self.pipeline.validate_maybe_offloaded(&self.context, sizes, check).await?
        };
        let mut going = tokio::select! {
            going = checked.start(self.pipeline, self.claim) => going?,
            () = self.stop.cancelled() => return Err(abandoned_error(name)),
        };
        self.has_started = true;
        if let Some(ticket) = self.claim
            && let Err(error) = ticket.checkpoint().record_step(going.step).await
        {
            // Should the daemon die now, it is not known where to look.
            tracing::warn!(%error, "the step of a request could not be kept");
        }
        let result = tokio::select! {
            result = &mut going.output => result,
            () = self.stop.cancelled() => {
                going.abandon_token.cancel();
                going.output.await
            }
        };
        let JsonToolOutput { fields: data, exit_info: ran } = result?;
        self.exit_info = ran;
        Ok(data)
    }
}

impl CanonicalTools for InvocationTools<'_> {
    fn call(&mut self, mut call: CanonicalCall) -> DialectFuture<'_, Result<ResponseData, Error>> {
        Box::pin(async move {
            let tool = dyn_tool::find(call.tool, self.pipeline, &self.context.principal)?;
            self.context.timeout = call.timeout;
            self.context.max_artifact_bytes = call.artifact_bytes;
            self.context.in_default_shell = call.in_default_shell;
            let params = std::mem::take(&mut call.params);
            let called = self.call_tool(tool, call.tool, params).await;
            called.map(ResponseData::new).map_err(|error| call.translate_error(error))
        })
    }

    fn submit(&mut self, call: CanonicalCall) -> DialectFuture<'_, Result<String, Error>> {
        Box::pin(async move {
            let job = self.pipeline.submit_call_as_job(&self.context, call).await?;
            self.has_started = true;
            Ok(job)
        })
    }
}
