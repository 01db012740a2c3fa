//! Sends a directory as an archive, at the speed of its client.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use tokio::{sync::mpsc::Sender, time::sleep};
use tokio_util::sync::CancellationToken;

use super::upload::TRANSFER_IDLE_TIMEOUT;
use crate::{
    api::v1::{
        DownloadTreeRequest, DownloadTreeResponse, DownloadTreeSummary, TreeCompression,
        TreeProblem, TreeProblemKind,
    },
    archive::zstd_frame,
    daemon::{
        checksum::Checksum,
        error::{Error, Reason},
        grpc::response_stream::{ResponseStream, StreamItem, StreamTerminator, response_channel},
        pipeline::{self, Pipeline, admission::FailFastLimiter, context::CallContext},
        queue::{Permit, PrincipalName},
        task,
        tool::{FileLimiters, Tool as _, read_file::ReadFile},
        workspace::{
            CancelToken, compile_globs,
            tree_archive::{self, TreeArchive, TreeFilter, TreeSummary},
        },
    },
};

/// Bytes of the archive in one message, before compression.
const MAX_TREE_CHUNK_BYTES: usize = 256 * 1024;
/// Messages buffered for a slow client.
const STREAM_BUFFER_CHUNKS: usize = 2;

/// A download in progress.
struct TreeDownload {
    state: Option<ArchiveState>,
    files: FileLimiters,
    principal: PrincipalName,
    sender: Sender<StreamItem<DownloadTreeResponse>>,
    terminator: StreamTerminator<DownloadTreeResponse>,
    deadline: Option<Instant>,
    shutdown: CancellationToken,
    _permit: Permit,
}

/// What blocking work needs for the next message.
struct ArchiveState {
    archive: TreeArchive,
    is_compressed: bool,
    checksum: Checksum,
}

/// Authorizes the call, opens the directory, and starts a task that sends it.
pub(super) async fn download_tree(
    pipeline: &Arc<Pipeline>,
    limiter: &FailFastLimiter,
    context: CallContext,
    request: DownloadTreeRequest,
) -> Result<ResponseStream<DownloadTreeResponse>, Error> {
    // The policy gets the request as sent, without defaults.
    let sent_request = request.clone();
    let request = pipeline.catalog.check("jig.v1.DownloadTreeRequest", request)?;
    let workspace_context = pipeline.resolve_workspace(&context)?;
    let workspace = Arc::clone(&workspace_context.workspace);
    let text = request.path.as_deref().unwrap_or(".");
    context.note_params([("path", Some(text))]);
    let path = workspace.resolve(text)?;
    let exclude: Vec<_> = request.exclude.iter().map(|glob| format!("!{glob}")).collect();
    let exclude = compile_globs(exclude.iter().map(String::as_str))?;
    let (tool, message) = (ReadFile::NAME, "jig.v1.DownloadTreeRequest");
    pipeline.authorize_as(tool, &context, message, &sent_request, path.as_str()).await?;
    let policy = pipeline.member_policy(tool, &context, path.as_str())?;

    // Acquired before the check for draining: the drain waits for every admitted download.
    let _delay_shutdown = task::delay_shutdown();
    let permit = limiter.try_acquire(&context.principal, &pipeline.shutdown)?;
    let files = workspace_context.file_limiters.clone();
    let principal = Arc::clone(context.principal.shared_name());
    let file_permit = files.acquire(&principal).await?;
    let (deadline, max_file_bytes) = (context.deadline, request.max_file_bytes);
    let open = move |cancel: &CancelToken| {
        let is_allowed = Box::new(move |path: &str| policy.check(path).is_ok());
        let filter = TreeFilter { exclude, max_file_bytes, is_allowed };
        TreeArchive::open(workspace, path, filter, cancel)
    };
    let archive =
        CancelToken::run_blocking(file_permit, task::sleep_until(deadline), open).await??;

    let (sender, terminator, responses) = response_channel(STREAM_BUFFER_CHUNKS, &context.call_id);
    let download = TreeDownload {
        state: Some(ArchiveState {
            archive,
            is_compressed: request.compression() == TreeCompression::Zstd,
            checksum: Checksum::default(),
        }),
        files,
        principal,
        sender,
        terminator,
        deadline,
        shutdown: pipeline.shutdown.terminate_token(),
        _permit: permit,
    };
    task::spawn_tracked("download of a tree", download.run());
    Ok(responses)
}

impl TreeDownload {
    /// Sends the archive until its end, or until the client has disconnected.
    ///
    /// Fails if the client reads nothing for too long, at its deadline, and when the drain timeout
    /// has passed.
    async fn run(mut self) {
        let error = loop {
            let message = match self.next_message().await {
                Ok(message) => message,
                Err(error) => break error,
            };
            let is_last = message.summary.is_some();
            tokio::select! {
                biased;
                () = self.shutdown.cancelled() => break draining_error(),
                () = task::sleep_until(self.deadline) => {
                    break pipeline::stream_deadline_error("DownloadTree");
                }
                sent = self.sender.send(Ok(message)) => {
                    if is_last || sent.is_err() {
                        return;
                    }
                }
                () = sleep(TRANSFER_IDLE_TIMEOUT) => break read_timeout_error(),
            }
        };
        self.terminator.fail(&error);
    }

    async fn next_message(&mut self) -> Result<DownloadTreeResponse, Error> {
        let Some(state) = self.state.take() else {
            return Err(Error::internal("a download that has ended"));
        };
        let permit = self.files.acquire(&self.principal).await?;
        // The work for one message is short, unless files are excluded. Then it is cancelled.
        let end = async {
            tokio::select! {
                () = self.shutdown.cancelled() => {}
                () = self.sender.closed() => {}
                () = task::sleep_until(self.deadline) => {}
            }
        };
        let (state, message) =
            CancelToken::run_blocking(permit, end, |cancel| state.next_message(cancel)).await??;
        self.state = Some(state);
        Ok(message)
    }
}

impl ArchiveState {
    fn next_message(mut self, cancel: &CancelToken) -> Result<(Self, DownloadTreeResponse), Error> {
        let mut data = Vec::with_capacity(MAX_TREE_CHUNK_BYTES + 8192);
        let is_complete = self.archive.read(&mut data, MAX_TREE_CHUNK_BYTES, cancel)?;
        if self.is_compressed {
            data = zstd_frame(&data);
        }
        self.checksum.update(&data);
        let summary =
            is_complete.then(|| summary_of(self.archive.summary(), self.checksum.clone().finish()));
        Ok((self, DownloadTreeResponse { data: data.into(), summary }))
    }
}

fn summary_of(summary: &TreeSummary, sha256: String) -> DownloadTreeSummary {
    let problems = summary.problems.iter().map(|(path, problem)| TreeProblem {
        path: path.clone(),
        kind: problem_kind(*problem).into(),
    });
    DownloadTreeSummary {
        files: summary.files,
        directories: summary.directories,
        symlinks: summary.symlinks,
        size_bytes: summary.size_bytes,
        sha256,
        skipped_entries: summary.skipped_entries,
        changed_files: summary.changed_files,
        problems: problems.collect(),
    }
}

fn problem_kind(problem: tree_archive::TreeProblem) -> TreeProblemKind {
    match problem {
        tree_archive::TreeProblem::Special => TreeProblemKind::Special,
        tree_archive::TreeProblem::NotUtf8 => TreeProblemKind::NotUtf8,
        tree_archive::TreeProblem::TooLong => TreeProblemKind::TooLong,
        tree_archive::TreeProblem::Unreadable => TreeProblemKind::Unreadable,
        tree_archive::TreeProblem::Vanished => TreeProblemKind::Vanished,
        tree_archive::TreeProblem::Denied => TreeProblemKind::Denied,
        tree_archive::TreeProblem::Changed => TreeProblemKind::Changed,
    }
}

fn draining_error() -> Error {
    Error::new(Reason::Draining, "the daemon is shutting down: start again when it is back")
}

fn read_timeout_error() -> Error {
    let text = format!(
        "nothing was read for {} seconds: start again when you can read",
        TRANSFER_IDLE_TIMEOUT.as_secs()
    );
    Error::new(Reason::Timeout, text).with_retry_after(Duration::ZERO)
}
