//! `jig.v1.ArtifactService`: streaming what calls have left behind.

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
    handle,
    response_stream::{ResponseStream, StreamItem, StreamTerminator, response_channel},
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

/// Bytes in one message.
const CHUNK_BYTES: u64 = 64 * 1024;
/// Messages that are read ahead of a slow client.
const STREAM_BUFFER_CHUNKS: usize = 4;

/// Artifacts that are read at one time, 255 of one caller: each costs a descriptor and the messages ahead.
const MAX_CONCURRENT_READS: usize = 272;
/// How long a client may read nothing, as of a download.
const CLIENT_READ_TIMEOUT: Duration = Duration::from_secs(60);

/// The service.
#[derive(Debug)]
pub(crate) struct ArtifactServiceHandler {
    pipeline: Arc<Pipeline>,
    limiter: FailFastLimiter,
}

/// An artifact that is being sent.
struct ArtifactStream {
    /// None of one that nothing was written to.
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
    type ReadArtifactStream = ResponseStream<ReadArtifactResponse>;

    async fn read_artifact(
        &self,
        request: Request<ReadArtifactRequest>,
    ) -> Result<Response<Self::ReadArtifactStream>, Status> {
        handle(request, |incoming, request| self.open_stream(incoming, request)).await
    }

    async fn list_artifacts(
        &self,
        request: Request<ListArtifactsRequest>,
    ) -> Result<Response<ListArtifactsResponse>, Status> {
        handle(request, |incoming, request| self.list_page(incoming, request)).await
    }
}

impl ArtifactServiceHandler {
    /// The service.
    pub(crate) fn new(pipeline: Arc<Pipeline>) -> Self {
        let what = "artifacts are read, and no more are at a time: retry after the time given";
        Self { pipeline, limiter: FailFastLimiter::new(MAX_CONCURRENT_READS, what) }
    }

    async fn open_stream(
        &self,
        incoming: CallContext,
        request: ReadArtifactRequest,
    ) -> Result<ResponseStream<ReadArtifactResponse>, Error> {
        let pipeline = &self.pipeline;
        let request = pipeline.catalog.check("jig.v1.ReadArtifactRequest", request)?;
        self.authorize_path(&incoming.principal, &request.path)?;
        let place = self.limiter.try_acquire(&incoming.principal, &pipeline.shutdown)?;
        let place = Arc::new(place);
        let (path, principal) = (request.path.clone(), Arc::clone(&incoming.principal));
        let open = move |sessions: &SessionStore, workspace: &str, id: &SessionId| {
            let Some(session) = sessions.open_existing(workspace, id)? else {
                return Ok(OpenedArtifact::Missing);
            };
            // Of tools that the key is not for, not even that they were called.
            match StepId::from_artifact_path(&path) {
                Some(step) if can_see_step(&principal, &session, step)? => {
                    session.open_artifact(&path)
                }
                Some(_) | None => Ok(OpenedArtifact::Missing),
            }
        };
        let file = match pipeline.query_session(&incoming, &place, open).await? {
            OpenedArtifact::File(file) => Some(Arc::new(file)),
            OpenedArtifact::Empty => None,
            OpenedArtifact::Missing => return Err(not_found_error(&request.path)),
        };
        let (sender, last, answers) = response_channel(STREAM_BUFFER_CHUNKS, &incoming.call_id);
        let sending = ArtifactStream {
            file,
            offset: request.offset,
            remaining_bytes: request.limit.unwrap_or(u64::MAX),
            sender,
            terminator: last,
            read_timeout: CLIENT_READ_TIMEOUT,
            deadline: incoming.deadline,
            shutdown: pipeline.shutdown.terminate_token(),
            permit: place,
        };
        task::spawn_tracked("artifact", sending.run());
        Ok(answers)
    }

    async fn list_page(
        &self,
        incoming: CallContext,
        request: ListArtifactsRequest,
    ) -> Result<ListArtifactsResponse, Error> {
        let pipeline = &self.pipeline;
        let request = pipeline.catalog.check("jig.v1.ListArtifactsRequest", request)?;
        let workspace = pipeline.workspace_context(&incoming)?.workspace.name();
        let step = request.step.map(|step| step.to_string());
        let filters = [
            "artifacts",
            workspace,
            incoming.session.as_str(),
            step.as_deref().unwrap_or_default(),
        ];
        let filters = PageFilterHash::new(&filters, &[]);
        let after = request.page_token.filter(|token| !token.is_empty());
        let after = after.map(|token| decode_page_token(&token, &filters)).transpose()?;
        let page_size = request.page_size.unwrap_or_default() as usize;
        let admitted = Arc::new(pipeline.admit_rpc(&incoming).await?);
        let step = request.step;
        // One more than are told, to know whether there is another page.
        let principal = Arc::clone(&incoming.principal);
        let list = move |sessions: &SessionStore, workspace: &str, id: &SessionId| {
            let Some(session) = sessions.open_existing(workspace, id)? else {
                return Ok((Vec::new(), None));
            };
            let mut found = session.list_artifacts(after.as_deref(), step, page_size + 1)?;
            let last = truncate_page(&mut found, page_size).map(|kept| kept.path.clone());
            let mut seen = Vec::with_capacity(found.len());
            for kept in found {
                if can_see_step(&principal, &session, kept.step)? {
                    seen.push(kept);
                }
            }
            Ok((seen, last))
        };
        let (seen, last) = pipeline.query_session(&incoming, &admitted, list).await?;
        Ok(ListArtifactsResponse {
            next_page_token: last
                .map_or_else(String::new, |path| encode_page_token(&filters, &path)),
            artifacts: seen.into_iter().map(wire_artifact).collect(),
        })
    }

    /// Refuses who may call none of the tools that leave artifacts at such paths.
    fn authorize_path(&self, principal: &Principal, path: &str) -> Result<(), Error> {
        if path.starts_with("diffs/") {
            return principal.require_tool(ApplyPatch::NAME);
        }
        let mut customs = self.pipeline.catalog.custom_tools();
        match customs.any(|tool| principal.require_tool(tool.name()).is_ok()) {
            true => Ok(()),
            false => principal.require_tool(RunCommand::NAME),
        }
    }
}

/// Whether the step is a call of a tool that the key is for.
fn can_see_step(principal: &Principal, session: &Session, step: StepId) -> io::Result<bool> {
    if principal.allowed_tools().is_none() {
        return Ok(true);
    }
    let tool = session.tool_of_step(step)?;
    Ok(tool.is_some_and(|tool| principal.require_tool(&tool).is_ok()))
}

fn wire_artifact(kept: ArtifactMetadata) -> ArtifactInfo {
    ArtifactInfo {
        path: kept.path,
        size_bytes: kept.size_bytes,
        modify_time: Some(kept.modified.into()),
        step: kept.step.number(),
    }
}

impl ArtifactStream {
    /// Reads the file and sends it, until it is sent, the client is gone or silent, its deadline has
    /// passed, or the daemon has drained long enough.
    async fn run(mut self) {
        let mut is_first = true;
        let error = loop {
            let message = match self.next_chunk().await {
                Ok(message) => message,
                Err(error) => break Error::internal(error),
            };
            let is_empty = message.data.is_empty();
            // An empty answer is sent only where there is nothing at all to send.
            if is_empty && !is_first {
                return;
            }
            is_first = false;
            tokio::select! {
                biased;
                () = task::sleep_until(self.deadline) => break pipeline::timeout_error("ReadArtifact"),
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
        let length = usize::try_from(self.remaining_bytes.min(CHUNK_BYTES)).unwrap_or(0);
        let place = Arc::clone(&self.permit);
        let read = task::spawn_blocking(move || {
            // Held by the thread, too, which ends when it has read.
            let _place = place;
            let mut data = vec![0; length];
            let size = file.metadata()?.len();
            let length = match offset < size {
                true => file.read_at(&mut data, offset)?,
                false => 0,
            };
            data.truncate(length);
            Ok::<_, io::Error>((data, size))
        });
        let (data, size_bytes) = read.await.map_err(io::Error::other)??;
        self.remaining_bytes -= data.len() as u64;
        self.offset += data.len() as u64;
        Ok(ReadArtifactResponse { data: data.into(), offset, size_bytes })
    }
}

fn read_timeout_error(silence: Duration) -> Error {
    let text =
        format!("nothing was read for {} seconds: read the rest when you can", silence.as_secs());
    Error::new(Reason::Timeout, text).retry_after(Duration::ZERO)
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
                "this session has no artifact {path:?}: give the path as the response of the call had it; one of an old call may not be kept any more (ListArtifacts tells what is)"
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
    async fn whoever_reads_nothing_for_a_while_gives_the_place_back_and_learns_that_there_was_more()
    {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&[0; 10 << 16]).unwrap();
        let queue = Limiter::new(1, Sharing::CapWhenContended(1), 0);
        let place = match queue.acquire(&"w".into(), 1) {
            Ok(Acquire::Granted(place)) => Arc::new(place),
            other => panic!("{other:?}"),
        };
        let (sender, last, answers) = response_channel(STREAM_BUFFER_CHUNKS, "call");
        let sending = ArtifactStream {
            file: Some(Arc::new(file)),
            offset: 0,
            remaining_bytes: u64::MAX,
            sender,
            terminator: last,
            read_timeout: Duration::ZERO,
            deadline: None,
            shutdown: CancellationToken::new(),
            permit: place,
        };
        sending.run().await;
        assert_eq!(queue.in_use(), 0);
        let answers: Vec<_> = answers.collect().await;
        let (last, before) = answers.split_last().unwrap();
        assert_eq!(before.len(), STREAM_BUFFER_CHUNKS);
        assert!(before.iter().all(Result::is_ok));
        assert_eq!(last.as_ref().unwrap_err().code(), Code::DeadlineExceeded);
    }
}
