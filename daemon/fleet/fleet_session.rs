//! What this daemon has on the servers of its fleet.

use std::{future::pending, sync::Arc};

use tokio_util::sync::CancellationToken;

use super::{
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
    /// Whether this daemon has a claim still.
    pub(super) async fn has_claim(&self, id: &str, claim: &str) -> Result<bool, SourceUnavailable> {
        match self {
            Self::Nats(session) => session.has_claim(id, claim).await,
            Self::Postgres(session) => session.has_claim(id, claim).await,
        }
    }

    /// Keeps the claim of a job of an earlier start. Returns when the job is to be cancelled.
    pub(super) async fn keep_claim(&self, id: &str, claim: &str) {
        match self {
            // Its queue keeps it when its message is delivered again, and asks for cancellations.
            Self::Nats(_) => pending().await,
            Self::Postgres(session) => session.keep_claim(id, claim).await,
        }
    }

    /// Stores the end of a job of an earlier start, if this daemon has its claim still. Returns
    /// whether it has the claim no more.
    pub(super) async fn settle(
        &self,
        id: &str,
        claim: &str,
        end: &JobEnd,
        stop: &CancellationToken,
    ) -> bool {
        match self {
            Self::Nats(session) => session.settle(id, claim, end, stop).await,
            Self::Postgres(session) => session.settle(id, claim, end, stop).await,
        }
    }
}
