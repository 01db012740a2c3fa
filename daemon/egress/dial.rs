//! Connects to a target: looks up its name, checks the addresses, and connects to a checked one.

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

/// Limit for connecting to one address.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Concurrent lookups of one run. Names whose servers do not respond must not delay other runs.
pub(super) const MAX_LOOKUPS_PER_RUN: usize = 8;

/// Why there is no connection.
#[derive(Debug)]
pub(super) enum DialError {
    Denied(Denial),
    LookupFailed(io::Error),
    /// Connecting to each address failed. With the last error.
    Unreachable(io::Error),
    /// The lookup or the last connection timed out.
    TimedOut,
}

/// Connects to `target`, if the policy allows it. `lookups` limits the lookups of the run.
///
/// # Errors
///
/// Returns why there is no connection; `attempt` has been updated with the reason.
pub(super) async fn dial(
    policy: &NetworkPolicy,
    target: &ProxyTarget,
    lookups: &Arc<Semaphore>,
    attempt: &mut ConnectionAttempt,
) -> Result<MeteredStream<TcpStream>, DialError> {
    let result = connect(policy, target, lookups, attempt).await;
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
    policy: &NetworkPolicy,
    target: &ProxyTarget,
    lookups: &Arc<Semaphore>,
    attempt: &mut ConnectionAttempt,
) -> Result<MeteredStream<TcpStream>, DialError> {
    let permit = async {
        let permit = Arc::clone(lookups).acquire_owned().await;
        permit.map_err(io::Error::other)
    };
    let resolved = policy.resolve(&target.host, target.port, permit).await;
    let addresses = resolved.map_err(|error| match error {
        ResolveError::Denied(denial, address) => {
            if let Some(address) = address {
                attempt.set_address(address);
            }
            DialError::Denied(denial)
        }
        ResolveError::LookupFailed(error) => DialError::LookupFailed(error),
        ResolveError::TimedOut => DialError::TimedOut,
    })?;

    let mut last_error = DialError::LookupFailed(io::Error::other("the name has no address"));
    for address in addresses {
        attempt.set_address(address);
        last_error = match timeout(CONNECT_TIMEOUT, TcpStream::connect(address)).await {
            Ok(Ok(stream)) => {
                // Small messages of a tunnel must not wait for each other.
                let _best_effort = stream.set_nodelay(true);
                return Ok(MeteredStream::new(stream));
            }
            Ok(Err(error)) => DialError::Unreachable(error),
            Err(Elapsed { .. }) => DialError::TimedOut,
        };
    }
    Err(last_error)
}

impl DialError {
    /// Returns the proxy's response to the command.
    pub(super) fn to_response(
        &self,
        policy: &NetworkPolicy,
        target: &ProxyTarget,
    ) -> Response<ProxyBody> {
        let ProxyTarget { host, port } = target;
        match self {
            Self::Denied(denial) => response::denied_response(&policy.explain(denial, host, *port)),
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
