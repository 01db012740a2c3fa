//! Rejects requests that a web page makes a browser send.
//!
//! A page of another site can send requests to addresses of the browser's machine. If its name
//! resolves to one (DNS rebinding), it can read the responses too. Such requests have the header
//! `origin`, or the page's name as `host`. gRPC over HTTP/2 in the clear is beyond a browser.

use std::{net::IpAddr, sync::Arc, time::Duration};

use http::{
    HeaderName, HeaderValue, Method, Request, Version,
    header::{CONTENT_TYPE, HOST, ORIGIN, RETRY_AFTER},
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
    http::{HttpService, rejection},
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

/// Guards a service. Pages of the allowed origins may call it (CORS).
pub(super) fn guard(service: HttpService, config: HttpConfig) -> HttpService {
    let service = if config.allowed_origins.is_empty() {
        service
    } else {
        let cors = CorsLayer::new()
            .allow_origin(config.allowed_origins.clone())
            // MCP clients end a session with DELETE.
            .allow_methods([Method::GET, Method::POST, Method::DELETE])
            .allow_headers(AllowHeaders::mirror_request())
            .expose_headers(EXPOSED_HEADERS)
            .max_age(PREFLIGHT_MAX_AGE);
        HttpService::new(cors.layer(service))
    };

    let config = Arc::new(config);
    HttpService::new(service_fn(move |request| {
        let checked = check(&request, &config);
        let service = service.clone();
        async move {
            match checked {
                Ok(()) => service.oneshot(request).await,
                Err(error) => Ok(rejection(&error)),
            }
        }
    }))
}

fn check(request: &Request<Body>, config: &HttpConfig) -> Result<(), Error> {
    if let Some(origin) = request.headers().get(ORIGIN) {
        if config.allowed_origins.contains(origin) {
            return Ok(());
        }
        let origin = String::from_utf8_lossy(origin.as_bytes());
        let text = format!(
            "pages of {origin} may not call this daemon: the operator can add it to http.allowed_origins"
        );
        return Err(Error::new(Reason::Forbidden, text).with_metadata("origin", origin));
    }
    if is_native_grpc(request) {
        return Ok(());
    }

    let host = request.headers().get(HOST).map(|host| host.to_str().ok()?.parse().ok());
    let host: Option<Authority> = match (host, request.uri().authority()) {
        (Some(Some(host)), _) => Some(host),
        (None, authority) => authority.cloned(),
        (Some(None), _) => return Err(Error::invalid_field("host", "must be a host name")),
    };
    let Some(host) = host else {
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

fn is_native_grpc(request: &Request<Body>) -> bool {
    let content_type = request.headers().get(CONTENT_TYPE).map(HeaderValue::as_bytes);
    request.version() == Version::HTTP_2
        && content_type.is_some_and(|value| value.starts_with(b"application/grpc"))
}

/// Whether a request for `host` may be served. Callers from other machines know the daemon by names
/// of which it knows only the configured ones.
fn is_allowed_host(host: &str, peer: Option<&PeerInfo>, config: &HttpConfig) -> bool {
    let host = host.to_ascii_lowercase();
    let host = host.strip_suffix('.').unwrap_or(&host);
    if config.allowed_hosts.iter().any(|allowed| allowed == host) {
        return true;
    }

    let is_local_peer = match peer.map(|peer| &peer.address) {
        Some(PeerAddress::Tcp(address)) => is_loopback(address.ip()),
        Some(PeerAddress::Unix(_)) => return true,
        Some(PeerAddress::Unknown) | None => true,
    };
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    let is_loopback_name = host == "localhost"
        || host.ends_with(".localhost")
        || bare.parse::<IpAddr>().is_ok_and(is_loopback);
    if is_local_peer { is_loopback_name } else { config.allowed_hosts.is_empty() }
}
