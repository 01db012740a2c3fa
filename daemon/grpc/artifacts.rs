//! `jig.v1.ArtifactService`: lists and streams artifacts, the files that calls have stored.

use std::{
    fs::File,
    io,
    os::unix::fs::FileExt as _,
    sync::Arc,
    time::{Duration, Instant},
};

use tokio::{sync::mpsc::Sender, time::sleep};
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status};

use super::{
    handle, handle_stream,
    response_stream::{
        CLIENT_READ_TIMEOUT, ResponseStream, StreamItem, StreamTerminator, WorkspaceStream,
        response_channel,
    },
    truncate_page,
};
use crate::{
    api::v1::{
        ArtifactInfo, ListArtifactsRequest, ListArtifactsResponse, ReadArtifactRequest,
        ReadArtifactResponse, artifact_service_server::ArtifactService,
    },
    daemon::{
        error::{Error, Reason},
        pipeline::{
            self, Pipeline, access::principal::Principal, admission::FailFastLimiter,
            context::CallContext,
        },
        queue::Permit,
        store::{
            session::{ArtifactMetadata, OpenedArtifact, Session, SessionId, StepId},
            sessions::SessionStore,
        },
        task,
        tool::{
            Tool as _,
            apply_patch::ApplyPatch,
            page_token::{PageFilterHash, decode_page_token, encode_page_token},
            run::RunCommand,
        },
    },
};

/// Bytes of data in one message.
const MAX_ARTIFACT_CHUNK_BYTES: u64 = 64 * 1024;
/// Messages buffered for a slow client.
const STREAM_BUFFER_CHUNKS: usize = 4;

/// Concurrent reads. With the headroom for others, one caller has at most 204. Each costs a
/// descriptor and the buffered messages.
const MAX_CONCURRENT_READS: usize = 272;

#[derive(Debug)]
pub(crate) struct ArtifactServiceHandler {
    pipeline: Arc<Pipeline>,
    limiter: FailFastLimiter,
}

/// An artifact that is being sent.
struct ArtifactStream {
    /// `None` for an empty artifact.
    file: Option<Arc<File>>,
    offset: u64,
    remaining_bytes: u64,
    sender: Sender<StreamItem<ReadArtifactResponse>>,
    terminator: StreamTerminator<ReadArtifactResponse>,
    /// How long the client may read nothing.
    read_timeout: Duration,
    deadline: Option<Instant>,
    shutdown: CancellationToken,
    permit: Arc<Permit>,
}

#[tonic::async_trait]
impl ArtifactService for ArtifactServiceHandler {
    type ReadArtifactStream = WorkspaceStream<ReadArtifactResponse>;

    async fn read_artifact(
        &self,
        request: Request<ReadArtifactRequest>,
    ) -> Result<Response<Self::ReadArtifactStream>, Status> {
        handle_stream(request, |context, request| self.open_stream(context, request)).await
    }

    async fn list_artifacts(
        &self,
        request: Request<ListArtifactsRequest>,
    ) -> Result<Response<ListArtifactsResponse>, Status> {
        handle(request, |context, request| self.list_page(context, request)).await
    }
}

impl ArtifactServiceHandler {
    pub(crate) fn new(pipeline: Arc<Pipeline>) -> Self {
        Self { pipeline, limiter: FailFastLimiter::new(MAX_CONCURRENT_READS, "artifact reads") }
    }

    async fn open_stream(
        &self,
        context: CallContext,
        request: ReadArtifactRequest,
    ) -> Result<ResponseStream<ReadArtifactResponse>, Error> {
        let pipeline = &self.pipeline;
        let request = pipeline.catalog.check("jig.v1.ReadArtifactRequest", request)?;
        context.note_params([("path", Some(&request.path))]);
        self.authorize_path(&context.principal, &request.path)?;
        let permit = self.limiter.try_acquire(&context.principal, &pipeline.shutdown)?;
        let permit = Arc::new(permit);

        let (path, principal) = (request.path.clone(), Arc::clone(&context.principal));
        let open = move |sessions: &SessionStore, workspace: &str, id: &SessionId| {
            let Some(session) = sessions.open_existing(workspace, id)? else {
                return Ok(OpenedArtifact::Missing);
            };
            // If the key does not permit the tool, do not reveal that it was called.
            match StepId::from_artifact_path(&path) {
                Some(step) if can_see_step(&principal, &session, step)? => {
                    session.open_artifact(&path)
                }
                Some(_) | None => Ok(OpenedArtifact::Missing),
            }
        };
        let file = match pipeline.query_session(&context, &permit, open).await? {
            OpenedArtifact::File(file) => Some(Arc::new(file)),
            OpenedArtifact::Empty => None,
            OpenedArtifact::Missing => return Err(not_found_error(&request.path)),
        };

        let (sender, terminator, responses) =
            response_channel(STREAM_BUFFER_CHUNKS, &context.call_id);
        let stream = ArtifactStream {
            file,
            offset: request.offset,
            remaining_bytes: request.limit.unwrap_or(u64::MAX),
            sender,
            terminator,
            read_timeout: CLIENT_READ_TIMEOUT,
            deadline: context.deadline,
            shutdown: pipeline.shutdown.terminate_token(),
            permit,
        };
        task::spawn_tracked("artifact", stream.run());
        Ok(responses)
    }

    async fn list_page(
        &self,
        context: CallContext,
        request: ListArtifactsRequest,
    ) -> Result<ListArtifactsResponse, Error> {
        let pipeline = &self.pipeline;
        let request = pipeline.catalog.check("jig.v1.ListArtifactsRequest", request)?;
        let workspace_context = pipeline.resolve_workspace(&context)?;
        let workspace = workspace_context.workspace.name();
        let step = request.step.map(|step| step.to_string());
        let filters =
            ["artifacts", workspace, context.session.as_str(), step.as_deref().unwrap_or_default()];
        let filters = PageFilterHash::new(&filters, &[]);
        let after = request.page_token.filter(|token| !token.is_empty());
        let after = after.map(|token| decode_page_token(&token, &filters)).transpose()?;
        let page_size = request.page_size.unwrap_or_default() as usize;

        let admission = Arc::new(pipeline.admit_rpc(&context).await?);
        let step = request.step;
        let principal = Arc::clone(&context.principal);
        let list = move |sessions: &SessionStore, workspace: &str, id: &SessionId| {
            let Some(session) = sessions.open_existing(workspace, id)? else {
                return Ok((Vec::new(), None));
            };
            // One extra entry shows whether another page follows.
            let mut artifacts = session.list_artifacts(after.as_deref(), step, page_size + 1)?;
            let last = truncate_page(&mut artifacts, page_size).map(|last| last.path.clone());
            let mut visible = Vec::with_capacity(artifacts.len());
            for artifact in artifacts {
                if can_see_step(&principal, &session, artifact.step)? {
                    visible.push(artifact);
                }
            }
            Ok((visible, last))
        };
        let (visible, last) = pipeline.query_session(&context, &admission, list).await?;
        Ok(ListArtifactsResponse {
            next_page_token: last
                .map_or_else(String::new, |path| encode_page_token(&filters, &path)),
            artifacts: visible.into_iter().map(wire_artifact).collect(),
        })
    }

    /// Rejects a caller that may call none of the tools that store artifacts at such paths.
    fn authorize_path(&self, principal: &Principal, path: &str) -> Result<(), Error> {
        if path.starts_with("diffs/") {
            return principal.require_tool(ApplyPatch::NAME);
        }
        let mut custom_tools = self.pipeline.catalog.custom_tools();
        if custom_tools.any(|tool| principal.require_tool(tool.name()).is_ok()) {
            return Ok(());
        }
        principal.require_tool(RunCommand::NAME)
    }
}

/// Whether the key permits the tool that the step has called.
fn can_see_step(principal: &Principal, session: &Session, step: StepId) -> io::Result<bool> {
    if principal.allowed_tools().is_none() {
        return Ok(true);
    }
    let tool = session.tool_of_step(step)?;
    Ok(tool.is_some_and(|tool| principal.require_tool(&tool).is_ok()))
}

fn wire_artifact(artifact: ArtifactMetadata) -> ArtifactInfo {
    ArtifactInfo {
        path: artifact.path,
        size_bytes: artifact.size_bytes,
        modify_time: Some(artifact.modified.into()),
        step: artifact.step.number(),
    }
}

impl ArtifactStream {
    /// Sends the file until its end, or until the client has disconnected.
    ///
    /// Fails if the client reads nothing for too long, at its deadline, and when the drain timeout
    /// has passed.
    async fn run(mut self) {
        let mut is_first = true;
        let error = loop {
            let message = match self.next_chunk().await {
                Ok(message) => message,
                Err(error) => break Error::internal(error),
            };
            let is_empty = message.data.is_empty();
            // An empty message is sent only if there is no data at all.
            if is_empty && !is_first {
                return;
            }
            is_first = false;

            tokio::select! {
                biased;
                () = task::sleep_until(self.deadline) => break pipeline::stream_deadline_error("ReadArtifact"),
                () = self.shutdown.cancelled() => {
                    let text = "the daemon is shutting down: read the rest when it is back";
                    break Error::new(Reason::Draining, text);
                }
                sent = self.sender.send(Ok(message)) => {
                    if sent.is_err() || is_empty || self.remaining_bytes == 0 {
                        return;
                    }
                }
                () = sleep(self.read_timeout) => break read_timeout_error(self.read_timeout),
            }
        };
        self.terminator.fail(&error);
    }

    async fn next_chunk(&mut self) -> io::Result<ReadArtifactResponse> {
        let offset = self.offset;
        let Some(file) = self.file.clone() else {
            return Ok(ReadArtifactResponse { offset, ..ReadArtifactResponse::default() });
        };
        let length =
            usize::try_from(self.remaining_bytes.min(MAX_ARTIFACT_CHUNK_BYTES)).unwrap_or(0);
        let permit = Arc::clone(&self.permit);
        let read = task::spawn_blocking(move || {
            // The thread holds the permit until it has read, even if the stream ends earlier.
            let _permit = permit;
            let mut data = vec![0; length];
            let size = file.metadata()?.len();
            let length = if offset < size { file.read_at(&mut data, offset)? } else { 0 };
            data.truncate(length);
            Ok::<_, io::Error>((data, size))
        });
        let (data, size_bytes) = read.await.map_err(io::Error::other)??;
        self.remaining_bytes -= data.len() as u64;
        self.offset += data.len() as u64;
        Ok(ReadArtifactResponse { data: data.into(), offset, size_bytes })
    }
}

fn read_timeout_error(read_timeout: Duration) -> Error {
    let seconds = read_timeout.as_secs();
    let text = format!("nothing was read for {seconds} seconds: read the rest when you can");
    Error::new(Reason::Timeout, text).with_retry_after(Duration::ZERO)
}

fn not_found_error(path: &str) -> Error {
    let leads_out = path.starts_with('/') || path.split('/').any(|part| part == "..");
    let (reason, text) = if leads_out {
        (
            Reason::PathEscape,
            format!(
                "{path:?} leads out of the session: give the path as the response of the call had it"
            ),
        )
    } else {
        (
            Reason::ArtifactNotFound,
            format!(
                "this session has no artifact {path:?}: give the path as the response of the call had it. Artifacts of old calls may have been deleted (ListArtifacts lists the stored ones)"
            ),
        )
    };
    Error::new(reason, text).with_metadata("path", path)
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use tokio_stream::StreamExt as _;
    use tonic::Code;

    use super::*;
    use crate::daemon::queue::{Acquire, Limiter, Sharing};

    #[tokio::test]
    async fn idle_client_releases_its_permit_and_gets_an_error() {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&[0; 10 << 16]).unwrap();
        let limiter = Limiter::new(1, Sharing::CapWhenContended(1), 0);
        let permit = match limiter.acquire(&"w".into(), 1) {
            Ok(Acquire::Granted(permit)) => Arc::new(permit),
            other => panic!("{other:?}"),
        };
        let (sender, terminator, responses) = response_channel(STREAM_BUFFER_CHUNKS, "call");
        let stream = ArtifactStream {
            file: Some(Arc::new(file)),
            offset: 0,
            remaining_bytes: u64::MAX,
            sender,
            terminator,
            read_timeout: Duration::ZERO,
            deadline: None,
            shutdown: CancellationToken::new(),
            permit,
        };

        stream.run().await;
        assert_eq!(limiter.in_use(), 0);
        let items: Vec<_> = responses.collect().await;
        let (last, chunks) = items.split_last().unwrap();
        assert_eq!(chunks.len(), STREAM_BUFFER_CHUNKS);
        assert!(chunks.iter().all(Result::is_ok));
        assert_eq!(last.as_ref().unwrap_err().code(), Code::DeadlineExceeded);
    }
}
