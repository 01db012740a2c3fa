//! Who calls, and whether that one may call this at all: the innermost layer, before a request is
//! decoded. Whom it lets in, it leaves with the request; keys it takes away.

use std::{
    future::{self, Future},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use http::{HeaderMap, Request, Response, header::AUTHORIZATION};
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
        access::{PeerOrigin, principal::Principal},
    },
    telemetry::semconv,
};

/// What anybody may ask: whoever watches over the daemon has no key (Kubernetes' probes).
const PUBLIC_METHOD_PREFIX: &str = "grpc.health.v1.Health/";
/// What answers once, and may take as long as a job does: it ends as streams do.
const LONG_POLL_METHOD: &str = "jig.v1.JobService/WaitJob";
/// The metadata key for keys beside `authorization`.
const API_KEY_HEADER: &str = "x-api-key";

/// The layer.
#[derive(Debug, Clone)]
pub(super) struct AuthLayer(pub(super) Arc<Pipeline>);

/// A service behind it.
#[derive(Debug, Clone)]
pub(super) struct AuthService<S> {
    inner: S,
    pipeline: Arc<Pipeline>,
}

/// Whose call it is, and what becomes of its answer.
enum AuthOutcome {
    /// Anybody's. What keeps the connection meanwhile, where that is known.
    Public(Option<HealthCheckPermit>),
    /// It is finished, whatever becomes of its caller.
    RunToCompletion,
    /// It goes on for as long as its caller may call.
    UntilRevoked(Arc<Principal>),
}

type BoxFuture<T> = Pin<Box<dyn Future<Output = T> + Send>>;

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
    type Future = BoxFuture<Result<Response<Body>, S::Error>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, mut request: Request<Body>) -> Self::Future {
        match authenticate(&self.pipeline, &mut request) {
            Ok(AuthOutcome::RunToCompletion | AuthOutcome::Public(None)) => {
                Box::pin(self.inner.call(request))
            }
            Ok(AuthOutcome::Public(Some(check))) => {
                let answer = self.inner.call(request);
                Box::pin(async move {
                    let answer = answer.await?;
                    Ok(answer.map(|body| check.hold_until_sent(body)))
                })
            }
            Ok(AuthOutcome::UntilRevoked(principal)) => {
                let answer = self.inner.call(request);
                Box::pin(async move {
                    tokio::select! {
                        answer = answer => {
                            Ok(answer?.map(|body| end_on_revocation(body, principal)))
                        }
                        () = principal.revoked() => Ok(revoked_status().into_http()),
                    }
                })
            }
            Err(error) => Box::pin(future::ready(Ok(to_status(&error).into_http()))),
        }
    }
}

/// Lets a request in, and tells its connection whether it was.
fn authenticate(pipeline: &Pipeline, request: &mut Request<Body>) -> Result<AuthOutcome, Error> {
    let key = take_key(request.headers_mut());
    let method = request.uri().path().trim_start_matches('/').to_owned();
    let peer = request.extensions().get::<PeerInfo>();
    let standing = peer.map(|peer| Arc::clone(&peer.auth));
    if method.starts_with(PUBLIC_METHOD_PREFIX) {
        let check = standing.as_ref().map(HealthCheckPermit::try_acquire);
        let check = check.map(|check| check.ok_or_else(HealthCheckPermit::limit_error));
        return Ok(AuthOutcome::Public(check.transpose()?));
    }
    let origin = peer.map_or(PeerOrigin::Elsewhere, |peer| peer.origin);
    let has_keys = pipeline.access.requires_key();
    let shown = match has_keys {
        true => key?,
        // Nothing that could be shown is looked at.
        false => key.ok().flatten(),
    };
    let admitted = pipeline.access.authenticate(shown.as_deref(), origin);
    if let Some(standing) = standing {
        match &admitted {
            Ok(_) => standing.mark_authenticated(),
            // Where there are no keys, it is the connection that is refused, whatever is called.
            Err(_) if !has_keys => standing.mark_rejected(),
            Err(_) => {}
        }
    }
    let principal: Arc<Principal> = admitted?;
    if let Some(arrival) = request.extensions().get::<RequestTrace>() {
        let name = || principal.name().to_owned();
        let span = arrival.context.span();
        span.set_attribute(KeyValue::new(semconv::PRINCIPAL, name()));
        arrival.facts.update(|facts| facts.caller = Some(name()));
    }
    // What is none of the daemon's own methods is reflection, or nothing.
    let access = pipeline.catalog.method_access(&method);
    let (needed, streams) =
        access.map_or((AccessRole::Read, true), |it| (it.role, it.server_streaming));
    principal.require_role(needed, &method)?;
    request.extensions_mut().insert(Arc::clone(&principal));
    Ok(match streams || method == LONG_POLL_METHOD {
        true => AuthOutcome::UntilRevoked(principal),
        false => AuthOutcome::RunToCompletion,
    })
}

/// Takes the key out of the headers, so that nothing behind this can tell it.
fn take_key(headers: &mut HeaderMap) -> Result<Option<Vec<u8>>, Error> {
    let mut shown: Vec<Vec<u8>> = Vec::new();
    let mut is_other_scheme = false;
    for value in headers.get_all(AUTHORIZATION) {
        match bearer_token(value.as_bytes()) {
            Some(key) => shown.push(key.to_vec()),
            None => is_other_scheme = true,
        }
    }
    shown.extend(
        headers.get_all(API_KEY_HEADER).iter().map(|value| value.as_bytes().trim_ascii().to_vec()),
    );
    while headers.remove(AUTHORIZATION).is_some() || headers.remove(API_KEY_HEADER).is_some() {}
    // What a client sends that has a place for a key and none in it.
    shown.retain(|key| !key.is_empty());
    shown.dedup();
    let refused = |text| Err(Error::new(Reason::Unauthenticated, text));
    match (shown.len(), is_other_scheme) {
        (0, true) => refused("authorization must be: Bearer KEY"),
        (0, false) => Ok(None),
        (1, _) => Ok(shown.pop()),
        _ => refused("more than one key was sent: send one, as authorization or as x-api-key"),
    }
}

/// The key in a value of `authorization`, whose scheme may be written in any case (RFC 9110, section
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
    fn a_key_is_taken_out_of_the_headers() {
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
