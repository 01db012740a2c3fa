//! Traffic meter: a stream wrapper that counts bytes and detects idle connections.

use std::{
    io::{self, IoSlice},
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    time::{Instant, sleep_until},
};

/// Counts of one stream.
#[derive(Debug)]
pub(super) struct TrafficMeter {
    sent_bytes: AtomicU64,
    received_bytes: AtomicU64,
    started_at: Instant,
    /// Milliseconds from `started_at` to the last byte.
    last_activity_ms: AtomicU64,
}

/// A stream with a [`TrafficMeter`].
#[derive(Debug)]
pub(super) struct MeteredStream<S> {
    inner: S,
    meter: Arc<TrafficMeter>,
}

impl TrafficMeter {
    fn new() -> Self {
        Self {
            sent_bytes: AtomicU64::new(0),
            received_bytes: AtomicU64::new(0),
            started_at: Instant::now(),
            last_activity_ms: AtomicU64::new(0),
        }
    }

    /// Returns the bytes written to the stream.
    pub(super) fn sent_bytes(&self) -> u64 {
        self.sent_bytes.load(Ordering::Relaxed)
    }

    /// Returns the bytes read from the stream.
    pub(super) fn received_bytes(&self) -> u64 {
        self.received_bytes.load(Ordering::Relaxed)
    }

    /// Waits until no byte has moved for `limit`.
    pub(super) async fn wait_until_idle(&self, limit: Duration) {
        loop {
            let deadline = self.idle_deadline(limit);
            if deadline <= Instant::now() {
                return;
            }
            sleep_until(deadline).await;
        }
    }

    /// Returns when the stream becomes idle if no byte moves until then.
    fn idle_deadline(&self, limit: Duration) -> Instant {
        self.started_at
            + Duration::from_millis(self.last_activity_ms.load(Ordering::Relaxed))
            + limit
    }

    fn count(&self, counter: &AtomicU64, bytes: usize) {
        counter.fetch_add(bytes as u64, Ordering::Relaxed);
        let millis = u64::try_from(self.started_at.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.last_activity_ms.store(millis, Ordering::Relaxed);
    }
}

impl<S> MeteredStream<S> {
    pub(super) fn new(inner: S) -> Self {
        Self { inner, meter: Arc::new(TrafficMeter::new()) }
    }

    pub(super) fn meter(&self) -> &Arc<TrafficMeter> {
        &self.meter
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for MeteredStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let polled = Pin::new(&mut self.inner).poll_read(cx, buf);
        let read = buf.filled().len() - before;
        if read > 0 {
            self.meter.count(&self.meter.received_bytes, read);
        }
        polled
    }
}

impl<S: AsyncWrite + Unpin> MeteredStream<S> {
    fn count_written(&self, polled: &Poll<io::Result<usize>>) {
        if let Poll::Ready(Ok(bytes)) = polled {
            self.meter.count(&self.meter.sent_bytes, *bytes);
        }
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for MeteredStream<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.inner).poll_write(cx, buf);
        self.count_written(&polled);
        polled
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.inner).poll_write_vectored(cx, bufs);
        self.count_written(&polled);
        polled
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, duplex};

    use super::*;

    #[tokio::test]
    async fn bytes_are_counted_and_postpone_idleness() {
        let (one, mut other) = duplex(64);
        let mut one = MeteredStream::new(one);
        let meter = Arc::clone(one.meter());
        let limit = Duration::from_millis(20);
        let before = meter.idle_deadline(limit);
        meter.wait_until_idle(limit).await;
        assert!(Instant::now() >= before);
        one.write_all(b"abc").await.unwrap();
        other.write_all(b"12345").await.unwrap();
        one.read_exact(&mut [0; 5]).await.unwrap();
        assert_eq!((meter.sent_bytes(), meter.received_bytes()), (3, 5));
        assert!(meter.idle_deadline(limit) >= before + limit);
    }
}
