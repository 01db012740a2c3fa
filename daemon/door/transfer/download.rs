//! Sending a file, or a range of it: read no faster than it is taken.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use rustix::fs::Stat;
use tokio::{
    sync::{
        OwnedSemaphorePermit,
        mpsc::{self, OwnedPermit},
    },
    time::{sleep, sleep_until},
};
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;
use tonic::Status;

use super::upload::SILENCE;
use crate::{
    api::v1::{DownloadRequest, DownloadResponse},
    daemon::{
        call::{self, Pipeline, admission::Admission, context::Incoming},
        checksum::Checksum,
        door::status::to_status,
        error::{Error, Reason},
        task,
        workspace::RegularFile,
    },
};

/// Bytes in one message.
const CHUNK_BYTES: u64 = 256 * 1024;
/// Messages that are read ahead of a slow client.
const CHUNKS_AHEAD: usize = 2;

type Answer = Result<DownloadResponse, Status>;
type Answers = ReceiverStream<Answer>;

/// A download that goes on.
struct Sending {
    file: Arc<RegularFile>,
    size: u64,
    offset: u64,
    left: u64,
    sum: Checksum,
    sender: mpsc::Sender<Answer>,
    /// A place for why it ends early: a client that does not read now must not take the end for that
    /// of the file when it does.
    last: OwnedPermit<Answer>,
    /// How long the client may read nothing.
    silence: Duration,
    deadline: Option<Instant>,
    end: CancellationToken,
    _permit: OwnedSemaphorePermit,
}

/// Opens the file and starts sending it.
pub(super) async fn download(
    pipeline: &Arc<Pipeline>,
    places: &Admission,
    incoming: Incoming,
    request: DownloadRequest,
) -> Result<Answers, Error> {
    let request = pipeline.catalog.check("jig.v1.DownloadRequest", request)?;
    let workspace = Arc::clone(&pipeline.scene(&incoming)?.workspace);
    let path = workspace.resolve(&request.path)?;
    let _waited_for = task::hold();
    let permit = places.enter(&pipeline.drain)?;
    let opened = task::blocking(move || {
        let file = workspace.open_file(&path)?;
        let stat = file.stat()?;
        Ok::<_, Error>((file, stat))
    });
    let (file, stat) = opened.await.map_err(Error::internal)??;
    if let Some(expected) = &request.expected_version
        && *expected != version(&stat)
    {
        let text = format!(
            "{} is not the file any more of which the first part was read: start from the first byte",
            request.path
        );
        return Err(Error::new(Reason::StaleFile, text).with("path", request.path));
    }
    let size = u64::try_from(stat.st_size).unwrap_or(0);
    let left = size.saturating_sub(request.offset);
    let (sender, receiver) = mpsc::channel(CHUNKS_AHEAD + 1);
    let last = sender.clone().try_reserve_owned();
    let sending = Sending {
        file: Arc::new(file),
        size,
        offset: request.offset,
        left: request.limit.map_or(left, |limit| limit.min(left)),
        sum: Checksum::default(),
        last: last.map_err(Error::internal)?,
        sender,
        silence: SILENCE,
        deadline: incoming.deadline,
        end: pipeline.drain.end_token(),
        _permit: permit,
    };
    task::spawn_tracked("download", sending.send());
    Ok(ReceiverStream::new(receiver))
}

impl Sending {
    /// Reads and sends until all is sent, the client is gone or silent, its deadline has passed, or
    /// the daemon has drained long enough.
    async fn send(mut self) {
        let error = loop {
            let message = match self.next().await {
                Ok(message) => message,
                Err(error) => break error,
            };
            let is_last = message.sha256.is_some();
            tokio::select! {
                biased;
                () = self.end.cancelled() => break draining(),
                () = passed(self.deadline) => break call::timed_out("Download"),
                sent = self.sender.send(Ok(message)) => {
                    if is_last || sent.is_err() {
                        return;
                    }
                }
                () = sleep(self.silence) => break silent(),
            }
        };
        self.last.send(Err(to_status(&error)));
    }

    async fn next(&mut self) -> Result<DownloadResponse, Error> {
        let (file, offset) = (Arc::clone(&self.file), self.offset);
        let length = usize::try_from(self.left.min(CHUNK_BYTES)).unwrap_or(0);
        let mut sum = self.sum.clone();
        let read = task::blocking(move || {
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
        self.sum = sum;
        let is_short = data.len() < length;
        self.offset += data.len() as u64;
        self.left -= data.len() as u64;
        let is_last = is_short || self.left == 0;
        Ok(DownloadResponse {
            data: data.into(),
            offset,
            size_bytes: self.size,
            version: version(&stat),
            mode: stat.st_mode & 0o777,
            sha256: is_last.then(|| self.sum.clone().finish()),
        })
    }
}

async fn passed(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => sleep_until(deadline.into()).await,
        None => std::future::pending().await,
    }
}

fn draining() -> Error {
    let text = "the daemon is shutting down: read the rest when it is back";
    Error::new(Reason::Draining, text)
}

fn silent() -> Error {
    let text = format!(
        "nothing was read for {} seconds: read the rest when you can",
        SILENCE.as_secs()
    );
    Error::new(Reason::Timeout, text).retry_after(Duration::ZERO)
}

/// What tells one state of a file from another.
fn version(stat: &Stat) -> String {
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
    use std::fs;

    use tokio::sync::Semaphore;
    use tokio_stream::StreamExt as _;
    use tonic::Code;

    use super::*;
    use crate::daemon::workspace::Workspace;

    /// A download of a file of ten messages.
    async fn ten_messages(folder: &std::path::Path) -> (Sending, Answers) {
        let size = CHUNK_BYTES * 10;
        fs::write(folder.join("file"), vec![7; usize::try_from(size).unwrap()]).unwrap();
        let workspace = Workspace::open("w", folder, "/workspace").unwrap();
        let path = workspace.resolve("file").unwrap();
        let (sender, receiver) = mpsc::channel(CHUNKS_AHEAD + 1);
        let sending = Sending {
            file: Arc::new(workspace.open_file(&path).unwrap()),
            size,
            offset: 0,
            left: size,
            sum: Checksum::default(),
            last: sender.clone().try_reserve_owned().unwrap(),
            sender,
            silence: Duration::from_secs(600),
            deadline: None,
            end: CancellationToken::new(),
            _permit: Arc::new(Semaphore::new(1)).acquire_owned().await.unwrap(),
        };
        (sending, ReceiverStream::new(receiver))
    }

    #[tokio::test]
    async fn whoever_reads_nothing_for_a_while_learns_that_there_was_more() {
        let folder = tempfile::tempdir().unwrap();
        type CutOff = fn(&mut Sending);
        let ways: [(CutOff, Code); 3] = [
            (
                |sending| sending.silence = Duration::ZERO,
                Code::DeadlineExceeded,
            ),
            (
                |sending| sending.deadline = Some(Instant::now() + Duration::from_millis(50)),
                Code::DeadlineExceeded,
            ),
            (
                |sending| {
                    let end = sending.end.clone();
                    task::spawn("end", async move { end.cancel() });
                },
                Code::Unavailable,
            ),
        ];
        for (cut_off, code) in ways {
            let (mut sending, answers) = ten_messages(folder.path()).await;
            cut_off(&mut sending);
            sending.send().await;
            let answers: Vec<_> = answers.collect().await;
            let (last, before) = answers.split_last().unwrap();
            assert!(before.len() <= CHUNKS_AHEAD && before.iter().all(Result::is_ok));
            assert_eq!(last.as_ref().unwrap_err().code(), code);
        }
    }

    #[tokio::test]
    async fn whoever_reads_gets_all() {
        let folder = tempfile::tempdir().unwrap();
        let (sending, answers) = ten_messages(folder.path()).await;
        let sending = task::spawn("download", sending.send());
        let answers: Vec<_> = answers.collect().await;
        assert_eq!(answers.len(), 10);
        let last = answers.last().unwrap().as_ref().unwrap();
        assert!(last.sha256.is_some());
        sending.await.unwrap();
    }
}
