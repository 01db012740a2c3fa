//! Receives an upload: chunks go to a partial file, which is committed if its checksum is correct.

use std::{sync::Arc, time::Duration};

use serde_json::{Map, Value};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tonic::{Code, Status, Streaming};

use super::{
    chunk::new_bytes,
    deletion::until_deletion,
    plan::UploadPlan,
    sessions::{LeaseOutcome, UploadLease, UploadSessions},
};
use crate::{
    api::v1::{UploadRequest, UploadResponse, UploadStart, upload_request::Part},
    daemon::{
        error::{Error, Reason},
        fd_exhaustion::{FdRetry, is_fd_exhaustion_error},
        pipeline::{
            Pipeline, admission::FailFastLimiter, context::CallContext, idempotency::Checkpoint,
            once::IdempotentCall, once_streaming::StreamingContext, policy_input::Authorization,
        },
        queue::PrincipalName,
        task,
        tool::{self, FileLimiters, Tool as _, write_file::WriteFile},
        workspace::{
            BlockingPermit, CancelToken, PartialFile, PartialFileError, PartialFileLocation,
            Workspace,
        },
    },
};

/// How long the client of a transfer may be silent. An upload is paused then.
pub(super) const TRANSFER_IDLE_TIMEOUT: Duration = Duration::from_secs(60);
const UPLOAD_METHOD: &str = "jig.v1.TransferService/Upload";

/// Receives the file of one call.
struct UploadReceiver {
    workspace: Arc<Workspace>,
    files: FileLimiters,
    principal: PrincipalName,
    sessions: Arc<UploadSessions>,
    plan: UploadPlan,
    stream: Streaming<UploadRequest>,
    stop: CancellationToken,
    draining: CancellationToken,
    /// The call's step in its session.
    step: u64,
    /// Records that the file may be committed from then on.
    checkpoint: Option<Checkpoint>,
    /// Whether a daemon died after it had recorded that.
    may_have_committed: bool,
}

/// Receives an upload. A repeat with the same request id gets the first result.
pub(super) async fn upload(
    pipeline: &Arc<Pipeline>,
    limiter: &Arc<FailFastLimiter>,
    sessions: &Arc<UploadSessions>,
    context: CallContext,
    mut stream: Streaming<UploadRequest>,
) -> Result<UploadResponse, Error> {
    let workspace_context = pipeline.resolve_workspace(&context)?;
    let ReceivedStart { start, sent_start, call } =
        receive_start(pipeline, &context, &mut stream).await?;

    let workspace = Arc::clone(&workspace_context.workspace);
    let plan = UploadPlan::new(start, &workspace, &context.call_id)?;
    let is_resumable = plan.record.upload_id.is_some();
    context.principal.require_tool(WriteFile::NAME)?;

    let path = plan.target.path.as_str().to_owned();
    let authorization = authorize(Arc::clone(pipeline), &context, call.is_some(), sent_start, path);

    let files = workspace_context.file_limiters.clone();
    let principal = Arc::clone(context.principal.shared_name());
    let (limiter, sessions) = (Arc::clone(limiter), Arc::clone(sessions));
    let work = {
        let pipeline = Arc::clone(pipeline);
        async move |streaming: StreamingContext| {
            // Acquired before the check for draining: the drain waits for every admitted upload.
            let _delay_shutdown = task::delay_shutdown();
            let permit = limiter.try_acquire(&context.principal, &pipeline.shutdown)?;
            let audit = pipeline
                .start_audited(
                    "upload",
                    context,
                    &workspace_context,
                    plan.audit_fields(),
                    streaming.authorization,
                )
                .await?;
            let receiver = UploadReceiver {
                workspace,
                files,
                principal,
                sessions,
                plan,
                stream,
                stop: streaming.stop,
                draining: pipeline.shutdown.terminate_token(),
                step: audit.step(),
                checkpoint: streaming.checkpoint.filter(|_| is_resumable),
                may_have_committed: streaming.may_have_completed,
            };
            // A task of its own: if the client disconnects, the received data must still be stored.
            let work = task::spawn_tracked("upload", async move {
                let stop = receiver.stop.clone();
                let result = until_deletion(&workspace_context, &stop, receiver.receive()).await;
                drop(permit);
                audit.end(result, audit_facts)
            });
            work.await.map_err(Error::internal)?
        }
    };
    pipeline.run_once_streaming(call, UPLOAD_METHOD, is_resumable, authorization, work).await
}

/// The first message of an upload.
struct ReceivedStart {
    /// With the defaults of fields that the client has not set.
    start: UploadStart,
    /// As sent, for the policy.
    sent_start: UploadStart,
    call: Option<IdempotentCall>,
}

/// Receives and validates the first message, which must be the start message.
async fn receive_start(
    pipeline: &Pipeline,
    context: &CallContext,
    stream: &mut Streaming<UploadRequest>,
) -> Result<ReceivedStart, Error> {
    let first = receive_first(stream).await?;
    let sent_start = match &first.part {
        Some(Part::Start(start)) => Some(start.clone()),
        Some(Part::Chunk(_)) | None => None,
    };
    // The idempotency key covers the start message only: the chunks of a repeat depend on what was
    // received before.
    let call = match &sent_start {
        Some(start) => pipeline.identify_call(context, UPLOAD_METHOD, start)?,
        None => None,
    };

    let first = pipeline.catalog.check("jig.v1.UploadRequest", first)?;
    let (Some(Part::Start(start)), Some(sent_start)) = (first.part, sent_start) else {
        let text = "must be in the first message: it has path, size and checksum of the file";
        return Err(Error::invalid_field("start", text));
    };
    Ok(ReceivedStart { start, sent_start, call })
}

/// Authorizes the call by its start message.
///
/// All callers with the same request id wait for one decision, so the deadline of one of them does
/// not end it.
fn authorize(
    pipeline: Arc<Pipeline>,
    context: &CallContext,
    has_request_id: bool,
    start: UploadStart,
    path: String,
) -> impl Future<Output = Result<Authorization, Error>> + Send + use<> {
    let deadline = context.deadline.filter(|_| !has_request_id);
    let context = CallContext { deadline, ..context.clone() };
    async move {
        let (tool, message) = (WriteFile::NAME, "jig.v1.UploadStart");
        pipeline.authorize_as(tool, &context, message, &start, &path).await
    }
}

async fn receive_first(stream: &mut Streaming<UploadRequest>) -> Result<UploadRequest, Error> {
    let first = timeout(TRANSFER_IDLE_TIMEOUT, stream.message())
        .await
        .map_err(|_| idle_timeout_error())?
        .map_err(|status| stream_error(&status))?;
    Ok(first.unwrap_or_default())
}

impl UploadReceiver {
    async fn receive(mut self) -> Result<UploadResponse, Error> {
        let mut attempts = FdRetry::with_deadline(None);
        let (lease, file) = loop {
            match self.open_partial_file(self.acquire_lease().await?).await {
                Ok(Ok(opened)) => break opened,
                Ok(Err(created)) => return Ok(self.plan.response(created, 0)),
                Err(error) if self.should_retry(&mut attempts, &error).await => {}
                Err(error) => return Err(error),
            }
        };

        let resumed_at = file.length();
        let (file, result) = self.receive_chunks(file, &lease).await?;
        let received_bytes = file.length() - resumed_at;
        let result = match result {
            Ok(()) => self.record_commit_point().await,
            Err(error) => Err(error),
        };

        let created = match result {
            Ok(()) => self.commit(lease, file).await?,
            Err(error) => {
                blocking(move || lease.pause(file)).await?;
                return Err(error);
            }
        };
        Ok(self.plan.response(created, received_bytes))
    }

    /// Acquires the upload session. Waits until another call has released it.
    async fn acquire_lease(&self) -> Result<LeaseOutcome, Error> {
        loop {
            let (sessions, stop) = (Arc::clone(&self.sessions), self.stop.clone());
            let record = self.plan.record.clone();
            let outcome = blocking(move || sessions.acquire(record, &stop)).await??;
            let finished = match &outcome {
                // The file may be committed, and another call may have changed it since.
                LeaseOutcome::New(_) if self.may_have_committed => {
                    return Err(tool::daemon_lost_error(UPLOAD_METHOD));
                }
                LeaseOutcome::Busy(finished) => finished,
                LeaseOutcome::New(_)
                | LeaseOutcome::Paused(..)
                | LeaseOutcome::OnDisk(..)
                | LeaseOutcome::Complete(_) => return Ok(outcome),
            };
            // The other call stops after its current chunk.
            tokio::select! {
                () = finished.cancelled() => {}
                () = self.stop.cancelled() => return Err(self.cancel_error(None)),
            }
        }
    }

    /// Whether to retry after this error. Waits until it is time to.
    async fn should_retry(&self, attempts: &mut FdRetry, error: &Error) -> bool {
        tokio::select! {
            again = attempts.should_retry(error) => again,
            () = self.stop.cancelled() => false,
        }
    }

    /// Opens or creates the partial file. The inner `Err` means that the upload is complete
    /// already.
    async fn open_partial_file(
        &self,
        outcome: LeaseOutcome,
    ) -> Result<Result<(UploadLease, PartialFile), bool>, Error> {
        let permit = match self.acquire_permit().await {
            Ok(permit) => permit,
            Err(error) => {
                blocking(move || outcome.release()).await?;
                return Err(error);
            }
        };
        let (workspace, plan) = (Arc::clone(&self.workspace), self.plan.clone());
        CancelToken::run_blocking(permit, self.stop.cancelled(), move |stop| {
            let prepare = |received: u64| {
                if plan.create_directories {
                    workspace.create_parents(&plan.target.path, stop)?;
                }
                let remaining = plan.record.size.saturating_sub(received);
                workspace.check_partial_file_target(&plan.target, remaining, stop)
            };

            let (lease, file) = match outcome {
                LeaseOutcome::Complete(created) => return Ok(Err(created)),
                LeaseOutcome::Busy(_) => return Err(Error::internal("the upload is busy")),
                LeaseOutcome::New(lease) => {
                    prepare(0)?;
                    let record =
                        |location: &PartialFileLocation| lease.record_partial_file(location);
                    let file = workspace.create_partial_file(&plan.target.path, record)?;
                    return Ok(Ok((lease, file)));
                }
                LeaseOutcome::Paused(lease, file) => match workspace.check_partial_file(&file) {
                    Ok(()) => (lease, *file),
                    Err(error) => return Err(release_failed(lease, *file, error)),
                },
                LeaseOutcome::OnDisk(lease, location) => {
                    match workspace.reopen_partial_file(location, stop) {
                        Ok(file) => (lease, file),
                        Err(PartialFileError::Intact(error)) => {
                            lease.release_unchanged();
                            return Err(error);
                        }
                        // Dropping the lease deletes the file.
                        Err(PartialFileError::Unusable(error)) => return Err(error),
                    }
                }
            };

            match prepare(file.length()) {
                Ok(()) => Ok(Ok((lease, file))),
                Err(error) => {
                    lease.pause(file);
                    Err(error)
                }
            }
        })
        .await?
    }

    /// Appends chunks to the file until the stream ends.
    ///
    /// Returns the file even after an error: it has all data that was received in order.
    async fn receive_chunks(
        &mut self,
        mut file: PartialFile,
        lease: &UploadLease,
    ) -> Result<(PartialFile, Result<(), Error>), Error> {
        let size = self.plan.record.size;
        loop {
            let message = tokio::select! {
                biased;
                () = self.stop.cancelled() => return Ok((file, Err(self.cancel_error(Some(lease))))),
                message = timeout(TRANSFER_IDLE_TIMEOUT, self.stream.message()) => message,
            };
            let chunk = match message {
                Err(_) => Err(idle_timeout_error()),
                Ok(Err(status)) => Err(stream_error(&status)),
                Ok(Ok(message)) => new_bytes(message, file.length(), size),
            };
            let data = match chunk {
                Ok(Some(data)) => data,
                Ok(None) => return Ok((file, Ok(()))),
                Err(error) => return Ok((file, Err(error))),
            };

            let appended = blocking(move || {
                let result = file.append(&data);
                (file, result)
            });
            let result;
            (file, result) = appended.await?;
            if let Err(error) = result {
                return Ok((file, Err(error)));
            }
            lease.set_progress(file.length());
        }
    }

    /// Records that the file may be committed from now on.
    ///
    /// A repeat that finds no session after this does not upload the file again.
    async fn record_commit_point(&self) -> Result<(), Error> {
        match &self.checkpoint {
            Some(checkpoint) => checkpoint.record_step(self.step).await,
            None => Ok(()),
        }
    }

    /// Checks the file and commits it. Retries while no descriptors are available.
    async fn commit(&self, mut lease: UploadLease, mut file: PartialFile) -> Result<bool, Error> {
        let mut attempts = FdRetry::with_deadline(None);
        loop {
            let error;
            (lease, file, error) = match self.try_commit(lease, file).await? {
                Ok(created) => return Ok(created),
                Err(unchanged) => unchanged,
            };
            if !self.should_retry(&mut attempts, &error).await {
                return Err(blocking(move || release_failed(lease, file, error.into())).await?);
            }
        }
    }

    /// Tries to commit once. The inner `Err` means that no descriptors were available and nothing
    /// was done.
    async fn try_commit(
        &self,
        lease: UploadLease,
        mut file: PartialFile,
    ) -> Result<Result<bool, (UploadLease, PartialFile, Error)>, Error> {
        let permit = match self.acquire_permit().await {
            Ok(permit) => permit,
            Err(error) => {
                blocking(move || lease.pause(file)).await?;
                return Err(error);
            }
        };
        let (workspace, plan) = (Arc::clone(&self.workspace), self.plan.clone());
        CancelToken::run_blocking(permit, self.stop.cancelled(), move |stop| {
            let sha256 = file.sha256();
            if sha256 != plan.record.sha256 {
                file.discard();
                let message = format!(
                    "the received bytes have the SHA-256 {sha256} and not {}, and were deleted: start again from the first byte",
                    plan.record.sha256
                );
                return Err(Error::new(Reason::ChecksumMismatch, message).with_metadata("sha256", sha256));
            }

            let record = |location: &PartialFileLocation| lease.record_partial_file(location);
            match workspace.commit_partial_file(&mut file, &plan.target, record, stop) {
                Ok(created) => {
                    lease.complete(created);
                    Ok(Ok(created))
                }
                Err(PartialFileError::Intact(error)) if is_fd_exhaustion_error(&error) => {
                    Ok(Err((lease, file, error)))
                }
                Err(error) => Err(release_failed(lease, file, error)),
            }
        })
        .await?
    }

    /// Acquires a file permit, unless the call is stopped.
    async fn acquire_permit(&self) -> Result<BlockingPermit, Error> {
        tokio::select! {
            permit = self.files.acquire(&self.principal) => permit,
            () = self.stop.cancelled() => Err(self.cancel_error(None)),
        }
    }

    /// The error of a call that was stopped.
    fn cancel_error(&self, lease: Option<&UploadLease>) -> Error {
        if lease.is_some_and(|lease| lease.was_taken_over()) {
            let text = "is being resumed by another call, which has taken over";
            return Error::invalid_field("start.upload_id", text);
        }
        if self.draining.is_cancelled() {
            let text = "the daemon is shutting down: resume the upload when it is back";
            return Error::new(Reason::Draining, text);
        }
        let text = "the client has disconnected: with an upload_id, the upload can be resumed";
        Error::new(Reason::Timeout, text)
    }
}

/// Pauses the upload if its partial file is intact, otherwise deletes it. Blocks.
fn release_failed(lease: UploadLease, file: PartialFile, error: PartialFileError) -> Error {
    match error {
        PartialFileError::Intact(error) => {
            lease.pause(file);
            error
        }
        PartialFileError::Unusable(error) => {
            file.discard();
            drop(lease); // removes the session
            error
        }
    }
}

fn audit_facts(response: &UploadResponse) -> Map<String, Value> {
    let mut facts = Map::new();
    facts.insert("created".to_owned(), response.created.into());
    facts.insert("received_bytes".to_owned(), response.received_bytes.into());
    facts
}

fn idle_timeout_error() -> Error {
    let text = format!(
        "received nothing for {} seconds: with an upload_id, the upload can be resumed",
        TRANSFER_IDLE_TIMEOUT.as_secs()
    );
    Error::new(Reason::Timeout, text).with_retry_after(Duration::ZERO)
}

/// The error of a stream that failed: an invalid message, or a lost connection.
fn stream_error(status: &Status) -> Error {
    let code = status.code();
    if [Code::OutOfRange, Code::ResourceExhausted, Code::Internal].contains(&code) {
        return Error::invalid_field("chunk", format!("cannot be decoded: {}", status.message()));
    }
    let text = "the connection was lost: with an upload_id, the upload can be resumed";
    Error::new(Reason::Timeout, text)
}

async fn blocking<R: Send + 'static>(
    function: impl FnOnce() -> R + Send + 'static,
) -> Result<R, Error> {
    task::spawn_blocking(function).await.map_err(Error::internal)
}
