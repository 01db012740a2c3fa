//! Whether a slot's network namespace is as it was made, so that the next run may have it.
//!
//! A socket lives as long as anybody has it, and stays in the network that it was made in. One that a
//! run has given to another outlives it, connections that were never accepted or are still being
//! torn down do for a moment, and so do sockets that only a message to one another holds. Who has
//! one that is not bound yet could connect from it to what the next run listens on, and to the
//! daemon as that run. No list of the kernel's shows such a socket, but its count of them does
//! (sock_inuse_add(), net/core/sock.c): it is per namespace, and leaves out the kernel's own.

use std::{fs::File, os::unix::fs::FileExt as _, thread::sleep, time::Duration};

use super::{
    level::IsolationLevel,
    plan::NetworkMode,
    stage::{Stage, StageFailure},
};
use crate::daemon::sys::Errno;

/// Where the kernel tells it, for the network namespace of who opens it.
const SOCKSTAT_PATH: &str = "/proc/self/net/sockstat";
/// How often it is looked at: the daemon closes its ends of a run's connections at the same time as
/// the slot is made free, and what only messages hold is found by a kernel thread.
const MAX_POLLS: u32 = 20;
/// Pause between two looks.
const POLL_INTERVAL: Duration = Duration::from_millis(1);

/// The network namespace of a slot, if its runs have one after the other.
#[derive(Debug)]
pub(super) struct NetnsCheck {
    /// What the kernel counts, and how many sockets belong there: the proxy's listener.
    baseline: Option<(File, u64)>,
}

impl NetnsCheck {
    /// That of a slot whose keeper this is.
    pub(super) fn for_slot(
        network: NetworkMode,
        level: IsolationLevel,
    ) -> Result<Self, StageFailure> {
        let own = match network {
            NetworkMode::None => Some(0),
            NetworkMode::Proxy => Some(1),
            NetworkMode::Host => None,
        };
        let counted = own.filter(|_| level.reuses_network_namespaces()).map(|own| {
            let counts = File::open(SOCKSTAT_PATH).map_err(|error| {
                let errno = Errno::from_io_error(&error).unwrap_or(Errno::IO);
                StageFailure::from_errno(Stage::NetworkNamespace, errno, SOCKSTAT_PATH)
            });
            counts.map(|counts| (counts, own))
        });
        Ok(Self { baseline: counted.transpose()? })
    }

    /// Waits a moment for all that a run has left to be gone. Answers whether it is.
    pub(super) fn wait_until_clear(&self) -> bool {
        let Some((counts, own)) = &self.baseline else {
            return true; // no run gets it after another
        };
        for _ in 0..MAX_POLLS {
            // Its first line is what matters.
            let mut bytes = [0; 256];
            let read = counts.read_at(&mut bytes, 0).unwrap_or_default();
            let text = str::from_utf8(bytes.get(..read).unwrap_or_default()).unwrap_or_default();
            if count_sockets(text).is_some_and(|sockets| sockets <= *own) {
                return true;
            }
            sleep(POLL_INTERVAL);
        }
        false
    }
}

/// How many sockets there are.
fn count_sockets(counts: &str) -> Option<u64> {
    let line = counts.lines().find_map(|line| line.strip_prefix("sockets: used "))?;
    line.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_counted_is_not_nothing() {
        let counts = "sockets: used 19\nTCP: inuse 1 orphan 0 tw 0 alloc 1 mem 54\n";
        assert_eq!(count_sockets(counts), Some(19));
        assert_eq!(count_sockets(""), None);
        assert_eq!(count_sockets("sockets: used many\n"), None);
    }
}
