//! Commands that take memory, with and without a process, and CPU time.

use jig::api::v1::{LowerLimits, Outcome, RunRequest};

use crate::support::{Daemon, Mark, Setup, shell};

/// The memory limit of a run in these tests.
const MEMORY_LIMIT_BYTES: u64 = 200 << 20;

fn limited_command(command: &str) -> RunRequest {
    RunRequest {
        limits: Some(LowerLimits {
            memory_bytes: Some(MEMORY_LIMIT_BYTES),
            tmp_bytes: Some(64 << 20),
            tmp_inodes: Some(1000),
            ..LowerLimits::default()
        }),
        ..shell(command)
    }
}

#[tokio::test]
async fn case_26_memory_limit_kills_a_memory_bomb() {
    let daemon = Setup::new().exclusive().start().await;
    let mark = Mark::new();
    let bomb = "python3 -c 'x = bytearray(10)\nwhile True: x += bytearray(1 << 20)'";
    let response = daemon.run(mark.on(limited_command(bomb))).await;
    assert_eq!(response.outcome(), Outcome::OomKilled, "{response:?}");
    assert_eq!(response.limit, "memory");
    mark.assert_gone();
    assert_eq!(daemon.output(shell("echo after")).await, "after\n");
}

#[tokio::test]
async fn case_27_tmp_files_are_limited_and_removed_after_the_run() {
    let daemon = Daemon::start().await;
    for directory in ["/tmp", "/dev/shm", "$HOME"] {
        let fill = format!("head -c 100000000 /dev/zero > {directory}/x; stat -c %s {directory}/x");
        let response = daemon.run(limited_command(&fill)).await;
        assert!(response.stderr.contains("No space left"), "{response:?}");
        assert_eq!(response.stdout, format!("{}\n", 64 << 20), "{directory}");

        let count = daemon.output(shell(&format!("ls -A {directory} | wc -l"))).await;
        assert_eq!(count, "0\n", "{directory}");
    }
}

#[tokio::test]
async fn case_28_memory_without_a_process_is_limited_and_freed() {
    let daemon = Setup::new().exclusive().start().await;
    let script = "python3 -c 'import os\nf = os.memfd_create(\"x\")\nwhile True: os.write(f, bytes(1 << 20))'";
    let response = daemon.run(limited_command(script)).await;
    assert_eq!(response.limit, "memory", "{response:?}");

    // Without cgroups, the memory of pipes and sockets is not counted. It is bounded by the number
    // of descriptors and by the size that the kernel allows an ordinary user's pipes and sockets.
    let script = "python3 -c 'import os, fcntl\nn = 0\ntry:\n  while True:\n    r, w = os.pipe(); os.set_blocking(w, False)\n    try: n += os.write(w, bytes(1 << 20))\n    except BlockingIOError: pass\nexcept OSError as e: print(e.errno, n < 256 << 20)'";
    let response = daemon.run(limited_command(script)).await;
    assert_eq!(response.stdout, "24 True\n", "EMFILE: {response:?}");
    assert_eq!(daemon.output(shell("echo after")).await, "after\n");
}

#[tokio::test]
async fn case_29_tmp_inodes_are_limited() {
    let daemon = Daemon::start().await;
    let fill = "i=0; while : > /tmp/$i; do i=$((i + 1)); done; echo $i";
    let response = daemon
        .run(limited_command(&format!("({fill}) 2> /tmp/../dev/null; ls /tmp | wc -l")))
        .await;
    let count: u32 = response.stdout.lines().last().unwrap().parse().unwrap();
    assert!((900..=1000).contains(&count), "{response:?}");
}

#[tokio::test]
async fn case_33_busy_loops_do_not_delay_other_calls() {
    let daemon = Setup::new().exclusive().start().await;
    let mark = Mark::new();
    let busy = "for i in 1 2 3 4 5 6 7 8; do (while :; do :; done) & done; wait";
    let run = daemon.spawn_run(mark.on(shell(busy)));
    mark.wait_for_processes(8).await;

    for _ in 0..20 {
        let health = tokio::time::timeout(crate::support::MAX_REACTION_TIME, daemon.health());
        health.await.expect("the daemon answers");
    }

    assert_eq!(daemon.output(shell("echo beside")).await, "beside\n");

    run.abort();
    mark.wait_until_gone().await;
}
