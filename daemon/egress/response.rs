//! The proxy's own responses: short texts that explain an error.

use bytes::Bytes;
use http::{HeaderValue, Response, StatusCode, header};
use http_body_util::{BodyExt as _, Empty, Full, combinators::BoxBody};
use hyper::ext::ReasonPhrase;

/// Body of a response: the proxy's own, or a server's.
pub(super) type ProxyBody = BoxBody<Bytes, hyper::Error>;

/// Marks a denial in texts and status lines: some programs show nothing but the status line of a
/// response to CONNECT.
const EGRESS_DENIED: &str = "EGRESS_DENIED";

/// The response to a connection that the policy denies.
pub(super) fn denied_response(reason: &str) -> Response<ProxyBody> {
    let mut response = text_response(StatusCode::FORBIDDEN, &format!("{EGRESS_DENIED}: {reason}"));
    let phrase = ReasonPhrase::from_static(EGRESS_DENIED.as_bytes());
    response.extensions_mut().insert(phrase);
    response
}

/// A response with a line of text.
pub(super) fn text_response(status: StatusCode, line: &str) -> Response<ProxyBody> {
    let body = Full::new(Bytes::from(format!("{line}\n")));
    let mut response = Response::new(body.map_err(|never| match never {}).boxed());
    *response.status_mut() = status;
    response
        .headers_mut()
        .insert(header::CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    response
}

/// The response to a successful CONNECT.
pub(super) fn connected_response() -> Response<ProxyBody> {
    Response::new(Empty::new().map_err(|never| match never {}).boxed())
}
