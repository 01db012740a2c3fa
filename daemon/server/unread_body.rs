//! Reads what is left of an HTTP/1.1 request that was answered early, such as one with a wrong key.
//!
//! hyper closes the connection of such a request. The kernel then resets it if the client still
//! sends, and the client loses the answer.

use std::{
    pin::{Pin, pin},
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use http::{Request, Version, header::EXPECT};
use http_body::{Body as _, Frame, SizeHint};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use tokio::time::timeout;
use tonic::body::Body;

use crate::daemon::task;

/// Bytes that are read of a request after its answer.
const MAX_UNREAD_BYTES: usize = 1 << 20;
/// Time for them to arrive.
const UNREAD_TIMEOUT: Duration = Duration::from_secs(5);

/// The body of an HTTP/1.1 request. Dropped before its end, it is read on.
#[derive(Debug)]
struct FinishedBody(Option<Incoming>);

/// Lets the body of an HTTP/1.1 request be read even if its handler does not.
///
/// The client of a request with `expect` may have left out the body after the answer.
pub(super) fn finish_body(request: Request<Incoming>) -> Request<Body> {
    let is_sent = request.version() == Version::HTTP_11 && !request.headers().contains_key(EXPECT);
    request.map(|body| {
        if is_sent && !body.is_end_stream() {
            Body::new(FinishedBody(Some(body)))
        } else {
            Body::new(body)
        }
    })
}

impl http_body::Body for FinishedBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let Some(body) = &mut self.0 else {
            return Poll::Ready(None);
        };
        let frame = Pin::new(body).poll_frame(context);
        if matches!(frame, Poll::Ready(None | Some(Err(_)))) {
            self.0 = None;
        }
        frame
    }

    fn is_end_stream(&self) -> bool {
        self.0.as_ref().is_none_or(Incoming::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.0.as_ref().map_or_else(|| SizeHint::with_exact(0), Incoming::size_hint)
    }
}

impl Drop for FinishedBody {
    fn drop(&mut self) {
        let Some(body) = self.0.take().filter(|body| !body.is_end_stream()) else {
            return;
        };
        task::spawn("unread body", timeout(UNREAD_TIMEOUT, read_rest(body)));
    }
}

async fn read_rest(body: Incoming) {
    let mut body = pin!(body);
    let mut left = MAX_UNREAD_BYTES;
    while let Some(Ok(frame)) = body.frame().await {
        let length = frame.data_ref().map_or(0, Bytes::len);
        let Some(still_left) = left.checked_sub(length) else {
            return;
        };
        left = still_left;
    }
}
