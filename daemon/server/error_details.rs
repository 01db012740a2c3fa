//! Adds the code, reason and details of the contract to errors that tonic returns itself.
//!
//! tonic rejects some calls before a handler runs. It returns a bare code, and INTERNAL for invalid
//! requests. This layer recognizes such responses by their missing details. Standard services
//! (health, reflection) have contracts of their own, so their responses are not changed. Only
//! headers are checked: tonic rejects calls before the first message, and errors in trailers come
//! from the daemon itself.

use std::{
    future,
    task::{Context, Poll},
};

use http::{HeaderMap, Request, Response, StatusCode, header::CONTENT_TYPE};
use tonic::{Code, Status, body::Body};
use tower::{Layer, Service};

use crate::daemon::{
    error::{Error, Reason},
    grpc::status::{status_with_code, to_status},
    task::BoxFuture,
};

/// Layer that adds details to errors without any.
#[derive(Debug, Clone, Copy)]
pub(super) struct ErrorDetailsLayer;

#[derive(Debug, Clone)]
pub(super) struct ErrorDetailsService<S>(S);

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
    type Future = BoxFuture<'static, Result<Response<Body>, S::Error>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.0.poll_ready(context)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        if !is_grpc(request.headers()) {
            return Box::pin(future::ready(Ok(unsupported_media_type())));
        }

        let path = request.uri().path().to_owned();
        let response = self.0.call(request);
        Box::pin(async move {
            let mut response = response.await?;
            if let Some(status) = detailed_status(&path, response.headers()) {
                // If the status cannot be encoded as headers, the response stays unchanged.
                let _unchanged = status.add_header(response.headers_mut());
            }
            Ok(response)
        })
    }
}

/// Whether a request is gRPC with protobuf messages. tonic would decode any request as such.
fn is_grpc(headers: &HeaderMap) -> bool {
    let Some(value) = headers.get(CONTENT_TYPE) else {
        return false;
    };
    let essence = value.as_bytes().split(|byte| *byte == b';').next();
    let essence = essence.unwrap_or_default().trim_ascii();
    [&b"application/grpc"[..], b"application/grpc+proto"]
        .iter()
        .any(|known| essence.eq_ignore_ascii_case(known))
}

/// The response to a request that is not gRPC. It has an HTTP status too, for clients that know no
/// gRPC status (gRPC over HTTP/2).
fn unsupported_media_type() -> Response<Body> {
    let error = Error::invalid_field(
        "content-type",
        "must be application/grpc, application/json or application/proto; of calls that stream, application/grpc, application/connect+json or application/connect+proto",
    );
    let mut response = to_status(&error).into_http();
    *response.status_mut() = StatusCode::UNSUPPORTED_MEDIA_TYPE;
    response
}

/// Returns the status to use instead, if the response is an error of tonic.
fn detailed_status(path: &str, headers: &HeaderMap) -> Option<Status> {
    if !headers.contains_key("grpc-status") || headers.contains_key("grpc-status-details-bin") {
        return None;
    }

    let status = Status::from_header_map(headers)?;
    let (code, message) = (status.code(), status.message());
    let method = path.trim_start_matches('/');
    if code == Code::Unimplemented {
        // tonic sends this header only if it rejects the compression of the request.
        let error = if headers.contains_key("grpc-accept-encoding") {
            let message = format!("{message}: send messages without compression");
            Error::new(Reason::InvalidParams, message)
        } else {
            let message = format!("there is no method {method}: reflection lists all methods");
            Error::new(Reason::UnknownTool, message).with_metadata("method", method)
        };
        return Some(status_with_code(code, &error));
    }
    if !method.starts_with("jig.") {
        return None;
    }

    let is_malformed = code == Code::Internal;
    let is_too_large = matches!(code, Code::OutOfRange | Code::ResourceExhausted);
    let error = if is_malformed {
        let message = format!("the request is not a valid request of {method}: {message}");
        Error::new(Reason::InvalidParams, message)
    } else if is_too_large {
        let message = format!("the request is too large: {message}");
        Error::new(Reason::ResourceExhausted, message)
    } else {
        // The connection broke, so no client receives the response.
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
    fn only_responses_without_details_are_changed() {
        let code_of = |status: &Status, path: &str| {
            let mut headers = HeaderMap::new();
            status.add_header(&mut headers).unwrap();
            detailed_status(path, &headers).map(|status| status.code())
        };
        let ours = "/jig.v1.ToolService/Run";
        let foreign = "/grpc.health.v1.Health/Check";
        let bare = |code| Status::new(code, "why");
        assert_eq!(code_of(&bare(Code::Internal), ours), Some(Code::InvalidArgument));
        assert_eq!(code_of(&bare(Code::OutOfRange), ours), Some(Code::ResourceExhausted));
        assert_eq!(code_of(&bare(Code::Unimplemented), foreign), Some(Code::Unimplemented));
        assert_eq!(code_of(&bare(Code::Internal), foreign), None);
        assert_eq!(code_of(&bare(Code::NotFound), foreign), None);
        assert_eq!(code_of(&bare(Code::Cancelled), ours), None);
        let own = Status::with_details(Code::Internal, "why", "details".into());
        assert_eq!(code_of(&own, ours), None);
        assert!(detailed_status(ours, &HeaderMap::new()).is_none(), "no status yet");
    }

    #[test]
    fn content_type_must_be_grpc_with_protobuf() {
        let accepts = |value: &str| {
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
            assert!(accepts(good), "{good}");
        }
        for bad in
            ["", "text/plain", "application/json", "application/grpc-web", "application/grpc+json"]
        {
            assert!(!accepts(bad), "{bad}");
        }
        assert!(!is_grpc(&HeaderMap::new()));
    }
}
