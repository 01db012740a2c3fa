//! Serves accepted connections: HTTP/2, and HTTP/1.1 with upgrades.

use std::{
    convert::Infallible,
    future::pending,
    hash::{BuildHasher as _, Hasher as _, RandomState},
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use http::{HeaderValue, Request, Version, header::CONNECTION};
use hyper::{body::Incoming, service::service_fn};
use hyper_util::{
    rt::{TokioExecutor, TokioIo, TokioTimer},
    server::conn::auto::Builder,
};
use tokio::time::sleep;
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tower::ServiceExt as _;

use super::{connection::ServerConnection, unread_body::finish_body};
use crate::daemon::{
    config::lifetimes::ConnectionAge, http::HttpService, task, telemetry::metrics::Metrics,
};

/// Concurrent calls on one connection. hyper's default is 200.
const MAX_STREAMS_PER_CONNECTION: u32 = 1024;
/// Streams that a client may reset before they were accepted (rapid reset, CVE-2023-44487).
const MAX_PENDING_RESETS: usize = 64;
/// Streams that a client may make the server reset by wrong frames, during the life of a connection
/// (MadeYouReset, CVE-2025-8671). Calls that clients cancel do not count.
///
/// Each provoked reset was measured to cost 1 KiB in a debug build: 17 MiB for 16,384 of them, and
/// 310 MiB for 300,000. An honest client provokes at most one with each upload that the daemon
/// rejects early, by data that is on its way: 400 uploads of 64 frames were 354 resets if 100 were
/// rejected at the same time, and none if one was. With h2's limit of 1,024, a client of some
/// thousand rejected uploads would lose the calls that run beside them.
const MAX_LOCAL_RESETS: usize = 16 << 10;
/// HTTP/2 flow-control windows of one stream and of one connection.
const STREAM_WINDOW_BYTES: u32 = 1 << 20;
const CONNECTION_WINDOW_BYTES: u32 = 8 << 20;
/// Maximum size of a request's headers. HTTP/1.1 has room for the request line too.
const MAX_HEADER_LIST_BYTES: u32 = 16 << 10;
const HTTP1_BUFFER_BYTES: usize = 32 << 10;
/// Time to send the headers of an HTTP/1.1 request. It also ends a connection that is idle.
const HTTP1_HEADER_TIMEOUT: Duration = Duration::from_secs(30);
/// The server pings an HTTP/2 connection that is silent for the interval, and closes it if no reply
/// comes within the timeout.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(30);
const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(10);
/// Part by which the maximum age of a connection varies, so that clients that connected together
/// do not reconnect together.
const AGE_JITTER: f64 = 0.1;

/// Serves connections with one service, until it is closed.
#[derive(Debug, Clone)]
pub(super) struct ConnectionServer {
    service: HttpService,
    builder: Builder<TokioExecutor>,
    age: ConnectionAge,
    metrics: Metrics,
    /// What the listener serves, in metrics.
    label: &'static str,
    connections: TaskTracker,
    /// Cancelled when connections must close as soon as their calls have ended.
    close: CancellationToken,
}

impl ConnectionServer {
    /// A server whose connections have `label` in metrics.
    pub(super) fn new(
        service: HttpService,
        age: ConnectionAge,
        metrics: Metrics,
        label: &'static str,
    ) -> Self {
        let mut builder = Builder::new(TokioExecutor::new());
        builder
            .http1()
            .timer(TokioTimer::new())
            .header_read_timeout(HTTP1_HEADER_TIMEOUT)
            .max_buf_size(HTTP1_BUFFER_BYTES);
        builder
            .http2()
            .timer(TokioTimer::new())
            .max_concurrent_streams(MAX_STREAMS_PER_CONNECTION)
            .initial_stream_window_size(STREAM_WINDOW_BYTES)
            .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
            .keep_alive_interval(KEEPALIVE_INTERVAL)
            .keep_alive_timeout(KEEPALIVE_TIMEOUT)
            .max_header_list_size(MAX_HEADER_LIST_BYTES)
            .max_pending_accept_reset_streams(MAX_PENDING_RESETS)
            .max_local_error_reset_streams(MAX_LOCAL_RESETS);
        let (connections, close) = (TaskTracker::new(), CancellationToken::new());
        Self { service, builder, age, metrics, label, connections, close }
    }

    /// A server with another service, whose connections close together with those of this one.
    pub(super) fn with_service(&self, service: HttpService, label: &'static str) -> Self {
        Self { service, label, ..self.clone() }
    }

    /// Serves one connection in a task of its own.
    pub(super) fn spawn(&self, connection: ServerConnection) {
        let this = self.clone();
        let token = self.connections.token();
        task::spawn("connection", async move {
            this.serve(connection).await;
            drop(token);
        });
    }

    /// Closes each connection once its calls have ended, and waits until all are closed.
    pub(super) async fn close(&self) {
        self.close.cancel();
        self.connections.close();
        self.connections.wait().await;
    }

    async fn serve(&self, mut connection: ServerConnection) {
        let _open = self.metrics.open_connection(self.label);
        let max_age = self.age.max.map(with_jitter);
        if let (Some(max_age), Some(grace)) = (max_age, self.age.grace) {
            connection.cut_after(max_age + grace);
        }
        let peer = connection.peer_info();
        // Whether the connection has reached its age, and whether it is HTTP/1.1.
        let is_aged = Arc::new(AtomicBool::new(false));
        let was_http1 = Arc::new(AtomicBool::new(false));
        let service = service_fn(|request: Request<Incoming>| {
            let mut request = finish_body(request);
            request.extensions_mut().insert(peer.clone());
            let is_http1 = request.version() == Version::HTTP_11;
            was_http1.store(is_http1, Ordering::Relaxed);
            let response = self.service.clone().oneshot(request);
            let is_aged = Arc::clone(&is_aged);
            async move {
                let mut response = response.await?;
                if is_http1 && is_aged.load(Ordering::Relaxed) {
                    let close = HeaderValue::from_static("close");
                    response.headers_mut().entry(CONNECTION).or_insert(close);
                }
                Ok::<_, Infallible>(response)
            }
        });

        let io = TokioIo::new(connection);
        let mut serving = pin!(self.builder.serve_connection_with_upgrades(io, service));
        let mut aging = pin!(async {
            match max_age {
                Some(max_age) => sleep(max_age).await,
                None => pending().await,
            }
        });
        let served = loop {
            tokio::select! {
                served = &mut serving => break served,
                () = self.close.cancelled() => {
                    serving.as_mut().graceful_shutdown();
                    break serving.await;
                }
                () = &mut aging, if !is_aged.load(Ordering::Relaxed) => {
                    is_aged.store(true, Ordering::Relaxed);
                    // HTTP/2 tells which calls it has accepted (GOAWAY). The close of an idle
                    // connection of HTTP/1.1 could meet a request, so the next response ends it.
                    if !was_http1.load(Ordering::Relaxed) {
                        serving.as_mut().graceful_shutdown();
                    }
                }
            }
        };
        if let Err(error) = served {
            tracing::debug!(error, "a connection ended with an error");
        }
    }
}

/// Varies an age by [`AGE_JITTER`], up or down.
fn with_jitter(age: Duration) -> Duration {
    // The hashers of the standard library have random keys.
    let random = RandomState::new().build_hasher().finish() >> 32;
    let random = u32::try_from(random).unwrap_or_default();
    let unit = f64::from(random) / f64::from(u32::MAX);
    age.mul_f64(1.0 + AGE_JITTER * (2.0 * unit - 1.0))
}
