//! Many commands: nothing of them may stay with the daemon.

use std::{collections::BTreeSet, fs};

use tonic::Code;

use crate::support::{Daemon, Setup, argv, descendants, eventually, full_size, shell};

/// Slots that are kept for later runs: in each, the last run's init may wait to be reaped until the
/// next sandbox is made.
const MAX_IDLE_SLOTS: usize = 8;

/// What a daemon holds, together with all that descends from it.
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
        let count = |folder: &str| {
            let counts = pids.iter().map(|pid| {
                fs::read_dir(format!("/proc/{pid}/{folder}")).map_or(0, Iterator::count)
            });
            counts.sum()
        };
        let read = |pid: &i32, file: &str| fs::read_to_string(format!("/proc/{pid}/{file}"));
        let zombie = |pid: &&i32| read(pid, "stat").is_ok_and(|stat| stat.contains(") Z "));
        let networks: BTreeSet<_> = pids
            .iter()
            .filter_map(|pid| fs::read_link(format!("/proc/{pid}/ns/net")).ok())
            .collect();
        Self {
            processes: pids.iter().filter(|pid| !zombie(pid)).count(),
            zombies: pids.iter().filter(zombie).count(),
            descriptors: count("fd"),
            mounts: pids
                .iter()
                .map(|pid| read(pid, "mountinfo").map_or(0, |text| text.lines().count()))
                .sum(),
            network_namespaces: networks.len(),
        }
    }

    /// The most of each that is there in the course of 30 runs: the sandbox of one may be gone, and the
    /// next not there yet, at any single moment.
    async fn measure_peak(daemon: &Daemon) -> Self {
        let mut peak = Self::measure(daemon);
        for _ in 0..30 {
            daemon.run(argv(&["true"])).await;
            let now = Self::measure(daemon);
            peak = Self {
                processes: peak.processes.max(now.processes),
                zombies: peak.zombies.max(now.zombies),
                descriptors: peak.descriptors.max(now.descriptors),
                mounts: peak.mounts.max(now.mounts),
                network_namespaces: peak.network_namespaces.max(now.network_namespaces),
            };
        }

        peak
    }

    /// Whether there is no more of anything than before.
    fn fits_within(self, before: Self) -> bool {
        self.processes <= before.processes
            && self.zombies <= MAX_IDLE_SLOTS
            && self.descriptors <= before.descriptors
            && self.mounts <= before.mounts
            && self.network_namespaces <= before.network_namespaces
    }
}

/// Waits until the daemon holds no more than before.
async fn wait_for_baseline(daemon: &Daemon, before: DaemonResources) {
    let mut last = before;
    let back = eventually("the baseline", async || {
        last = DaemonResources::measure(daemon);
        last.fits_within(before)
    });
    if tokio::time::timeout(crate::support::wait_timeout() / 2, back).await.is_err() {
        panic!("{before:#?} became {last:#?}");
    }
}

/// Makes 200 runs at once, twice: as many sandboxes as were wanted at one time are kept for a while, so
/// that the second time must need no more than the first.
async fn check_200_concurrent_runs(daemon: &Daemon, may_be_refused: bool) {
    let level = daemon.level().await;
    let mut before = None;
    for _ in 0..2 {
        let runs: Vec<_> = (0..200)
            .map(|number| daemon.spawn_run(shell(&format!("sleep 0.1; echo {number}"))))
            .collect();
        let mut answered = 0;
        for (number, run) in runs.into_iter().enumerate() {
            match run.await.unwrap() {
                Ok(response) => {
                    answered += 1;
                    assert_eq!(response.isolation, level);
                    assert_eq!(response.stdout, format!("{number}\n"));
                }
                Err(status) => {
                    assert!(may_be_refused, "{status:?}");
                    assert_eq!(status.code(), Code::ResourceExhausted, "{status:?}");
                }
            }
        }
        assert!(answered >= 4, "{answered}");
        eventually("no more zombies than slots", async || {
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
    let (before, memory) = (DaemonResources::measure_peak(&daemon).await, daemon.resident_bytes());
    let count = full_size(100_000, 1000);
    for _ in 0..count {
        let response = daemon.run(argv(&["true"])).await;
        assert_eq!(response.exit_code, Some(0), "{response:?}");
    }

    wait_for_baseline(&daemon, before).await;
    let grown = daemon.resident_bytes().saturating_sub(memory);
    assert!(grown < 16 << 20, "{grown} bytes more after {count} runs");
}
