//! `jig.v1.TransferService`: uploads and downloads files of any size, and directories, in bounded
//! memory.

mod chunk;
mod deletion;
mod download;
mod download_tree;
mod plan;
mod sessions;
mod upload;
mod upload_tree;

use std::{
    sync::{Arc, Weak},
    time::UNIX_EPOCH,
};

use tonic::{Request, Response, Status, Streaming};

use self::sessions::UploadSessions;
use super::{handle, handle_stream, response_stream::WorkspaceStream};
use crate::{
    api::v1::{
        DownloadRequest, DownloadResponse, DownloadTreeRequest, DownloadTreeResponse,
        GetUploadRequest, GetUploadResponse, UploadRequest, UploadResponse, UploadTreeRequest,
        UploadTreeResponse, transfer_service_server::TransferService,
    },
    daemon::{
        error::{Error, Reason},
        pipeline::{Pipeline, admission::FailFastLimiter, context::CallContext},
        store::uploads::UploadRecord,
        task,
        tool::{Tool as _, write_file::WriteFile},
    },
};

/// Concurrent transfers. With the headroom for others, one caller has at most 32. They take long,
/// so they need no permit of calls.
const MAX_CONCURRENT_TRANSFERS: usize = 42;

#[derive(Debug)]
pub(crate) struct TransferServiceHandler {
    pipeline: Arc<Pipeline>,
    limiter: Arc<FailFastLimiter>,
    upload_sessions: Arc<UploadSessions>,
}

impl TransferServiceHandler {
    /// Loads the upload sessions that earlier daemons left and that have not expired.
    ///
    /// Must be called inside the runtime. Blocks for a moment.
    pub(crate) fn new(pipeline: Arc<Pipeline>) -> Self {
        let records = pipeline.state_dir.uploads();
        let upload_sessions = Arc::new(UploadSessions::load(records, Arc::downgrade(&pipeline)));
        let records: Weak<UploadSessions> = Arc::downgrade(&upload_sessions);
        pipeline.upload_sessions.set(records).ok();
        let draining = pipeline.shutdown.draining_token();
        task::spawn("expiry of uploads", Arc::clone(&upload_sessions).run_sweeper(draining));

        Self {
            limiter: Arc::new(FailFastLimiter::new(MAX_CONCURRENT_TRANSFERS, "transfers")),
            upload_sessions,
            pipeline,
        }
    }

    /// Finds an upload session. Returns its record and the offset to resume from.
    async fn find_upload(
        &self,
        context: CallContext,
        request: GetUploadRequest,
    ) -> Result<(UploadRecord, u64), Error> {
        let catalog = &self.pipeline.catalog;
        let request = catalog.check("jig.v1.GetUploadRequest", request)?;
        let workspace = Arc::clone(&self.pipeline.resolve_workspace(&context)?.workspace);
        context.principal.require_tool(WriteFile::NAME)?;

        let (sessions, id) = (Arc::clone(&self.upload_sessions), request.upload_id.clone());
        let found = task::spawn_blocking(move || sessions.find(workspace.name(), &id));
        found.await.map_err(Error::internal)?.ok_or_else(|| {
            let id = request.upload_id;
            let text = format!("there is no upload {id:?} to resume: start from the first byte");
            Error::new(Reason::UploadNotFound, text).with_metadata("upload_id", id)
        })
    }
}

#[tonic::async_trait]
impl TransferService for TransferServiceHandler {
    type DownloadStream = WorkspaceStream<DownloadResponse>;
    type DownloadTreeStream = WorkspaceStream<DownloadTreeResponse>;

    async fn upload(
        &self,
        request: Request<Streaming<UploadRequest>>,
    ) -> Result<Response<UploadResponse>, Status> {
        handle(request, |context, parts| {
            upload::upload(&self.pipeline, &self.limiter, &self.upload_sessions, context, parts)
        })
        .await
    }

    async fn get_upload(
        &self,
        request: Request<GetUploadRequest>,
    ) -> Result<Response<GetUploadResponse>, Status> {
        handle(request, async |context, request| {
            let (record, offset) = self.find_upload(context, request).await?;
            Ok(GetUploadResponse {
                expire_time: Some((UNIX_EPOCH + sessions::expires_at(&record)).into()),
                path: record.path,
                size_bytes: record.size,
                sha256: record.sha256,
                offset,
                complete: record.complete.is_some(),
            })
        })
        .await
    }

    async fn download(
        &self,
        request: Request<DownloadRequest>,
    ) -> Result<Response<Self::DownloadStream>, Status> {
        handle_stream(request, |context, request| {
            download::download(&self.pipeline, &self.limiter, context, request)
        })
        .await
    }

    async fn upload_tree(
        &self,
        request: Request<Streaming<UploadTreeRequest>>,
    ) -> Result<Response<UploadTreeResponse>, Status> {
        handle(request, |context, parts| {
            upload_tree::upload_tree(&self.pipeline, &self.limiter, context, parts)
        })
        .await
    }

    async fn download_tree(
        &self,
        request: Request<DownloadTreeRequest>,
    ) -> Result<Response<Self::DownloadTreeStream>, Status> {
        handle_stream(request, |context, request| {
            download_tree::download_tree(&self.pipeline, &self.limiter, context, request)
        })
        .await
    }
}
