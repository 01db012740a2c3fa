//! Resources: the artifacts of the session, which are the complete outputs of its commands.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use rmcp::{
    ErrorData, RoleServer,
    model::{
        CacheScope, ListResourcesResult, PaginatedRequestParams, ReadResourceResult, Resource,
        ResourceContents,
    },
    service::RequestContext,
};
use serde_json::json;
use tonic::Status;

use super::{call_error::to_protocol_error, server::McpServer};
use crate::api::v1::{ArtifactInfo, ListArtifactsRequest, ReadArtifactRequest};

/// Prefix of the URIs of artifacts. The rest is the path of the artifact.
const URI_PREFIX: &str = "jig-artifact:///";
/// Largest artifact that can be read as a resource. A response of MCP is one message.
const MAX_RESOURCE_BYTES: u64 = 4 << 20;

impl McpServer {
    /// Lists one page of the artifacts of the session.
    pub(super) async fn list_artifacts(
        &self,
        request: Option<PaginatedRequestParams>,
        context: &RequestContext<RoleServer>,
    ) -> Result<ListResourcesResult, ErrorData> {
        let page_token = request.and_then(|request| request.cursor);
        let listed = async {
            let message = ListArtifactsRequest { page_token, ..ListArtifactsRequest::default() };
            let request = self.backend().request(context, message)?;
            self.backend().artifacts().list_artifacts(request).await
        };
        let listed = listed.await.map_err(|status| to_protocol_error(&status))?.into_inner();

        let resources = listed.artifacts.into_iter().map(to_resource).collect();
        let mut result = ListResourcesResult::with_all_items(resources)
            // Every command adds artifacts.
            .with_ttl_ms(0)
            .with_cache_scope(CacheScope::Private);
        result.next_cursor = Some(listed.next_page_token).filter(|token| !token.is_empty());
        Ok(result)
    }

    /// Reads an artifact: as text, or in base64 if it is not UTF-8.
    pub(super) async fn read_artifact(
        &self,
        uri: &str,
        context: &RequestContext<RoleServer>,
    ) -> Result<ReadResourceResult, ErrorData> {
        let Some(path) = uri.strip_prefix(URI_PREFIX).filter(|path| !path.is_empty()) else {
            let text = format!("{uri:?} is no resource of this server: resources/list lists them");
            return Err(not_found(text, uri));
        };
        let content = self.artifact_content(path, context).await.map_err(|status| {
            if status.code() == tonic::Code::NotFound {
                return not_found(status.message().to_owned(), uri);
            }
            to_protocol_error(&status)
        })?;

        let contents = match String::from_utf8(content) {
            Ok(text) => ResourceContents::text(text, uri).with_mime_type(mime_type(path)),
            Err(error) => ResourceContents::blob(STANDARD.encode(error.as_bytes()), uri)
                .with_mime_type("application/octet-stream"),
        };
        // The output of a running command grows.
        Ok(ReadResourceResult::new(vec![contents])
            .with_ttl_ms(0)
            .with_cache_scope(CacheScope::Private))
    }

    async fn artifact_content(
        &self,
        path: &str,
        context: &RequestContext<RoleServer>,
    ) -> Result<Vec<u8>, Status> {
        let message = ReadArtifactRequest { path: path.to_owned(), ..Default::default() };
        let request = self.backend().request(context, message)?;
        let mut parts = self.backend().artifacts().read_artifact(request).await?.into_inner();

        let mut content = Vec::new();
        while let Some(part) = parts.message().await? {
            if part.size_bytes > MAX_RESOURCE_BYTES {
                return Err(Status::invalid_argument(format!(
                    "the artifact has {} bytes, and a resource is limited to {MAX_RESOURCE_BYTES}: read lines of it with a tool that reads files, at the path {path}",
                    part.size_bytes
                )));
            }
            content.extend_from_slice(&part.data);
        }
        Ok(content)
    }
}

fn not_found(message: String, uri: &str) -> ErrorData {
    ErrorData::resource_not_found(message, Some(json!({ "uri": uri })))
}

fn to_resource(artifact: ArtifactInfo) -> Resource {
    let ArtifactInfo { path, size_bytes, step, .. } = artifact;
    let name = path.rsplit('/').next().unwrap_or_default().to_owned();
    Resource::new(format!("{URI_PREFIX}{path}"), name)
        .with_description(format!("Artifact of step {step} of the session"))
        .with_mime_type(mime_type(&path))
        .with_size(size_bytes)
}

fn mime_type(path: &str) -> &'static str {
    let is_patch = path.ends_with(".diff") || path.ends_with(".patch");
    if is_patch { "text/x-diff" } else { "text/plain" }
}
