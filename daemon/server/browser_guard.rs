//! Rejects requests that a web page makes a browser send.
//!
//! A page of another site can send requests to addresses of the browser's machine. If its name
//! resolves to one (DNS rebinding), it can read the responses too. Such requests have the header
//! `origin`, or the page's name as `host`. Those for scripts and images of another site have
//! `sec-fetch-site`. gRPC over HTTP/2 in the clear is beyond a browser.

use std::{net::IpAddr, sync::Arc, time::Duration};

use http::{
    HeaderMap, HeaderName, HeaderValue, Method, Request, Response, StatusCode, Version,
    header::{HOST, ORIGIN, RETRY_AFTER, WWW_AUTHENTICATE, X_CONTENT_TYPE_OPTIONS},
    uri::Authority,
};
use tonic::body::Body;
use tower::{Layer as _, ServiceExt as _, service_fn};
use tower_http::cors::{AllowHeaders, CorsLayer};

use super::{
    connection::{PeerAddress, PeerInfo},
    peer::is_loopback,
};
use crate::daemon::{
    config::http::HttpConfig,
    error::{Error, Reason},
    http::{HttpService, is_native_grpc},
};

/// How long a browser may remember that an origin is allowed.
const PREFLIGHT_MAX_AGE: Duration = Duration::from_secs(2 * 3600);
/// Headers of responses that pages may read.
const EXPOSED_HEADERS: [HeaderName; 6] = [
    HeaderName::from_static("grpc-status"),
    HeaderName::from_static("grpc-message"),
    HeaderName::from_static("grpc-status-details-bin"),
    HeaderName::from_static("jig-call-id"),
    HeaderName::from_static("mcp-session-id"),
    RETRY_AFTER,
];

const RESOURCE_POLICY: HeaderName = HeaderName::from_static("cross-origin-resource-policy");
/// Paths that show health alone. A kubelet asks by the pod's address.
const PROBE_PATHS: [&str; 3] = ["/healthz", "/readyz", "/v1/health"];

/// Guards a service. Pages of the allowed origins may call it (CORS). `reject` writes the response
/// to a request of another page.
pub(super) fn guard(
    service: HttpService,
    config: HttpConfig,
    reject: fn(&Error) -> Response<Body>,
) -> HttpService {
    let service = if config.allowed_origins.is_empty() {
        service
    } else {
        let cors = CorsLayer::new()
            .allow_origin(config.allowed_origins.clone())
            // MCP clients end a session with DELETE. Clients of agent-sandbox write files with PUT.
            .allow_methods([Method::GET, Method::POST, Method::PUT, Method::DELETE])
            .allow_headers(AllowHeaders::mirror_request())
            .expose_headers(EXPOSED_HEADERS)
            .max_age(PREFLIGHT_MAX_AGE);
        HttpService::new(cors.layer(service))
    };

    let config = Arc::new(config);
    HttpService::new(service_fn(move |request| {
        let checked = check(&request, &config);
        let is_native_grpc = is_native_grpc(&request);
        let service = service.clone();
        async move {
            let mut response = match checked {
                Ok(()) => service.oneshot(request).await?,
                Err(error) => reject(&error),
            };
            if !is_native_grpc {
                set_headers(&mut response);
            }
            Ok(response)
        }
    }))
}

/// Sets the headers of responses by HTTP.
fn set_headers(response: &mut Response<Body>) {
    let is_unauthorized = response.status() == StatusCode::UNAUTHORIZED;
    let headers = response.headers_mut();
    // A page must not run a file of a workspace as script, or show it as an image.
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(RESOURCE_POLICY, HeaderValue::from_static("same-origin"));
    if is_unauthorized {
        headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    }
}

fn check(request: &Request<Body>, config: &HttpConfig) -> Result<(), Error> {
    let headers = request.headers();
    let origin = single(headers, &ORIGIN)?;
    let is_allowed_page = origin.is_some_and(|origin| config.allowed_origins.contains(origin));
    if is_allowed_page || (origin.is_none() && is_native_grpc(request)) {
        return Ok(());
    }

    let host = host(request)?;
    if let Some(origin) = origin
        && !host.as_ref().is_some_and(|host| is_origin_of(origin, host, config))
    {
        let origin = String::from_utf8_lossy(origin.as_bytes());
        let text = format!(
            "pages of {origin} may not call this daemon: the operator can add it to http.allowed_origins"
        );
        return Err(Error::new(Reason::Forbidden, text).with_metadata("origin", origin));
    }
    if origin.is_none() && comes_from_another_site(headers) {
        let text = "pages of other sites may not load what this daemon serves: the operator can add them to http.allowed_origins, for requests with CORS";
        return Err(Error::new(Reason::Forbidden, text));
    }
    let Some(host) = host.filter(|_| !PROBE_PATHS.contains(&request.uri().path())) else {
        return Ok(());
    };
    if is_allowed_host(host.host(), request.extensions().get(), config) {
        return Ok(());
    }
    let text = format!(
        "this daemon is not called {}: use localhost or 127.0.0.1, or the operator adds the name to http.allowed_hosts",
        host.host()
    );
    Err(Error::new(Reason::Forbidden, text).with_metadata("host", host.host()))
}

/// The header `name`, of which a request has at most one: a proxy could follow one, and the daemon
/// another.
fn single<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Result<Option<&'a HeaderValue>, Error> {
    let mut values = headers.get_all(name).iter();
    let value = values.next();
    if values.next().is_some() {
        return Err(Error::invalid_field(name.as_str(), "must be sent once"));
    }
    Ok(value)
}

/// The host that the request is for (RFC 9112 section 3.2, RFC 9113 section 8.3.1).
fn host(request: &Request<Body>) -> Result<Option<Authority>, Error> {
    let invalid = |text| Err(Error::invalid_field("host", text));
    let header = match single(request.headers(), &HOST)? {
        Some(host) => match host.to_str().ok().and_then(|host| host.parse::<Authority>().ok()) {
            Some(host) if !host.as_str().contains('@') => Some(host),
            _ => return invalid("must be a host name, with a port if needed"),
        },
        None if request.version() == Version::HTTP_11 => return invalid("is required"),
        None => None,
    };
    let target = request.uri().authority().cloned();
    match (&target, &header) {
        (Some(target), Some(header)) if target != header => {
            invalid("must be that of the request's target")
        }
        _ => Ok(target.or(header)),
    }
}

/// Whether a page of another site made a browser send a request without `origin`, e.g. for a
/// script or an image (<https://www.w3.org/TR/fetch-metadata/>).
fn comes_from_another_site(headers: &HeaderMap) -> bool {
    let site = headers.get("sec-fetch-site").map(HeaderValue::as_bytes);
    site.is_some_and(|site| site != b"same-origin" && site != b"none")
}

/// Whether `origin` is that of the daemon itself, under a name that no other site can have.
fn is_origin_of(origin: &HeaderValue, host: &Authority, config: &HttpConfig) -> bool {
    let origin = origin.to_str().unwrap_or_default();
    let authority = origin.strip_prefix("http://").or_else(|| origin.strip_prefix("https://"));
    authority == Some(host.as_str()) && is_own_name(host.host(), config)
}

/// Whether a request for `host` may be served. Callers from other machines know the daemon by names
/// of which it knows only the configured ones.
fn is_allowed_host(host: &str, peer: Option<&PeerInfo>, config: &HttpConfig) -> bool {
    let takes_any_name = match peer.map(|peer| &peer.address) {
        Some(PeerAddress::Unix(_)) => true,
        Some(PeerAddress::Tcp(address)) => {
            !is_loopback(address.ip()) && config.allowed_hosts.is_empty()
        }
        Some(PeerAddress::Unknown) | None => false,
    };
    takes_any_name || is_own_name(host, config)
}

/// Whether `host` is a configured name, or one of the loopback interface.
fn is_own_name(host: &str, config: &HttpConfig) -> bool {
    let host = host.to_ascii_lowercase();
    let host = host.strip_suffix('.').unwrap_or(&host);
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    config.allowed_hosts.iter().any(|allowed| allowed == host)
        || host == "localhost"
        || host.ends_with(".localhost")
        || bare.parse::<IpAddr>().is_ok_and(is_loopback)
}
