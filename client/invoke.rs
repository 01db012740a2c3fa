//! Calls of tools by their names, in whichever vocabulary, and which tools there are.

use super::{call::Client, error::CallError, methods::methods};
use crate::api::v1::{
    InvokeBatchRequest, InvokeBatchResponse, InvokeRequest, InvokeResponse, ListToolsRequest,
    ListToolsResponse,
};

methods! { catalog {
    /// The tools that the caller may use, as a vendor of models wants them.
    list_tools(ListToolsRequest) -> ListToolsResponse;
} }

methods! { invocations {
    /// Calls a tool by its name. What came of it is in the answer, also where it failed.
    invoke(InvokeRequest) -> InvokeResponse;
    /// Calls several tools at once, as jobs.
    invoke_batch(InvokeBatchRequest) -> InvokeBatchResponse;
} }
