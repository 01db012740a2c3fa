//! Parses the target of a request to the proxy, and prepares messages for forwarding.

use http::{
    HeaderMap, HeaderName, HeaderValue, Method, Request, StatusCode, Uri, Version, header,
    uri::{Authority, PathAndQuery, Scheme},
};

use crate::daemon::netpolicy::rules::host::Host;

const DEFAULT_HTTP_PORT: u16 = 80;
/// Headers of one connection rather than of the message (RFC 9110, 7.6.1), or for a proxy alone. The
/// headers that `Connection` names are hop-by-hop too.
const HOP_BY_HOP_HEADERS: [&str; 9] = [
    "connection",
    "keep-alive",
    "proxy-authenticate",
    "proxy-authorization",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
];
/// Identifies the proxy in forwarded requests (RFC 9110, 7.6.3).
const VIA: HeaderValue = HeaderValue::from_static("1.1 jig");

/// The host and port that a request is for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ProxyTarget {
    pub(super) host: Host,
    pub(super) port: u16,
}

/// Status and text of the response to an invalid request.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct MalformedRequest(pub(super) StatusCode, pub(super) &'static str);

impl ProxyTarget {
    /// Parses the target of a request.
    ///
    /// # Errors
    ///
    /// The request has no target, contradicting ones, or a method that this proxy does not support.
    pub(super) fn from_request<B>(request: &Request<B>) -> Result<Self, MalformedRequest> {
        let bad = |text| Err(MalformedRequest(StatusCode::BAD_REQUEST, text));
        let uri = request.uri();
        let is_connect = request.method() == Method::CONNECT;

        if request.method() == Method::TRACE {
            let text = "this proxy does not support TRACE";
            return Err(MalformedRequest(StatusCode::METHOD_NOT_ALLOWED, text));
        }

        let target = match (uri.scheme(), uri.authority()) {
            (None, Some(authority)) if is_connect => Self::from_authority(authority, None),
            (Some(scheme), Some(authority)) if !is_connect && *scheme == Scheme::HTTP => {
                Self::from_authority(authority, Some(DEFAULT_HTTP_PORT))
            }
            (Some(_), Some(_)) if !is_connect => {
                return bad("this proxy takes http:// URLs; for others, send CONNECT");
            }
            _ => {
                return bad(
                    "this is a proxy: send CONNECT host:port, or a request for a whole http:// URL",
                );
            }
        };

        let Some(target) = target else {
            return bad(
                "the target must be a host that can be connected to, with a port for CONNECT, and without a user name",
            );
        };

        let mut hosts = request.headers().get_all(header::HOST).iter();
        match (hosts.next(), hosts.next()) {
            (_, Some(_)) => bad("there must be only one Host header"),
            (None, None) if !is_connect && request.version() >= Version::HTTP_11 => {
                bad("there must be a Host header")
            }
            (Some(host), None) if !target.matches_host_header(host, is_connect) => {
                bad("the Host header must name the target")
            }
            _ => Ok(target),
        }
    }

    fn from_authority(authority: &Authority, default_port: Option<u16>) -> Option<Self> {
        if authority.as_str().contains('@') {
            return None;
        }
        let port = match authority.port() {
            Some(port) => port.as_u16(),
            // A colon without a port.
            None if authority.as_str().ends_with(':') => return None,
            None => default_port?,
        };
        let host = Host::parse(authority.host())?;
        (port != 0).then_some(Self { host, port })
    }

    /// Whether a Host header names this target. For CONNECT, some programs omit the port.
    fn matches_host_header(&self, header: &HeaderValue, is_connect: bool) -> bool {
        let authority = header.to_str().ok().and_then(|text| text.parse().ok());
        let default_port = if is_connect { self.port } else { DEFAULT_HTTP_PORT };
        let named = authority
            .and_then(|authority: Authority| Self::from_authority(&authority, Some(default_port)));
        named.is_some_and(|named| named == *self)
    }

    /// Returns the value of the Host header for this target.
    fn to_host_header(&self) -> Option<HeaderValue> {
        let text = match self.port {
            DEFAULT_HTTP_PORT => self.host.to_string(),
            port => format!("{}:{port}", self.host),
        };
        HeaderValue::try_from(text).ok()
    }
}

/// Converts a request for a whole URL to the form that an origin server expects.
pub(super) fn to_origin_form<B>(
    mut request: Request<B>,
    target: &ProxyTarget,
) -> Option<Request<B>> {
    let path = request.uri().path_and_query().cloned();
    *request.uri_mut() = Uri::from(path.unwrap_or_else(|| PathAndQuery::from_static("/")));
    *request.version_mut() = Version::HTTP_11;

    strip_hop_by_hop(request.headers_mut());
    let headers = request.headers_mut();
    headers.insert(header::HOST, target.to_host_header()?);
    headers.append(header::VIA, VIA);
    // The connection serves one request only.
    headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
    Some(request)
}

/// Removes the hop-by-hop headers of a message.
pub(super) fn strip_hop_by_hop(headers: &mut HeaderMap) {
    let named: Vec<HeaderName> = headers
        .get_all(header::CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .filter_map(|name| name.trim().parse().ok())
        .collect();
    for name in named {
        headers.remove(name);
    }
    for name in HOP_BY_HOP_HEADERS {
        headers.remove(name);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(method: &str, uri: &str, fields: &[(&str, &str)]) -> Request<()> {
        let mut request = Request::builder().method(method).uri(uri);
        for (name, value) in fields {
            request = request.header(*name, *value);
        }
        request.body(()).unwrap()
    }

    #[test]
    fn request_has_exactly_one_target() {
        let host = |host| [("host", host)];
        for (method, uri, fields, expected) in [
            ("CONNECT", "a.example:443", &[][..], Some("a.example 443")),
            ("CONNECT", "A.Example.:443", &host("a.example:443"), Some("a.example 443")),
            ("CONNECT", "a.example:443", &host("a.example"), Some("a.example 443")),
            ("CONNECT", "[::1]:443", &[], Some("[::1] 443")),
            ("CONNECT", "a.example", &[], None),
            ("CONNECT", "a.example:0", &[], None),
            ("CONNECT", "user@a.example:443", &[], None),
            ("CONNECT", "a.example:443", &host("b.example:443"), None),
            ("CONNECT", "a.example:443", &host("a.example:80"), None),
            ("CONNECT", "http://a.example:443/", &[], None),
            ("GET", "http://a.example/x", &host("a.example"), Some("a.example 80")),
            ("GET", "http://a.example:80/x", &host("A.EXAMPLE"), Some("a.example 80")),
            ("GET", "http://a.example:8080", &host("a.example:8080"), Some("a.example 8080")),
            ("GET", "http://a.example:8080", &host("a.example"), None),
            ("GET", "http://a.example/", &host("b.example"), None),
            ("GET", "http://a.example/", &host(""), None),
            ("GET", "http://a.example/", &[], None),
            ("GET", "http://a.example/", &[("host", "a.example"), ("host", "a.example")], None),
            ("GET", "http://u:p@a.example/", &host("a.example"), None),
            ("GET", "https://a.example/", &host("a.example"), None),
            ("GET", "ftp://a.example/", &host("a.example"), None),
            ("GET", "/x", &host("a.example"), None),
            ("OPTIONS", "*", &host("a.example"), None),
            ("TRACE", "http://a.example/", &host("a.example"), None),
        ] {
            let target = ProxyTarget::from_request(&request(method, uri, fields));
            let parsed = target.map(|target| format!("{} {}", target.host, target.port));
            assert_eq!(parsed.as_deref().ok(), expected, "{method} {uri} {fields:?}: {parsed:?}");
        }
    }

    #[test]
    fn forwarded_request_has_end_to_end_headers_only() {
        let fields = [
            ("host", "A.example:8080"),
            ("connection", "close, X-Secret"),
            ("x-secret", "1"),
            ("proxy-authorization", "Basic x"),
            ("proxy-connection", "keep-alive"),
            ("te", "trailers"),
            ("upgrade", "websocket"),
            ("authorization", "Bearer y"),
            ("x-kept", "2"),
        ];
        let received = request("POST", "http://A.example:8080/p?q=1", &fields);
        let target = ProxyTarget::from_request(&received).unwrap();
        let sent = to_origin_form(received, &target).unwrap();
        assert_eq!(sent.uri().to_string(), "/p?q=1");
        let mut names: Vec<_> = sent.headers().iter().collect();
        names.sort_by_key(|(name, _)| name.as_str());
        let lines: Vec<_> = names
            .iter()
            .map(|(name, value)| format!("{name}: {}", value.to_str().unwrap()))
            .collect();
        assert_eq!(
            lines,
            [
                "authorization: Bearer y",
                "connection: close",
                "host: a.example:8080",
                "via: 1.1 jig",
                "x-kept: 2",
            ]
        );
        let bare =
            to_origin_form(request("GET", "http://a.example?x", &[("host", "a.example")]), &target);
        assert_eq!(bare.unwrap().uri().to_string(), "/?x");
    }
}
