//! Sending a file, or a range of it: read no faster than it is taken.

use std::{sync::Arc, time::Instant};

use rustix::fs::Stat;
use tokio::{
    sync::{OwnedSemaphorePermit, mpsc},
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

type Answers = ReceiverStream<Result<DownloadResponse, Status>>;

/// A download that goes on.
struct Sending {
    file: Arc<RegularFile>,
    size: u64,
    offset: u64,
    left: u64,
    sum: Checksum,
    sender: mpsc::Sender<Result<DownloadResponse, Status>>,
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
    let (sender, receiver) = mpsc::channel(CHUNKS_AHEAD);
    let sending = Sending {
        file: Arc::new(file),
        size,
        offset: request.offset,
        left: request.limit.map_or(left, |limit| limit.min(left)),
        sum: Checksum::default(),
        sender,
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
        loop {
            let (message, ended) = match self.next().await {
                Ok(message) => {
                    let ended = message.sha256.is_some();
                    (Ok(message), ended)
                }
                Err(error) => (Err(to_status(&error)), true),
            };
            let sent = tokio::select! {
                biased;
                () = self.end.cancelled() => self.fail(&draining()),
                () = passed(self.deadline) => self.fail(&call::timed_out("Download")),
                sent = self.sender.send(message) => sent.is_ok(),
                () = sleep(SILENCE) => false,
            };
            if ended || !sent {
                return;
            }
        }
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

    /// Says why it ends. Where nobody reads there is no room for it, and nobody to be told.
    fn fail(&self, error: &Error) -> bool {
        let _unheard = self.sender.try_send(Err(to_status(error)));
        false
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
