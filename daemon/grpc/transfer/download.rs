//! Sends a file, or a range of it, at the speed of its client.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use prost_types::Timestamp;
use rustix::fs::Stat;
use tokio::{sync::mpsc::Sender, time::sleep};
use tokio_util::sync::CancellationToken;

use super::upload::TRANSFER_IDLE_TIMEOUT;
use crate::{
    api::v1::{DownloadRequest, DownloadResponse},
    daemon::{
        checksum::Checksum,
        error::{Error, Reason},
        fd_exhaustion::FdRetry,
        grpc::response_stream::{ResponseStream, StreamItem, StreamTerminator, response_channel},
        pipeline::{self, Pipeline, admission::FailFastLimiter, context::CallContext},
        queue::Permit,
        task,
        tool::{Tool as _, read_file::ReadFile},
        workspace::{RegularFile, RelativePath, Workspace},
    },
};

/// Bytes of data in one message.
const MAX_DOWNLOAD_CHUNK_BYTES: u64 = 256 * 1024;
/// Messages buffered for a slow client.
const STREAM_BUFFER_CHUNKS: usize = 2;

/// A download in progress.
struct FileDownload {
    file: Arc<RegularFile>,
    /// Metadata of the file when it was opened.
    opened_stat: Stat,
    size: u64,
    offset: u64,
    remaining_bytes: u64,
    /// Whether the next message is the first.
    is_first: bool,
    checksum: Checksum,
    sender: Sender<StreamItem<DownloadResponse>>,
    terminator: StreamTerminator<DownloadResponse>,
    /// How long the client may read nothing.
    read_timeout: Duration,
    deadline: Option<Instant>,
    shutdown: CancellationToken,
    _permit: Permit,
}

/// Authorizes the call, opens the file, and starts a task that sends it.
pub(super) async fn download(
    pipeline: &Arc<Pipeline>,
    limiter: &FailFastLimiter,
    context: CallContext,
    request: DownloadRequest,
) -> Result<ResponseStream<DownloadResponse>, Error> {
    // The policy gets the request as sent, without defaults.
    let sent_request = request.clone();
    let request = pipeline.catalog.check("jig.v1.DownloadRequest", request)?;
    let workspace = Arc::clone(&pipeline.resolve_workspace(&context)?.workspace);
    context.note_params([("path", Some(&request.path))]);
    let path = workspace.resolve(&request.path)?;
    let (tool, message) = (ReadFile::NAME, "jig.v1.DownloadRequest");
    pipeline.authorize_as(tool, &context, message, &sent_request, path.as_str()).await?;

    // Acquired before the check for draining: the drain waits for every admitted download.
    let _delay_shutdown = task::delay_shutdown();
    let permit = limiter.try_acquire(&context.principal, &pipeline.shutdown)?;
    let (file, stat) = open_file(pipeline, &context, &workspace, &path).await?;
    if let Some(expected) = &request.expected_version
        && *expected != file_version(&stat)
    {
        let text = format!(
            "{} has changed since its first part was read: start from the first byte",
            request.path
        );
        return Err(Error::new(Reason::StaleFile, text).with_metadata("path", request.path));
    }

    let size = u64::try_from(stat.st_size).unwrap_or(0);
    let available = size.saturating_sub(request.offset);
    let (sender, terminator, responses) = response_channel(STREAM_BUFFER_CHUNKS, &context.call_id);
    let download = FileDownload {
        file: Arc::new(file),
        opened_stat: stat,
        size,
        offset: request.offset,
        remaining_bytes: request.limit.map_or(available, |limit| limit.min(available)),
        is_first: true,
        checksum: Checksum::default(),
        terminator,
        sender,
        read_timeout: TRANSFER_IDLE_TIMEOUT,
        deadline: context.deadline,
        shutdown: pipeline.shutdown.terminate_token(),
        _permit: permit,
    };
    task::spawn_tracked("download", download.run());
    Ok(responses)
}

/// Opens the file. Retries while no descriptors are available.
async fn open_file(
    pipeline: &Pipeline,
    context: &CallContext,
    workspace: &Arc<Workspace>,
    path: &RelativePath,
) -> Result<(RegularFile, Stat), Error> {
    let files = &pipeline.resolve_workspace(context)?.file_limiters;
    let mut attempts = FdRetry::with_deadline(context.deadline);
    loop {
        let (workspace, path) = (Arc::clone(workspace), path.clone());
        let file_permit = files.acquire(context.principal.shared_name()).await?;
        let opened = task::spawn_blocking(move || {
            let _file_permit = file_permit;
            let file = workspace.open_file(&path)?;
            let stat = file.stat()?;
            Ok::<_, Error>((file, stat))
        });
        match opened.await.map_err(Error::internal)? {
            Err(error) if attempts.should_retry(&error).await => {}
            opened => return opened,
        }
    }
}

impl FileDownload {
    /// Sends the file until its end, or until the client has disconnected.
    ///
    /// Fails if the client reads nothing for too long, at its deadline, and when the drain timeout
    /// has passed.
    async fn run(mut self) {
        let error = loop {
            let message = match self.next_chunk().await {
                Ok(message) => message,
                Err(error) => break error,
            };
            let is_last = message.sha256.is_some();
            tokio::select! {
                biased;
                () = self.shutdown.cancelled() => break draining_error(),
                () = task::sleep_until(self.deadline) => break pipeline::stream_deadline_error("Download"),
                sent = self.sender.send(Ok(message)) => {
                    if is_last || sent.is_err() {
                        return;
                    }
                }
                () = sleep(self.read_timeout) => break read_timeout_error(),
            }
        };
        self.terminator.fail(&error);
    }

    async fn next_chunk(&mut self) -> Result<DownloadResponse, Error> {
        let (file, offset) = (Arc::clone(&self.file), self.offset);
        let length =
            usize::try_from(self.remaining_bytes.min(MAX_DOWNLOAD_CHUNK_BYTES)).unwrap_or(0);
        let mut checksum = self.checksum.clone();
        let read = task::spawn_blocking(move || {
            let mut data = vec![0; length];
            let mut filled = 0;
            while let Some(rest) = data.get_mut(filled..).filter(|rest| !rest.is_empty()) {
                match file.read_at(rest, offset + filled as u64)? {
                    // The file was truncated after it was opened.
                    0 => break,
                    read => filled += read,
                }
            }
            data.truncate(filled);
            checksum.update(&data);
            Ok::<_, Error>((data, checksum, file.stat()?))
        });
        let (data, checksum, stat) = read.await.map_err(Error::internal)??;

        self.checksum = checksum;
        let is_short = data.len() < length;
        self.offset += data.len() as u64;
        self.remaining_bytes = if is_short { 0 } else { self.remaining_bytes - data.len() as u64 };

        // The client detects a changed file by comparing the versions of the first and the last
        // message. So if the first message ends a changed file, another message follows.
        let is_unchanged = is_unchanged(&self.opened_stat, &stat);
        let is_last = self.remaining_bytes == 0 && (is_unchanged || !self.is_first);
        self.is_first = false;
        let version_stat = if is_last && !is_unchanged { &stat } else { &self.opened_stat };
        Ok(DownloadResponse {
            data: data.into(),
            offset,
            size_bytes: self.size,
            version: file_version(version_stat),
            mode: stat.st_mode & 0o777,
            sha256: is_last.then(|| self.checksum.clone().finish()),
            modify_time: modify_time(&self.opened_stat),
        })
    }
}

fn draining_error() -> Error {
    let text = "the daemon is shutting down: read the rest when it is back";
    Error::new(Reason::Draining, text)
}

fn read_timeout_error() -> Error {
    let text = format!(
        "nothing was read for {} seconds: read the rest when you can",
        TRANSFER_IDLE_TIMEOUT.as_secs()
    );
    Error::new(Reason::Timeout, text).with_retry_after(Duration::ZERO)
}

/// Whether a file has the same content as when it was opened, judged by size, mtime and ctime.
///
/// No program can set the ctime back. It also changes when the file loses a name, for example
/// because another file replaces it: then the ctime is ignored.
fn is_unchanged(opened: &Stat, now: &Stat) -> bool {
    let size_and_mtime = |stat: &Stat| (stat.st_size, stat.st_mtime, stat.st_mtime_nsec);
    let ctime = |stat: &Stat| (stat.st_ctime, stat.st_ctime_nsec);
    let lost_a_name = now.st_nlink < opened.st_nlink;
    size_and_mtime(opened) == size_and_mtime(now) && (lost_a_name || ctime(opened) == ctime(now))
}

fn modify_time(stat: &Stat) -> Option<Timestamp> {
    let nanos = i32::try_from(stat.st_mtime_nsec).ok()?;
    Some(Timestamp { seconds: stat.st_mtime, nanos })
}

/// Identifies the file and its state.
fn file_version(stat: &Stat) -> String {
    format!(
        "{:x}-{:x}-{:x}-{:x}.{:x}-{:x}.{:x}",
        stat.st_dev,
        stat.st_ino,
        stat.st_size,
        stat.st_mtime,
        stat.st_mtime_nsec,
        stat.st_ctime,
        stat.st_ctime_nsec
    )
}

#[cfg(test)]
mod tests {
    use std::{
        fs::{self, File},
        io::Write as _,
        os::unix::fs::FileExt as _,
        path::Path,
    };

    use tokio_stream::StreamExt as _;
    use tonic::Code;

    use super::*;
    use crate::daemon::queue::{Acquire, Limiter, Sharing};

    /// A download of a file of this size.
    async fn download_of_size(
        directory: &Path,
        size: u64,
    ) -> (FileDownload, ResponseStream<DownloadResponse>) {
        fs::write(directory.join("file"), vec![7; usize::try_from(size).unwrap()]).unwrap();
        let workspace = Workspace::open("w", directory, "/workspace").unwrap();
        let path = workspace.resolve("file").unwrap();
        let (sender, terminator, responses) = response_channel(STREAM_BUFFER_CHUNKS, "call");
        let file = workspace.open_file(&path).unwrap();
        let download = FileDownload {
            opened_stat: file.stat().unwrap(),
            file: Arc::new(file),
            size,
            offset: 0,
            remaining_bytes: size,
            is_first: true,
            checksum: Checksum::default(),
            terminator,
            sender,
            read_timeout: Duration::from_secs(600),
            deadline: None,
            shutdown: CancellationToken::new(),
            _permit: match Limiter::new(1, Sharing::CapWhenContended(1), 0).acquire(&"w".into(), 1)
            {
                Ok(Acquire::Granted(permit)) => permit,
                other => panic!("{other:?}"),
            },
        };

        // Longer than the resolution of file times.
        tokio::time::sleep(Duration::from_millis(50)).await;
        (download, responses)
    }

    async fn ten_messages(directory: &Path) -> (FileDownload, ResponseStream<DownloadResponse>) {
        download_of_size(directory, MAX_DOWNLOAD_CHUNK_BYTES * 10).await
    }

    #[tokio::test]
    async fn stream_that_is_cut_off_ends_with_an_error() {
        let directory = tempfile::tempdir().unwrap();
        type CutOff = fn(&mut FileDownload);
        let causes: [(CutOff, Code); 3] = [
            (|download| download.read_timeout = Duration::ZERO, Code::DeadlineExceeded),
            (
                |download| download.deadline = Some(Instant::now() + Duration::from_millis(50)),
                Code::DeadlineExceeded,
            ),
            (
                |download| {
                    let end = download.shutdown.clone();
                    task::spawn("end", async move { end.cancel() });
                },
                Code::Unavailable,
            ),
        ];
        for (cut_off, code) in causes {
            let (mut download, responses) = ten_messages(directory.path()).await;
            cut_off(&mut download);
            download.run().await;
            let items: Vec<_> = responses.collect().await;
            let (last, chunks) = items.split_last().unwrap();
            assert!(chunks.len() <= STREAM_BUFFER_CHUNKS && chunks.iter().all(Result::is_ok));
            assert_eq!(last.as_ref().unwrap_err().code(), code);
        }
    }

    #[tokio::test]
    async fn reading_client_gets_the_whole_file() {
        let directory = tempfile::tempdir().unwrap();
        let (download, responses) = ten_messages(directory.path()).await;
        let task = task::spawn("download", download.run());
        let items: Vec<_> = responses.collect().await;
        assert_eq!(items.len(), 10);
        let last = items.last().unwrap().as_ref().unwrap();
        assert!(last.sha256.is_some());
        task.await.unwrap();
    }

    #[tokio::test]
    async fn version_changes_if_the_file_is_written_to_but_not_if_replaced() {
        type FileMutation = fn(&Path);
        let changes: [(FileMutation, bool); 7] = [
            (|_| {}, false),
            (|path| fs::remove_file(path).unwrap(), false),
            (
                |path| {
                    fs::write(path.with_extension("new"), "new").unwrap();
                    fs::rename(path.with_extension("new"), path).unwrap();
                },
                false,
            ),
            (|path| fs::write(path, "new").unwrap(), true),
            (|path| fs::write(path, "").unwrap(), true),
            (
                |path| {
                    let mut file = File::options().append(true).open(path).unwrap();
                    file.write_all(b"more").unwrap();
                },
                true,
            ),
            (
                |path| {
                    let file = File::options().write(true).open(path).unwrap();
                    let written = file.metadata().unwrap().modified().unwrap();
                    file.write_all_at(b"forged", 0).unwrap();
                    file.set_modified(written).unwrap();
                },
                true,
            ),
        ];

        // Before the first message, and after it.
        for (size, when) in
            [(0, 0), (9, 0), (MAX_DOWNLOAD_CHUNK_BYTES * 2, 0), (MAX_DOWNLOAD_CHUNK_BYTES * 2, 1)]
        {
            for (number, (change, is_written_to)) in changes.into_iter().enumerate() {
                let directory = tempfile::tempdir().unwrap();
                let (mut download, _responses) = download_of_size(directory.path(), size).await;

                let opened = file_version(&download.opened_stat);
                let mut parts: Vec<DownloadResponse> = Vec::new();
                while parts.last().is_none_or(|part| part.sha256.is_none()) {
                    if parts.len() == when {
                        change(&directory.path().join("file"));
                    }
                    parts.push(download.next_chunk().await.unwrap());
                }

                let case = format!("{size} bytes, change {number} before part {when}");
                assert_eq!(parts[0].version, opened, "{case}");
                let last = parts.last().unwrap();
                // Truncating an empty file counts as a write, because its times change.
                assert_eq!(last.version != opened, is_written_to, "{case}");
                let received: u64 = parts.iter().map(|part| part.data.len() as u64).sum();
                assert!(is_written_to || received == size, "{case}");
            }
        }
    }
}
