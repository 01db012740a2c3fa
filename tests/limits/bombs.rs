//! Bombs of every kind run at the same time as ten ordinary runs. The ordinary runs are not
//! disturbed, and the daemon answers health checks.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use jig::api::v1::{LowerLimits, Outcome, RunRequest};
use tokio::task::JoinHandle;
use tonic_health::pb::health_check_response::ServingStatus;

use super::limited_command;
use crate::support::{Daemon, Mark, Setup, argv, full_size, promptly, shell};

/// An ordinary run: it computes, starts processes, writes files and reads them.
const WORK_SCRIPT: &str = "set -e; for step in 1 2 3 4 5 6 7 8 9 10; do \
    head -c 300000 /dev/zero | tr '\\0' x > /tmp/$step; cp /tmp/$step work-$0; \
    test $(wc -c < work-$0) = 300000; sleep 0.1; done; sha256sum < work-$0";
/// The output of [`WORK_SCRIPT`].
const WORK_OUTPUT: &str = "29927e273accc68286005017f7fa6e4f27bddb4db3083ff8b8d4c3667905b7fa  -\n";

fn bomb_requests() -> [RunRequest; 4] {
    let lowered = |command: &str, limits: LowerLimits| RunRequest {
        timeout_sec: Some(3),
        ..limited_command(command, limits)
    };
    let memory = LowerLimits { memory_bytes: Some(200 << 20), ..LowerLimits::default() };
    let processes = LowerLimits { processes: Some(100), ..LowerLimits::default() };
    [
        lowered("python3 -c 'x = bytearray(10)\nwhile True: x += bytearray(1 << 20)'", memory),
        lowered("f() { f | f & }; while :; do f; done", processes),
        lowered(
            "while :; do for directory in /tmp /dev/shm $HOME; do head -c 3000000000 /dev/zero > $directory/x; done; rm /tmp/x /dev/shm/x $HOME/x; done",
            LowerLimits::default(),
        ),
        lowered(
            "while :; do head -c 100000000 /dev/zero > filler; rm filler; for i in $(seq 1000); do : > filler-$i; done; rm filler-*; done",
            LowerLimits::default(),
        ),
    ]
}

/// Repeats health checks until `stop` is set. Returns the duration of each.
fn measure_health_checks(
    daemon: &Arc<Daemon>,
    stop: &Arc<AtomicBool>,
) -> JoinHandle<Vec<Duration>> {
    let (daemon, stop) = (Arc::clone(daemon), Arc::clone(stop));
    tokio::spawn(async move {
        let mut times = Vec::new();
        while !stop.load(Ordering::Relaxed) {
            let start = Instant::now();
            let status = promptly("the daemon answers a health check", daemon.health()).await;
            times.push(start.elapsed());
            assert_eq!(status, ServingStatus::Serving);
            // Leaves CPU time for the runs.
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        times
    })
}

/// Makes ten ordinary runs, `rounds` times, beside health checks. Returns the sorted durations of
/// the health checks.
async fn run_ordinary_work(daemon: &Arc<Daemon>, rounds: usize) -> Vec<Duration> {
    let stop = Arc::new(AtomicBool::new(false));
    let health_task = measure_health_checks(daemon, &stop);

    for _ in 0..rounds {
        let runs: Vec<_> = (0..10)
            .map(|number| {
                let mut words = vec!["sh", "-c", WORK_SCRIPT];
                let number = number.to_string();
                words.push(&number);
                daemon.spawn_run(argv(&words))
            })
            .collect();
        for run in runs {
            let response = run.await.unwrap().unwrap();
            assert_eq!(response.exit_code, Some(0), "{response:?}");
            assert_eq!(response.stdout, WORK_OUTPUT, "{response:?}");
        }
    }

    stop.store(true, Ordering::Relaxed);
    let mut times = health_task.await.unwrap();
    times.sort_unstable();
    times
}

#[tokio::test]
async fn bombs_do_not_disturb_other_runs_or_health_checks() {
    let daemon = Arc::new(Setup::new().exclusive().start().await);
    let rounds = full_size(20, 2);
    let baseline_times = run_ordinary_work(&daemon, rounds).await;

    let mark = Mark::new();
    let stop = Arc::new(AtomicBool::new(false));
    let mut bomb_tasks = Vec::new();
    for bomb in bomb_requests().map(|bomb| mark.on(bomb)) {
        let (daemon, stop) = (Arc::clone(&daemon), Arc::clone(&stop));
        bomb_tasks.push(tokio::spawn(async move {
            let mut bomb_count = 0;
            while bomb_count == 0 || !stop.load(Ordering::Relaxed) {
                let outcome = daemon.run(bomb.clone()).await.outcome();
                let ends = [Outcome::OomKilled, Outcome::TimedOut, Outcome::Exited];
                assert!(ends.contains(&outcome), "{outcome:?}: {bomb:?}");
                bomb_count += 1;
            }
            bomb_count
        }));
    }

    mark.wait_for_processes(4).await;
    let times_beside_bombs = run_ordinary_work(&daemon, rounds).await;
    stop.store(true, Ordering::Relaxed);
    for bomb in bomb_tasks {
        assert!(bomb.await.unwrap() > 0);
    }
    mark.wait_until_gone().await;

    let percentile = |times: &[Duration], percent: usize| times[(times.len() - 1) * percent / 100];
    for (what, times) in [("without bombs", &baseline_times), ("beside bombs", &times_beside_bombs)]
    {
        let [p50, p99] = [50, 99].map(|percent| percentile(times, percent));
        eprintln!("health {what}: p50 {p50:?}, p99 {p99:?}, of {}", times.len());
    }

    assert_eq!(daemon.output(shell("echo fine")).await, "fine\n");
}
