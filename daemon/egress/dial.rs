//! Connecting to a host: look up, check, connect. What is connected to is an address that was checked.

use std::{io, sync::Arc, time::Duration};

use http::{Response, StatusCode};
use tokio::{
    net::TcpStream,
    sync::Semaphore,
    time::{error::Elapsed, timeout},
};

use super::{
    answer::{self, Body},
    journal::Attempt,
    meter::Metered,
    request::Target,
};
use crate::daemon::outside::{NoWay, Outside, policy::Denial};

/// How long connecting to one address may take.
const CONNECT_PATIENCE: Duration = Duration::from_secs(10);
/// Names that one run looks up at a time: those whose servers do not answer must not keep other runs waiting.
pub(super) const LOOKUPS_OF_RUN: usize = 8;

/// Why there is no connection.
#[derive(Debug)]
pub(super) enum NoConnection {
    /// Policy refuses it.
    Denied(Denial),
    /// The name cannot be looked up.
    Unknown(io::Error),
    /// No address could be connected to; what the last one said.
    Unreachable(io::Error),
    /// Looking up or connecting took too long.
    TooSlow,
}

/// Connects to `target`, if what is `outside` may be reached there, for a run that looks up no more names at a
/// time than `lookups` has permits.
///
/// # Errors
///
/// Why there is no connection; `attempt` has been told.
pub(super) async fn dial(
    outside: &Outside,
    target: &Target,
    lookups: &Arc<Semaphore>,
    attempt: &mut Attempt,
) -> Result<Metered<TcpStream>, NoConnection> {
    let result = connect(outside, target, lookups, attempt).await;
    match &result {
        Ok(stream) => attempt.connected(Arc::clone(stream.meter())),
        Err(NoConnection::Denied(denial)) => attempt.denied(denial.name()),
        Err(NoConnection::Unknown(_)) => attempt.failed("lookup_failed"),
        Err(NoConnection::Unreachable(_)) => attempt.failed("connect_failed"),
        Err(NoConnection::TooSlow) => attempt.failed("timeout"),
    }
    result
}

async fn connect(
    outside: &Outside,
    target: &Target,
    lookups: &Arc<Semaphore>,
    attempt: &mut Attempt,
) -> Result<Metered<TcpStream>, NoConnection> {
    let permit = async {
        let permit = Arc::clone(lookups).acquire_owned().await;
        permit.map_err(io::Error::other)
    };
    let addresses = outside.addresses(&target.host, target.port, permit).await;
    let addresses = addresses.map_err(|no_way| match no_way {
        NoWay::Denied(denial, address) => {
            if let Some(address) = address {
                attempt.address(address);
            }
            NoConnection::Denied(denial)
        }
        NoWay::Unknown(error) => NoConnection::Unknown(error),
        NoWay::TooSlow => NoConnection::TooSlow,
    })?;
    let mut last = NoConnection::Unknown(io::Error::other("the name has no address"));
    for address in addresses {
        attempt.address(address);
        last = match timeout(CONNECT_PATIENCE, TcpStream::connect(address)).await {
            Ok(Ok(stream)) => {
                // Small messages of a tunnel are not to wait for one another.
                let _best_effort = stream.set_nodelay(true);
                return Ok(Metered::new(stream));
            }
            Ok(Err(error)) => NoConnection::Unreachable(error),
            Err(Elapsed { .. }) => NoConnection::TooSlow,
        };
    }
    Err(last)
}

// === impl NoConnection ===

impl NoConnection {
    /// What the command is told.
    pub(super) fn answer(&self, outside: &Outside, target: &Target) -> Response<Body> {
        let Target { host, port } = target;
        match self {
            Self::Denied(denial) => answer::denied(&outside.explain(denial, host, *port)),
            Self::Unknown(error) => answer::text(
                StatusCode::BAD_GATEWAY,
                &format!("jigd could not look up {host}: {error}"),
            ),
            Self::Unreachable(error) => answer::text(
                StatusCode::BAD_GATEWAY,
                &format!("jigd could not connect to {host}:{port}: {error}"),
            ),
            Self::TooSlow => answer::text(
                StatusCode::GATEWAY_TIMEOUT,
                &format!("jigd could not connect to {host}:{port} in time"),
            ),
        }
    }
}
