//! What the kernel counts for a user or for the machine, taken by one run.

use std::time::Instant;

use jig::api::v1::{LowerLimits, Outcome, RunRequest};
use tonic_health::pb::health_check_response::ServingStatus;

use crate::support::{Daemon, Mark, PROMPT, Setup, argv, compile, shell};

/// An ordinary user who runs a daemon.
const ORDINARY: u32 = 12347;

/// Runs a program that takes all epoll watches. The daemon answers calls, health checks and new
/// connections until the run is ended.
async fn watches_are_taken(setup: Setup) {
    let daemon = setup.alone().start().await;
    let program = compile(&daemon, "watches");
    let mark = Mark::new();
    let attack = daemon.begin(mark.on(argv(&[&program])));
    while !attack.is_finished() {
        let began = Instant::now();
        assert_eq!(daemon.health().await, ServingStatus::Serving);
        assert_eq!(daemon.output(shell("echo beside")).await, "beside\n");
        let mut tools = daemon.tools_on_a_new_connection();
        tools.run(shell("true")).await.unwrap();
        let took = began.elapsed();
        assert!(took < PROMPT, "{took:?}");
    }
    let response = attack.await.unwrap().unwrap();
    let told = (response.outcome(), response.limit.as_str());
    assert_eq!(told, (Outcome::Signaled, "epoll"), "{response:?}");
    assert_eq!(response.signal, "SIGKILL");
    mark.assert_gone();
    assert_eq!(daemon.output(shell("echo after")).await, "after\n");
}

#[tokio::test]
async fn a_run_that_takes_epoll_watches_is_ended_before_an_ordinary_users_daemon_lacks_them() {
    watches_are_taken(Setup::new().user(ORDINARY)).await;
}

#[tokio::test]
async fn a_run_that_takes_epoll_watches_is_ended_by_a_root_daemon() {
    watches_are_taken(Setup::new()).await;
}

#[tokio::test]
async fn the_share_of_epoll_watches_is_set_and_told() {
    let limits = "[limits]\nepoll_watches = 50\n";
    let daemon = Setup::new().workspace_table(limits).start().await;
    let limits = daemon.info().await.run_limits.unwrap();
    assert_eq!(limits.epoll_watches, 50);
    let watch = |count: u32| {
        // Until it is counted: that takes CPU time of the run.
        shell(&format!(
            "python3 -c 'import os, select, time\nset = select.epoll()\nfor _ in range({count}): set.register(os.eventfd(0))\n\
             end = time.process_time() + 3\nwhile time.process_time() < end: pass'"
        ))
    };
    let response = daemon.run(watch(60)).await;
    assert_eq!(response.limit, "epoll", "{response:?}");
    let response = daemon.run(watch(40)).await;
    assert_eq!(response.exit_code, Some(0), "{response:?}");
    let told = Daemon::start().await.info().await.run_limits.unwrap();
    let all = std::fs::read_to_string("/proc/sys/fs/epoll/max_user_watches").unwrap();
    assert_eq!(told.epoll_watches, all.trim().parse::<u64>().unwrap() / 16);
}

#[tokio::test]
async fn a_run_that_opens_all_files_of_the_machine_is_ended() {
    let daemon = Setup::new().alone().start().await;
    let program = compile(&daemon, "open_files");
    assert_eq!(
        daemon.info().await.run_limits.unwrap().open_files_total,
        65_536
    );
    let mark = Mark::new();
    let response = daemon.run(mark.on(argv(&[&program, "100"]))).await;
    let told = (response.outcome(), response.limit.as_str());
    assert_eq!(told, (Outcome::Signaled, "open_files"), "{response:?}");
    mark.assert_gone();
    // A request can lower it, and one process of full size is no trouble.
    let request = |most: u32| RunRequest {
        limits: Some(LowerLimits {
            open_files_total: Some(most),
            ..LowerLimits::default()
        }),
        timeout_sec: Some(5),
        ..argv(&[&program, "2"])
    };
    let response = daemon.run(request(8000)).await;
    assert_eq!(response.limit, "open_files", "{response:?}");
    let response = daemon.run(request(10_000)).await;
    assert_eq!(response.outcome(), Outcome::TimedOut, "{response:?}");
    assert_eq!(response.stdout, "full\nfull\n");
}

#[tokio::test]
async fn mappings_count_as_memory() {
    let daemon = Setup::new().alone().start().await;
    let program = compile(&daemon, "mappings");
    let limited = |request: RunRequest| RunRequest {
        limits: Some(LowerLimits {
            memory_bytes: Some(64 << 20),
            ..LowerLimits::default()
        }),
        ..request
    };
    let mark = Mark::new();
    let response = daemon.run(mark.on(limited(argv(&[&program, "60"])))).await;
    let told = (response.outcome(), response.limit.as_str());
    assert_eq!(told, (Outcome::OomKilled, "memory"), "{response:?}");
    mark.assert_gone();
    // Address space that is only reserved is none.
    let reserve = "python3 -c 'import mmap, os, time\nm = mmap.mmap(-1, 1 << 36, flags=mmap.MAP_PRIVATE | 0x4000, prot=mmap.PROT_READ)\n\
        for _ in range(9):\n  if os.fork() == 0: break\nelse: [os.wait() for _ in range(9)]\n\
        end = time.process_time() + 0.2\nwhile time.process_time() < end: pass'";
    let response = daemon.run(limited(shell(reserve))).await;
    assert_eq!(response.exit_code, Some(0), "{response:?}");
}
