//! Serves accepted connections: HTTP/2, and HTTP/1.1 with upgrades.

use std::{pin::pin, time::Duration};

use http::Request;
use hyper::{body::Incoming, service::service_fn};
use hyper_util::{
    rt::{TokioExecutor, TokioIo, TokioTimer},
    server::conn::auto::Builder,
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tonic::body::Body;
use tower::ServiceExt as _;

use super::connection::ServerConnection;
use crate::daemon::{http::HttpService, task};

/// Concurrent calls on one connection. hyper's default is 200.
const MAX_STREAMS_PER_CONNECTION: u32 = 1024;
/// Streams that a client may reset before they were accepted (rapid reset, CVE-2023-44487).
const MAX_PENDING_RESETS: usize = 64;
/// Streams that the server may reset during the life of a connection. Every call that a client
/// abandons is one, so the limit must be large.
const MAX_LOCAL_RESETS: usize = 1 << 20;
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

/// Serves connections with one service, until it is closed.
#[derive(Debug, Clone)]
pub(super) struct ConnectionServer {
    service: HttpService,
    builder: Builder<TokioExecutor>,
    connections: TaskTracker,
    /// Cancelled when connections must close as soon as their calls have ended.
    close: CancellationToken,
}

impl ConnectionServer {
    pub(super) fn new(service: HttpService) -> Self {
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
        Self { service, builder, connections: TaskTracker::new(), close: CancellationToken::new() }
    }

    /// A server with another service, whose connections close together with those of this one.
    pub(super) fn with_service(&self, service: HttpService) -> Self {
        Self { service, ..self.clone() }
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

    async fn serve(&self, connection: ServerConnection) {
        let peer = connection.peer_info();
        let service = service_fn(|request: Request<Incoming>| {
            let mut request = request.map(Body::new);
            request.extensions_mut().insert(peer.clone());
            self.service.clone().oneshot(request)
        });

        let io = TokioIo::new(connection);
        let mut serving = pin!(self.builder.serve_connection_with_upgrades(io, service));
        let served = tokio::select! {
            served = &mut serving => served,
            () = self.close.cancelled() => {
                serving.as_mut().graceful_shutdown();
                serving.await
            }
        };
        if let Err(error) = served {
            tracing::debug!(error, "a connection ended with an error");
        }
    }
}
