//! Authenticates the caller and checks its role, before the request is decoded.
//!
//! The principal is added to the request's extensions. The key is removed from its headers.

use std::{
    future,
    sync::Arc,
    task::{Context, Poll},
};

use http::{Extensions, HeaderMap, Request, Response, header::AUTHORIZATION};
use opentelemetry::{KeyValue, trace::TraceContextExt as _};
use tonic::body::Body;
use tower::{Layer, Service};

use super::{
    connection::PeerInfo,
    connection_limits::HealthCheckPermit,
    revocation::{end_on_revocation, revoked_status},
};
use crate::daemon::{
    config::keys::AccessRole,
    error::{Error, Reason},
    grpc::{metadata::RequestTrace, status::to_status},
    pipeline::{
        Pipeline,
        access::{PeerOrigin, credentials::Credentials, principal::Principal},
    },
    task::BoxFuture,
    telemetry::{
        access_log::{CallRecord, ReportedEnd},
        audit::AuditEvent,
        semconv,
    },
};

/// Methods that need no key: probes (of Kubernetes, say) have none.
pub(super) const PUBLIC_METHOD_PREFIX: &str = "grpc.health.v1.Health/";
/// A unary method that may take as long as a job does. Revocation ends it like a stream.
const LONG_POLL_METHOD: &str = "jig.v1.JobService/WaitJob";
/// Alternative to `authorization` for the key.
pub(super) const API_KEY_HEADER: &str = "x-api-key";

/// `denied_by` of a call that the role of its key does not include.
const DENIED_BY_ROLE: &str = "key:role";

/// Layer that authenticates calls.
#[derive(Debug, Clone)]
pub(super) struct AuthLayer(pub(super) Arc<Pipeline>);

#[derive(Debug, Clone)]
pub(super) struct AuthService<S> {
    inner: S,
    pipeline: Arc<Pipeline>,
}

/// An admitted call, by how it ends.
enum AuthOutcome {
    /// A health check, which needs no key. The permit keeps an unauthenticated connection open.
    Public(Option<HealthCheckPermit>),
    /// A unary call: it completes even if the key is revoked.
    RunToCompletion,
    /// A stream or long poll: it ends when the principal's key is revoked.
    UntilRevoked(Arc<Principal>),
}

impl<S> Layer<S> for AuthLayer {
    type Service = AuthService<S>;

    fn layer(&self, inner: S) -> AuthService<S> {
        AuthService { inner, pipeline: Arc::clone(&self.0) }
    }
}

impl<S> Service<Request<Body>> for AuthService<S>
where
    S: Service<Request<Body>, Response = Response<Body>>,
    S::Future: Send + 'static,
    S::Error: Send + 'static,
{
    type Response = Response<Body>;
    type Error = S::Error;
    type Future = BoxFuture<'static, Result<Response<Body>, S::Error>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, mut request: Request<Body>) -> Self::Future {
        match authenticate(&self.pipeline, &mut request) {
            Ok(AuthOutcome::RunToCompletion | AuthOutcome::Public(None)) => {
                Box::pin(self.inner.call(request))
            }
            Ok(AuthOutcome::Public(Some(permit))) => {
                let response = self.inner.call(request);
                Box::pin(async move {
                    let response = response.await?;
                    Ok(response.map(|body| permit.hold_until_sent(body)))
                })
            }
            Ok(AuthOutcome::UntilRevoked(principal)) => {
                let response = self.inner.call(request);
                Box::pin(async move {
                    tokio::select! {
                        response = response => {
                            Ok(response?.map(|body| end_on_revocation(body, principal)))
                        }
                        () = principal.revoked() => Ok(revoked_status().into_http()),
                    }
                })
            }
            Err(error) => {
                report_rejection(&self.pipeline, request.extensions().get(), &error);
                Box::pin(future::ready(Ok(to_status(&error).into_http())))
            }
        }
    }
}

/// Rejects the request of a caller without a valid key, before its body is read. Returns the name of
/// its principal. The gRPC calls that the request becomes are authenticated again.
pub(super) fn check_caller(
    pipeline: &Pipeline,
    headers: &HeaderMap,
    extensions: &Extensions,
) -> Result<String, Error> {
    let key = take_key(&mut headers.clone());
    let identified = identify_caller(pipeline, key, extensions.get());
    let identified = identified.inspect_err(|error| {
        pipeline.telemetry.metrics().count_auth_failure(error.reason.name());
        pipeline.telemetry.audit().record(AuditEvent::AuthFailed, || CallRecord {
            reason: Some(error.reason.name().to_owned()),
            peer: extensions.get::<PeerInfo>().and_then(|peer| peer.address.to_text()),
            ..CallRecord::default()
        });
    });
    identified.map(|principal| principal.name().to_owned())
}

/// Reports a request that was not authenticated, or whose caller has too low a role. A health check
/// can exceed a limit instead.
fn report_rejection(pipeline: &Pipeline, trace: Option<&RequestTrace>, error: &Error) {
    if ![Reason::Unauthenticated, Reason::Forbidden].contains(&error.reason) {
        return;
    }
    let is_denied = error.reason == Reason::Forbidden;
    let event = if is_denied { AuditEvent::CallDenied } else { AuditEvent::AuthFailed };
    let audit = pipeline.telemetry.audit();
    let reason = error.reason.name();
    pipeline.telemetry.metrics().count_auth_failure(reason);
    let Some(entry) = trace.map(|trace| &trace.access_log_entry).filter(|_| audit.is_enabled())
    else {
        return;
    };

    entry.update(|fields| fields.reported = Some(ReportedEnd(Some(reason))));
    let denied_by = is_denied.then(|| DENIED_BY_ROLE.to_owned());
    audit.record(event, || CallRecord {
        reason: Some(reason.to_owned()),
        denied_by,
        ..entry.snapshot()
    });
}

/// Authenticates a request and checks the role of its caller.
fn authenticate(pipeline: &Pipeline, request: &mut Request<Body>) -> Result<AuthOutcome, Error> {
    let key = take_key(request.headers_mut());
    let method = request.uri().path().trim_start_matches('/').to_owned();
    let peer = request.extensions().get::<PeerInfo>();
    if method.starts_with(PUBLIC_METHOD_PREFIX) {
        let permit = peer.map(|peer| HealthCheckPermit::try_acquire(&peer.auth));
        let permit = permit.map(|permit| permit.ok_or_else(HealthCheckPermit::limit_error));
        return Ok(AuthOutcome::Public(permit.transpose()?));
    }

    let principal = identify_caller(pipeline, key, peer)?;
    if let Some(trace) = request.extensions().get::<RequestTrace>() {
        let name = || principal.name().to_owned();
        let span = trace.context.span();
        span.set_attribute(KeyValue::new(semconv::PRINCIPAL, name()));
        trace.access_log_entry.update(|fields| fields.principal = Some(name()));
    }

    // Methods that the catalog does not know are reflection, or do not exist.
    let access = pipeline.catalog.method_access(&method);
    let (role, is_stream) =
        access.map_or((AccessRole::Read, true), |access| (access.role, access.server_streaming));
    principal.require_role(role, &method)?;
    request.extensions_mut().insert(Arc::clone(&principal));
    if is_stream || method == LONG_POLL_METHOD {
        Ok(AuthOutcome::UntilRevoked(principal))
    } else {
        Ok(AuthOutcome::RunToCompletion)
    }
}

/// Finds the principal of a request, and marks its connection as authenticated or rejected.
fn identify_caller(
    pipeline: &Pipeline,
    key: Result<Option<Vec<u8>>, Error>,
    peer: Option<&PeerInfo>,
) -> Result<Arc<Principal>, Error> {
    let origin = peer.map_or(PeerOrigin::Elsewhere, |peer| peer.origin);
    let has_keys = pipeline.access.requires_key();
    // Without keys, a malformed key header is ignored like any other key.
    let key = if has_keys { key? } else { key.ok().flatten() };

    let certificate = peer.and_then(|peer| peer.certificate.as_deref());
    let credentials = Credentials { key: key.as_deref(), certificate };
    let authenticated = pipeline.access.authenticate(credentials, origin);
    if let Some(PeerInfo { auth, .. }) = peer {
        match &authenticated {
            Ok(_) => auth.mark_authenticated(),
            // Without keys, the peer itself is rejected: all its calls would be.
            Err(_) if !has_keys => auth.mark_rejected(),
            Err(_) => {}
        }
    }
    authenticated
}

/// Removes the key from the headers, so that nothing after this layer can leak it.
///
/// # Errors
///
/// Rejects two different keys, and an `authorization` of another scheme if there is no key.
fn take_key(headers: &mut HeaderMap) -> Result<Option<Vec<u8>>, Error> {
    let mut keys: Vec<Vec<u8>> = Vec::new();
    let mut has_other_scheme = false;
    for value in headers.get_all(AUTHORIZATION) {
        match bearer_token(value.as_bytes()) {
            Some(key) => keys.push(key.to_vec()),
            None => has_other_scheme = true,
        }
    }
    keys.extend(
        headers.get_all(API_KEY_HEADER).iter().map(|value| value.as_bytes().trim_ascii().to_vec()),
    );
    while headers.remove(AUTHORIZATION).is_some() || headers.remove(API_KEY_HEADER).is_some() {}

    // Clients without a key may still send the header, with an empty value.
    keys.retain(|key| !key.is_empty());
    keys.dedup();
    let rejected = |text| Err(Error::new(Reason::Unauthenticated, text));
    match (keys.len(), has_other_scheme) {
        (0, true) => rejected("authorization must be: Bearer KEY"),
        (0, false) => Ok(None),
        (1, _) => Ok(keys.pop()),
        _ => rejected("more than one key was sent: send one, as authorization or as x-api-key"),
    }
}

/// The token in a value of `authorization`. The scheme is case-insensitive (RFC 9110, section
/// 11.1).
fn bearer_token(value: &[u8]) -> Option<&[u8]> {
    let (scheme, key) = value.split_at_checked(b"bearer ".len())?;
    scheme.eq_ignore_ascii_case(b"bearer ").then(|| key.trim_ascii())
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    #[test]
    fn key_is_removed_from_the_headers() {
        for (given, expected) in [
            (&[][..], Ok(None)),
            (&[("authorization", "Bearer k")], Ok(Some("k"))),
            (&[("authorization", "bearer  k ")], Ok(Some("k"))),
            (&[("x-api-key", "k")], Ok(Some("k"))),
            (&[("x-api-key", " k ")], Ok(Some("k"))),
            (&[("x-api-key", "")], Ok(None)),
            (&[("authorization", "Bearer "), ("x-api-key", "k")], Ok(Some("k"))),
            (&[("authorization", "Bearer k"), ("x-api-key", "")], Ok(Some("k"))),
            (&[("authorization", "Bearer k"), ("x-api-key", "k")], Ok(Some("k"))),
            (&[("authorization", "Basic eA=="), ("x-api-key", "k")], Ok(Some("k"))),
            (&[("authorization", "Basic eA==")], Err(())),
            (&[("authorization", "Bearer")], Err(())),
            (&[("x-api-key", "k"), ("x-api-key", "l")], Err(())),
            (&[("authorization", "Bearer k"), ("x-api-key", "l")], Err(())),
        ] {
            let mut headers = HeaderMap::new();
            for (name, value) in given {
                headers.append(*name, HeaderValue::from_static(value));
            }

            let key = take_key(&mut headers).map_err(|error| {
                assert_eq!(error.reason, Reason::Unauthenticated);
            });
            let key = key.map(|key| key.map(|key| String::from_utf8(key).unwrap()));
            assert_eq!(key, expected.map(|key| key.map(str::to_owned)), "{given:?}");
            assert!(headers.is_empty(), "{given:?}");
        }
    }
}
