//! The caller's deadline: `grpc-timeout`.
//!
//! tonic enforces it too, further out, but answers CANCELLED. This layer has the same time, is
//! asked first, and answers DEADLINE_EXCEEDED. The handler is dropped then, and what it waits for
//! is told to stop.

use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll},
    time::{Duration, Instant},
};

use http::{HeaderMap, Request, Response};
use tonic::body::Body;
use tower::{Layer, Service};

use crate::daemon::{
    grpc::{metadata::RequestDeadline, status::to_status},
    pipeline,
};

/// Longest deadline that is kept; a longer one is as good as none.
const MAX_DEADLINE: Duration = Duration::from_secs(366 * 24 * 3600);

/// The layer.
#[derive(Debug, Clone, Copy)]
pub(super) struct DeadlineLayer;

/// A service behind it.
#[derive(Debug, Clone)]
pub(super) struct DeadlineService<S>(S);

type BoxFuture<T> = Pin<Box<dyn Future<Output = T> + Send>>;

impl<S> Layer<S> for DeadlineLayer {
    type Service = DeadlineService<S>;

    fn layer(&self, inner: S) -> DeadlineService<S> {
        DeadlineService(inner)
    }
}

impl<S> Service<Request<Body>> for DeadlineService<S>
where
    S: Service<Request<Body>, Response = Response<Body>>,
    S::Future: Send + 'static,
{
    type Response = Response<Body>;
    type Error = S::Error;
    type Future = BoxFuture<Result<Response<Body>, S::Error>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.0.poll_ready(context)
    }

    fn call(&mut self, mut request: Request<Body>) -> Self::Future {
        let method = request.uri().path().trim_start_matches('/').to_owned();
        let Some(deadline) =
            parse_grpc_timeout(request.headers()).map(|timeout| Instant::now() + timeout)
        else {
            return Box::pin(self.0.call(request));
        };
        // Timers have no more than milliseconds: by then, much would be done.
        if deadline <= Instant::now() {
            let late = to_status(&pipeline::timeout_error(&method)).into_http();
            return Box::pin(async move { Ok(late) });
        }
        request.extensions_mut().insert(RequestDeadline(deadline));
        let answer = self.0.call(request);
        Box::pin(async move {
            tokio::select! {
                biased;
                answer = answer => answer,
                () = tokio::time::sleep_until(deadline.into()) => Ok(to_status(&pipeline::timeout_error(&method)).into_http()),
            }
        })
    }
}

/// Reads `grpc-timeout`: at most 8 digits and a unit (gRPC over HTTP/2). A malformed one counts as
/// none, as in the other implementations.
fn parse_grpc_timeout(headers: &HeaderMap) -> Option<Duration> {
    let text = headers.get("grpc-timeout")?.to_str().ok()?;
    let (number, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    if number.is_empty() || number.len() > 8 || !number.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let number: u64 = number.parse().ok()?;
    let timeout = match unit {
        "H" => Duration::from_secs(number * 3600),
        "M" => Duration::from_secs(number * 60),
        "S" => Duration::from_secs(number),
        "m" => Duration::from_millis(number),
        "u" => Duration::from_micros(number),
        "n" => Duration::from_nanos(number),
        _ => return None,
    };
    Some(timeout.min(MAX_DEADLINE))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use http::{HeaderMap, HeaderValue};

    use super::{MAX_DEADLINE, parse_grpc_timeout};

    #[test]
    fn a_malformed_timeout_counts_as_none() {
        let read = |text: &str| {
            let mut headers = HeaderMap::new();
            headers.insert("grpc-timeout", HeaderValue::from_str(text).unwrap());
            parse_grpc_timeout(&headers)
        };
        assert_eq!(read("1H"), Some(Duration::from_secs(3600)));
        assert_eq!(read("2M"), Some(Duration::from_secs(120)));
        assert_eq!(read("3S"), Some(Duration::from_secs(3)));
        assert_eq!(read("4m"), Some(Duration::from_millis(4)));
        assert_eq!(read("5u"), Some(Duration::from_micros(5)));
        assert_eq!(read("6n"), Some(Duration::from_nanos(6)));
        assert_eq!(read("99999999H"), Some(MAX_DEADLINE));
        for bad in ["", "S", "5", "-5S", "+5S", "5s", "5 S", "123456789S", "1.5S"] {
            assert_eq!(read(bad), None, "{bad}");
        }
    }
}
