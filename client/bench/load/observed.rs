//! What a load sees of its daemon.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
    time::Instant,
};

use super::{
    faults::PastFault,
    watch::{ProcessId, Sample},
};

/// What was seen of a daemon that this load started.
#[derive(Debug, Default)]
pub(super) struct Observed {
    pub(super) faults: Vec<PastFault>,
    pub(super) samples: Vec<Sample>,
    /// Every process seen below the daemon, with its name.
    pub(super) processes: BTreeMap<ProcessId, String>,
    /// Processes of commands that still ran when the daemon was idle.
    pub(super) busy: Vec<String>,
    /// Processes that outlived the daemon.
    pub(super) leaked: Vec<String>,
    /// Mounts, cgroups and sockets that outlived the daemon.
    pub(super) leftovers: Vec<String>,
    pub(super) log: String,
}

impl Observed {
    /// Adds a sample. Returns the number of processes of commands.
    pub(super) fn sample(&mut self, daemon: i32, state_dir: &Path, start: Instant) -> u64 {
        let (sample, below) = Sample::take(daemon, state_dir, start.elapsed());
        self.samples.push(sample);
        self.processes.extend(below.into_iter().map(|process| (process.id, process.name)));
        sample.commands
    }

    /// Process ids of all daemons so far.
    pub(super) fn daemons(&self) -> BTreeSet<i32> {
        self.samples.iter().map(|sample| sample.daemon).collect()
    }
}
