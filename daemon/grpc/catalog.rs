//! `jig.v1.CatalogService`: tool definitions for models.

use std::sync::Arc;

use tonic::{Request, Response, Status};

use super::handle;
use crate::{
    api::v1::{
        ListToolsRequest, ListToolsResponse, ToolFormat, catalog_service_server::CatalogService,
    },
    daemon::{
        catalog::render::RenderFormat,
        error::Error,
        pipeline::{Pipeline, request_fields::parse_dialect},
    },
};

#[derive(Debug)]
pub(crate) struct CatalogServiceHandler(pub(crate) Arc<Pipeline>);

#[tonic::async_trait]
impl CatalogService for CatalogServiceHandler {
    async fn list_tools(
        &self,
        request: Request<ListToolsRequest>,
    ) -> Result<Response<ListToolsResponse>, Status> {
        handle(request, async |context, request| {
            let checked = self.0.catalog.validate("jig.v1.ListToolsRequest", request, false)?;
            let (request, mut violations) = (checked.request, checked.violations);
            let dialect = parse_dialect(&request.dialect, &mut violations);
            if !violations.is_empty() {
                return Err(Error::invalid(violations));
            }

            let tools = self.0.definitions(&context, dialect, &request.names)?;
            Ok(ListToolsResponse {
                tools_json: render_format(request.format()).render(&tools).to_string(),
                names: tools.into_iter().map(|tool| tool.name).collect(),
            })
        })
        .await
    }
}

/// Converts the format that a request names.
pub(super) fn render_format(format: ToolFormat) -> RenderFormat {
    match format {
        ToolFormat::Unspecified | ToolFormat::JsonSchema => RenderFormat::JsonSchema,
        ToolFormat::OpenaiChat => RenderFormat::OpenaiChat,
        ToolFormat::OpenaiResponses => RenderFormat::OpenaiResponses,
        ToolFormat::Anthropic => RenderFormat::Anthropic,
        ToolFormat::Gemini => RenderFormat::Gemini,
        ToolFormat::Mcp => RenderFormat::Mcp,
        ToolFormat::Function => RenderFormat::Function,
    }
}
