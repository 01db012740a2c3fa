//! RPCs of `InvokeService` and `CatalogService`: calls of tools by name, and the list of tools.

use super::{call::Client, error::CallError, methods::methods};
use crate::api::v1::{
    InvokeBatchRequest, InvokeBatchResponse, InvokeRequest, InvokeResponse, ListToolsRequest,
    ListToolsResponse,
};

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
