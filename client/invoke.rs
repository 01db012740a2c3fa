//! RPCs of `InvokeService` and `CatalogService`: calls of tools by name, and the list of tools.

use tonic::Streaming;

use super::{call::Client, deadline::CallDeadline, error::CallError, methods::methods};
use crate::api::v1::{
    InvokeBatchRequest, InvokeBatchResponse, InvokeRequest, InvokeResponse, InvokeStreamRequest,
    InvokeStreamResponse, ListToolsRequest, ListToolsResponse, invoke_stream_response::Event,
};

/// Stream of the progress of a call, and its result.
///
/// Dropping it cancels the call.
#[derive(Debug)]
pub struct InvokeEvents {
    messages: Streaming<InvokeStreamResponse>,
    deadline: CallDeadline,
}

methods! { catalog {
    /// Lists the tools that the caller may use, in the format of a model vendor.
    list_tools(ListToolsRequest) -> ListToolsResponse;
} }

methods! { invocations {
    /// Calls a tool by its name. A failure of the tool is part of the response, not an error.
    invoke(InvokeRequest) -> InvokeResponse;
    /// Calls several tools concurrently, as jobs.
    invoke_batch(InvokeBatchRequest) -> InvokeBatchResponse;
} }

impl Client {
    /// Calls a tool by its name, as [`Client::invoke`] does, and streams its progress.
    ///
    /// # Errors
    ///
    /// Returns an error if the call fails.
    pub async fn invoke_stream(
        &self,
        request: InvokeStreamRequest,
    ) -> Result<InvokeEvents, CallError> {
        let deadline = self.deadline();
        let mut invocations = self.invocations();
        let sending = invocations.invoke_stream(self.with_context(request));
        let messages = deadline.enforce(sending).await?.into_inner();
        Ok(InvokeEvents { messages, deadline })
    }
}

impl InvokeEvents {
    /// Waits for the next event. The last one is the result; then returns `None`.
    ///
    /// # Errors
    ///
    /// Returns an error if the call fails.
    pub async fn next(&mut self) -> Result<Option<Event>, CallError> {
        loop {
            match self.deadline.enforce(self.messages.message()).await? {
                None => return Ok(None),
                Some(InvokeStreamResponse { event: Some(event) }) => return Ok(Some(event)),
                // A newer daemon may send an event that this client does not know.
                Some(InvokeStreamResponse { event: None }) => {}
            }
        }
    }
}
