//! `jig.v1.CatalogService`: the tools, as models are told of them.

use std::sync::Arc;

use tonic::{Request, Response, Status};

use super::{answered, dialect_of};
use crate::{
    api::v1::{
        ListToolsRequest, ListToolsResponse, ToolFormat, catalog_service_server::CatalogService,
    },
    daemon::{call::Pipeline, catalog::render::Format, error::Error},
};

/// The service.
#[derive(Debug)]
pub(crate) struct Tools(pub(crate) Arc<Pipeline>);

#[tonic::async_trait]
impl CatalogService for Tools {
    async fn list_tools(
        &self,
        request: Request<ListToolsRequest>,
    ) -> Result<Response<ListToolsResponse>, Status> {
        answered(request, async |incoming, request| {
            let checked = self.0.catalog.look_at("jig.v1.ListToolsRequest", request, false)?;
            let (request, mut violations) = (checked.request, checked.violations);
            let dialect = dialect_of(&request.dialect, &mut violations);
            if !violations.is_empty() {
                return Err(Error::invalid(violations));
            }
            let tools = self.0.definitions(&incoming, dialect, &request.names)?;
            Ok(ListToolsResponse {
                tools_json: format_of(request.format()).render(&tools).to_string(),
                names: tools.into_iter().map(|tool| tool.name).collect(),
            })
        })
        .await
    }
}

/// What a request calls it.
pub(super) fn format_of(format: ToolFormat) -> Format {
    match format {
        ToolFormat::Unspecified | ToolFormat::JsonSchema => Format::JsonSchema,
        ToolFormat::OpenaiChat => Format::OpenaiChat,
        ToolFormat::OpenaiResponses => Format::OpenaiResponses,
        ToolFormat::Anthropic => Format::Anthropic,
        ToolFormat::Gemini => Format::Gemini,
        ToolFormat::Mcp => Format::Mcp,
        ToolFormat::Function => Format::Function,
    }
}
