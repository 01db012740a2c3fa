//! Shortages that tests cause for a daemon: a full disk, and too few descriptors.

use std::{fs, io::ErrorKind, path::PathBuf};

use rustix::process::{Pid, Resource, Rlimit, getrlimit, prlimit};

use super::Daemon;

impl Daemon {
    /// A file of the state directory, as the daemon sees it.
    pub(crate) fn own_state_file(&self, name: &str) -> PathBuf {
        let state = format!("/proc/{}/root{}", self.pid(), self.state_dir().display());
        PathBuf::from(state).join(name)
    }

    /// Fills the small disk of the state directory. Removing the returned file frees it.
    pub(crate) fn fill_state_disk(&self) -> PathBuf {
        let filler = self.own_state_file("filler");
        let written = fs::write(&filler, vec![0; 8 << 20]);
        assert_eq!(written.unwrap_err().kind(), ErrorKind::StorageFull);
        filler
    }

    /// Sets the limit of open descriptors, and returns the old one.
    pub(crate) fn set_descriptor_limit(&self, limit: u64) -> u64 {
        let pid = Pid::from_raw(self.pid());
        let new = Rlimit {
            current: Some(limit),
            // The daemon inherited the limit of the tests.
            maximum: getrlimit(Resource::Nofile).maximum,
        };
        let old = prlimit(pid, Resource::Nofile, new).unwrap();
        old.current.unwrap_or(1 << 20)
    }
}
