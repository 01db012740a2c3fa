//! Which daemons of the fleet are alive: each renews a heartbeat, which the server drops when it is
//! old.

use std::{sync::Arc, time::Duration};

use async_nats::jetstream::kv::{self, Operation};
use prost::Message as _;

use super::connection::NatsConnection;
use crate::{api::v1::FleetDaemonRecord, daemon::fleet::work_source::SourceUnavailable};

/// The heartbeats of all daemons.
#[derive(Debug, Clone)]
pub(super) struct Heartbeats {
    bucket: kv::Store,
    connection: NatsConnection,
    lost_after: Duration,
    own_id: Arc<str>,
}

/// Whether a daemon is alive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Liveness {
    Alive,
    /// It has no heartbeat, but this daemon was connected for too short a time to be sure: after a
    /// restart of the server, all heartbeats may be old.
    Unknown,
    Dead,
}

impl Heartbeats {
    pub(super) fn new(
        bucket: kv::Store,
        connection: NatsConnection,
        lost_after: Duration,
        own_id: Arc<str>,
    ) -> Self {
        Self { bucket, connection, lost_after, own_id }
    }

    /// Renews the heartbeat of this daemon.
    pub(super) async fn beat(&self, record: &FleetDaemonRecord) -> Result<(), SourceUnavailable> {
        let put = self.bucket.put(&*self.own_id, record.encode_to_vec().into()).await;
        put.map(drop).map_err(SourceUnavailable::new)
    }

    /// Removes the heartbeat of this daemon, which has no claims any more.
    pub(super) async fn end(&self) -> Result<(), SourceUnavailable> {
        self.bucket.purge(&*self.own_id).await.map_err(SourceUnavailable::new)
    }

    pub(super) async fn liveness(&self, daemon_id: &str) -> Result<Liveness, SourceUnavailable> {
        let entry = self.bucket.entry(daemon_id).await.map_err(SourceUnavailable::new)?;
        if entry.is_some_and(|entry| entry.operation == Operation::Put) {
            return Ok(Liveness::Alive);
        }
        if self.connection.connected_for() < self.lost_after {
            return Ok(Liveness::Unknown);
        }
        Ok(Liveness::Dead)
    }
}
