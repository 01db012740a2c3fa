//! `jig.v1.ArtifactService`: lists and streams artifacts, the files that calls have stored.

mod fleet;
mod stream;

use std::{io, sync::Arc};

use tonic::{Request, Response, Status};

use self::stream::{ArtifactSource, ArtifactStream, STREAM_BUFFER_CHUNKS};
use super::{
    handle, handle_stream,
    response_stream::{CLIENT_READ_TIMEOUT, ResponseStream, WorkspaceStream, response_channel},
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
            Pipeline, access::principal::Principal, admission::FailFastLimiter,
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

/// Concurrent reads. With the headroom for others, one caller has at most 204. Each costs a
/// descriptor and the buffered messages.
const MAX_CONCURRENT_READS: usize = 272;

#[derive(Debug)]
pub(crate) struct ArtifactServiceHandler {
    pipeline: Arc<Pipeline>,
    limiter: FailFastLimiter,
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
        let job_id = Some(request.job_id.as_str()).filter(|id| !id.is_empty());
        context.note_params([("path", Some(&request.path)), ("job_id", job_id)]);
        self.authorize_path(&context.principal, &request.path)?;
        let permit = self.limiter.try_acquire(&context.principal, &pipeline.shutdown)?;
        let permit = Arc::new(permit);

        let source = if request.job_id.is_empty() {
            self.open_file(&context, &request.path, &permit).await?
        } else {
            self.open_fleet_object(&context, &request).await?
        };
        let (sender, terminator, responses) =
            response_channel(STREAM_BUFFER_CHUNKS, &context.call_id);
        let stream = ArtifactStream {
            source,
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

    /// Opens an artifact of the call's session.
    async fn open_file(
        &self,
        context: &CallContext,
        path: &str,
        permit: &Arc<Permit>,
    ) -> Result<ArtifactSource, Error> {
        let not_found = || not_found_error(path);
        let (path, principal) = (path.to_owned(), Arc::clone(&context.principal));
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
        match self.pipeline.query_session(context, permit, open).await? {
            OpenedArtifact::File(file) => Ok(ArtifactSource::File(Arc::new(file))),
            OpenedArtifact::Empty => Ok(ArtifactSource::Empty),
            OpenedArtifact::Missing => Err(not_found()),
        }
    }

    async fn list_page(
        &self,
        context: CallContext,
        request: ListArtifactsRequest,
    ) -> Result<ListArtifactsResponse, Error> {
        let pipeline = &self.pipeline;
        let request = pipeline.catalog.check("jig.v1.ListArtifactsRequest", request)?;
        if !request.job_id.is_empty() {
            return self.list_fleet_artifacts(&context, request).await;
        }
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

/// Whether a path names nothing in the directory of any session.
fn leads_out(path: &str) -> bool {
    path.starts_with('/') || path.split('/').any(|part| part == "..")
}

fn not_found_error(path: &str) -> Error {
    let (reason, text) = if leads_out(path) {
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
