//! One connection from a command: a series of requests for whole URLs, or one tunnel.
//!
//! Each connection is one task. Each request goes to its server over a connection of its own.

use std::{
    convert::Infallible,
    pin::Pin,
    sync::{Arc, Mutex, PoisonError},
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use http::{Method, Request, Response, StatusCode};
use http_body::{Frame, SizeHint};
use http_body_util::BodyExt as _;
use hyper::{
    body::Incoming, client::conn::http1 as client, server::conn::http1 as server,
    service::service_fn, upgrade::OnUpgrade,
};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::{io::copy_bidirectional_with_sizes, net::TcpStream, sync::Semaphore};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::{
    connection_log::{ConnectionAttempt, ConnectionLog},
    dial::dial,
    meter::MeteredStream,
    request::{self, MalformedRequest, ProxyTarget},
    response::{self, ProxyBody},
};
use crate::daemon::{netpolicy::NetworkPolicy, task};

/// Limit of a request's line and headers, and size of a read.
const MAX_REQUEST_HEAD_BYTES: usize = 16 << 10;
const MAX_REQUEST_HEADERS: usize = 100;
/// Limit of the time to receive a request's head, and of the pause before it.
const REQUEST_HEAD_TIMEOUT: Duration = Duration::from_secs(30);
/// Limit of a response's line and headers. Servers send more than clients do.
const MAX_RESPONSE_HEAD_BYTES: usize = 64 << 10;
const MAX_RESPONSE_HEADERS: usize = 256;
/// Longest time without a byte between a command and a server: longer than any server takes for a
/// response, or keeps an idle connection.
const IDLE_TIMEOUT: Duration = Duration::from_secs(600);
/// Buffer of a tunnel for each direction.
const TUNNEL_BUFFER_BYTES: usize = 16 << 10;

/// Serves the connections of one run.
#[derive(Debug, Clone)]
pub(super) struct ConnectionHandler {
    pub(super) policy: Arc<NetworkPolicy>,
    pub(super) log: Arc<ConnectionLog>,
    /// Limits the lookups of the run.
    pub(super) lookups: Arc<Semaphore>,
    pub(super) tasks: TaskTracker,
    pub(super) shutdown: CancellationToken,
}

/// A tunnel, to be run once the response to CONNECT is sent.
struct Tunnel {
    client: OnUpgrade,
    server: MeteredStream<TcpStream>,
    attempt: ConnectionAttempt,
}

/// A server's body on its way to the command.
struct ForwardedBody {
    body: Incoming,
    /// Recorded when the body ends.
    _attempt: ConnectionAttempt,
}

impl ConnectionHandler {
    /// Serves a connection until either side closes it.
    pub(super) async fn serve(&self, stream: TcpStream) {
        let _best_effort = stream.set_nodelay(true);
        let tunnel = Mutex::new(None);
        let service = service_fn(async |request| {
            Ok::<_, Infallible>(self.handle_request(request, &tunnel).await)
        });
        let connection = server::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(REQUEST_HEAD_TIMEOUT)
            .max_buf_size(MAX_REQUEST_HEAD_BYTES)
            .max_headers(MAX_REQUEST_HEADERS)
            .serve_connection(TokioIo::new(stream), service)
            .with_upgrades();
        // On an error, the command has received a response or is gone.
        let _ended = connection.await;

        let tunnel = tunnel.into_inner().unwrap_or_else(PoisonError::into_inner);
        if let Some(tunnel) = tunnel {
            tunnel.run().await;
        }
    }

    async fn handle_request(
        &self,
        request: Request<Incoming>,
        tunnel: &Mutex<Option<Tunnel>>,
    ) -> Response<ProxyBody> {
        let target = match ProxyTarget::from_request(&request) {
            Ok(target) => target,
            Err(MalformedRequest(status, text)) => return response::text_response(status, text),
        };

        let mut attempt = self.log.begin(request.method(), &target);
        let server = match dial(&self.policy, &target, &self.lookups, &mut attempt).await {
            Ok(server) => server,
            Err(error) => return error.to_response(&self.policy, &target),
        };

        if request.method() != Method::CONNECT {
            return self.forward(request, &target, server, attempt).await;
        }

        *tunnel.lock().unwrap_or_else(PoisonError::into_inner) =
            Some(Tunnel { client: hyper::upgrade::on(request), server, attempt });
        response::connected_response()
    }

    /// Forwards a request to its server, and the response back.
    async fn forward(
        &self,
        request: Request<Incoming>,
        target: &ProxyTarget,
        server: MeteredStream<TcpStream>,
        mut attempt: ConnectionAttempt,
    ) -> Response<ProxyBody> {
        let failed = |text: String| response::text_response(StatusCode::BAD_GATEWAY, &text);

        let meter = Arc::clone(server.meter());
        let handshake = client::Builder::new()
            .max_buf_size(MAX_RESPONSE_HEAD_BYTES)
            .max_headers(MAX_RESPONSE_HEADERS)
            .handshake(TokioIo::new(server));
        let (mut sender, connection) = match handshake.await {
            Ok(parts) => parts,
            Err(error) => {
                return failed(format!("jigd could not talk to {}: {error}", target.host));
            }
        };

        let shutdown = self.shutdown.clone();
        // An error reaches the caller through `sender`.
        let connection = async move {
            tokio::select! {
                biased;
                () = shutdown.cancelled() => {}
                _ended = connection => {}
                () = meter.wait_until_idle(IDLE_TIMEOUT) => {}
            }
        };
        task::spawn("egress server", self.tasks.track_future(connection));

        let Some(request) = request::to_origin_form(request, target) else {
            return response::text_response(
                StatusCode::BAD_REQUEST,
                "the request cannot be forwarded",
            );
        };
        match sender.send_request(request).await {
            Ok(response) if response.status() == StatusCode::SWITCHING_PROTOCOLS => {
                attempt.set_failed("server_error");
                failed(format!(
                    "{} switched to another protocol without a request for it",
                    target.host
                ))
            }
            Ok(response) => {
                let (mut parts, body) = response.into_parts();
                request::strip_hop_by_hop(&mut parts.headers);
                parts.extensions.clear();
                let body = ForwardedBody { body, _attempt: attempt };
                Response::from_parts(parts, body.boxed())
            }
            Err(error) => {
                attempt.set_failed("server_error");
                failed(format!("{} sent no response: {error}", target.host))
            }
        }
    }
}

impl Tunnel {
    async fn run(self) {
        let Self { client: command, mut server, attempt } = self;
        // Fails if the command is gone before the response to CONNECT was sent.
        let Ok(command) = command.await else {
            return;
        };

        let mut command = TokioIo::new(command);
        let meter = Arc::clone(server.meter());
        let copy = copy_bidirectional_with_sizes(
            &mut command,
            &mut server,
            TUNNEL_BUFFER_BYTES,
            TUNNEL_BUFFER_BYTES,
        );
        tokio::select! {
            _ended = copy => {}
            () = meter.wait_until_idle(IDLE_TIMEOUT) => {}
        }
        drop(attempt);
    }
}

impl http_body::Body for ForwardedBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
