//! Receiving a file: chunk by chunk into a draft, which is put into its place when all has come and
//! its checksum is right.

use std::{sync::Arc, time::Duration};

use serde_json::{Map, Value};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tonic::{Code, Status, Streaming};

use super::{
    plan::UploadPlan,
    sessions::{LeaseOutcome, UploadLease, UploadSessions},
};
use crate::{
    api::v1::{UploadChunk, UploadRequest, UploadResponse, UploadStart, upload_request::Part},
    daemon::{
        error::{Error, Reason},
        fd_exhaustion::{FdRetry, is_fd_exhaustion_error},
        pipeline::{
            Pipeline, admission::FailFastLimiter, context::CallContext, idempotency::Checkpoint,
            once_streaming::StreamingContext,
        },
        queue::PrincipalKey,
        task,
        tool::{self, FileLimiters, Tool as _, write_file::WriteFile},
        workspace::{CancelToken, PartialFile, PartialFileError, PartialFileLocation, Workspace},
    },
};

/// How long the other side of a transfer may be silent. What has come of an upload is kept then.
pub(super) const TRANSFER_IDLE_TIMEOUT: Duration = Duration::from_secs(60);
/// What a request id was used for that an upload had.
const UPLOAD_METHOD: &str = "jig.v1.TransferService/Upload";
/// Most bytes of a chunk.
const MAX_CHUNK_BYTES: usize = 1 << 20;

/// What a call needs to receive a file.
struct UploadReceiver {
    workspace: Arc<Workspace>,
    files: FileLimiters,
    caller: PrincipalKey,
    sessions: Arc<UploadSessions>,
    plan: UploadPlan,
    stream: Streaming<UploadRequest>,
    stop: CancellationToken,
    draining: CancellationToken,
    /// Its step of the session.
    step: u64,
    /// Where it says that the file may be in its place from there on.
    checkpoint: Option<Checkpoint>,
    /// Whether a daemon died that had said so.
    may_have_committed: bool,
}

/// An upload, to its end; or, where it was made under the same request id before, its answer.
pub(super) async fn upload(
    pipeline: &Arc<Pipeline>,
    places: &Arc<FailFastLimiter>,
    kept: &Arc<UploadSessions>,
    incoming: CallContext,
    mut stream: Streaming<UploadRequest>,
) -> Result<UploadResponse, Error> {
    let scene = pipeline.workspace_context(&incoming)?;
    let first = timeout(TRANSFER_IDLE_TIMEOUT, stream.message()).await;
    let first = first.map_err(|_| idle_timeout_error())?.map_err(|status| stream_error(&status));
    let first = first?.unwrap_or_default();
    // Without the chunks, as any call may send them; and without defaults, for who decides about it.
    let (call, given) = match &first.part {
        Some(Part::Start(start)) => {
            (pipeline.idempotent_call(&incoming, UPLOAD_METHOD, start)?, start.clone())
        }
        Some(Part::Chunk(_)) | None => (None, UploadStart::default()),
    };
    let first = pipeline.catalog.check("jig.v1.UploadRequest", first)?;
    let Some(Part::Start(start)) = first.part else {
        let text = "must be in the first message: what is to be written, and where";
        return Err(Error::invalid_field("start", text));
    };
    let workspace = Arc::clone(&scene.workspace);
    let plan = UploadPlan::new(start, &workspace, &incoming.call_id)?;
    let is_resumable = plan.record.upload_id.is_some();
    let (places, kept) = (Arc::clone(places), Arc::clone(kept));
    let (files, caller) = (scene.file_limiters.clone(), Arc::clone(incoming.principal.key()));
    incoming.principal.require_tool(WriteFile::NAME)?;
    let permit = {
        let (pipeline, path) = (Arc::clone(pipeline), plan.target.path.as_str().to_owned());
        // Who has an id waits for the decision with all who have it: his deadline ends his own wait.
        let incoming = CallContext {
            deadline: incoming.deadline.filter(|_| call.is_none()),
            ..incoming.clone()
        };
        async move {
            let (tool, message) = (WriteFile::NAME, "jig.v1.UploadStart");
            let permitted = pipeline.authorize_as(tool, &incoming, message, &given, &path);
            permitted.await
        }
    };
    let work = {
        let pipeline = Arc::clone(pipeline);
        async move |sent: StreamingContext| {
            // Taken before the drain is looked at: whoever is let in is waited for.
            let _waited_for = task::delay_shutdown();
            let permit = places.try_acquire(&incoming.principal, &pipeline.shutdown)?;
            let recorded = pipeline
                .start_audited("upload", incoming, plan.audit_fields(), sent.authorization)
                .await?;
            let receiving = UploadReceiver {
                workspace,
                files,
                caller,
                sessions: kept,
                plan,
                stream,
                stop: sent.stop,
                draining: pipeline.shutdown.terminate_token(),
                step: recorded.step(),
                checkpoint: sent.checkpoint.filter(|_| is_resumable),
                may_have_committed: sent.may_have_completed,
            };
            // Who goes away leaves it to its end: what has come is kept then.
            let work = task::spawn_tracked("upload", async move {
                let result = receiving.receive().await;
                drop(permit);
                recorded.end(result, audit_facts)
            });
            work.await.map_err(Error::internal)?
        }
    };
    let sent = pipeline.run_once_streaming(call, UPLOAD_METHOD, is_resumable, permit, work);
    sent.await
}

// === impl Receiving ===

impl UploadReceiver {
    async fn receive(mut self) -> Result<UploadResponse, Error> {
        let mut attempts = FdRetry::with_deadline(None);
        let (lease, draft) = loop {
            match self.open_draft(self.acquire_lease().await?).await {
                Ok(Ok(opened)) => break opened,
                Ok(Err(created)) => return Ok(self.plan.response(created, 0)),
                Err(error) if self.should_retry(&mut attempts, &error).await => {}
                Err(error) => return Err(error),
            }
        };
        let before = draft.length();
        let (draft, result) = self.receive_chunks(draft, &lease).await?;
        let received = draft.length() - before;
        let result = match result {
            Ok(()) => self.record_commit_point().await,
            Err(error) => Err(error),
        };
        let created = match result {
            Ok(()) => self.commit(lease, draft).await?,
            Err(error) => {
                blocking(move || lease.pause(draft)).await?;
                return Err(error);
            }
        };
        Ok(self.plan.response(created, received))
    }

    /// Begins this call's turn at the upload.
    async fn acquire_lease(&self) -> Result<LeaseOutcome, Error> {
        loop {
            let (kept, stop) = (Arc::clone(&self.sessions), self.stop.clone());
            let record = self.plan.record.clone();
            let begun = blocking(move || kept.acquire(record, &stop)).await??;
            let over = match &begun {
                // It may be in its place, and others may have written there since.
                LeaseOutcome::New(_) if self.may_have_committed => {
                    return Err(tool::daemon_lost_error(UPLOAD_METHOD));
                }
                LeaseOutcome::Busy(over) => over,
                LeaseOutcome::New(_)
                | LeaseOutcome::Paused(..)
                | LeaseOutcome::OnDisk(..)
                | LeaseOutcome::Complete(_) => {
                    return Ok(begun);
                }
            };
            // The other call's turn ends within a chunk.
            tokio::select! {
                () = over.cancelled() => {}
                () = self.stop.cancelled() => return Err(self.cancel_error(None)),
            }
        }
    }

    /// Whether what failed so is to be tried again; then it is time to.
    async fn should_retry(&self, attempts: &mut FdRetry, error: &Error) -> bool {
        tokio::select! {
            again = attempts.should_retry(error) => again,
            () = self.stop.cancelled() => false,
        }
    }

    /// Finds or makes the draft. `Err` of the inner result: the upload is complete already.
    async fn open_draft(
        &self,
        begun: LeaseOutcome,
    ) -> Result<Result<(UploadLease, PartialFile), bool>, Error> {
        let (workspace, plan) = (Arc::clone(&self.workspace), self.plan.clone());
        self.run_cancellable(move |stop| {
            let prepare = || {
                if plan.create_directories {
                    workspace.create_parents(&plan.target.path, stop)?;
                }
                workspace.check_partial_file_target(&plan.target, stop)
            };
            let (lease, draft) = match begun {
                LeaseOutcome::Complete(created) => return Ok(Err(created)),
                LeaseOutcome::Busy(_) => return Err(Error::internal("the upload is busy")),
                LeaseOutcome::New(lease) => {
                    prepare()?;
                    let say = |place: &PartialFileLocation| lease.record_draft(place);
                    let draft = workspace.create_partial_file(&plan.target.path, say)?;
                    return Ok(Ok((lease, draft)));
                }
                LeaseOutcome::Paused(lease, draft) => match workspace.check_partial_file(&draft) {
                    Ok(()) => (lease, *draft),
                    Err(error) => return Err(release_failed(lease, *draft, error)),
                },
                LeaseOutcome::OnDisk(lease, place) => {
                    match workspace.reopen_partial_file(place, stop) {
                        Ok(draft) => (lease, draft),
                        Err(PartialFileError::Intact(error)) => {
                            lease.release_unchanged();
                            return Err(error);
                        }
                        // Dropping the lease deletes what is left.
                        Err(PartialFileError::Unusable(error)) => return Err(error),
                    }
                }
            };
            match prepare() {
                Ok(()) => Ok(Ok((lease, draft))),
                Err(error) => {
                    lease.pause(draft);
                    Err(error)
                }
            }
        })
        .await?
    }

    /// Takes chunks until the stream ends. The draft has all that came in order, whatever happens.
    async fn receive_chunks(
        &mut self,
        mut draft: PartialFile,
        lease: &UploadLease,
    ) -> Result<(PartialFile, Result<(), Error>), Error> {
        let size = self.plan.record.size;
        loop {
            let message = tokio::select! {
                biased;
                () = self.stop.cancelled() => return Ok((draft, Err(self.cancel_error(Some(lease))))),
                message = timeout(TRANSFER_IDLE_TIMEOUT, self.stream.message()) => message,
            };
            let chunk = match message {
                Err(_) => Err(idle_timeout_error()),
                Ok(Err(status)) => Err(stream_error(&status)),
                Ok(Ok(message)) => new_bytes(message, draft.length(), size),
            };
            let data = match chunk {
                Ok(Some(data)) => data,
                Ok(None) => return Ok((draft, Ok(()))),
                Err(error) => return Ok((draft, Err(error))),
            };
            let appended = blocking(move || {
                let result = draft.append(&data);
                (draft, result)
            });
            let result;
            (draft, result) = appended.await?;
            if let Err(error) = result {
                return Ok((draft, Err(error)));
            }
            lease.set_progress(draft.length());
        }
    }

    /// Says that the file may be in its place from here on: nobody puts it there again who does not find
    /// what has come of it.
    async fn record_commit_point(&self) -> Result<(), Error> {
        match &self.checkpoint {
            Some(mark) => mark.record_step(self.step).await,
            None => Ok(()),
        }
    }

    /// Checks what has come and puts it into its place.
    async fn commit(&self, mut lease: UploadLease, mut draft: PartialFile) -> Result<bool, Error> {
        let mut attempts = FdRetry::with_deadline(None);
        loop {
            let error;
            (lease, draft, error) = match self.try_commit(lease, draft).await? {
                Ok(created) => return Ok(created),
                Err(left) => left,
            };
            if !self.should_retry(&mut attempts, &error).await {
                return Err(blocking(move || release_failed(lease, draft, error.into())).await?);
            }
        }
    }

    /// As [`Self::finish`], once. `Err` of the inner result: there were no descriptors, and nothing was done.
    async fn try_commit(
        &self,
        lease: UploadLease,
        mut draft: PartialFile,
    ) -> Result<Result<bool, (UploadLease, PartialFile, Error)>, Error> {
        let (workspace, plan) = (Arc::clone(&self.workspace), self.plan.clone());
        self.run_cancellable(move |stop| {
            let sha256 = draft.sha256();
            if sha256 != plan.record.sha256 {
                draft.discard();
                let message = format!(
                    "the bytes that came have the SHA-256 {sha256} and not {}, and are dropped: start again from the first byte",
                    plan.record.sha256
                );
                return Err(Error::new(Reason::ChecksumMismatch, message).with_metadata("sha256", sha256));
            }
            let say = |place: &PartialFileLocation| lease.record_draft(place);
            match workspace.commit_partial_file(&mut draft, &plan.target, say, stop) {
                Ok(created) => {
                    lease.complete(created);
                    Ok(Ok(created))
                }
                Err(PartialFileError::Intact(error)) if is_fd_exhaustion_error(&error) => Ok(Err((lease, draft, error))),
                Err(error) => Err(release_failed(lease, draft, error)),
            }
        })
        .await?
    }

    /// Runs a function that blocks, and tells it to stop when the call is to end.
    async fn run_cancellable<R: Send + 'static>(
        &self,
        function: impl FnOnce(&CancelToken) -> R + Send + 'static,
    ) -> Result<R, Error> {
        let occupied = tokio::select! {
            occupied = self.files.acquire(&self.caller) => occupied?,
            () = self.stop.cancelled() => return Err(self.cancel_error(None)),
        };
        CancelToken::run_blocking(occupied, self.stop.cancelled(), function).await
    }

    /// Why the call was told to end.
    fn cancel_error(&self, lease: Option<&UploadLease>) -> Error {
        if lease.is_some_and(|lease| lease.was_taken_over()) {
            let text = "is being resumed by another call, which has taken over";
            return Error::invalid_field("start.upload_id", text);
        }
        if self.draining.is_cancelled() {
            let text = "the daemon is shutting down: resume the upload when it is back";
            return Error::new(Reason::Draining, text);
        }
        let text = "the caller has gone: with an upload_id, the upload can be resumed";
        Error::new(Reason::Timeout, text)
    }
}

/// Leaves a draft that could not be used. Blocks.
fn release_failed(lease: UploadLease, draft: PartialFile, error: PartialFileError) -> Error {
    match error {
        PartialFileError::Intact(error) => {
            lease.pause(draft);
            error
        }
        PartialFileError::Unusable(error) => {
            draft.discard();
            drop(lease); // which forgets the upload
            error
        }
    }
}

/// The bytes of a message that are not there yet; none when the stream has ended as it should.
fn new_bytes(
    message: Option<UploadRequest>,
    length: u64,
    size: u64,
) -> Result<Option<bytes::Bytes>, Error> {
    let Some(message) = message else {
        if length < size {
            let text = format!(
                "the stream ended after {length} of {size} bytes: send the rest; with an upload_id, resume from there"
            );
            return Err(Error::invalid_field("chunk", text));
        }
        return Ok(None);
    };
    let Some(Part::Chunk(UploadChunk { offset, mut data })) = message.part else {
        let text = "must be in each message after the first";
        return Err(Error::invalid_field("chunk", text));
    };
    if data.len() > MAX_CHUNK_BYTES {
        let text = format!("must have at most {MAX_CHUNK_BYTES} bytes");
        return Err(Error::invalid_field("chunk.data", text));
    }
    if offset > length {
        let text = format!("leaves a gap: the next byte is that at {length}");
        return Err(Error::invalid_field("chunk.offset", text));
    }
    let bytes = data.len() as u64;
    if offset.checked_add(bytes).is_none_or(|end| end > size) {
        let text = format!("goes beyond the {size} bytes of size_bytes");
        return Err(Error::invalid_field("chunk.data", text));
    }
    // Sent before the connection was lost.
    let known = usize::try_from((length - offset).min(bytes)).unwrap_or(data.len());
    Ok(Some(data.split_off(known)))
}

fn audit_facts(response: &UploadResponse) -> Map<String, Value> {
    let mut facts = Map::new();
    facts.insert("created".to_owned(), response.created.into());
    facts.insert("received_bytes".to_owned(), response.received_bytes.into());
    facts
}

fn idle_timeout_error() -> Error {
    let text = format!(
        "nothing came for {} seconds: with an upload_id, the upload can be resumed",
        TRANSFER_IDLE_TIMEOUT.as_secs()
    );
    Error::new(Reason::Timeout, text).retry_after(Duration::ZERO)
}

/// What a stream that breaks off means.
fn stream_error(status: &Status) -> Error {
    let code = status.code();
    if [Code::OutOfRange, Code::ResourceExhausted, Code::Internal].contains(&code) {
        return Error::invalid_field("chunk", format!("cannot be read: {}", status.message()));
    }
    let text = "the connection was lost: with an upload_id, the upload can be resumed";
    Error::new(Reason::Timeout, text)
}

async fn blocking<R: Send + 'static>(
    function: impl FnOnce() -> R + Send + 'static,
) -> Result<R, Error> {
    task::spawn_blocking(function).await.map_err(Error::internal)
}
