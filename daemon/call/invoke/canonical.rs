//! The tools of the contract, for one call by name.

use std::sync::Arc;

use serde_json::{Map, Value};
use tokio_util::sync::CancellationToken;

use super::super::{
    Pipeline,
    any_tool::{self, Answered, AnyTool},
    context::Incoming,
    envelope::{Ran, size_of_fields},
    idempotency::Ticket,
    repeatable::left_alone,
};
use crate::daemon::{
    dialect::{Boxed, Call, Data, Tools},
    error::Error,
};

/// The tools, as they are called.
pub(in crate::daemon::call) struct Canonical<'a> {
    pipeline: &'a Arc<Pipeline>,
    incoming: Incoming,
    /// Who waits for the work, where it has a request id.
    ticket: Option<&'a Ticket>,
    /// Tells the work to end: nobody waits for it any more.
    stop: &'a CancellationToken,
    /// What the last command has left.
    ran: Ran,
    /// Whether a call has begun, and has records therefore.
    has_begun: bool,
}

impl<'a> Canonical<'a> {
    /// For one call.
    pub(in crate::daemon::call) fn new(
        pipeline: &'a Arc<Pipeline>,
        incoming: Incoming,
        ticket: Option<&'a Ticket>,
        stop: &'a CancellationToken,
    ) -> Self {
        Self { pipeline, incoming, ticket, stop, ran: Ran::default(), has_begun: false }
    }

    /// Whether a call has begun, and has records therefore.
    pub(super) fn has_begun(&self) -> bool {
        self.has_begun
    }

    /// The call that they were for, and what the last command has left.
    pub(in crate::daemon::call) fn into_parts(self) -> (Incoming, Ran) {
        (self.incoming, self.ran)
    }

    /// Calls one of them.
    pub(super) async fn call_tool(
        &mut self,
        tool: &'static dyn AnyTool,
        name: &str,
        params: Map<String, Value>,
    ) -> Result<Map<String, Value>, Error> {
        if self.stop.is_cancelled() {
            return Err(left_alone(name));
        }
        let bytes = size_of_fields(&params);
        let checked = {
            let pipeline = Arc::clone(self.pipeline);
            let check = move |incoming: &Incoming| tool.check(&pipeline, incoming.clone(), &params);
            let sizes = (bytes, bytes.saturating_mul(tool.cost()));
            self.pipeline.look_into(&self.incoming, sizes, check).await?
        };
        let mut going = tokio::select! {
            going = checked.begin(self.pipeline, self.ticket) => going?,
            () = self.stop.cancelled() => return Err(left_alone(name)),
        };
        self.has_begun = true;
        if let Some(ticket) = self.ticket
            && let Err(error) = ticket.mark().begin(going.step).await
        {
            // Should the daemon die now, it is not known where to look.
            tracing::warn!(%error, "the step of a request could not be kept");
        }
        let result = tokio::select! {
            result = &mut going.answer => result,
            () = self.stop.cancelled() => {
                going.abandon.cancel();
                going.answer.await
            }
        };
        let Answered { data, ran } = result?;
        self.ran = ran;
        Ok(data)
    }
}

impl Tools for Canonical<'_> {
    fn call(&mut self, mut call: Call) -> Boxed<'_, Result<Data, Error>> {
        Box::pin(async move {
            let tool = any_tool::find(call.tool, self.pipeline, &self.incoming.principal)?;
            self.incoming.limit = call.limit;
            self.incoming.artifact_bytes = call.artifact_bytes;
            self.incoming.in_default_shell = call.in_default_shell;
            let params = std::mem::take(&mut call.params);
            let called = self.call_tool(tool, call.tool, params).await;
            called.map(Data::new).map_err(|error| call.told(error))
        })
    }

    fn submit(&mut self, call: Call) -> Boxed<'_, Result<String, Error>> {
        Box::pin(async move {
            let job = self.pipeline.submit_call(&self.incoming, call).await?;
            self.has_begun = true;
            Ok(job)
        })
    }
}
