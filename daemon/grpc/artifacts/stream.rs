//! Streams the bytes of an artifact, from a file of this daemon or from the fleet.

use std::{
    fs::File,
    io,
    os::unix::fs::FileExt as _,
    sync::Arc,
    time::{Duration, Instant},
};

use bytes::{Buf as _, Bytes};
use tokio::{sync::mpsc::Sender, time::sleep};
use tokio_util::sync::CancellationToken;

use super::super::response_stream::{StreamItem, StreamTerminator};
use crate::{
    api::v1::ReadArtifactResponse,
    daemon::{
        error::{Error, Reason},
        pipeline::{self, fleet_jobs::FleetArtifactReader},
        queue::Permit,
        task,
    },
};

/// Bytes of data in one message.
const MAX_ARTIFACT_CHUNK_BYTES: u64 = 64 * 1024;
/// Messages buffered for a slow client.
pub(super) const STREAM_BUFFER_CHUNKS: usize = 4;

/// An artifact that is being sent.
pub(super) struct ArtifactStream {
    pub(super) source: ArtifactSource,
    pub(super) offset: u64,
    pub(super) remaining_bytes: u64,
    pub(super) sender: Sender<StreamItem<ReadArtifactResponse>>,
    pub(super) terminator: StreamTerminator<ReadArtifactResponse>,
    /// How long the client may read nothing.
    pub(super) read_timeout: Duration,
    pub(super) deadline: Option<Instant>,
    pub(super) shutdown: CancellationToken,
    pub(super) permit: Arc<Permit>,
}

/// Where the bytes of an artifact come from.
pub(super) enum ArtifactSource {
    Empty,
    File(Arc<File>),
    Fleet(FleetObject),
}

/// An artifact that the fleet has stored. It is read from its beginning, whatever the offset is.
pub(super) struct FleetObject {
    reader: Box<dyn FleetArtifactReader>,
    size_bytes: u64,
    /// Bytes that were read and not sent, and the position of the first one.
    buffered: Bytes,
    position: u64,
}

impl FleetObject {
    pub(super) fn new(reader: Box<dyn FleetArtifactReader>, size_bytes: u64) -> Self {
        Self { reader, size_bytes, buffered: Bytes::new(), position: 0 }
    }

    /// Reads at most `length` bytes from `offset`, which is not before the end of the last read.
    async fn read(&mut self, offset: u64, length: usize) -> Result<Bytes, Error> {
        if offset >= self.size_bytes || length == 0 {
            return Ok(Bytes::new());
        }
        loop {
            let skipped = usize::try_from(offset - self.position).unwrap_or(usize::MAX);
            if skipped < self.buffered.len() {
                self.buffered.advance(skipped);
                let data = self.buffered.split_to(length.min(self.buffered.len()));
                self.position = offset + data.len() as u64;
                return Ok(data);
            }
            self.position += self.buffered.len() as u64;
            self.buffered = self.reader.next().await?.ok_or_else(|| {
                Error::internal("an artifact of a fleet job is shorter than its record says")
            })?;
        }
    }
}

impl ArtifactStream {
    /// Sends the artifact until its end, or until the client has disconnected.
    ///
    /// Fails if the client reads nothing for too long, at its deadline, and when the drain timeout
    /// has passed.
    pub(super) async fn run(mut self) {
        let (deadline, shutdown, sender) =
            (self.deadline, self.shutdown.clone(), self.sender.clone());
        let error = tokio::select! {
            biased;
            () = task::sleep_until(deadline) => pipeline::stream_deadline_error("ReadArtifact"),
            () = shutdown.cancelled() => {
                let text = "the daemon is shutting down: read the rest when it is back";
                Error::new(Reason::Draining, text)
            }
            () = sender.closed() => return,
            sent = self.send_chunks() => match sent {
                Ok(()) => return,
                Err(error) => error,
            },
        };
        self.terminator.fail(&error);
    }

    async fn send_chunks(&mut self) -> Result<(), Error> {
        let mut is_first = true;
        loop {
            let message = self.next_chunk().await?;
            let is_empty = message.data.is_empty();
            // An empty message is sent only if there is no data at all.
            if is_empty && !is_first {
                return Ok(());
            }
            is_first = false;

            tokio::select! {
                biased;
                sent = self.sender.send(Ok(message)) => {
                    if sent.is_err() || is_empty || self.remaining_bytes == 0 {
                        return Ok(());
                    }
                }
                () = sleep(self.read_timeout) => return Err(read_timeout_error(self.read_timeout)),
            }
        }
    }

    async fn next_chunk(&mut self) -> Result<ReadArtifactResponse, Error> {
        let offset = self.offset;
        let length =
            usize::try_from(self.remaining_bytes.min(MAX_ARTIFACT_CHUNK_BYTES)).unwrap_or(0);
        let (data, size_bytes) = match &mut self.source {
            ArtifactSource::Empty => (Bytes::new(), 0),
            ArtifactSource::File(file) => {
                read_file(Arc::clone(file), offset, length, Arc::clone(&self.permit))
                    .await
                    .map_err(Error::internal)?
            }
            ArtifactSource::Fleet(object) => {
                (object.read(offset, length).await?, object.size_bytes)
            }
        };
        self.remaining_bytes -= data.len() as u64;
        self.offset += data.len() as u64;
        Ok(ReadArtifactResponse { data, offset, size_bytes })
    }
}

/// Reads at most `length` bytes, and the size of the file.
async fn read_file(
    file: Arc<File>,
    offset: u64,
    length: usize,
    permit: Arc<Permit>,
) -> io::Result<(Bytes, u64)> {
    let read = task::spawn_blocking(move || {
        // The thread holds the permit until it has read, even if the stream ends earlier.
        let _permit = permit;
        let mut data = vec![0; length];
        let size = file.metadata()?.len();
        let length = if offset < size { file.read_at(&mut data, offset)? } else { 0 };
        data.truncate(length);
        Ok((data.into(), size))
    });
    read.await.map_err(io::Error::other)?
}

fn read_timeout_error(read_timeout: Duration) -> Error {
    let seconds = read_timeout.as_secs();
    let text = format!("nothing was read for {seconds} seconds: read the rest when you can");
    Error::new(Reason::Timeout, text).with_retry_after(Duration::ZERO)
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use tokio_stream::StreamExt as _;
    use tonic::Code;

    use super::{super::super::response_stream::response_channel, *};
    use crate::daemon::{
        queue::{Acquire, Limiter, Sharing},
        task::BoxFuture,
    };

    /// An object of three chunks.
    struct Chunks(Vec<Bytes>);

    impl FleetArtifactReader for Chunks {
        fn next(&mut self) -> BoxFuture<'_, Result<Option<Bytes>, Error>> {
            let next = (!self.0.is_empty()).then(|| self.0.remove(0));
            Box::pin(async { Ok(next) })
        }
    }

    #[tokio::test]
    async fn objects_are_read_from_any_offset() {
        let bytes: Vec<u8> = (0..10).collect();
        for offset in 0..12_u64 {
            let chunks = bytes.chunks(4).map(Bytes::copy_from_slice).collect();
            let mut object = FleetObject::new(Box::new(Chunks(chunks)), 10);
            let mut read = Vec::new();
            loop {
                let data = object.read(offset + read.len() as u64, 3).await.unwrap();
                if data.is_empty() {
                    break;
                }
                read.extend_from_slice(&data);
            }
            let start = bytes.len().min(offset.try_into().unwrap());
            assert_eq!(read, bytes[start..], "from {offset}");
        }

        let mut short = FleetObject::new(Box::new(Chunks(vec![Bytes::from_static(b"1234")])), 10);
        assert_eq!(short.read(5, 3).await.unwrap_err().reason, Reason::Internal);
    }

    #[tokio::test]
    async fn idle_client_releases_its_permit_and_gets_an_error() {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&[0; 10 << 16]).unwrap();
        let limiter = Limiter::new(1, Sharing::CapWhenContended(1), 0);
        let permit = match limiter.acquire(&"w".into(), 1) {
            Ok(Acquire::Granted(permit)) => Arc::new(permit),
            other => panic!("{other:?}"),
        };
        let (sender, terminator, responses) = response_channel(STREAM_BUFFER_CHUNKS, "call");
        let stream = ArtifactStream {
            source: ArtifactSource::File(Arc::new(file)),
            offset: 0,
            remaining_bytes: u64::MAX,
            sender,
            terminator,
            read_timeout: Duration::ZERO,
            deadline: None,
            shutdown: CancellationToken::new(),
            permit,
        };

        stream.run().await;
        assert_eq!(limiter.in_use(), 0);
        let items: Vec<_> = responses.collect().await;
        let (last, chunks) = items.split_last().unwrap();
        assert_eq!(chunks.len(), STREAM_BUFFER_CHUNKS);
        assert!(chunks.iter().all(Result::is_ok));
        assert_eq!(last.as_ref().unwrap_err().code(), Code::DeadlineExceeded);
    }
}
