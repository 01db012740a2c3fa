//! One connection from a command: requests for whole URLs one after the other, or one tunnel.
//!
//! It is one task. What hyper reads from the command is written by hyper to a server, over a
//! connection that is made for this request alone.

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

/// Most bytes of a request's line and fields, and of what is read at a time.
const MAX_REQUEST_HEAD_BYTES: usize = 16 << 10;
/// Most fields of a request.
const MAX_REQUEST_HEADERS: usize = 100;
/// How long a request's head may take, and how long the next one may keep us waiting.
const REQUEST_HEAD_TIMEOUT: Duration = Duration::from_secs(30);
/// Most bytes of an answer's line and fields; servers send more than clients do.
const MAX_RESPONSE_HEAD_BYTES: usize = 64 << 10;
/// Most fields of an answer.
const MAX_RESPONSE_HEADERS: usize = 256;
/// How long nothing may move between a command and a server: longer than any server works on an
/// answer, or keeps a connection that nobody uses.
const IDLE_TIMEOUT: Duration = Duration::from_secs(600);
/// Bytes that a tunnel holds for each direction.
const TUNNEL_BUFFER_BYTES: usize = 16 << 10;

/// What serves the connections of one run.
#[derive(Debug, Clone)]
pub(super) struct ConnectionHandler {
    pub(super) policy: Arc<NetworkPolicy>,
    pub(super) log: Arc<ConnectionLog>,
    /// As many permits as names may be looked up at a time.
    pub(super) lookups: Arc<Semaphore>,
    pub(super) tasks: TaskTracker,
    pub(super) shutdown: CancellationToken,
}

/// A tunnel whose first end is still HTTP's.
struct Tunnel {
    client: OnUpgrade,
    server: MeteredStream<TcpStream>,
    attempt: ConnectionAttempt,
}

/// A server's body on its way to the command.
struct ForwardedBody {
    body: Incoming,
    /// It ends with the body.
    _attempt: ConnectionAttempt,
}

impl ConnectionHandler {
    /// Serves a connection until either side ends it.
    pub(super) async fn serve(&self, stream: TcpStream) {
        let _best_effort = stream.set_nodelay(true);
        let tunnel = Mutex::new(None);
        let service = service_fn(async |request| {
            let answered = self.handle_request(request, &tunnel).await;
            Ok::<_, Infallible>(answered)
        });
        let connection = server::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(REQUEST_HEAD_TIMEOUT)
            .max_buf_size(MAX_REQUEST_HEAD_BYTES)
            .max_headers(MAX_REQUEST_HEADERS)
            .serve_connection(TokioIo::new(stream), service)
            .with_upgrades();
        // A command that sends what is not HTTP has been told so, or is gone.
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
            Err(none) => return none.to_response(&self.policy, &target),
        };
        if request.method() != Method::CONNECT {
            return self.forward(request, &target, server, attempt).await;
        }
        *tunnel.lock().unwrap_or_else(PoisonError::into_inner) =
            Some(Tunnel { client: hyper::upgrade::on(request), server, attempt });
        response::connected_response()
    }

    /// Sends a request to its server, and the server's answer back.
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
            Ok(made) => made,
            Err(error) => {
                return failed(format!("jigd could not talk to {}: {error}", target.host));
            }
        };
        let end = self.shutdown.clone();
        // Who waits for the answer is told of an error by its channel.
        let connection = async move {
            tokio::select! {
                biased;
                () = end.cancelled() => {}
                _ended = connection => {}
                () = meter.wait_until_idle(IDLE_TIMEOUT) => {}
            }
        };
        task::spawn("egress server", self.tasks.track_future(connection));
        let Some(request) = request::to_origin_form(request, target) else {
            return response::text_response(
                StatusCode::BAD_REQUEST,
                "the request cannot be passed on",
            );
        };
        match sender.send_request(request).await {
            Ok(response) if response.status() == StatusCode::SWITCHING_PROTOCOLS => {
                attempt.set_failed("server_error");
                failed(format!(
                    "{} changed to another protocol, which nobody asked for",
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
                failed(format!("{} gave no answer: {error}", target.host))
            }
        }
    }
}

impl Tunnel {
    async fn run(self) {
        let Self { client: command, mut server, attempt } = self;
        // A command that is gone before it heard that it is connected.
        let Ok(command) = command.await else {
            return;
        };
        let mut command = TokioIo::new(command);
        let meter = Arc::clone(server.meter());
        let both = copy_bidirectional_with_sizes(
            &mut command,
            &mut server,
            TUNNEL_BUFFER_BYTES,
            TUNNEL_BUFFER_BYTES,
        );
        tokio::select! {
            _ended = both => {}
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
