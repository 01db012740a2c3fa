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
    answered, cut_page,
    outlet::{Answer, Answers, LastWord, outlet},
};
use crate::{
    api::v1::{
        ArtifactInfo, ListArtifactsRequest, ListArtifactsResponse, ReadArtifactRequest,
        ReadArtifactResponse, artifact_service_server::ArtifactService,
    },
    daemon::{
        call::{
            self, Pipeline, access::principal::Principal, admission::Places, context::Incoming,
        },
        error::{Error, Reason},
        queue::Place,
        store::{
            session::{Artifact, Kept, Session, SessionId, Step},
            sessions::Sessions,
        },
        task,
        tool::{
            Tool as _,
            apply_patch::ApplyPatch,
            page_token::{Filters, read_token, write_token},
            run::Run,
        },
    },
};

/// Bytes in one message.
const CHUNK_BYTES: u64 = 64 * 1024;
/// Messages that are read ahead of a slow client.
const CHUNKS_AHEAD: usize = 4;

/// Artifacts that are read at one time, 255 of one caller: each costs a descriptor and the messages ahead.
const READERS: usize = 272;
/// How long a client may read nothing, as of a download.
const SILENCE: Duration = Duration::from_secs(60);

/// The service.
#[derive(Debug)]
pub(crate) struct Artifacts {
    pipeline: Arc<Pipeline>,
    places: Places,
}

/// An artifact that is being sent.
struct Sending {
    /// None of one that nothing was written to.
    file: Option<Arc<File>>,
    offset: u64,
    left: u64,
    sender: Sender<Answer<ReadArtifactResponse>>,
    last: LastWord<ReadArtifactResponse>,
    /// How long the client may read nothing.
    silence: Duration,
    deadline: Option<Instant>,
    end: CancellationToken,
    place: Arc<Place>,
}

#[tonic::async_trait]
impl ArtifactService for Artifacts {
    type ReadArtifactStream = Answers<ReadArtifactResponse>;

    async fn read_artifact(
        &self,
        request: Request<ReadArtifactRequest>,
    ) -> Result<Response<Self::ReadArtifactStream>, Status> {
        answered(request, |incoming, request| self.read(incoming, request)).await
    }

    async fn list_artifacts(
        &self,
        request: Request<ListArtifactsRequest>,
    ) -> Result<Response<ListArtifactsResponse>, Status> {
        answered(request, |incoming, request| self.list(incoming, request)).await
    }
}

impl Artifacts {
    /// The service.
    pub(crate) fn new(pipeline: Arc<Pipeline>) -> Self {
        let what = "artifacts are read, and no more are at a time: retry after the time given";
        Self { pipeline, places: Places::new(READERS, what) }
    }

    async fn read(
        &self,
        incoming: Incoming,
        request: ReadArtifactRequest,
    ) -> Result<Answers<ReadArtifactResponse>, Error> {
        let pipeline = &self.pipeline;
        let request = pipeline.catalog.check("jig.v1.ReadArtifactRequest", request)?;
        self.may_leave(&incoming.principal, &request.path)?;
        let place = self.places.enter(&incoming.principal, &pipeline.drain)?;
        let place = Arc::new(place);
        let (path, principal) = (request.path.clone(), Arc::clone(&incoming.principal));
        let open = move |sessions: &Sessions, workspace: &str, id: &SessionId| {
            let Some(session) = sessions.existing(workspace, id)? else {
                return Ok(Artifact::Missing);
            };
            // Of tools that the key is not for, not even that they were called.
            match Step::of_artifact(&path) {
                Some(step) if may_see(&principal, &session, step)? => session.artifact(&path),
                Some(_) | None => Ok(Artifact::Missing),
            }
        };
        let file = match pipeline.look(&incoming, &place, open).await? {
            Artifact::File(file) => Some(Arc::new(file)),
            Artifact::Empty => None,
            Artifact::Missing => return Err(missing(&request.path)),
        };
        let (sender, last, answers) = outlet(CHUNKS_AHEAD, &incoming.call_id);
        let sending = Sending {
            file,
            offset: request.offset,
            left: request.limit.unwrap_or(u64::MAX),
            sender,
            last,
            silence: SILENCE,
            deadline: incoming.deadline,
            end: pipeline.drain.end_token(),
            place,
        };
        task::spawn_tracked("artifact", sending.send());
        Ok(answers)
    }

    async fn list(
        &self,
        incoming: Incoming,
        request: ListArtifactsRequest,
    ) -> Result<ListArtifactsResponse, Error> {
        let pipeline = &self.pipeline;
        let request = pipeline.catalog.check("jig.v1.ListArtifactsRequest", request)?;
        let workspace = pipeline.scene(&incoming)?.workspace.name();
        let step = request.step.map(|step| step.to_string());
        let filters = [
            "artifacts",
            workspace,
            incoming.session.as_str(),
            step.as_deref().unwrap_or_default(),
        ];
        let filters = Filters::new(&filters, &[]);
        let after = request.page_token.filter(|token| !token.is_empty());
        let after = after.map(|token| read_token(&token, &filters)).transpose()?;
        let page_size = request.page_size.unwrap_or_default() as usize;
        let admitted = Arc::new(pipeline.enter(&incoming).await?);
        let step = request.step;
        // One more than are told, to know whether there is another page.
        let principal = Arc::clone(&incoming.principal);
        let list = move |sessions: &Sessions, workspace: &str, id: &SessionId| {
            let Some(session) = sessions.existing(workspace, id)? else {
                return Ok((Vec::new(), None));
            };
            let mut found = session.artifacts(after.as_deref(), step, page_size + 1)?;
            let last = cut_page(&mut found, page_size).map(|kept| kept.path.clone());
            let mut seen = Vec::with_capacity(found.len());
            for kept in found {
                if may_see(&principal, &session, kept.step)? {
                    seen.push(kept);
                }
            }
            Ok((seen, last))
        };
        let (seen, last) = pipeline.look(&incoming, &admitted, list).await?;
        Ok(ListArtifactsResponse {
            next_page_token: last.map_or_else(String::new, |path| write_token(&filters, &path)),
            artifacts: seen.into_iter().map(info).collect(),
        })
    }

    /// Refuses who may call none of the tools that leave artifacts at such paths.
    fn may_leave(&self, principal: &Principal, path: &str) -> Result<(), Error> {
        if path.starts_with("diffs/") {
            return principal.may_call(ApplyPatch::NAME);
        }
        let mut customs = self.pipeline.catalog.customs();
        match customs.any(|tool| principal.may_call(tool.name()).is_ok()) {
            true => Ok(()),
            false => principal.may_call(Run::NAME),
        }
    }
}

/// Whether the step is a call of a tool that the key is for.
fn may_see(principal: &Principal, session: &Session, step: Step) -> io::Result<bool> {
    if principal.tools().is_none() {
        return Ok(true);
    }
    let tool = session.tool_of(step)?;
    Ok(tool.is_some_and(|tool| principal.may_call(&tool).is_ok()))
}

fn info(kept: Kept) -> ArtifactInfo {
    ArtifactInfo {
        path: kept.path,
        size_bytes: kept.size,
        modify_time: Some(kept.modified.into()),
        step: kept.step.number(),
    }
}

impl Sending {
    /// Reads the file and sends it, until it is sent, the client is gone or silent, its deadline has
    /// passed, or the daemon has drained long enough.
    async fn send(mut self) {
        let mut is_first = true;
        let error = loop {
            let message = match self.next().await {
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
                () = task::until(self.deadline) => break call::timed_out("ReadArtifact"),
                () = self.end.cancelled() => {
                    let text = "the daemon is shutting down: read the rest when it is back";
                    break Error::new(Reason::Draining, text);
                }
                sent = self.sender.send(Ok(message)) => {
                    if sent.is_err() || is_empty || self.left == 0 {
                        return;
                    }
                }
                () = sleep(self.silence) => break silent(self.silence),
            }
        };
        self.last.say(&error);
    }

    async fn next(&mut self) -> io::Result<ReadArtifactResponse> {
        let offset = self.offset;
        let Some(file) = self.file.clone() else {
            return Ok(ReadArtifactResponse { offset, ..ReadArtifactResponse::default() });
        };
        let length = usize::try_from(self.left.min(CHUNK_BYTES)).unwrap_or(0);
        let place = Arc::clone(&self.place);
        let read = task::blocking(move || {
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
        self.left -= data.len() as u64;
        self.offset += data.len() as u64;
        Ok(ReadArtifactResponse { data: data.into(), offset, size_bytes })
    }
}

fn silent(silence: Duration) -> Error {
    let text =
        format!("nothing was read for {} seconds: read the rest when you can", silence.as_secs());
    Error::new(Reason::Timeout, text).retry_after(Duration::ZERO)
}

fn missing(path: &str) -> Error {
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
    Error::new(reason, text).with("path", path)
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use tokio_stream::StreamExt as _;
    use tonic::Code;

    use super::*;
    use crate::daemon::queue::{Entry, Queue, Share};

    #[tokio::test]
    async fn whoever_reads_nothing_for_a_while_gives_the_place_back_and_learns_that_there_was_more()
    {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&[0; 10 << 16]).unwrap();
        let queue = Queue::new(1, Share::Alone(1), 0);
        let place = match queue.enter(&"w".into(), 1) {
            Ok(Entry::Place(place)) => Arc::new(place),
            other => panic!("{other:?}"),
        };
        let (sender, last, answers) = outlet(CHUNKS_AHEAD, "call");
        let sending = Sending {
            file: Some(Arc::new(file)),
            offset: 0,
            left: u64::MAX,
            sender,
            last,
            silence: Duration::ZERO,
            deadline: None,
            end: CancellationToken::new(),
            place,
        };
        sending.send().await;
        assert_eq!(queue.held(), 0);
        let answers: Vec<_> = answers.collect().await;
        let (last, before) = answers.split_last().unwrap();
        assert_eq!(before.len(), CHUNKS_AHEAD);
        assert!(before.iter().all(Result::is_ok));
        assert_eq!(last.as_ref().unwrap_err().code(), Code::DeadlineExceeded);
    }
}
