//! Calls by GET, of methods without side effects
//! (<https://connectrpc.com/docs/protocol#unary-get-request>).

use base64::{
    Engine as _,
    alphabet::URL_SAFE,
    engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig},
};
use bytes::Bytes;
use http::{HeaderValue, Method, Request, header::CONTENT_TYPE};
use http_body_util::Full;
use tonic::body::Body;
use url::form_urlencoded;

use crate::daemon::error::{Error, Violation};

const BASE64: GeneralPurpose = GeneralPurpose::new(
    &URL_SAFE,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

/// Makes the same call by POST of a call by GET: the query has the message and its encoding.
pub(super) fn make_post(request: &mut Request<Body>) -> Result<(), Error> {
    let query = request.uri().query().unwrap_or_default();
    let (mut message, mut encoding, mut is_base64) = (None, None, false);
    let mut violations = Vec::new();
    for (name, value) in form_urlencoded::parse(query.as_bytes()) {
        match (&*name, &*value) {
            ("message", _) => message = Some(value),
            ("encoding", "json" | "proto") => encoding = Some(value),
            ("encoding", _) => violations.push(Violation::new("encoding", "must be json or proto")),
            ("base64", value) => is_base64 = value == "1",
            ("connect", "v1") | ("compression", "" | "identity") => {}
            ("connect", _) => violations.push(Violation::new("connect", "must be v1")),
            ("compression", _) => {
                violations.push(Violation::new("compression", "must be identity"));
            }
            _ => {}
        }
    }

    let (Some(message), Some(encoding)) = (message, encoding) else {
        let text = "are required in the query of a GET request, as ?encoding=json&message={}";
        violations.push(Violation::new("message, encoding", text));
        return Err(Error::invalid(violations));
    };
    let message = if is_base64 {
        BASE64.decode(&*message).unwrap_or_else(|_| {
            violations.push(Violation::new("message", "must be Base64 for URLs"));
            Vec::new()
        })
    } else {
        message.into_owned().into_bytes()
    };
    if !violations.is_empty() {
        return Err(Error::invalid(violations));
    }

    let content_type =
        HeaderValue::try_from(format!("application/{encoding}")).map_err(Error::internal)?;
    request.headers_mut().insert(CONTENT_TYPE, content_type);
    *request.body_mut() = Body::new(Full::new(Bytes::from(message)));
    *request.method_mut() = Method::POST;
    Ok(())
}
