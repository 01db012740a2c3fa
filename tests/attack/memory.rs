//! Commands that hoard memory, in processes and in what has no process, and CPUs.

use jig::api::v1::{LowerLimits, Outcome, RunRequest};

use crate::support::{Daemon, Mark, Setup, shell};

/// What one run may have.
const LIMIT: u64 = 200 << 20;

fn limited(command: &str) -> RunRequest {
    RunRequest {
        limits: Some(LowerLimits {
            memory_bytes: Some(LIMIT),
            tmp_bytes: Some(64 << 20),
            tmp_inodes: Some(1000),
            ..LowerLimits::default()
        }),
        ..shell(command)
    }
}

#[tokio::test]
async fn case_26_a_memory_bomb_is_killed_and_the_daemon_lives() {
    let daemon = Setup::new().alone().start().await;
    let mark = Mark::new();
    let bomb = "python3 -c 'x = bytearray(10)\nwhile True: x += bytearray(1 << 20)'";
    let response = daemon.run(mark.on(limited(bomb))).await;
    assert_eq!(response.outcome(), Outcome::OomKilled, "{response:?}");
    assert_eq!(response.limit, "memory");
    mark.assert_gone();
    assert_eq!(daemon.output(shell("echo after")).await, "after\n");
}

#[tokio::test]
async fn case_27_files_in_memory_stop_at_their_size_and_are_gone_behind_the_run() {
    let daemon = Daemon::start().await;
    for place in ["/tmp", "/dev/shm", "$HOME"] {
        let fill = format!("head -c 100000000 /dev/zero > {place}/x; stat -c %s {place}/x");
        let response = daemon.run(limited(&fill)).await;
        assert!(response.stderr.contains("No space left"), "{response:?}");
        assert_eq!(response.stdout, format!("{}\n", 64 << 20), "{place}");
        let left = daemon.output(shell(&format!("ls -A {place} | wc -l"))).await;
        assert_eq!(left, "0\n", "{place}");
    }
}

#[tokio::test]
async fn case_28_memory_without_a_process_is_held_and_gone_behind_the_run() {
    let daemon = Setup::new().alone().start().await;
    let hoard = "python3 -c 'import os\nf = os.memfd_create(\"x\")\nwhile True: os.write(f, bytes(1 << 20))'";
    let response = daemon.run(limited(hoard)).await;
    assert_eq!(response.limit, "memory", "{response:?}");
    // What is not counted where no cgroup does it has bounds of its own: descriptors, and the sizes
    // that the kernel allows a pipe and a socket of an ordinary user.
    let hoard = "python3 -c 'import os, fcntl\nn = 0\ntry:\n  while True:\n    r, w = os.pipe(); os.set_blocking(w, False)\n    try: n += os.write(w, bytes(1 << 20))\n    except BlockingIOError: pass\nexcept OSError as e: print(e.errno, n < 256 << 20)'";
    let response = daemon.run(limited(hoard)).await;
    assert_eq!(response.stdout, "24 True\n", "EMFILE: {response:?}");
    assert_eq!(daemon.output(shell("echo after")).await, "after\n");
}

#[tokio::test]
async fn case_29_names_in_tmp_stop_at_their_number() {
    let daemon = Daemon::start().await;
    let fill = "i=0; while : > /tmp/$i; do i=$((i + 1)); done; echo $i";
    let response =
        daemon.run(limited(&format!("({fill}) 2> /tmp/../dev/null; ls /tmp | wc -l"))).await;
    let count: u32 = response.stdout.lines().last().unwrap().parse().unwrap();
    assert!((900..=1000).contains(&count), "{response:?}");
}

#[tokio::test]
async fn case_33_loops_on_all_processors_hold_up_nobody() {
    let daemon = Setup::new().alone().start().await;
    let mark = Mark::new();
    let busy = "for i in 1 2 3 4 5 6 7 8; do (while :; do :; done) & done; wait";
    let running = daemon.begin(mark.on(shell(busy)));
    mark.appears(8).await;
    for _ in 0..20 {
        let health = tokio::time::timeout(crate::support::PROMPT, daemon.health());
        health.await.expect("the daemon answers");
    }
    assert_eq!(daemon.output(shell("echo beside")).await, "beside\n");
    running.abort();
    mark.vanishes().await;
}
