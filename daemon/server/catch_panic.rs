//! Turns a panic in a handler into `INTERNAL`.
//!
//! Without this layer the HTTP/2 stream would be reset, which a client cannot distinguish from a
//! lost connection.

use std::{
    any::Any,
    future::Future,
    panic::{AssertUnwindSafe, catch_unwind},
    pin::Pin,
    task::{Context, Poll},
};

use http::{Request, Response};
use tonic::body::Body;
use tower::{Layer, Service};

use crate::daemon::{error::Error, grpc::status::to_status};

/// Layer that catches panics.
#[derive(Debug, Clone, Copy)]
pub(super) struct CatchPanicLayer;

#[derive(Debug, Clone)]
pub(super) struct CatchPanicService<S>(S);

#[derive(Debug)]
pub(super) struct CatchPanicFuture<F>(Pin<Box<F>>);

impl<S> Layer<S> for CatchPanicLayer {
    type Service = CatchPanicService<S>;

    fn layer(&self, inner: S) -> CatchPanicService<S> {
        CatchPanicService(inner)
    }
}

impl<S: Service<Request<Body>, Response = Response<Body>>> Service<Request<Body>>
    for CatchPanicService<S>
{
    type Response = Response<Body>;
    type Error = S::Error;
    type Future = CatchPanicFuture<S::Future>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.0.poll_ready(context)
    }

    fn call(&mut self, request: Request<Body>) -> CatchPanicFuture<S::Future> {
        CatchPanicFuture(Box::pin(self.0.call(request)))
    }
}

impl<F: Future<Output = Result<Response<Body>, E>>, E> Future for CatchPanicFuture<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        // A future that has panicked is not polled again, so its broken state is never observed.
        catch_unwind(AssertUnwindSafe(|| self.0.as_mut().poll(context))).unwrap_or_else(|panic| {
            let message = panic_message(panic.as_ref());
            tracing::error!(panic = %message, "a handler panicked");
            Poll::Ready(Ok(to_status(&Error::internal(message)).into_http()))
        })
    }
}

fn panic_message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "without a message".to_owned())
}
