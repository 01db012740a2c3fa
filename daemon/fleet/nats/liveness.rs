//! Which daemons of the fleet are alive: each renews a heartbeat, which the server drops when it is
//! old. Each heartbeat replaces one revision, so that a daemon notices another one with its name.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use async_nats::jetstream::kv;
use prost::Message as _;
use tokio::sync::watch;

use super::{
    bucket::{BucketAge, RecordError, create_key, read_key, replace_key},
    connection::NatsConnection,
};
use crate::{
    api::v1::FleetDaemonRecord,
    daemon::fleet::{identity::FleetIdentity, work_source::SourceUnavailable},
};

/// Attempts to replace a heartbeat that another daemon replaces at the same time.
const MAX_ATTEMPTS: usize = 5;

/// The heartbeats of all daemons.
#[derive(Debug, Clone)]
pub(super) struct Heartbeats {
    pub(super) bucket: kv::Store,
    pub(super) age: Arc<BucketAge>,
    pub(super) connection: NatsConnection,
    pub(super) lost_after: Duration,
    pub(super) identity: FleetIdentity,
    pub(super) is_name_taken: Arc<AtomicBool>,
    /// When the last one of this daemon was stored.
    pub(super) last: watch::Receiver<Option<Instant>>,
}

/// Whether a daemon is alive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Liveness {
    Alive,
    /// It has no heartbeat, but this daemon was connected for too short a time to be sure, or the
    /// bucket is new: after a restart of the server, all heartbeats may be old.
    Unknown,
    Dead,
}

/// The heartbeat of this daemon.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum OwnHeartbeat {
    /// It has none yet.
    None,
    /// Its last one has this revision.
    Beating(u64),
    /// Another daemon with the same name has replaced it, and is alive.
    Taken {
        /// The start of the other daemon.
        start_id: String,
    },
}

/// What a daemon does about the heartbeat that has its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum BeatDecision {
    Create,
    Replace(u64),
    /// Leave the name to the daemon that has it.
    Yield,
}

impl Heartbeats {
    /// Renews the heartbeat of this daemon, if no other one has its name.
    pub(super) async fn beat(
        &self,
        record: &FleetDaemonRecord,
        own: &OwnHeartbeat,
    ) -> Result<OwnHeartbeat, SourceUnavailable> {
        let name = &*self.identity.daemon_id;
        let encoded = record.encode_to_vec();
        if let OwnHeartbeat::Beating(revision) = own {
            match replace_key(&self.bucket, name, encoded.clone(), *revision).await {
                Ok(revision) => return Ok(OwnHeartbeat::Beating(revision)),
                Err(RecordError::Unavailable(error)) => return Err(error),
                // It was too old, or an acknowledgement was lost, or another daemon has the name.
                Err(RecordError::Conflict) => {}
            }
        }

        for _ in 0..MAX_ATTEMPTS {
            let found = self.find(name).await?;
            let found =
                found.as_ref().map(|(found, revision)| (found.start_id.as_str(), *revision));
            let written = match decide_beat(found, &self.identity.start_id, own) {
                BeatDecision::Create => create_key(&self.bucket, name, encoded.clone()).await,
                BeatDecision::Replace(revision) => {
                    replace_key(&self.bucket, name, encoded.clone(), revision).await
                }
                BeatDecision::Yield => {
                    let start_id = found.map(|(start_id, _)| start_id.to_owned());
                    return Ok(OwnHeartbeat::Taken { start_id: start_id.unwrap_or_default() });
                }
            };
            match written {
                Ok(revision) => return Ok(OwnHeartbeat::Beating(revision)),
                Err(RecordError::Unavailable(error)) => return Err(error),
                Err(RecordError::Conflict) => {}
            }
        }
        Err(SourceUnavailable::new("another daemon changes the heartbeat all the time"))
    }

    /// Removes the heartbeat of this daemon, which has no claims any more. That of another one with
    /// its name stays.
    pub(super) async fn end(&self, own: &OwnHeartbeat) -> Result<(), SourceUnavailable> {
        let OwnHeartbeat::Beating(revision) = own else {
            return Ok(());
        };
        let name = &*self.identity.daemon_id;
        let purged = self.bucket.purge_expect_revision(name, Some(*revision)).await;
        purged.map_err(SourceUnavailable::new)
    }

    pub(super) async fn liveness(&self, daemon_id: &str) -> Result<Liveness, SourceUnavailable> {
        if read_key(&self.bucket, daemon_id).await?.is_some() {
            return Ok(Liveness::Alive);
        }
        if self.connection.connected_for() < self.lost_after {
            return Ok(Liveness::Unknown);
        }
        if self.age.update().await?.elapsed() < self.lost_after {
            return Ok(Liveness::Unknown);
        }
        Ok(Liveness::Dead)
    }

    /// Whether another daemon has the name of this one, which takes no jobs then.
    pub(super) fn is_name_taken(&self) -> bool {
        self.is_name_taken.load(Ordering::Relaxed)
    }

    async fn find(
        &self,
        daemon_id: &str,
    ) -> Result<Option<(FleetDaemonRecord, u64)>, SourceUnavailable> {
        let found = read_key(&self.bucket, daemon_id).await?;
        // One that is damaged is of a start that no daemon has.
        Ok(found.map(|(record, revision)| {
            (FleetDaemonRecord::decode(record).unwrap_or_default(), revision)
        }))
    }
}

/// Decides by the start and the revision of the heartbeat that there is.
///
/// A daemon that has just started takes its name without delay: the heartbeat may be that of the start
/// before, which was killed. If that one lives, it finds its heartbeat replaced, and yields. So the
/// daemon that started last has the name, and the two do not take it from each other in turn.
fn decide_beat(found: Option<(&str, u64)>, start_id: &str, own: &OwnHeartbeat) -> BeatDecision {
    match (found, own) {
        (None, _) => BeatDecision::Create,
        // Empty: another program has damaged it.
        (Some((found, revision)), _) if found == start_id || found.is_empty() => {
            BeatDecision::Replace(revision)
        }
        (Some((_, revision)), OwnHeartbeat::None) => BeatDecision::Replace(revision),
        (Some(_), OwnHeartbeat::Beating(_) | OwnHeartbeat::Taken { .. }) => BeatDecision::Yield,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_start_has_the_name() {
        let taken = || OwnHeartbeat::Taken { start_id: "other".to_owned() };
        for (found, own, expected) in [
            (None, OwnHeartbeat::None, BeatDecision::Create),
            // A new daemon, after one that was killed.
            (Some(("old", 3)), OwnHeartbeat::None, BeatDecision::Replace(3)),
            // Its acknowledgement was lost.
            (Some(("me", 3)), OwnHeartbeat::None, BeatDecision::Replace(3)),
            (Some(("me", 4)), OwnHeartbeat::Beating(3), BeatDecision::Replace(4)),
            // It was too old.
            (None, OwnHeartbeat::Beating(3), BeatDecision::Create),
            // Another daemon has started, and has gone.
            (Some(("other", 4)), OwnHeartbeat::Beating(3), BeatDecision::Yield),
            (Some(("other", 5)), taken(), BeatDecision::Yield),
            (Some(("third", 6)), taken(), BeatDecision::Yield),
            (None, taken(), BeatDecision::Create),
            (Some(("", 7)), OwnHeartbeat::Beating(3), BeatDecision::Replace(7)),
        ] {
            assert_eq!(decide_beat(found, "me", &own), expected, "{found:?} {own:?}");
        }
    }
}
