//! What the proxy itself answers: short texts that say what is the matter.

use bytes::Bytes;
use http::{HeaderValue, Response, StatusCode, header};
use http_body_util::{BodyExt as _, Empty, Full, combinators::BoxBody};
use hyper::ext::ReasonPhrase;

/// Body of what the proxy answers, its own or a server's.
pub(super) type ProxyBody = BoxBody<Bytes, hyper::Error>;

/// Name of the refusal by policy, in texts and in status lines: that is all that some programs show
/// of an answer to CONNECT.
const EGRESS_DENIED: &str = "EGRESS_DENIED";

/// The answer to a connection that policy refuses.
pub(super) fn denied_response(why: &str) -> Response<ProxyBody> {
    let mut response = text_response(StatusCode::FORBIDDEN, &format!("{EGRESS_DENIED}: {why}"));
    let phrase = ReasonPhrase::from_static(EGRESS_DENIED.as_bytes());
    response.extensions_mut().insert(phrase);
    response
}

/// An answer with a line of text.
pub(super) fn text_response(status: StatusCode, line: &str) -> Response<ProxyBody> {
    let body = Full::new(Bytes::from(format!("{line}\n")));
    let mut response = Response::new(body.map_err(|never| match never {}).boxed());
    *response.status_mut() = status;
    response
        .headers_mut()
        .insert(header::CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    response
}

/// The answer to a CONNECT that leads somewhere.
pub(super) fn connected_response() -> Response<ProxyBody> {
    Response::new(Empty::new().map_err(|never| match never {}).boxed())
}
