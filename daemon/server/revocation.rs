//! Ends open streams when the caller's key is revoked or expires, or its permissions change.
//!
//! Unary calls in flight complete, except long polls.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use bytes::Bytes;
use http_body::{Frame, SizeHint};
use tonic::{Status, body::Body};

use crate::daemon::{
    error::{Error, Reason},
    grpc::status::to_status,
    pipeline::access::principal::Principal,
    task::BoxFuture,
};

/// A response body that ends when the caller's key is revoked.
struct RevocableBody {
    body: Body,
    /// Resolves on revocation; `None` once the stream has ended because of it.
    revoked: Option<BoxFuture<'static, ()>>,
}

/// The status of calls that end because of a revocation.
pub(super) fn revoked_status() -> Status {
    let text = "the key or client certificate of this call was revoked, has expired, or has new permissions: call again with a valid one";
    to_status(&Error::new(Reason::Unauthenticated, text))
}

/// Ends `body` with [`revoked_status`] when the key of `principal` is revoked.
pub(super) fn end_on_revocation(body: Body, principal: Arc<Principal>) -> Body {
    Body::new(RevocableBody {
        body,
        revoked: Some(Box::pin(async move { principal.revoked().await })),
    })
}

impl http_body::Body for RevocableBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let Some(revoked) = &mut self.revoked else {
            return Poll::Ready(None);
        };
        if revoked.as_mut().poll(context).is_pending() {
            return Pin::new(&mut self.body).poll_frame(context);
        }

        self.revoked = None;
        // Drop the body, so that its producer stops.
        self.body = Body::empty();
        let status = revoked_status();
        let mut trailers = http::HeaderMap::new();
        Poll::Ready(Some(match status.add_header(&mut trailers) {
            Ok(()) => Ok(Frame::trailers(trailers)),
            Err(error) => Err(error),
        }))
    }

    fn is_end_stream(&self) -> bool {
        self.revoked.is_none() || self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::default()
    }
}
