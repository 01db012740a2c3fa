//! Sending a file, or a range of it: read no faster than it is taken.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

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
        workspace::RegularFile,
    },
};

/// Bytes in one message.
const CHUNK_BYTES: u64 = 256 * 1024;
/// Messages that are read ahead of a slow client.
const STREAM_BUFFER_CHUNKS: usize = 2;

/// A download that goes on.
struct FileDownload {
    file: Arc<RegularFile>,
    /// What the file was when it was opened.
    opened_stat: Stat,
    size: u64,
    offset: u64,
    remaining_bytes: u64,
    /// Whether no message was made yet.
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

/// Opens the file and starts sending it.
pub(super) async fn download(
    pipeline: &Arc<Pipeline>,
    places: &FailFastLimiter,
    incoming: CallContext,
    request: DownloadRequest,
) -> Result<ResponseStream<DownloadResponse>, Error> {
    // Who decides about it is told what was given, without defaults.
    let given = request.clone();
    let request = pipeline.catalog.check("jig.v1.DownloadRequest", request)?;
    let workspace = Arc::clone(&pipeline.workspace_context(&incoming)?.workspace);
    let path = workspace.resolve(&request.path)?;
    let (tool, message) = (ReadFile::NAME, "jig.v1.DownloadRequest");
    pipeline.authorize_as(tool, &incoming, message, &given, path.as_str()).await?;
    let _waited_for = task::delay_shutdown();
    let permit = places.try_acquire(&incoming.principal, &pipeline.shutdown)?;
    let (files, caller) =
        (pipeline.workspace_context(&incoming)?.file_limiters.clone(), incoming.principal.key());
    let mut attempts = FdRetry::with_deadline(incoming.deadline);
    let (file, stat) = loop {
        let (workspace, path) = (Arc::clone(&workspace), path.clone());
        let occupied = files.acquire(caller).await?;
        let opened = task::spawn_blocking(move || {
            let _occupied = occupied;
            let file = workspace.open_file(&path)?;
            let stat = file.stat()?;
            Ok::<_, Error>((file, stat))
        });
        match opened.await.map_err(Error::internal)? {
            Err(error) if attempts.should_retry(&error).await => {}
            opened => break opened?,
        }
    };
    if let Some(expected) = &request.expected_version
        && *expected != file_version(&stat)
    {
        let text = format!(
            "{} is not the file any more of which the first part was read: start from the first byte",
            request.path
        );
        return Err(Error::new(Reason::StaleFile, text).with_metadata("path", request.path));
    }
    let size = u64::try_from(stat.st_size).unwrap_or(0);
    let left = size.saturating_sub(request.offset);
    let (sender, last, answers) = response_channel(STREAM_BUFFER_CHUNKS, &incoming.call_id);
    let sending = FileDownload {
        file: Arc::new(file),
        opened_stat: stat,
        size,
        offset: request.offset,
        remaining_bytes: request.limit.map_or(left, |limit| limit.min(left)),
        is_first: true,
        checksum: Checksum::default(),
        terminator: last,
        sender,
        read_timeout: TRANSFER_IDLE_TIMEOUT,
        deadline: incoming.deadline,
        shutdown: pipeline.shutdown.terminate_token(),
        _permit: permit,
    };
    task::spawn_tracked("download", sending.run());
    Ok(answers)
}

impl FileDownload {
    /// Reads and sends until all is sent, the client is gone or silent, its deadline has passed, or
    /// the daemon has drained long enough.
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
                () = task::sleep_until(self.deadline) => break pipeline::timeout_error("Download"),
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
        let length = usize::try_from(self.remaining_bytes.min(CHUNK_BYTES)).unwrap_or(0);
        let mut sum = self.checksum.clone();
        let read = task::spawn_blocking(move || {
            let mut data = vec![0; length];
            let mut filled = 0;
            while let Some(rest) = data.get_mut(filled..).filter(|rest| !rest.is_empty()) {
                match file.read_at(rest, offset + filled as u64)? {
                    // It was cut off since it was opened.
                    0 => break,
                    read => filled += read,
                }
            }
            data.truncate(filled);
            sum.update(&data);
            Ok::<_, Error>((data, sum, file.stat()?))
        });
        let (data, sum, stat) = read.await.map_err(Error::internal)??;
        self.checksum = sum;
        let is_short = data.len() < length;
        self.offset += data.len() as u64;
        self.remaining_bytes = if is_short { 0 } else { self.remaining_bytes - data.len() as u64 };
        let holds_the_same = is_unchanged(&self.opened_stat, &stat);
        // That it does not is told by a last message whose version is not that of the first one.
        let is_last = self.remaining_bytes == 0 && (holds_the_same || !self.is_first);
        self.is_first = false;
        let state = match is_last && !holds_the_same {
            true => &stat,
            // As long as more comes, it is this one that the rest of it must belong to.
            false => &self.opened_stat,
        };
        Ok(DownloadResponse {
            data: data.into(),
            offset,
            size_bytes: self.size,
            version: file_version(state),
            mode: stat.st_mode & 0o777,
            sha256: is_last.then(|| self.checksum.clone().finish()),
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
    Error::new(Reason::Timeout, text).retry_after(Duration::ZERO)
}

/// Whether a file still holds what it held when it was opened, as far as that can be told: its size,
/// when it was last written to, and when anything of it was last changed, which nobody can set to
/// what it was. That last time moves, too, when another file takes its place, and with that one of
/// its names: then it says nothing.
fn is_unchanged(opened: &Stat, now: &Stat) -> bool {
    let written = |stat: &Stat| (stat.st_size, stat.st_mtime, stat.st_mtime_nsec);
    let changed = |stat: &Stat| (stat.st_ctime, stat.st_ctime_nsec);
    let lost_a_name = now.st_nlink < opened.st_nlink;
    written(opened) == written(now) && (lost_a_name || changed(opened) == changed(now))
}

/// What tells one state of a file from another.
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
    use crate::daemon::{
        queue::{Acquire, Limiter, Sharing},
        workspace::Workspace,
    };

    /// A download of a file of so many bytes.
    async fn of_size(folder: &Path, size: u64) -> (FileDownload, ResponseStream<DownloadResponse>) {
        fs::write(folder.join("file"), vec![7; usize::try_from(size).unwrap()]).unwrap();
        let workspace = Workspace::open("w", folder, "/workspace").unwrap();
        let path = workspace.resolve("file").unwrap();
        let (sender, last, answers) = response_channel(STREAM_BUFFER_CHUNKS, "call");
        let file = workspace.open_file(&path).unwrap();
        let sending = FileDownload {
            opened_stat: file.stat().unwrap(),
            file: Arc::new(file),
            size,
            offset: 0,
            remaining_bytes: size,
            is_first: true,
            checksum: Checksum::default(),
            terminator: last,
            sender,
            read_timeout: Duration::from_secs(600),
            deadline: None,
            shutdown: CancellationToken::new(),
            _permit: match Limiter::new(1, Sharing::CapWhenContended(1), 0).acquire(&"w".into(), 1)
            {
                Ok(Acquire::Granted(place)) => place,
                other => panic!("{other:?}"),
            },
        };
        // Longer than what the kernel tells times apart by.
        tokio::time::sleep(Duration::from_millis(50)).await;
        (sending, answers)
    }

    async fn ten_messages(folder: &Path) -> (FileDownload, ResponseStream<DownloadResponse>) {
        of_size(folder, CHUNK_BYTES * 10).await
    }

    #[tokio::test]
    async fn whoever_reads_nothing_for_a_while_learns_that_there_was_more() {
        let folder = tempfile::tempdir().unwrap();
        type CutOff = fn(&mut FileDownload);
        let ways: [(CutOff, Code); 3] = [
            (|sending| sending.read_timeout = Duration::ZERO, Code::DeadlineExceeded),
            (
                |sending| sending.deadline = Some(Instant::now() + Duration::from_millis(50)),
                Code::DeadlineExceeded,
            ),
            (
                |sending| {
                    let end = sending.shutdown.clone();
                    task::spawn("end", async move { end.cancel() });
                },
                Code::Unavailable,
            ),
        ];
        for (cut_off, code) in ways {
            let (mut sending, answers) = ten_messages(folder.path()).await;
            cut_off(&mut sending);
            sending.run().await;
            let answers: Vec<_> = answers.collect().await;
            let (last, before) = answers.split_last().unwrap();
            assert!(before.len() <= STREAM_BUFFER_CHUNKS && before.iter().all(Result::is_ok));
            assert_eq!(last.as_ref().unwrap_err().code(), code);
        }
    }

    #[tokio::test]
    async fn whoever_reads_gets_all() {
        let folder = tempfile::tempdir().unwrap();
        let (sending, answers) = ten_messages(folder.path()).await;
        let sending = task::spawn("download", sending.run());
        let answers: Vec<_> = answers.collect().await;
        assert_eq!(answers.len(), 10);
        let last = answers.last().unwrap().as_ref().unwrap();
        assert!(last.sha256.is_some());
        sending.await.unwrap();
    }

    #[tokio::test]
    async fn a_file_that_was_written_to_is_told_from_one_that_was_replaced() {
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
        // Before the first message is made, and after it.
        for (size, when) in [(0, 0), (9, 0), (CHUNK_BYTES * 2, 0), (CHUNK_BYTES * 2, 1)] {
            for (number, (change, is_written_to)) in changes.into_iter().enumerate() {
                let folder = tempfile::tempdir().unwrap();
                let (mut sending, _answers) = of_size(folder.path(), size).await;
                let opened = file_version(&sending.opened_stat);
                let mut parts: Vec<DownloadResponse> = Vec::new();
                while parts.last().is_none_or(|part| part.sha256.is_none()) {
                    if parts.len() == when {
                        change(&folder.path().join("file"));
                    }
                    parts.push(sending.next_chunk().await.unwrap());
                }
                let case = format!("{size} bytes, change {number} before part {when}");
                assert_eq!(parts[0].version, opened, "{case}");
                let last = parts.last().unwrap();
                // A file without bytes that gets none is written to, too: the times say so.
                assert_eq!(last.version != opened, is_written_to, "{case}");
                let came: u64 = parts.iter().map(|part| part.data.len() as u64).sum();
                assert!(is_written_to || came == size, "{case}");
            }
        }
    }
}
