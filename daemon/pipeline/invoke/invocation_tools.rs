//! The canonical tools as one `Invoke` call uses them.

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
    dialect::{CanonicalCall, CanonicalTools, ResponseData},
    error::Error,
    task::BoxFuture,
};

/// The tools, bound to one call.
pub(in crate::daemon::pipeline) struct InvocationTools<'a> {
    pipeline: &'a Arc<Pipeline>,
    context: CallContext,
    /// The claim of the request id, if there is one.
    claim: Option<&'a Claim>,
    /// Cancelled when all clients have disconnected.
    stop: &'a CancellationToken,
    /// Exit information of the last command.
    exit_info: CommandExitInfo,
    /// Whether a call has started, and so has left records.
    has_started: bool,
}

impl<'a> InvocationTools<'a> {
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

    /// Whether a call has started, and so has left records.
    pub(super) fn has_started(&self) -> bool {
        self.has_started
    }

    /// Returns the context of the call, and the exit information of the last command.
    pub(in crate::daemon::pipeline) fn into_parts(self) -> (CallContext, CommandExitInfo) {
        (self.context, self.exit_info)
    }

    /// Calls one tool.
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
        let cost = bytes.saturating_mul(tool.cost_per_byte());
        let pipeline = Arc::clone(self.pipeline);
        let validate =
            move |context: &CallContext| tool.validate(&pipeline, context.clone(), &params);
        let validated =
            self.pipeline.validate_maybe_offloaded(&self.context, (bytes, cost), validate).await?;

        let mut running = tokio::select! {
            running = validated.start(self.pipeline, self.claim) => running?,
            () = self.stop.cancelled() => return Err(abandoned_error(name)),
        };

        self.has_started = true;
        if let Some(observer) = &self.context.observer {
            observer.report_step(running.step);
        }
        if let Some(claim) = self.claim
            && let Err(error) = claim.checkpoint().record_step(running.step).await
        {
            // If the daemon dies now, a repeated call does not learn the step.
            tracing::warn!(%error, "cannot store the step of a request");
        }

        let result = tokio::select! {
            result = &mut running.output => result,
            () = self.stop.cancelled() => {
                running.abandon_token.cancel();
                running.output.await
            }
        };

        let JsonToolOutput { fields, exit_info } = result?;
        self.exit_info = exit_info;
        Ok(fields)
    }
}

impl CanonicalTools for InvocationTools<'_> {
    fn call(&mut self, mut call: CanonicalCall) -> BoxFuture<'_, Result<ResponseData, Error>> {
        Box::pin(async move {
            let tool = dyn_tool::find(call.tool, self.pipeline, &self.context.principal)?;
            self.context.timeout = call.timeout;
            self.context.max_artifact_bytes = call.artifact_bytes;
            self.context.in_default_shell = call.in_default_shell;
            let params = std::mem::take(&mut call.params);
            let result = self.call_tool(tool, call.tool, params).await;
            result.map(ResponseData::new).map_err(|error| call.translate_error(error))
        })
    }

    fn submit(&mut self, call: CanonicalCall) -> BoxFuture<'_, Result<String, Error>> {
        Box::pin(async move {
            let job = self.pipeline.submit_call_as_job(&self.context, call).await?;
            self.has_started = true;
            Ok(job)
        })
    }
}
