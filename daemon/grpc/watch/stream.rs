//! A stream that sends the changes of files, at the speed of its client.

use std::{
    os::fd::OwnedFd,
    sync::Arc,
    time::{Duration, Instant},
};

use tokio::{io::unix::AsyncFd, sync::mpsc::Sender, time::sleep_until};
use tokio_util::sync::CancellationToken;

use crate::{
    api::v1::{
        ChangeKind, EntryChange, EntryChanges, WatchFilesResponse, WatchKeepAlive, WatchReady,
        watch_files_response::Item,
    },
    daemon::{
        error::Error,
        grpc::response_stream::{
            CLIENT_READ_TIMEOUT, RESUME_HINT, ResponseStream, StreamItem, response_channel,
            send_or_timeout,
        },
        pipeline::{self, shutdown::Shutdown},
        queue::{Permit, PrincipalName},
        sys::readiness::watch_readable,
        task,
        tool::{FileLimiters, WorkspaceContext, wire_file::file_type},
        workspace::{
            CancelToken,
            file_watch::{self, ChangeBatch, EntryChangeKind, TreeWatch},
        },
    },
};

/// Messages buffered for a slow client. More changes stay in the kernel's queue.
const STREAM_BUFFER_MESSAGES: usize = 2;
/// Shortest time between two messages: a command that writes all the time costs little, and its
/// changes of one file become one. The first change after a pause is sent at once.
const MIN_BATCH_INTERVAL: Duration = Duration::from_millis(10);

/// A stream of changes.
pub(super) struct FileWatchStream {
    pub(super) files: FileLimiters,
    pub(super) principal: PrincipalName,
    pub(super) keep_alive_interval: Duration,
    pub(super) end: StreamEnd,
    pub(super) _permit: Permit,
}

/// What ends a stream, besides its client.
#[derive(Debug)]
pub(super) struct StreamEnd {
    pub(super) deadline: Option<Instant>,
    pub(super) draining: CancellationToken,
    pub(super) workspace_context: Arc<WorkspaceContext>,
}

impl StreamEnd {
    /// Waits until the stream must end. Returns the error for the client.
    pub(super) async fn wait(&self) -> Error {
        tokio::select! {
            biased;
            () = self.workspace_context.wait_for_deletion() => self.workspace_context.deleted_error(),
            () = self.draining.cancelled() => Shutdown::draining_error(),
            () = task::sleep_until(self.deadline) => pipeline::stream_deadline_error("WatchFiles"),
        }
    }
}

impl FileWatchStream {
    /// Starts a task that sends the changes.
    pub(super) fn spawn(
        self,
        watch: TreeWatch,
        call_id: &str,
    ) -> Result<ResponseStream<WatchFilesResponse>, Error> {
        let descriptor = watch.events_descriptor().map_err(Error::internal)?;
        let readiness = watch_readable(descriptor).map_err(Error::internal)?;
        let (sender, terminator, responses) = response_channel(STREAM_BUFFER_MESSAGES, call_id);
        // Not tracked: the drain waits for calls only, and the stream runs none.
        task::spawn("file watch", async move {
            if let Some(error) = self.run(watch, readiness, sender).await {
                terminator.fail(&error);
            }
        });
        Ok(responses)
    }

    /// Sends changes until the stream ends. Returns the error for the client, unless it has gone.
    async fn run(
        self,
        watch: TreeWatch,
        readiness: AsyncFd<OwnedFd>,
        sender: Sender<StreamItem<WatchFilesResponse>>,
    ) -> Option<Error> {
        let directories = u32::try_from(watch.directories()).unwrap_or(u32::MAX);
        let mut watch = watch;
        let mut item = Some(Item::Ready(WatchReady { directories }));
        let mut has_more = false;
        loop {
            if let Some(item) = item.take() {
                tokio::select! {
                    biased;
                    error = self.end.wait() => return Some(error),
                    sent = send(&sender, item) => if let Err(end) = sent { return end },
                }
            }
            let sent_at = Instant::now();
            let next_batch = async {
                sleep_until((sent_at + MIN_BATCH_INTERVAL).into()).await;
                if !has_more {
                    readiness.readable().await?.clear_ready();
                }
                std::io::Result::Ok(())
            };
            tokio::select! {
                biased;
                () = sender.closed() => return None,
                error = self.end.wait() => return Some(error),
                ready = next_batch => if let Err(error) = ready {
                    return Some(Error::internal(error));
                },
                () = sleep_until((sent_at + self.keep_alive_interval).into()) => {
                    item = Some(Item::KeepAlive(WatchKeepAlive {}));
                    continue;
                }
            }

            let batch;
            match self.next_batch(watch, &sender).await {
                Ok((same, next)) => (watch, batch) = (same, next),
                Err(error) => return error,
            }
            has_more = batch.has_more;
            item = (!batch.is_empty()).then(|| Item::Changes(wire_changes(batch)));
        }
    }

    /// Reads changes on a blocking thread, which also drops the watch if the stream ends: the kernel
    /// removes each of its directories.
    async fn next_batch(
        &self,
        mut watch: TreeWatch,
        sender: &Sender<StreamItem<WatchFilesResponse>>,
    ) -> Result<(TreeWatch, ChangeBatch), Option<Error>> {
        let permit = tokio::select! {
            biased;
            () = sender.closed() => return Err(None),
            error = self.end.wait() => return Err(Some(error)),
            permit = self.files.acquire(&self.principal) => permit.map_err(Some)?,
        };
        let ended = async {
            tokio::select! {
                () = sender.closed() => {}
                _error = self.end.wait() => {}
            }
        };
        let read = CancelToken::run_blocking(permit, ended, move |cancel| {
            watch.next_batch(cancel).map(|batch| (watch, batch))
        });
        read.await.and_then(|read| read).map_err(Some)
    }
}

async fn send(
    sender: &Sender<StreamItem<WatchFilesResponse>>,
    item: Item,
) -> Result<(), Option<Error>> {
    let message = WatchFilesResponse { item: Some(item) };
    send_or_timeout(sender, message, CLIENT_READ_TIMEOUT, RESUME_HINT).await
}

fn wire_changes(batch: ChangeBatch) -> EntryChanges {
    EntryChanges {
        changes: batch.changes.into_iter().map(wire_change).collect(),
        skipped_names: batch.skipped_names,
    }
}

fn wire_change(change: file_watch::EntryChange) -> EntryChange {
    let kind = match change.kind {
        EntryChangeKind::Created => ChangeKind::Created,
        EntryChangeKind::Changed => ChangeKind::Changed,
        EntryChangeKind::Deleted => ChangeKind::Deleted,
        EntryChangeKind::Rescan => ChangeKind::Rescan,
    };
    EntryChange { kind: kind.into(), path: change.path, r#type: file_type(change.file_kind).into() }
}
