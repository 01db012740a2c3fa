//! What is refused before a handler sees it. tonic answers such a call with a bare code, and with
//! INTERNAL where the request is at fault; here these answers get the code, the reason and the
//! details that the contract promises for every failed call.
//!
//! They are told from the daemon's own answers by having no details. The standard services (health,
//! reflection) have contracts of their own and keep what they answer. Only headers are looked at:
//! what tonic refuses, it refuses before there is a first message; errors in trailers are the
//! daemon's own.

use std::{
    future::{self, Future},
    pin::Pin,
    task::{Context, Poll},
};

use http::{HeaderMap, Request, Response, StatusCode, header::CONTENT_TYPE};
use tonic::{Code, Status, body::Body};
use tower::{Layer, Service};

use crate::daemon::{
    error::{Error, Reason},
    grpc::status::{status_with_code, to_status},
};

/// The layer.
#[derive(Debug, Clone, Copy)]
pub(super) struct ErrorDetailsLayer;

/// A service behind it.
#[derive(Debug, Clone)]
pub(super) struct ErrorDetailsService<S>(S);

type BoxFuture<T> = Pin<Box<dyn Future<Output = T> + Send>>;

impl<S> Layer<S> for ErrorDetailsLayer {
    type Service = ErrorDetailsService<S>;

    fn layer(&self, inner: S) -> ErrorDetailsService<S> {
        ErrorDetailsService(inner)
    }
}

impl<S> Service<Request<Body>> for ErrorDetailsService<S>
where
    S: Service<Request<Body>, Response = Response<Body>>,
    S::Future: Send + 'static,
    S::Error: Send + 'static,
{
    type Response = Response<Body>;
    type Error = S::Error;
    type Future = BoxFuture<Result<Response<Body>, S::Error>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.0.poll_ready(context)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        if !is_grpc(request.headers()) {
            return Box::pin(future::ready(Ok(unsupported_media_type())));
        }
        let path = request.uri().path().to_owned();
        let answer = self.0.call(request);
        Box::pin(async move {
            let mut response = answer.await?;
            if let Some(status) = detailed_status(&path, response.headers()) {
                // A status that cannot be written as headers leaves the answer as it was.
                let _unchanged = status.add_header(response.headers_mut());
            }
            Ok(response)
        })
    }
}

/// Whether a request is one of gRPC with messages in protobuf. tonic would read any other as if it
/// were.
fn is_grpc(headers: &HeaderMap) -> bool {
    let Some(given) = headers.get(CONTENT_TYPE) else {
        return false;
    };
    let essence = given.as_bytes().split(|byte| *byte == b';').next();
    let essence = essence.unwrap_or_default().trim_ascii();
    [&b"application/grpc"[..], b"application/grpc+proto"]
        .iter()
        .any(|known| essence.eq_ignore_ascii_case(known))
}

/// The answer to what is not gRPC: an HTTP status for those who know no other (gRPC over HTTP/2).
fn unsupported_media_type() -> Response<Body> {
    let error = Error::invalid_field(
        "content-type",
        "must be application/grpc or application/grpc+proto: only gRPC is spoken here",
    );
    let mut response = to_status(&error).into_http();
    *response.status_mut() = StatusCode::UNSUPPORTED_MEDIA_TYPE;
    response
}

/// The status that an answer should have had, where it is one without details.
fn detailed_status(path: &str, headers: &HeaderMap) -> Option<Status> {
    if !headers.contains_key("grpc-status") || headers.contains_key("grpc-status-details-bin") {
        return None;
    }
    let status = Status::from_header_map(headers)?;
    let (code, message) = (status.code(), status.message());
    let method = path.trim_start_matches('/');
    if code == Code::Unimplemented {
        // This header tells what would be understood, and comes with that refusal only.
        let error = if headers.contains_key("grpc-accept-encoding") {
            let message = format!("{message}: send messages without compression");
            Error::new(Reason::InvalidParams, message)
        } else {
            let message = format!("there is no method {method}: reflection lists those that are");
            Error::new(Reason::UnknownTool, message).with_metadata("method", method)
        };
        return Some(status_with_code(code, &error));
    }
    if !method.starts_with("jig.") {
        return None;
    }
    let malformed = code == Code::Internal;
    let too_large = matches!(code, Code::OutOfRange | Code::ResourceExhausted);
    let error = if malformed {
        let message = format!("the request cannot be read as one of {method}: {message}");
        Error::new(Reason::InvalidParams, message)
    } else if too_large {
        let message = format!("the request is too large: {message}");
        Error::new(Reason::ResourceExhausted, message)
    } else {
        // A connection that broke: nobody hears the answer.
        return None;
    };
    Some(to_status(&error))
}

#[cfg(test)]
mod tests {
    use http::HeaderMap;
    use tonic::{Code, Status};

    use super::{detailed_status, is_grpc};

    #[test]
    fn only_answers_without_details_are_changed() {
        let answer = |status: &Status, path: &str| {
            let mut headers = HeaderMap::new();
            status.add_header(&mut headers).unwrap();
            detailed_status(path, &headers).map(|status| status.code())
        };
        let ours = "/jig.v1.ToolService/Run";
        let foreign = "/grpc.health.v1.Health/Check";
        let bare = |code| Status::new(code, "why");
        assert_eq!(answer(&bare(Code::Internal), ours), Some(Code::InvalidArgument));
        assert_eq!(answer(&bare(Code::OutOfRange), ours), Some(Code::ResourceExhausted));
        assert_eq!(answer(&bare(Code::Unimplemented), foreign), Some(Code::Unimplemented));
        assert_eq!(answer(&bare(Code::Internal), foreign), None);
        assert_eq!(answer(&bare(Code::NotFound), foreign), None);
        assert_eq!(answer(&bare(Code::Cancelled), ours), None);
        let own = Status::with_details(Code::Internal, "why", "details".into());
        assert_eq!(answer(&own, ours), None);
        assert!(detailed_status(ours, &HeaderMap::new()).is_none(), "no answer yet");
    }

    #[test]
    fn the_content_type_is_that_of_grpc_with_protobuf() {
        let speaks = |value: &str| {
            let mut headers = HeaderMap::new();
            headers.insert("content-type", value.parse().unwrap());
            is_grpc(&headers)
        };
        for good in [
            "application/grpc",
            "application/grpc+proto",
            "application/grpc;charset=utf-8",
            "Application/GRPC ; a=b",
        ] {
            assert!(speaks(good), "{good}");
        }
        for bad in
            ["", "text/plain", "application/json", "application/grpc-web", "application/grpc+json"]
        {
            assert!(!speaks(bad), "{bad}");
        }
        assert!(!is_grpc(&HeaderMap::new()));
    }
}
