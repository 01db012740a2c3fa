//! The Connect protocol: every RPC as `POST /jig.v1.ToolService/Run` with JSON or protobuf, over
//! HTTP/1.1 or HTTP/2 (<https://connectrpc.com/docs/protocol>).
//!
//! [`ConnectProtocol::begin`] translates the headers of a request in front of the gRPC layers. The
//! layer of body limits passes the request to [`ConnectCall::translate_request`] once it is
//! complete. [`translate_response`] translates what the layers return.

mod call;
mod error;
mod get_request;
mod request_stream;
mod response;

use std::{collections::HashMap, sync::Arc, time::Duration};

use http::{
    HeaderMap, HeaderName, HeaderValue, Method, Request, Response, StatusCode,
    header::{ACCEPT_ENCODING, ALLOW, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, TE},
};
use prost_reflect::MethodDescriptor;
use prost_types::method_options::IdempotencyLevel;
use tonic::{Code, Status, body::Body};

use self::call::{ContentType, compression_error};
pub(crate) use self::{
    call::{ConnectCall, PREFIX_BYTES},
    error::{code_name, http_status},
    request_stream::translate_request_stream,
    response::translate_response,
};
use crate::daemon::{
    catalog::Catalog,
    error::{Error, Reason, Violation},
    grpc::status::{status_with_code, to_status},
};

/// Most digits of `connect-timeout-ms`.
const MAX_TIMEOUT_DIGITS: usize = 10;
/// Largest number in `grpc-timeout`.
const MAX_GRPC_TIMEOUT: u64 = 99_999_999;
const GRPC: HeaderValue = HeaderValue::from_static("application/grpc");
const PROTOCOL_VERSION: HeaderName = HeaderName::from_static("connect-protocol-version");
const TIMEOUT_MS: HeaderName = HeaderName::from_static("connect-timeout-ms");
const STREAM_ENCODING: HeaderName = HeaderName::from_static("connect-content-encoding");
const STREAM_ACCEPT_ENCODING: HeaderName = HeaderName::from_static("connect-accept-encoding");

/// The methods that clients can call by Connect.
#[derive(Debug)]
pub(crate) struct ConnectProtocol {
    /// By path, such as `/jig.v1.ToolService/Run`.
    methods: HashMap<String, MethodDescriptor>,
}

/// Why a request to a method's path is no call.
#[derive(Debug)]
pub(crate) enum NoCall {
    /// Its content type is none of the method's.
    OtherContent,
    Rejected(Box<Response<Body>>),
}

impl ConnectProtocol {
    pub(crate) fn new(catalog: &Catalog) -> Self {
        let services = catalog.pool().services();
        let methods =
            services.flat_map(|service| service.methods().collect::<Vec<_>>()).map(|method| {
                (format!("/{}/{}", method.parent_service().full_name(), method.name()), method)
            });
        Self { methods: methods.collect() }
    }

    /// Whether the path is that of a method.
    pub(crate) fn has_method(&self, path: &str) -> bool {
        self.methods.contains_key(path)
    }

    /// Makes a gRPC request of a request to a method's path: its headers, and an extension with the
    /// [`ConnectCall`].
    pub(crate) fn begin(&self, request: &mut Request<Body>) -> Result<Arc<ConnectCall>, NoCall> {
        let method = self.methods.get(request.uri().path()).ok_or(NoCall::OtherContent)?;
        let is_stream = method.is_client_streaming() || method.is_server_streaming();
        if request.method() == Method::GET && may_get(method) {
            get_request::make_post(request).map_err(|error| {
                NoCall::Rejected(Box::new(rejection(StatusCode::BAD_REQUEST, &error)))
            })?;
        }
        if request.method() != Method::POST {
            return Err(wrong_http_method(method, request.method()));
        }

        let content =
            ContentType::parse(request.headers()).filter(|content| content.is_stream == is_stream);
        let content = content.ok_or(NoCall::OtherContent)?;

        let call = Arc::new(ConnectCall { method: method.clone(), content });
        if let Err(status) = translate_headers(request.headers_mut(), content) {
            return Err(NoCall::Rejected(Box::new(response::error_response(&call, &status))));
        }
        request.extensions_mut().insert(Arc::clone(&call));
        Ok(call)
    }
}

/// Whether a method may also be called by GET: it returns one message and changes nothing.
pub(crate) fn may_get(method: &MethodDescriptor) -> bool {
    let is_stream = method.is_client_streaming() || method.is_server_streaming();
    let options = method.method_descriptor_proto().options.as_ref();
    !is_stream
        && options
            .is_some_and(|options| options.idempotency_level() == IdempotencyLevel::NoSideEffects)
}

/// Replaces the headers of Connect by those of gRPC.
fn translate_headers(headers: &mut HeaderMap, content: ContentType) -> Result<(), Box<Status>> {
    let mut violations = Vec::new();
    if headers.remove(PROTOCOL_VERSION).is_some_and(|version| version != "1") {
        violations.push(Violation::new(PROTOCOL_VERSION.as_str(), "must be 1"));
    }

    let timeout = headers.remove(TIMEOUT_MS).map(|timeout| grpc_timeout(&timeout));
    match timeout {
        Some(Some(timeout)) => {
            headers.insert("grpc-timeout", timeout);
        }
        Some(None) => {
            let text = format!("must have 1 to {MAX_TIMEOUT_DIGITS} digits");
            violations.push(Violation::new(TIMEOUT_MS.as_str(), text));
        }
        None => {
            headers.remove("grpc-timeout");
        }
    }
    if !violations.is_empty() {
        return Err(Box::new(to_status(&Error::invalid(violations))));
    }

    let encoding = if content.is_stream { STREAM_ENCODING } else { CONTENT_ENCODING };
    if headers.remove(encoding).is_some_and(|encoding| encoding != "identity") {
        return Err(Box::new(status_with_code(Code::Unimplemented, &compression_error())));
    }

    for name in [ACCEPT_ENCODING, STREAM_ACCEPT_ENCODING, CONTENT_LENGTH] {
        headers.remove(name);
    }
    headers.insert(CONTENT_TYPE, GRPC);
    headers.insert(TE, HeaderValue::from_static("trailers"));
    Ok(())
}

/// Converts `connect-timeout-ms` to `grpc-timeout`, which has fewer digits.
fn grpc_timeout(value: &HeaderValue) -> Option<HeaderValue> {
    let text = value.to_str().ok()?;
    let is_number = (1..=MAX_TIMEOUT_DIGITS).contains(&text.len())
        && text.bytes().all(|byte| byte.is_ascii_digit());
    let timeout = Duration::from_millis(text.parse().ok().filter(|_| is_number)?);

    let millis = timeout.as_millis();
    let text = if millis <= u128::from(MAX_GRPC_TIMEOUT) {
        format!("{millis}m")
    } else {
        format!("{}S", timeout.as_secs())
    };
    HeaderValue::try_from(text).ok()
}

/// The response to a request whose HTTP method its method does not take.
fn wrong_http_method(method: &MethodDescriptor, given: &Method) -> NoCall {
    let allowed = if may_get(method) { "GET, POST" } else { "POST" };
    let text = format!("the method takes {allowed}, and this is {given}");
    let error = Error::new(Reason::InvalidParams, text);
    let mut response = rejection(StatusCode::METHOD_NOT_ALLOWED, &error);
    response.headers_mut().insert(ALLOW, HeaderValue::from_static(allowed));
    NoCall::Rejected(Box::new(response))
}

/// Adds to the response of the gRPC layers, which reject other content types, what clients without
/// gRPC understand: the error as JSON, and the content types that the daemon takes.
pub(crate) fn explain_content_types(mut response: Response<Body>) -> Response<Body> {
    if let Some(status) = Status::from_header_map(response.headers()) {
        let explained = response::unary_error_response(&status);
        response.headers_mut().extend(explained.headers().clone());
        response.headers_mut().remove(CONTENT_LENGTH);
        *response.body_mut() = explained.into_body();
    }
    let accepted = ContentType::ALL.map(ContentType::name).join(", ");
    if let Ok(accepted) = HeaderValue::try_from(format!("application/grpc, {accepted}")) {
        response.headers_mut().insert("accept-post", accepted);
    }
    response
}

/// The response to a request that is no call.
fn rejection(status: StatusCode, error: &Error) -> Response<Body> {
    let mut response = response::unary_error_response(&to_status(error));
    *response.status_mut() = status;
    response
}
