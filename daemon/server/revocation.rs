//! Streams end when their callers may not call any more: whoever took a key away does not want what its
//! holder has begun to watch to go on. Calls that answer once are finished, but for those that only wait.

use std::{
    future::Future,
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
};

/// An answer that goes on for as long as its caller may call.
struct RevocableBody {
    body: Body,
    /// Without it, the stream has ended.
    revoked: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
}

/// What somebody is told who may not call any more.
pub(super) fn revoked_status() -> Status {
    let text = "the key of this call was taken away, has expired, or was given other rights: call again with one that is right";
    to_status(&Error::new(Reason::Unauthenticated, text))
}

/// Ends `body` when `principal` may not call any more.
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
        let Some(until) = &mut self.revoked else {
            return Poll::Ready(None);
        };
        if until.as_mut().poll(context).is_pending() {
            return Pin::new(&mut self.body).poll_frame(context);
        }
        self.revoked = None;
        // Whoever makes it learns that nobody reads it.
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
