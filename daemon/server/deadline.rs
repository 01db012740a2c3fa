//! Enforces the client's deadline (`grpc-timeout`).
//!
//! tonic enforces it too, further out, but returns CANCELLED. This layer is polled first and
//! returns DEADLINE_EXCEEDED. It drops the handler, which cancels the work of a call without a
//! request id.

use std::{
    task::{Context, Poll},
    time::{Duration, Instant},
};

use http::{HeaderMap, Request, Response};
use tonic::body::Body;
use tower::{Layer, Service};

use crate::daemon::{
    error::{Error, Reason},
    grpc::{metadata::RequestDeadline, status::to_status},
    task::BoxFuture,
};

/// Longest `grpc-timeout`. Longer ones are shortened to it.
const MAX_CLIENT_TIMEOUT: Duration = Duration::from_secs(366 * 24 * 3600);

/// Layer that ends calls at their deadlines.
#[derive(Debug, Clone, Copy)]
pub(super) struct DeadlineLayer;

#[derive(Debug, Clone)]
pub(super) struct DeadlineService<S>(S);

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
    type Future = BoxFuture<'static, Result<Response<Body>, S::Error>>;

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

        // The timer has millisecond resolution. A call past its deadline would do much work before
        // the timer fires.
        if deadline <= Instant::now() {
            return Box::pin(
                async move { Ok(to_status(&already_passed_error(&method)).into_http()) },
            );
        }

        request.extensions_mut().insert(RequestDeadline(deadline));
        let response = self.0.call(request);
        Box::pin(async move {
            tokio::select! {
                biased;
                response = response => response,
                () = tokio::time::sleep_until(deadline.into()) => {
                    Ok(to_status(&deadline_error(&method)).into_http())
                }
            }
        })
    }
}

/// The error of a call whose deadline had passed before it was decoded.
fn already_passed_error(method: &str) -> Error {
    let text = format!(
        "the deadline of the call (grpc-timeout or connect-timeout-ms) had passed when {method} received it, and nothing was started: set a longer deadline"
    );
    Error::new(Reason::Timeout, text)
}

/// The error of a call at its deadline.
fn deadline_error(method: &str) -> Error {
    let text = format!(
        "the deadline of the call (grpc-timeout or connect-timeout-ms) passed before {method} ended: set a longer deadline. If the call changes something, check what it changed before you repeat it"
    );
    Error::new(Reason::Timeout, text)
}

/// Parses `grpc-timeout`: at most 8 digits and a unit (gRPC over HTTP/2).
///
/// Returns `None` for a malformed one, as other implementations of gRPC do.
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
    Some(timeout.min(MAX_CLIENT_TIMEOUT))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use http::{HeaderMap, HeaderValue};

    use super::{MAX_CLIENT_TIMEOUT, parse_grpc_timeout};

    #[test]
    fn malformed_timeout_is_ignored() {
        let parse = |text: &str| {
            let mut headers = HeaderMap::new();
            headers.insert("grpc-timeout", HeaderValue::from_str(text).unwrap());
            parse_grpc_timeout(&headers)
        };
        assert_eq!(parse("1H"), Some(Duration::from_secs(3600)));
        assert_eq!(parse("2M"), Some(Duration::from_secs(120)));
        assert_eq!(parse("3S"), Some(Duration::from_secs(3)));
        assert_eq!(parse("4m"), Some(Duration::from_millis(4)));
        assert_eq!(parse("5u"), Some(Duration::from_micros(5)));
        assert_eq!(parse("6n"), Some(Duration::from_nanos(6)));
        assert_eq!(parse("99999999H"), Some(MAX_CLIENT_TIMEOUT));
        for bad in ["", "S", "5", "-5S", "+5S", "5s", "5 S", "123456789S", "1.5S"] {
            assert_eq!(parse(bad), None, "{bad}");
        }
    }
}
