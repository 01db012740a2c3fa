//! Connecting to a host: look up, check, connect. What is connected to is an address that was checked.

use std::{io, sync::Arc, time::Duration};

use http::{Response, StatusCode};
use tokio::{
    net::TcpStream,
    sync::Semaphore,
    time::{error::Elapsed, timeout},
};

use super::{
    connection_log::ConnectionAttempt,
    meter::MeteredStream,
    request::ProxyTarget,
    response::{self, ProxyBody},
};
use crate::daemon::netpolicy::{NetworkPolicy, ResolveError, rules::Denial};

/// How long connecting to one address may take.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Names that one run looks up at a time: those whose servers do not answer must not keep other runs waiting.
pub(super) const MAX_LOOKUPS_PER_RUN: usize = 8;

/// Why there is no connection.
#[derive(Debug)]
pub(super) enum DialError {
    /// Policy refuses it.
    Denied(Denial),
    /// The name cannot be looked up.
    LookupFailed(io::Error),
    /// No address could be connected to; what the last one said.
    Unreachable(io::Error),
    /// Looking up or connecting took too long.
    TimedOut,
}

/// Connects to `target`, if what is `outside` may be reached there, for a run that looks up no more names at a
/// time than `lookups` has permits.
///
/// # Errors
///
/// Why there is no connection; `attempt` has been told.
pub(super) async fn dial(
    outside: &NetworkPolicy,
    target: &ProxyTarget,
    lookups: &Arc<Semaphore>,
    attempt: &mut ConnectionAttempt,
) -> Result<MeteredStream<TcpStream>, DialError> {
    let result = connect(outside, target, lookups, attempt).await;
    match &result {
        Ok(stream) => attempt.set_connected(Arc::clone(stream.meter())),
        Err(DialError::Denied(denial)) => attempt.set_denied(denial.reason()),
        Err(DialError::LookupFailed(_)) => attempt.set_failed("lookup_failed"),
        Err(DialError::Unreachable(_)) => attempt.set_failed("connect_failed"),
        Err(DialError::TimedOut) => attempt.set_failed("timeout"),
    }
    result
}

async fn connect(
    outside: &NetworkPolicy,
    target: &ProxyTarget,
    lookups: &Arc<Semaphore>,
    attempt: &mut ConnectionAttempt,
) -> Result<MeteredStream<TcpStream>, DialError> {
    let permit = async {
        let permit = Arc::clone(lookups).acquire_owned().await;
        permit.map_err(io::Error::other)
    };
    let addresses = outside.resolve(&target.host, target.port, permit).await;
    let addresses = addresses.map_err(|no_way| match no_way {
        ResolveError::Denied(denial, address) => {
            if let Some(address) = address {
                attempt.set_address(address);
            }
            DialError::Denied(denial)
        }
        ResolveError::LookupFailed(error) => DialError::LookupFailed(error),
        ResolveError::TimedOut => DialError::TimedOut,
    })?;
    let mut last = DialError::LookupFailed(io::Error::other("the name has no address"));
    for address in addresses {
        attempt.set_address(address);
        last = match timeout(CONNECT_TIMEOUT, TcpStream::connect(address)).await {
            Ok(Ok(stream)) => {
                // Small messages of a tunnel are not to wait for one another.
                let _best_effort = stream.set_nodelay(true);
                return Ok(MeteredStream::new(stream));
            }
            Ok(Err(error)) => DialError::Unreachable(error),
            Err(Elapsed { .. }) => DialError::TimedOut,
        };
    }
    Err(last)
}

// === impl NoConnection ===

impl DialError {
    /// What the command is told.
    pub(super) fn to_response(
        &self,
        outside: &NetworkPolicy,
        target: &ProxyTarget,
    ) -> Response<ProxyBody> {
        let ProxyTarget { host, port } = target;
        match self {
            Self::Denied(denial) => {
                response::denied_response(&outside.explain(denial, host, *port))
            }
            Self::LookupFailed(error) => response::text_response(
                StatusCode::BAD_GATEWAY,
                &format!("jigd could not look up {host}: {error}"),
            ),
            Self::Unreachable(error) => response::text_response(
                StatusCode::BAD_GATEWAY,
                &format!("jigd could not connect to {host}:{port}: {error}"),
            ),
            Self::TimedOut => response::text_response(
                StatusCode::GATEWAY_TIMEOUT,
                &format!("jigd could not connect to {host}:{port} in time"),
            ),
        }
    }
}
