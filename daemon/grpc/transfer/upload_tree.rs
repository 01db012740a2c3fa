//! Receives a tree: bytes of an archive, whose members are put in place as they arrive.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use serde_json::{Map, Value, json};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tonic::{Code, Status, Streaming};

use super::{deletion::until_deletion, upload::TRANSFER_IDLE_TIMEOUT};
use crate::{
    api::v1::{
        TreeCompression, UploadTreeRequest, UploadTreeResponse, UploadTreeStart, WriteMode,
        upload_tree_request::Part,
    },
    archive::{ArchiveError, ArchiveErrorKind, TarEvent, TarReader, ZstdDecoder},
    daemon::{
        error::{Error, Reason},
        pipeline::{
            Pipeline, admission::FailFastLimiter, context::CallContext,
            member_policy::MemberPolicy, once::IdempotentCall, once_streaming::StreamingContext,
        },
        queue::PrincipalName,
        task,
        tool::{FileLimiters, Tool as _, write_file::WriteFile},
        workspace::{
            CancelToken, RelativePath, Workspace,
            tree_extraction::{TreeCounts, TreeExtraction},
        },
    },
};

const UPLOAD_TREE_METHOD: &str = "jig.v1.TransferService/UploadTree";
/// Maximum size of the data of a message.
const MAX_DATA_BYTES: usize = 1 << 20;

/// A validated upload of a tree.
#[derive(Debug, Clone)]
struct TreePlan {
    path: RelativePath,
    is_compressed: bool,
    replaces: bool,
}

/// Receives the tree of one call.
struct TreeUploadReceiver {
    workspace: Arc<Workspace>,
    files: FileLimiters,
    principal: PrincipalName,
    plan: TreePlan,
    policy: Arc<MemberPolicy>,
    stream: Streaming<UploadTreeRequest>,
    stop: CancellationToken,
    draining: CancellationToken,
}

/// The state between two messages: everything that blocking work needs.
struct TreeUnpacker {
    decoder: Option<ZstdDecoder>,
    reader: TarReader,
    extraction: TreeExtraction,
    policy: Arc<MemberPolicy>,
    /// Name of the member that is being received.
    member: String,
}

/// Receives a tree. A repeat with the same request id gets the first result.
pub(super) async fn upload_tree(
    pipeline: &Arc<Pipeline>,
    limiter: &Arc<FailFastLimiter>,
    context: CallContext,
    mut stream: Streaming<UploadTreeRequest>,
) -> Result<UploadTreeResponse, Error> {
    let workspace_context = pipeline.resolve_workspace(&context)?;
    let (start, sent_start, call) = receive_start(pipeline, &context, &mut stream).await?;

    let workspace = Arc::clone(&workspace_context.workspace);
    let plan = TreePlan::new(&start, &workspace)?;
    context.principal.require_tool(WriteFile::NAME)?;
    let path = plan.path.as_str().to_owned();
    let policy = Arc::new(pipeline.member_policy(WriteFile::NAME, &context, &path)?);

    let authorization = {
        // All callers with the same request id wait for one decision.
        let deadline = context.deadline.filter(|_| call.is_none());
        let context = CallContext { deadline, ..context.clone() };
        let pipeline = Arc::clone(pipeline);
        async move {
            let (tool, message) = (WriteFile::NAME, "jig.v1.UploadTreeStart");
            pipeline.authorize_as(tool, &context, message, &sent_start, &path).await
        }
    };

    let files = workspace_context.file_limiters.clone();
    let principal = Arc::clone(context.principal.shared_name());
    let limiter = Arc::clone(limiter);
    let work = {
        let pipeline = Arc::clone(pipeline);
        async move |streaming: StreamingContext| {
            // Acquired before the check for draining: the drain waits for every admitted upload.
            let _delay_shutdown = task::delay_shutdown();
            let permit = limiter.try_acquire(&context.principal, &pipeline.shutdown)?;
            let audit = pipeline
                .start_audited(
                    "upload_tree",
                    context,
                    &workspace_context,
                    plan.audit_fields(),
                    streaming.authorization,
                )
                .await?;
            let receiver = TreeUploadReceiver {
                workspace,
                files,
                principal,
                plan,
                policy,
                stream,
                stop: streaming.stop,
                draining: pipeline.shutdown.terminate_token(),
            };
            // A task of its own: if the client disconnects, partial files must still be removed.
            let work = task::spawn_tracked("upload of a tree", async move {
                let stop = receiver.stop.clone();
                let result = until_deletion(&workspace_context, &stop, receiver.receive()).await;
                drop(permit);
                audit.end(result, audit_facts)
            });
            work.await.map_err(Error::internal)?
        }
    };
    pipeline.run_once_streaming(call, UPLOAD_TREE_METHOD, false, authorization, work).await
}

/// Receives and validates the first message. Returns it with and without defaults.
async fn receive_start(
    pipeline: &Pipeline,
    context: &CallContext,
    stream: &mut Streaming<UploadTreeRequest>,
) -> Result<(UploadTreeStart, UploadTreeStart, Option<IdempotentCall>), Error> {
    let first = timeout(TRANSFER_IDLE_TIMEOUT, stream.message())
        .await
        .map_err(|_| idle_timeout_error())?
        .map_err(|status| stream_error(&status))?
        .unwrap_or_default();
    let Some(Part::Start(sent_start)) = first.part.clone() else {
        let text = "must be in the first message: it has the directory of the tree";
        return Err(Error::invalid_field("start", text));
    };
    // The idempotency key covers the start message only.
    let call = pipeline.identify_call(context, UPLOAD_TREE_METHOD, &sent_start)?;
    let first = pipeline.catalog.check("jig.v1.UploadTreeRequest", first)?;
    let Some(Part::Start(start)) = first.part else {
        return Err(Error::internal("a start message that changed"));
    };
    Ok((start, sent_start, call))
}

impl TreePlan {
    fn new(start: &UploadTreeStart, workspace: &Workspace) -> Result<Self, Error> {
        if start.mode() == WriteMode::Append {
            let text = "the members of a tree are whole files and cannot append";
            return Err(Error::invalid_field("start.mode", text));
        }
        Ok(Self {
            path: workspace.resolve(start.path.as_deref().unwrap_or("."))?,
            is_compressed: start.compression() == TreeCompression::Zstd,
            replaces: start.mode() != WriteMode::CreateNew,
        })
    }

    /// The fields of the call's record.
    fn audit_fields(&self) -> Value {
        json!({
            "path": self.path.as_str(),
            "compressed": self.is_compressed,
            "create_new": !self.replaces,
        })
    }
}

impl TreeUploadReceiver {
    async fn receive(mut self) -> Result<UploadTreeResponse, Error> {
        let (workspace, plan) = (Arc::clone(&self.workspace), self.plan.clone());
        let policy = Arc::clone(&self.policy);
        let mut unpacker = self
            .run_cancellable(move |cancel| {
                let replaces = plan.replaces;
                Ok(TreeUnpacker {
                    decoder: plan.is_compressed.then(ZstdDecoder::new),
                    reader: TarReader::new(),
                    extraction: TreeExtraction::start(workspace, &plan.path, replaces, cancel)?,
                    policy,
                    member: String::new(),
                })
            })
            .await?;

        let mut received_bytes = 0;
        loop {
            let message = tokio::select! {
                biased;
                () = self.stop.cancelled() => Err(self.cancel_error()),
                message = timeout(TRANSFER_IDLE_TIMEOUT, self.stream.message()) => match message {
                    Err(_) => Err(idle_timeout_error()),
                    Ok(Err(status)) => Err(stream_error(&status)),
                    Ok(Ok(message)) => next_data(message),
                },
            };
            let data = match message {
                Ok(Some(data)) => data,
                Ok(None) => break,
                Err(error) => {
                    let dropped = self.run_cancellable(move |_| Ok(unpacker.counts()));
                    let counts = dropped.await.unwrap_or_default();
                    return Err(interrupted_after(error, counts));
                }
            };
            received_bytes += data.len() as u64;
            unpacker = self.run_cancellable(move |cancel| unpacker.unpack(&data, cancel)).await?;
        }

        let counts = self.run_cancellable(move |cancel| unpacker.finish(cancel)).await?;
        Ok(UploadTreeResponse {
            files: counts.files,
            directories: counts.directories,
            symlinks: counts.symlinks,
            hard_links: counts.hard_links,
            size_bytes: counts.size_bytes,
            received_bytes,
        })
    }

    /// Runs a blocking function with a file permit. Cancels it when the call is stopped.
    async fn run_cancellable<R: Send + 'static>(
        &self,
        function: impl FnOnce(&CancelToken) -> Result<R, Error> + Send + 'static,
    ) -> Result<R, Error> {
        let permit = self.files.acquire(&self.principal).await?;
        let result = CancelToken::run_blocking(permit, self.stop.cancelled(), function).await?;
        match result {
            Err(error) if error.reason == Reason::Timeout => Err(self.cancel_error()),
            result => result,
        }
    }

    /// The error of a call that was stopped.
    fn cancel_error(&self) -> Error {
        if self.draining.is_cancelled() {
            let text = "the daemon is shutting down: send the tree again when it is back";
            return Error::new(Reason::Draining, text);
        }
        Error::new(Reason::Timeout, "the client has disconnected")
    }
}

impl TreeUnpacker {
    /// Unpacks received data. After an error, members before the rejected one are in place.
    fn unpack(mut self, data: &Bytes, cancel: &CancelToken) -> Result<Self, Error> {
        match self.try_unpack(data, cancel) {
            Ok(()) => Ok(self),
            Err(error) => Err(self.fail(error, cancel)),
        }
    }

    /// Ends the tree after all data.
    fn finish(mut self, cancel: &CancelToken) -> Result<TreeCounts, Error> {
        let end = self.decoder.as_ref().map_or(Ok(()), ZstdDecoder::finish);
        let end = end.and_then(|()| self.reader.finish());
        // A client that cancels its call can look like one that has sent all. The call is then
        // interrupted: an archive that is rejected would be the final result of its request id.
        let end = end.map_err(|error| Error::invalid_field("data", error.message));
        let finished = end.and_then(|()| self.extraction.finish(cancel));
        finished.map_err(|error| self.fail(error, cancel))
    }

    fn counts(&self) -> TreeCounts {
        self.extraction.counts()
    }

    fn try_unpack(&mut self, data: &[u8], cancel: &CancelToken) -> Result<(), Error> {
        let Some(mut decoder) = self.decoder.take() else {
            return self.read(data, cancel);
        };
        decoder.push(data);
        let mut block = Vec::new();
        while decoder.decode(&mut block).map_err(archive_error)? {
            self.read(&block, cancel)?;
        }
        self.decoder = Some(decoder);
        Ok(())
    }

    /// Reads bytes of the archive.
    fn read(&mut self, mut data: &[u8], cancel: &CancelToken) -> Result<(), Error> {
        while let Some(event) = self.reader.next(&mut data).map_err(archive_error)? {
            match event {
                TarEvent::Member(member) => {
                    cancel.check()?;
                    self.member.clone_from(&member.path);
                    let path = self.extraction.workspace_path(&member.path)?;
                    self.policy.check(path.as_str())?;
                    self.extraction.begin_member(member, cancel)?;
                }
                TarEvent::Content(data) => self.extraction.append(data)?,
                TarEvent::ContentEnd => self.extraction.end_content(cancel)?,
            }
        }
        Ok(())
    }

    /// Puts the members before the rejected one in place, and completes the error.
    fn fail(&mut self, error: Error, cancel: &CancelToken) -> Error {
        // If one of those is rejected too, it is the first one.
        let error = self.extraction.flush(cancel).err().unwrap_or(error);
        let names_member = error.metadata.iter().any(|(name, _)| name == "member");
        let error = if names_member || self.member.is_empty() {
            error
        } else {
            error.with_metadata("member", self.member.clone())
        };
        interrupted_after(error, self.counts())
    }
}

/// Completes the error of a tree of which these members are in place.
fn interrupted_after(mut error: Error, counts: TreeCounts) -> Error {
    let member = error.metadata.iter().find(|(name, _)| name == "member");
    let at = member.map(|(_, name)| format!(" at the member {name:?}")).unwrap_or_default();
    let members = counts.members();
    error.message =
        format!("{}; the tree ended{at}, with {members} members in place", error.message).into();
    error.with_metadata("extracted_members", members.to_string())
}

/// Converts the error of an archive to that of a call.
fn archive_error(error: ArchiveError) -> Error {
    let reason = match error.kind {
        ArchiveErrorKind::Invalid => Reason::InvalidArchive,
        ArchiveErrorKind::Escape => Reason::PathEscape,
        ArchiveErrorKind::TooLarge => Reason::ArchiveTooLarge,
    };
    let converted = Error::new(reason, error.message);
    match error.member {
        Some(member) => converted.with_metadata("member", member),
        None => converted,
    }
}

/// Returns the data of a message. `None` at the end of the stream.
fn next_data(message: Option<UploadTreeRequest>) -> Result<Option<Bytes>, Error> {
    let Some(message) = message else {
        return Ok(None);
    };
    let Some(Part::Data(data)) = message.part else {
        return Err(Error::invalid_field("data", "must be in each message after the first"));
    };
    if data.len() > MAX_DATA_BYTES {
        let text = format!("must have at most {MAX_DATA_BYTES} bytes");
        return Err(Error::invalid_field("data", text));
    }
    Ok(Some(data))
}

fn audit_facts(response: &UploadTreeResponse) -> Map<String, Value> {
    let mut facts = Map::new();
    for (name, value) in [
        ("files", response.files),
        ("directories", response.directories),
        ("symlinks", response.symlinks),
        ("hard_links", response.hard_links),
        ("size_bytes", response.size_bytes),
        ("received_bytes", response.received_bytes),
    ] {
        facts.insert(name.to_owned(), value.into());
    }
    facts
}

fn idle_timeout_error() -> Error {
    let text = format!("received nothing for {} seconds", TRANSFER_IDLE_TIMEOUT.as_secs());
    Error::new(Reason::Timeout, text).with_retry_after(Duration::ZERO)
}

/// The error of a stream that failed: an invalid message, or a lost connection.
fn stream_error(status: &Status) -> Error {
    let code = status.code();
    if [Code::OutOfRange, Code::ResourceExhausted, Code::Internal].contains(&code) {
        return Error::invalid_field("data", format!("cannot be decoded: {}", status.message()));
    }
    Error::new(Reason::Timeout, "the connection was lost")
}
