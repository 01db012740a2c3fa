//! `jig.v1.ArtifactService`: streaming what calls have left behind.

use std::{fs::File, os::unix::fs::FileExt as _, sync::Arc, time::Instant};

use tokio::sync::mpsc::Sender;
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
        call::{self, Pipeline, context::Incoming},
        error::{Error, Reason},
        store::session::{Artifact, Kept},
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

/// The service.
#[derive(Debug)]
pub(crate) struct Artifacts(pub(crate) Arc<Pipeline>);

#[tonic::async_trait]
impl ArtifactService for Artifacts {
    type ReadArtifactStream = Answers<ReadArtifactResponse>;

    async fn read_artifact(
        &self,
        request: Request<ReadArtifactRequest>,
    ) -> Result<Response<Self::ReadArtifactStream>, Status> {
        answered(request, async |incoming, request| {
            let request = self
                .0
                .catalog
                .check("jig.v1.ReadArtifactRequest", request)?;
            incoming.principal.may_call(maker(&request.path))?;
            let Some(session) = self.0.existing_session(&incoming).await? else {
                return Err(missing(&request.path));
            };
            let path = request.path.clone();
            let artifact = task::blocking(move || session.artifact(&path))
                .await
                .map_err(Error::internal)?
                .map_err(Error::internal)?;
            let file = match artifact {
                Artifact::File(file) => Some(file),
                Artifact::Empty => None,
                Artifact::Missing => return Err(missing(&request.path)),
            };
            let (sender, last, answers) = outlet(CHUNKS_AHEAD, &incoming.call_id);
            let end = self.0.drain.end_token();
            task::spawn_tracked(
                "artifact",
                send(file, request, sender, last, incoming.deadline, end),
            );
            Ok(answers)
        })
        .await
    }

    async fn list_artifacts(
        &self,
        request: Request<ListArtifactsRequest>,
    ) -> Result<Response<ListArtifactsResponse>, Status> {
        answered(request, |incoming, request| self.list(incoming, request)).await
    }
}

impl Artifacts {
    async fn list(
        &self,
        incoming: Incoming,
        request: ListArtifactsRequest,
    ) -> Result<ListArtifactsResponse, Error> {
        let request = self
            .0
            .catalog
            .check("jig.v1.ListArtifactsRequest", request)?;
        let workspace = self.0.scene(&incoming)?.workspace.name();
        let step = request.step.map(|step| step.to_string());
        let filters = [
            "artifacts",
            workspace,
            incoming.session.as_str(),
            step.as_deref().unwrap_or_default(),
        ];
        let filters = Filters::new(&filters, &[]);
        let after = request.page_token.filter(|token| !token.is_empty());
        let after = after
            .map(|token| read_token(&token, &filters))
            .transpose()?;
        let page_size = request.page_size.unwrap_or_default() as usize;
        let Some(session) = self.0.existing_session(&incoming).await? else {
            return Ok(ListArtifactsResponse::default());
        };
        // One more than are told, to know whether there is another page.
        let list = move || session.artifacts(after.as_deref(), request.step, page_size + 1);
        let mut found = task::blocking(list)
            .await
            .map_err(Error::internal)?
            .map_err(Error::internal)?;
        let last = cut_page(&mut found, page_size);
        let next_page_token =
            last.map_or_else(String::new, |kept| write_token(&filters, &kept.path));
        // Of tools that the key is not for, not even that they were called.
        found.retain(|kept| incoming.principal.may_call(maker(&kept.path)).is_ok());
        Ok(ListArtifactsResponse {
            next_page_token,
            artifacts: found.into_iter().map(info).collect(),
        })
    }
}

/// The tool that leaves artifacts at such paths.
fn maker(path: &str) -> &'static str {
    match path.starts_with("diffs/") {
        true => ApplyPatch::NAME,
        false => Run::NAME,
    }
}

fn info(kept: Kept) -> ArtifactInfo {
    ArtifactInfo {
        path: kept.path,
        size_bytes: kept.size,
        modify_time: Some(kept.modified.into()),
        step: kept.step.number(),
    }
}

/// Reads the file and sends it, until it is sent, the client is gone, its deadline has passed, or
/// the daemon has drained long enough.
async fn send(
    file: Option<File>,
    request: ReadArtifactRequest,
    sender: Sender<Answer<ReadArtifactResponse>>,
    last: LastWord<ReadArtifactResponse>,
    deadline: Option<Instant>,
    end: CancellationToken,
) {
    let file = file.map(Arc::new);
    let mut offset = request.offset;
    let mut left = request.limit.unwrap_or(u64::MAX);
    let error = loop {
        let chunk = read(file.clone(), offset, left.min(CHUNK_BYTES)).await;
        let (data, size_bytes) = match chunk {
            Ok(chunk) => chunk,
            Err(error) => break Error::internal(error),
        };
        let length = data.len() as u64;
        // An empty answer is sent only where there is nothing at all to send.
        if length == 0 && offset > request.offset {
            return;
        }
        let message = ReadArtifactResponse {
            data: data.into(),
            offset,
            size_bytes,
        };
        left -= length;
        offset += length;
        tokio::select! {
            biased;
            () = task::until(deadline) => break call::timed_out("ReadArtifact"),
            () = end.cancelled() => {
                let text = "the daemon is shutting down: read the rest when it is back";
                break Error::new(Reason::Draining, text);
            }
            sent = sender.send(Ok(message)) => {
                if sent.is_err() || length == 0 || left == 0 {
                    return;
                }
            }
        }
    };
    last.say(&error);
}

async fn read(
    file: Option<Arc<File>>,
    offset: u64,
    length: u64,
) -> std::io::Result<(Vec<u8>, u64)> {
    let Some(file) = file else {
        return Ok((Vec::new(), 0));
    };
    let read = task::blocking(move || {
        let mut data = vec![0; usize::try_from(length).unwrap_or(0)];
        let size = file.metadata()?.len();
        let length = if offset < size {
            file.read_at(&mut data, offset)?
        } else {
            0
        };
        data.truncate(length);
        Ok((data, size))
    });
    read.await.map_err(std::io::Error::other)?
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
