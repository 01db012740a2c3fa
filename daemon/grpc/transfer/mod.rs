//! `jig.v1.TransferService`: files of any size, into the workspace and out of it, in memory that
//! does not depend on their size.

mod download;
mod plan;
mod sessions;
mod upload;

use std::{sync::Arc, time::UNIX_EPOCH};

use tonic::{Request, Response, Status, Streaming};

use self::sessions::UploadSessions;
use super::{handle, response_stream::ResponseStream};
use crate::{
    api::v1::{
        DownloadRequest, DownloadResponse, GetUploadRequest, GetUploadResponse, UploadRequest,
        UploadResponse, transfer_service_server::TransferService,
    },
    daemon::{
        error::{Error, Reason},
        pipeline::{Pipeline, admission::FailFastLimiter, context::CallContext},
        store::uploads::UploadRecord,
        task,
        tool::{Tool as _, write_file::WriteFile},
    },
};

/// Transfers that go on at one time, 32 of one caller. They last long, so they do not take the places of
/// calls.
const MAX_CONCURRENT_TRANSFERS: usize = 42;

/// The service.
#[derive(Debug)]
pub(crate) struct TransferServiceHandler {
    pipeline: Arc<Pipeline>,
    limiter: Arc<FailFastLimiter>,
    upload_sessions: Arc<UploadSessions>,
}

impl TransferServiceHandler {
    /// The service, with the uploads that another daemon left, as far as they are young enough. To be
    /// called in the runtime; blocks for a moment.
    pub(crate) fn new(pipeline: Arc<Pipeline>) -> Self {
        let scenes = pipeline.workspaces.iter();
        let workspaces = scenes.map(|scene| Arc::clone(&scene.workspace)).collect();
        let kept = Arc::new(UploadSessions::load(pipeline.state_dir.uploads(), workspaces));
        let end = pipeline.shutdown.draining_token();
        task::spawn("expiry of uploads", Arc::clone(&kept).run_sweeper(end));
        Self {
            limiter: Arc::new(FailFastLimiter::new(
                MAX_CONCURRENT_TRANSFERS,
                "transfers go on, and no more are taken at a time: retry after the time given",
            )),
            upload_sessions: kept,
            pipeline,
        }
    }

    /// What is kept of an upload, and where it is to go on.
    async fn find_upload(
        &self,
        incoming: CallContext,
        request: GetUploadRequest,
    ) -> Result<(UploadRecord, u64), Error> {
        let catalog = &self.pipeline.catalog;
        let request = catalog.check("jig.v1.GetUploadRequest", request)?;
        let workspace = Arc::clone(&self.pipeline.workspace_context(&incoming)?.workspace);
        incoming.principal.require_tool(WriteFile::NAME)?;
        let (kept, id) = (Arc::clone(&self.upload_sessions), request.upload_id.clone());
        let found = task::spawn_blocking(move || kept.find(workspace.name(), &id));
        found.await.map_err(Error::internal)?.ok_or_else(|| {
            let id = request.upload_id;
            let text = format!("nothing is kept of an upload {id:?}: start it from the first byte");
            Error::new(Reason::UploadNotFound, text).with_metadata("upload_id", id)
        })
    }
}

#[tonic::async_trait]
impl TransferService for TransferServiceHandler {
    type DownloadStream = ResponseStream<DownloadResponse>;

    async fn upload(
        &self,
        request: Request<Streaming<UploadRequest>>,
    ) -> Result<Response<UploadResponse>, Status> {
        handle(request, |incoming, parts| {
            upload::upload(&self.pipeline, &self.limiter, &self.upload_sessions, incoming, parts)
        })
        .await
    }

    async fn get_upload(
        &self,
        request: Request<GetUploadRequest>,
    ) -> Result<Response<GetUploadResponse>, Status> {
        handle(request, async |incoming, request| {
            let (record, offset) = self.find_upload(incoming, request).await?;
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
        handle(request, |incoming, request| {
            download::download(&self.pipeline, &self.limiter, incoming, request)
        })
        .await
    }
}
