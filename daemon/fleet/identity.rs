//! How the fleet knows this daemon.

use std::sync::Arc;

/// The name of this daemon, and its start.
#[derive(Debug, Clone)]
pub(crate) struct FleetIdentity {
    /// The same after a restart.
    pub(crate) daemon_id: Arc<str>,
    /// A ULID, which is new with each start.
    pub(crate) start_id: Arc<str>,
}
