//! [`Client`]: a connection to the daemon, with one method per RPC.

use std::{future::Future, io::Write};

use tonic::{Request, Response, Status, metadata::MetadataMap, transport::Channel};
use tower::{ServiceExt as _, util::BoxCloneSyncService};

use super::{
    address::DaemonAddress,
    artifact_parts::{ArtifactParts, CopyError},
    connect::{self, CallMetadata, ConnectError, Options},
    deadline::CallDeadline,
    error::CallError,
    health::{self, HealthCheckRequest, ServingStatus},
    methods::methods,
};
use crate::{
    api::v1::{
        ApplyPatchRequest, ApplyPatchResponse, AwaitJobRequest, AwaitJobResponse,
        CreateDirectoryRequest, CreateDirectoryResponse, DeletePathRequest, DeletePathResponse,
        EditFileRequest, EditFileResponse, EditNotebookRequest, EditNotebookResponse,
        GetInfoRequest, GetInfoResponse, LastCommandRequest, LastCommandResponse,
        ListDirectoryRequest, ListDirectoryResponse, ListFilesRequest, ListFilesResponse,
        MovePathRequest, MovePathResponse, ReadArtifactRequest, ReadFileRequest, ReadFileResponse,
        ReadNotebookRequest, ReadNotebookResponse, RunRequest, RunResponse, SearchRequest,
        SearchResponse, StatPathRequest, StatPathResponse, WriteFileRequest, WriteFileResponse,
        approval_service_client::ApprovalServiceClient,
        artifact_service_client::ArtifactServiceClient,
        catalog_service_client::CatalogServiceClient, daemon_service_client::DaemonServiceClient,
        invoke_service_client::InvokeServiceClient, job_service_client::JobServiceClient,
        process_service_client::ProcessServiceClient, tool_service_client::ToolServiceClient,
        transfer_service_client::TransferServiceClient,
        workspace_service_client::WorkspaceServiceClient,
    },
    mcp::{GrpcBackend, TransportError},
};

/// Largest response that the client accepts: two streams of 10 MiB, the maximum that a request can
/// ask for inline. Each byte may have become a U+FFFD of three bytes. The rest gets 4 MiB.
const MAX_RESPONSE_BYTES: usize = (2 * 10 * 3 + 4) << 20;

/// A connection to a daemon.
///
/// Clones share the connection and can call concurrently. Dropping the future of a call cancels the
/// call.
#[derive(Debug, Clone)]
pub struct Client {
    channel: Channel,
    context: CallMetadata,
}

impl Client {
    /// Connects to a daemon.
    ///
    /// `address` is `HOST:PORT`, `http://HOST:PORT`, `https://HOST:PORT`, `unix:/PATH` or
    /// `unix:///PATH`.
    ///
    /// # Errors
    ///
    /// Returns an error if the address or an option is invalid, or if no daemon answers there.
    pub async fn connect(address: &str, options: Options) -> Result<Self, ConnectError> {
        let address: DaemonAddress = address.parse()?;
        let tls = options.tls.clone();
        let context = CallMetadata::try_from(options)?;
        let channel = connect::connect(&address, &tls, context.deadline).await?;
        Ok(Self { channel, context })
    }

    /// Returns a client on the same connection whose calls carry no request id.
    #[must_use]
    pub fn without_request_id(&self) -> Self {
        Self { channel: self.channel.clone(), context: self.context.without_request_id() }
    }

    /// Returns the daemon's services with the context of this client, for an MCP server.
    #[must_use]
    pub fn grpc_backend(&self) -> GrpcBackend {
        let mut metadata = MetadataMap::new();
        for (key, value) in self.context.metadata.iter() {
            metadata.insert(key.clone(), value.clone());
        }
        let transport = BoxCloneSyncService::new(self.channel.clone().map_err(TransportError::new));
        GrpcBackend::new(transport, metadata, self.context.deadline)
    }

    /// Reads an artifact as a stream of parts.
    ///
    /// # Errors
    ///
    /// Returns an error if the call fails.
    pub async fn read_artifact(
        &self,
        request: ReadArtifactRequest,
    ) -> Result<ArtifactParts, CallError> {
        let mut artifacts = self.artifacts();
        let deadline = CallDeadline::after(self.context.deadline);
        let next_offset = request.offset;
        let parts = deadline
            .enforce(artifacts.read_artifact(self.with_context(request)))
            .await?
            .into_inner();
        Ok(ArtifactParts::new(parts, deadline, next_offset))
    }

    /// Copies an artifact, or a range of it, to `writer`. Returns the number of bytes written.
    ///
    /// `writer` may block the thread.
    ///
    /// # Errors
    ///
    /// Returns an error if the call or the writer fails. Earlier parts have been written by then.
    pub async fn copy_artifact(
        &self,
        request: ReadArtifactRequest,
        mut writer: impl Write,
    ) -> Result<u64, CopyError> {
        let mut parts = self.read_artifact(request).await?;
        let mut written = 0;

        while let Some(part) = parts.next().await? {
            writer.write_all(&part.data).map_err(CopyError::Write)?;
            written += part.data.len() as u64;
        }

        writer.flush().map_err(CopyError::Write)?;
        Ok(written)
    }

    /// Returns the daemon's version, configuration and current load.
    ///
    /// # Errors
    ///
    /// Returns an error if the call fails.
    pub async fn get_info(&self) -> Result<GetInfoResponse, CallError> {
        let mut daemon = DaemonServiceClient::new(self.channel.clone())
            .max_decoding_message_size(MAX_RESPONSE_BYTES);
        self.unary(GetInfoRequest {}, |request| async move { daemon.get_info(request).await }).await
    }

    /// Checks the health of the daemon (`""`) or of one service (`jig.v1.ToolService`).
    ///
    /// # Errors
    ///
    /// Returns an error if the call fails; the code is NOT_FOUND if there is no such service.
    pub async fn check_health(
        &self,
        service: impl Into<String>,
    ) -> Result<ServingStatus, CallError> {
        let request = HealthCheckRequest { service: service.into() };
        let channel = self.channel.clone();
        self.unary(request, |request| health::check(channel, request)).await
    }

    pub(super) async fn unary<Message, Reply, Sending>(
        &self,
        message: Message,
        send: impl FnOnce(Request<Message>) -> Sending,
    ) -> Result<Reply, CallError>
    where
        Sending: Future<Output = Result<Response<Reply>, Status>>,
    {
        let deadline = CallDeadline::after(self.context.deadline);
        let response = deadline.enforce(send(self.with_context(message))).await?;
        Ok(response.into_inner())
    }

    fn tools(&self) -> ToolServiceClient<Channel> {
        ToolServiceClient::new(self.channel.clone()).max_decoding_message_size(MAX_RESPONSE_BYTES)
    }

    pub(super) fn processes(&self) -> ProcessServiceClient<Channel> {
        ProcessServiceClient::new(self.channel.clone())
            .max_decoding_message_size(MAX_RESPONSE_BYTES)
    }

    pub(super) fn catalog(&self) -> CatalogServiceClient<Channel> {
        CatalogServiceClient::new(self.channel.clone())
            .max_decoding_message_size(MAX_RESPONSE_BYTES)
    }

    pub(super) fn invocations(&self) -> InvokeServiceClient<Channel> {
        InvokeServiceClient::new(self.channel.clone()).max_decoding_message_size(MAX_RESPONSE_BYTES)
    }

    pub(super) fn jobs(&self) -> JobServiceClient<Channel> {
        JobServiceClient::new(self.channel.clone()).max_decoding_message_size(MAX_RESPONSE_BYTES)
    }

    pub(super) fn approvals(&self) -> ApprovalServiceClient<Channel> {
        ApprovalServiceClient::new(self.channel.clone())
            .max_decoding_message_size(MAX_RESPONSE_BYTES)
    }

    pub(super) fn workspaces(&self) -> WorkspaceServiceClient<Channel> {
        WorkspaceServiceClient::new(self.channel.clone())
    }

    pub(super) fn artifacts(&self) -> ArtifactServiceClient<Channel> {
        ArtifactServiceClient::new(self.channel.clone())
    }

    pub(super) fn transfers(&self) -> TransferServiceClient<Channel> {
        TransferServiceClient::new(self.channel.clone())
    }

    pub(super) fn channel(&self) -> Channel {
        self.channel.clone()
    }

    /// Returns the deadline of a call that starts now.
    pub(super) fn deadline(&self) -> CallDeadline {
        CallDeadline::after(self.context.deadline)
    }

    /// Wraps a message in a request with the client's metadata and deadline.
    pub(super) fn with_context<M>(&self, message: M) -> Request<M> {
        let mut request = Request::new(message);

        for (key, value) in self.context.metadata.iter() {
            request.metadata_mut().insert(key.clone(), value.clone());
        }
        if let Some(deadline) = self.context.deadline {
            request.set_timeout(deadline);
        }

        request
    }
}

methods! { tools {
    /// Runs one command and waits until it and all its child processes have ended.
    ///
    /// A command that ran is a normal response, whatever its exit code.
    run(RunRequest) -> RunResponse;
    /// Returns the last command of the session and its result.
    last_command(LastCommandRequest) -> LastCommandResponse;
    /// Waits until a job has ended. Returns its result in the form that models get.
    await_job(AwaitJobRequest) -> AwaitJobResponse;
    /// Reads a file, or a range of its lines.
    read_file(ReadFileRequest) -> ReadFileResponse;
    /// Lists one page of the files below a directory.
    list_files(ListFilesRequest) -> ListFilesResponse;
    /// Lists one page of the entries of a directory.
    list_directory(ListDirectoryRequest) -> ListDirectoryResponse;
    /// Returns type, size and other metadata of a path.
    stat_path(StatPathRequest) -> StatPathResponse;
    /// Writes a file of up to 10 MiB. For larger files, use [`Client::send_file`].
    write_file(WriteFileRequest) -> WriteFileResponse;
    /// Replaces strings in a file. Atomic: makes all replacements or none.
    edit_file(EditFileRequest) -> EditFileResponse;
    /// Applies a unified diff. Atomic: changes all of its files or none.
    apply_patch(ApplyPatchRequest) -> ApplyPatchResponse;
    /// Searches file contents.
    search(SearchRequest) -> SearchResponse;
    /// Creates a directory and its missing parents.
    create_directory(CreateDirectoryRequest) -> CreateDirectoryResponse;
    /// Moves or renames a file or directory.
    move_path(MovePathRequest) -> MovePathResponse;
    /// Deletes a file or directory.
    delete_path(DeletePathRequest) -> DeletePathResponse;
    /// Reads the cells of a notebook.
    read_notebook(ReadNotebookRequest) -> ReadNotebookResponse;
    /// Replaces, inserts or deletes one cell of a notebook.
    edit_notebook(EditNotebookRequest) -> EditNotebookResponse;
} }
