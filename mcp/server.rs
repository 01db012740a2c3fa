//! [`McpServer`]: the requests of the protocol, and what they share.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use rmcp::{
    ErrorData, RoleServer, ServerHandler,
    model::{
        CacheScope, CallToolRequestParams, CallToolResponse, CancelTaskParams, CustomRequest,
        CustomResult, DiscoverResult, GetTaskParams, GetTaskResult, Implementation,
        ListResourcesResult, ListToolsResult, PaginatedRequestParams, ReadResourceRequestParams,
        ReadResourceResponse, RequestStateCodec, ServerCapabilities, ServerConfig, Tool,
        UpdateTaskParams,
    },
    service::RequestContext,
};
use tokio::{
    sync::{Semaphore, SemaphorePermit},
    time::timeout,
};

use super::{
    backend::GrpcBackend, call_error::to_protocol_error, malformed_request::malformed_request_error,
};
use crate::api::v1::{ListToolsRequest, ToolFormat};

/// Maximum number of requests that one server handles at the same time.
const MAX_CONCURRENT_REQUESTS: u32 = 256;
/// Maximum time that requests get to end after their client has gone.
const MAX_DRAIN_TIME: Duration = Duration::from_secs(5);
/// Time in which a client need not list again: keys and rules of the operator can change.
const LIST_TTL_MS: u64 = 60_000;

/// An MCP server for the tools of one vocabulary.
#[derive(Clone)]
pub struct McpServer(Arc<ServerState>);

struct ServerState {
    backend: GrpcBackend,
    /// Dialect of the tools. Empty for the names of the contract.
    dialect: String,
    /// Seals the state of calls that wait for the client's input.
    state_codec: RequestStateCodec,
    permits: Semaphore,
    /// Whether the tools that were called only read, by name.
    read_only: Mutex<BTreeMap<String, bool>>,
}

impl McpServer {
    /// Creates a server in front of `backend`. `dialect` is empty for the names of the contract.
    ///
    /// `state_key` seals the state that clients hold during an approval. Servers that share
    /// clients need the same key.
    #[must_use]
    pub fn new(backend: GrpcBackend, dialect: String, state_key: [u8; 32]) -> Self {
        Self(Arc::new(ServerState {
            backend,
            dialect,
            state_codec: RequestStateCodec::new_unchecked(state_key),
            permits: Semaphore::new(MAX_CONCURRENT_REQUESTS as usize),
            read_only: Mutex::default(),
        }))
    }

    pub(super) fn backend(&self) -> &GrpcBackend {
        &self.0.backend
    }

    pub(super) fn dialect(&self) -> &str {
        &self.0.dialect
    }

    pub(super) fn state_codec(&self) -> &RequestStateCodec {
        &self.0.state_codec
    }

    /// Waits until all requests have ended, for a limited time. No new ones may arrive.
    pub(super) async fn drain(&self) {
        let all = self.0.permits.acquire_many(MAX_CONCURRENT_REQUESTS);
        // The daemon ends the calls of a lost connection.
        let _ended = timeout(MAX_DRAIN_TIME, all).await;
    }

    /// Returns whether a tool only reads. `None` if the caller has no such tool.
    pub(super) async fn is_read_only(
        &self,
        tool: &str,
        context: &RequestContext<RoleServer>,
    ) -> Option<bool> {
        let known =
            self.0.read_only.lock().unwrap_or_else(PoisonError::into_inner).get(tool).copied();
        if known.is_some() {
            return known;
        }

        let tools = self.tools(context, vec![tool.to_owned()]).await.ok()?;
        let is_read_only = tools.first()?.annotations.as_ref()?.read_only_hint?;
        let mut read_only = self.0.read_only.lock().unwrap_or_else(PoisonError::into_inner);
        read_only.insert(tool.to_owned(), is_read_only);
        Some(is_read_only)
    }

    /// Acquires a permit to handle a request.
    fn acquire_permit(&self) -> Result<SemaphorePermit<'_>, ErrorData> {
        self.0.permits.try_acquire().map_err(|_| {
            let text = format!(
                "{MAX_CONCURRENT_REQUESTS} requests are in progress, the maximum: retry when one of them has ended"
            );
            ErrorData::internal_error(text, None)
        })
    }

    /// Lists tools that the caller may use: all, or those with `names`.
    async fn tools(
        &self,
        context: &RequestContext<RoleServer>,
        names: Vec<String>,
    ) -> Result<Vec<Tool>, tonic::Status> {
        let message = ListToolsRequest {
            dialect: self.dialect().to_owned(),
            format: Some(ToolFormat::Mcp.into()),
            names,
        };
        let request = self.backend().request(context, message)?;
        let listed = self.backend().catalog().list_tools(request).await?.into_inner();
        serde_json::from_str(&listed.tools_json)
            .map_err(|error| tonic::Status::internal(format!("the tools are no JSON: {error}")))
    }
}

impl ServerHandler for McpServer {
    fn get_info(&self) -> ServerConfig {
        let capabilities =
            ServerCapabilities::builder().enable_tools().enable_resources().enable_tasks().build();
        let implementation = Implementation::new("jig", env!("CARGO_PKG_VERSION"))
            .with_title("jig")
            .with_description("Sandboxed tools for files and commands");
        ServerConfig::new(capabilities)
            .with_server_info(implementation)
            .with_instructions(INSTRUCTIONS)
    }

    async fn discover(
        &self,
        _context: RequestContext<RoleServer>,
    ) -> Result<DiscoverResult, ErrorData> {
        let versions = self.supported_protocol_versions().into_owned();
        Ok(DiscoverResult::from_server_info(versions, self.get_info())
            .with_ttl_ms(LIST_TTL_MS)
            .with_cache_scope(CacheScope::Private))
    }

    async fn list_tools(
        &self,
        _request: Option<PaginatedRequestParams>,
        context: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        let _permit = self.acquire_permit()?;
        let tools =
            self.tools(&context, Vec::new()).await.map_err(|status| to_protocol_error(&status))?;
        // Each key sees its own tools.
        Ok(ListToolsResult::with_all_items(tools)
            .with_ttl_ms(LIST_TTL_MS)
            .with_cache_scope(CacheScope::Private))
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let _permit = self.acquire_permit()?;
        self.call(request, context).await
    }

    async fn list_resources(
        &self,
        request: Option<PaginatedRequestParams>,
        context: RequestContext<RoleServer>,
    ) -> Result<ListResourcesResult, ErrorData> {
        let _permit = self.acquire_permit()?;
        self.list_artifacts(request, &context).await
    }

    async fn read_resource(
        &self,
        request: ReadResourceRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<ReadResourceResponse, ErrorData> {
        let _permit = self.acquire_permit()?;
        self.read_artifact(&request.uri, &context).await.map(Into::into)
    }

    async fn get_task(
        &self,
        request: GetTaskParams,
        context: RequestContext<RoleServer>,
    ) -> Result<GetTaskResult, ErrorData> {
        let _permit = self.acquire_permit()?;
        self.task(request.task_id, &context).await
    }

    async fn update_task(
        &self,
        request: UpdateTaskParams,
        context: RequestContext<RoleServer>,
    ) -> Result<(), ErrorData> {
        let _permit = self.acquire_permit()?;
        self.answer_task(request, &context).await
    }

    async fn cancel_task(
        &self,
        request: CancelTaskParams,
        context: RequestContext<RoleServer>,
    ) -> Result<(), ErrorData> {
        let _permit = self.acquire_permit()?;
        self.cancel_task_of_caller(request.task_id, &context).await
    }

    async fn on_custom_request(
        &self,
        request: CustomRequest,
        _context: RequestContext<RoleServer>,
    ) -> Result<CustomResult, ErrorData> {
        Err(malformed_request_error(request))
    }
}

/// Text for models about the server.
const INSTRUCTIONS: &str = "Tools of a jig daemon. They work on files of one workspace and run \
    commands in sandboxes without access to the rest of the host. Paths are relative to the \
    workspace. A command that exits with another code than 0 is a result, not an error. Resources \
    are the complete outputs of earlier commands.";

impl std::fmt::Debug for McpServer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("McpServer").field("dialect", &self.0.dialect).finish_non_exhaustive()
    }
}
