//! The client: one method for each RPC.

use std::{future::Future, io::Write};

use tonic::{Request, Response, Status, transport::Channel};

use super::{
    address::DaemonAddress,
    artifact_parts::{ArtifactParts, CopyError},
    connect::{self, CallMetadata, ConnectError, Options},
    deadline::CallDeadline,
    error::CallError,
    health::{self, HealthCheckRequest, ServingStatus},
    methods::methods,
};
use crate::api::v1::{
    ApplyPatchRequest, ApplyPatchResponse, AwaitJobRequest, AwaitJobResponse,
    CreateDirectoryRequest, CreateDirectoryResponse, DeletePathRequest, DeletePathResponse,
    EditFileRequest, EditFileResponse, EditNotebookRequest, EditNotebookResponse, GetInfoRequest,
    GetInfoResponse, LastCommandRequest, LastCommandResponse, ListDirectoryRequest,
    ListDirectoryResponse, ListFilesRequest, ListFilesResponse, MovePathRequest, MovePathResponse,
    ReadArtifactRequest, ReadFileRequest, ReadFileResponse, ReadNotebookRequest,
    ReadNotebookResponse, RunRequest, RunResponse, SearchRequest, SearchResponse, StatPathRequest,
    StatPathResponse, WriteFileRequest, WriteFileResponse,
    approval_service_client::ApprovalServiceClient, artifact_service_client::ArtifactServiceClient,
    catalog_service_client::CatalogServiceClient, daemon_service_client::DaemonServiceClient,
    invoke_service_client::InvokeServiceClient, job_service_client::JobServiceClient,
    process_service_client::ProcessServiceClient, tool_service_client::ToolServiceClient,
    transfer_service_client::TransferServiceClient,
};

/// Largest answer that is accepted: two streams of 10 MiB, the most that a request can ask for
/// inline, of which each byte may have become a U+FFFD of three bytes, and 4 MiB for all the rest.
const MAX_RESPONSE_BYTES: usize = (2 * 10 * 3 + 4) << 20;

/// A connection to a daemon. Clones share it, and all of them can call at the same time. Dropping
/// the future of a call cancels the call.
#[derive(Debug, Clone)]
pub struct Client {
    channel: Channel,
    context: CallMetadata,
}

impl Client {
    /// Connects to the daemon at `127.0.0.1:50051`, `http://host:port`, `unix:/path` or
    /// `unix:///path`.
    ///
    /// # Errors
    ///
    /// When the address or an option is not valid, or nobody answers there.
    pub async fn connect(address: &str, options: Options) -> Result<Self, ConnectError> {
        let address: DaemonAddress = address.parse()?;
        let context = CallMetadata::try_from(options)?;
        let channel = connect::connect(&address, context.deadline).await?;
        Ok(Self { channel, context })
    }

    /// The same connection, for calls that are not the one that its request id is for.
    #[must_use]
    pub fn without_request_id(&self) -> Self {
        Self { channel: self.channel.clone(), context: self.context.without_request_id() }
    }

    /// Reads an artifact, part by part.
    ///
    /// # Errors
    ///
    /// When the call failed.
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

    /// Writes an artifact, or a part of it, somewhere. Returns how many bytes were written.
    /// `writer` may block the thread.
    ///
    /// # Errors
    ///
    /// When the call or the writer failed; what came before was written.
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

    /// Asks the daemon what it is and what it is doing.
    ///
    /// # Errors
    ///
    /// When the call failed.
    pub async fn get_info(&self) -> Result<GetInfoResponse, CallError> {
        let mut daemon = DaemonServiceClient::new(self.channel.clone())
            .max_decoding_message_size(MAX_RESPONSE_BYTES);
        self.unary(GetInfoRequest {}, |request| async move { daemon.get_info(request).await }).await
    }

    /// Asks whether the daemon (`""`), or one of its services (`jig.v1.ToolService`), answers
    /// calls.
    ///
    /// # Errors
    ///
    /// When the call failed; NOT_FOUND when there is no such service.
    pub async fn check_health(
        &self,
        service: impl Into<String>,
    ) -> Result<ServingStatus, CallError> {
        let request = HealthCheckRequest { service: service.into() };
        let channel = self.channel.clone();
        self.unary(request, |request| health::check(channel, request)).await
    }

    pub(super) async fn unary<Message, Answer, Sent>(
        &self,
        message: Message,
        send: impl FnOnce(Request<Message>) -> Sent,
    ) -> Result<Answer, CallError>
    where
        Sent: Future<Output = Result<Response<Answer>, Status>>,
    {
        let deadline = CallDeadline::after(self.context.deadline);
        let answer = deadline.enforce(send(self.with_context(message))).await?;
        Ok(answer.into_inner())
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

    pub(super) fn artifacts(&self) -> ArtifactServiceClient<Channel> {
        ArtifactServiceClient::new(self.channel.clone())
    }

    pub(super) fn transfers(&self) -> TransferServiceClient<Channel> {
        TransferServiceClient::new(self.channel.clone())
    }

    pub(super) fn channel(&self) -> Channel {
        self.channel.clone()
    }

    /// When a call that begins now must be over.
    pub(super) fn deadline(&self) -> CallDeadline {
        CallDeadline::after(self.context.deadline)
    }

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
    /// Runs one command and waits until it and all that it started have ended. A command that ran
    /// is no error, whatever it did.
    run(RunRequest) -> RunResponse;
    /// Tells what the last command of the session was, and what became of it.
    last_command(LastCommandRequest) -> LastCommandResponse;
    /// Waits until a job has ended, and returns its result as models are shown it.
    await_job(AwaitJobRequest) -> AwaitJobResponse;
    /// Reads a file, whole or by lines.
    read_file(ReadFileRequest) -> ReadFileResponse;
    /// Lists one page of the files below a directory.
    list_files(ListFilesRequest) -> ListFilesResponse;
    /// Lists one page of the entries of a directory.
    list_directory(ListDirectoryRequest) -> ListDirectoryResponse;
    /// Tells what is at a path.
    stat_path(StatPathRequest) -> StatPathResponse;
    /// Writes a file of up to 10 MiB; for larger ones there is [`Client::send_file`].
    write_file(WriteFileRequest) -> WriteFileResponse;
    /// Replaces strings in a file: all of them, or none.
    edit_file(EditFileRequest) -> EditFileResponse;
    /// Applies a unified diff: all of its files, or none.
    apply_patch(ApplyPatchRequest) -> ApplyPatchResponse;
    /// Searches files.
    search(SearchRequest) -> SearchResponse;
    /// Creates a directory, with those above it.
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
