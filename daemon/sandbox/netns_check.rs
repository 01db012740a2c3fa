//! Checks that no socket of an earlier run exists in a slot's network namespace before the next run
//! gets it.
//!
//! A socket stays in the network namespace that it was made in, and lives as long as any process
//! holds it. It can outlive its run in three ways:
//!
//! * The run passed it to another run.
//! * Its connection was never accepted, or is still closing for a moment.
//! * Only a message in flight holds it.
//!
//! A process with such a socket, if it is unbound, could connect to listeners of the next run. It
//! could also connect to the daemon as that run.
//!
//! No list of the kernel shows such a socket, but its count of sockets does (sock_inuse_add(),
//! net/core/sock.c). The count is per namespace and leaves out the kernel's own sockets.

use std::{ffi::CStr, os::fd::OwnedFd, thread::sleep, time::Duration};

use rustix::{
    fs::{Mode, OFlags, open},
    io::pread,
};

use super::{
    level::IsolationLevel,
    plan::NetworkMode,
    stage::{Stage, StageFailure, at_stage},
};
use crate::daemon::sys::Errno;

/// The kernel's counts, for the network namespace of the process that opens the file.
const SOCKSTAT_PATH: &CStr = c"/proc/self/net/sockstat";
/// 20 polls of 1 ms. Sockets of an ended run can need that moment: the daemon closes its ends of the
/// connections while the slot is freed, and a kernel thread finds sockets that only messages hold.
const MAX_POLLS: u32 = 20;
const POLL_INTERVAL: Duration = Duration::from_millis(1);

#[derive(Debug)]
pub(super) struct NetnsCheck {
    /// The kernel's counts, and the expected number of sockets (1 for the proxy's listener). `None`
    /// if runs do not share the namespace.
    baseline: Option<(SocketCounts, u64)>,
}

/// The kernel's counts of sockets in a network namespace.
#[derive(Debug)]
pub(super) struct SocketCounts(OwnedFd);

impl NetnsCheck {
    /// The check for this process, a slot keeper.
    pub(super) fn for_slot(
        network: NetworkMode,
        level: IsolationLevel,
    ) -> Result<Self, StageFailure> {
        let own_sockets = match network {
            NetworkMode::None => Some(0),
            NetworkMode::Proxy => Some(1),
            NetworkMode::Host => None,
        };
        let Some(own_sockets) = own_sockets.filter(|_| level.reuses_network_namespaces()) else {
            return Ok(Self { baseline: None });
        };

        let counts = SocketCounts::open()
            .map_err(at_stage(Stage::NetworkNamespace, "opening /proc/self/net/sockstat"))?;
        Ok(Self { baseline: Some((counts, own_sockets)) })
    }

    /// Waits briefly until all sockets of earlier runs are gone. Returns whether they
    /// are.
    pub(super) fn wait_until_clear(&self) -> bool {
        let Some((counts, own_sockets)) = &self.baseline else {
            return true; // runs do not share the namespace
        };

        for _ in 0..MAX_POLLS {
            if counts.read().is_ok_and(|sockets| sockets <= *own_sockets) {
                return true;
            }
            sleep(POLL_INTERVAL);
        }
        false
    }
}

impl SocketCounts {
    /// Opens the counts of this process's network namespace.
    pub(super) fn open() -> Result<Self, Errno> {
        open(SOCKSTAT_PATH, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).map(Self)
    }

    /// Reads the present number of sockets. Does not allocate.
    pub(super) fn read(&self) -> Result<u64, Errno> {
        // Only the first line matters.
        let mut bytes = [0; 64];
        let length = pread(&self.0, &mut bytes, 0)?;
        let text = str::from_utf8(bytes.get(..length).unwrap_or_default()).unwrap_or_default();
        count_sockets(text).ok_or(Errno::IO)
    }
}

/// The number of sockets in use, from the text of sockstat.
fn count_sockets(counts: &str) -> Option<u64> {
    let line = counts.lines().find_map(|line| line.strip_prefix("sockets: used "))?;
    line.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unreadable_counts_are_not_zero() {
        let counts = "sockets: used 19\nTCP: inuse 1 orphan 0 tw 0 alloc 1 mem 54\n";
        assert_eq!(count_sockets(counts), Some(19));
        assert_eq!(count_sockets(""), None);
        assert_eq!(count_sockets("sockets: used many\n"), None);
    }
}
