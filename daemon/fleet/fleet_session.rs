//! What this daemon has on the servers of its fleet.

use std::sync::Arc;

use tokio_util::sync::CancellationToken;

use super::{
    backoff::retry,
    nats::NatsSession,
    postgres::PostgresSession,
    work_source::{JobEnd, SourceUnavailable},
};

/// The session at the servers that the configuration names.
#[derive(Debug, Clone)]
pub(super) enum FleetSession {
    Nats(Arc<NatsSession>),
    Postgres(Arc<PostgresSession>),
}

impl FleetSession {
    /// Whether this daemon still has a claim.
    pub(super) async fn has_claim(&self, id: &str, claim: &str) -> Result<bool, SourceUnavailable> {
        match self {
            Self::Nats(session) => session.has_claim(id, claim).await,
            Self::Postgres(session) => session.has_claim(id, claim).await,
        }
    }

    /// Stores the end of a job of an earlier start, if this daemon still has its claim. Returns
    /// whether it no longer has the claim.
    pub(super) async fn settle(
        &self,
        id: &str,
        claim: &str,
        end: &JobEnd,
        stop: &CancellationToken,
    ) -> bool {
        match self {
            Self::Nats(session) => session.settle(id, claim, end, stop).await,
            // Its queue has resumed the claim, and settles it.
            Self::Postgres(session) => {
                let look_up = || session.has_claim(id, claim);
                retry(stop, id, "look a fleet job up", look_up).await == Some(false)
            }
        }
    }
}
