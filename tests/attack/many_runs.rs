//! Many commands: the daemon keeps no resources of them.

use std::{collections::BTreeSet, fs};

use tonic::Code;

use crate::support::{Daemon, Setup, argv, descendants, eventually, full_size, shell};

/// Idle slots for later runs. In each, the init of the last run may remain a zombie until the slot
/// makes its next sandbox.
const MAX_IDLE_SLOTS: usize = 8;

/// Resources of a daemon and its descendants.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct DaemonResources {
    processes: usize,
    zombies: usize,
    descriptors: usize,
    mounts: usize,
    network_namespaces: usize,
}

impl DaemonResources {
    fn measure(daemon: &Daemon) -> Self {
        let mut pids = vec![daemon.pid()];
        pids.extend(descendants(daemon.pid()).iter().map(|process| process.pid));
        let count = |directory: &str| {
            let counts = pids.iter().map(|pid| {
                fs::read_dir(format!("/proc/{pid}/{directory}")).map_or(0, Iterator::count)
            });
            counts.sum()
        };
        let read = |pid: &i32, file: &str| fs::read_to_string(format!("/proc/{pid}/{file}"));
        let is_zombie = |pid: &&i32| read(pid, "stat").is_ok_and(|stat| stat.contains(") Z "));
        let networks: BTreeSet<_> = pids
            .iter()
            .filter_map(|pid| fs::read_link(format!("/proc/{pid}/ns/net")).ok())
            .collect();
        Self {
            processes: pids.iter().filter(|pid| !is_zombie(pid)).count(),
            zombies: pids.iter().filter(is_zombie).count(),
            descriptors: count("fd"),
            mounts: pids
                .iter()
                .map(|pid| read(pid, "mountinfo").map_or(0, |text| text.lines().count()))
                .sum(),
            network_namespaces: networks.len(),
        }
    }

    /// The most of each resource during 30 runs, and once the daemon is idle. At a single moment one
    /// run's sandbox may be gone already, and the next one may not exist yet. On a busy machine, that
    /// can be so after each run.
    async fn measure_peak(daemon: &Daemon) -> Self {
        let mut peak = Self::measure(daemon);
        for _ in 0..30 {
            daemon.run(argv(&["true"])).await;
            peak = peak.max_of_each(Self::measure(daemon));
        }

        let (mut last, mut repetitions) = (peak, 0);
        eventually("the resources of the idle daemon stay the same", async || {
            let current = Self::measure(daemon);
            repetitions = if current == last { repetitions + 1 } else { 0 };
            last = current;
            repetitions == 20
        })
        .await;
        peak.max_of_each(last)
    }

    fn max_of_each(self, other: Self) -> Self {
        Self {
            processes: self.processes.max(other.processes),
            zombies: self.zombies.max(other.zombies),
            descriptors: self.descriptors.max(other.descriptors),
            mounts: self.mounts.max(other.mounts),
            network_namespaces: self.network_namespaces.max(other.network_namespaces),
        }
    }

    /// Whether no resource exceeds the earlier measurement.
    fn fits_within(self, before: Self) -> bool {
        self.processes <= before.processes
            && self.zombies <= MAX_IDLE_SLOTS
            && self.descriptors <= before.descriptors
            && self.mounts <= before.mounts
            && self.network_namespaces <= before.network_namespaces
    }
}

/// Waits until the daemon holds no more resources than before.
async fn wait_for_baseline(daemon: &Daemon, before: DaemonResources) {
    let mut last = before;
    let baseline = eventually("the daemon holds no more than before", async || {
        last = DaemonResources::measure(daemon);
        last.fits_within(before)
    });
    if tokio::time::timeout(crate::support::wait_timeout() / 2, baseline).await.is_err() {
        panic!("{before:#?} became {last:#?}");
    }
}

/// Makes 200 concurrent runs twice. The daemon keeps for a while as many sandboxes as were wanted
/// at once, so the second time must need no more than the first.
async fn check_200_concurrent_runs(daemon: &Daemon, may_be_refused: bool) {
    let level = daemon.level().await;
    let mut before = None;
    for _ in 0..2 {
        let runs: Vec<_> = (0..200)
            .map(|number| daemon.spawn_run(shell(&format!("sleep 0.1; echo {number}"))))
            .collect();

        let mut successes = 0;
        for (number, run) in runs.into_iter().enumerate() {
            match run.await.unwrap() {
                Ok(response) => {
                    successes += 1;
                    assert_eq!(response.isolation, level);
                    assert_eq!(response.stdout, format!("{number}\n"));
                }
                Err(status) => {
                    assert!(may_be_refused, "{status:?}");
                    assert_eq!(status.code(), Code::ResourceExhausted, "{status:?}");
                }
            }
        }

        assert!(successes >= 4, "{successes}");

        eventually("at most one zombie per slot remains", async || {
            DaemonResources::measure(daemon).zombies <= MAX_IDLE_SLOTS
        })
        .await;
        match before {
            None => before = Some(DaemonResources::measure_peak(daemon).await),
            Some(before) => wait_for_baseline(daemon, before).await,
        }
    }
}

#[tokio::test]
async fn case_80_runs_over_the_limit_wait_or_are_rejected() {
    let setup = Setup::new().workspace_table("[limits]\nconcurrent_runs = 4");
    check_200_concurrent_runs(&setup.exclusive().start().await, true).await;
}

#[tokio::test]
async fn case_80_daemon_leaks_nothing_after_200_concurrent_runs() {
    check_200_concurrent_runs(&Setup::new().exclusive().start().await, false).await;
}

#[tokio::test]
async fn case_81_daemon_does_not_grow_over_many_runs() {
    let daemon = Setup::new().exclusive().start().await;
    for _ in 0..200 {
        daemon.run(argv(&["true"])).await;
    }

    let (before, resident_bytes) =
        (DaemonResources::measure_peak(&daemon).await, daemon.resident_bytes());
    let count = full_size(100_000, 1000);
    for _ in 0..count {
        let response = daemon.run(argv(&["true"])).await;
        assert_eq!(response.exit_code, Some(0), "{response:?}");
    }

    wait_for_baseline(&daemon, before).await;
    let growth = daemon.resident_bytes().saturating_sub(resident_bytes);
    assert!(growth < 16 << 20, "the daemon grew by {growth} bytes in {count} runs");
}
