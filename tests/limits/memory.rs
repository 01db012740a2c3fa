//! Memory limits: of one process, of many, and of files in memory.

use jig::api::v1::{LowerLimits, Outcome, RunResponse};

use super::{isolation_layer, limited_command};
use crate::support::{Daemon, Mark, Setup, argv, eventually, shell};

/// Less than the attacks below take, more than an interpreter needs.
const MEMORY_LIMIT_BYTES: u64 = 200 << 20;

fn memory_limited_command(command: &str) -> jig::api::v1::RunRequest {
    let limits = LowerLimits { memory_bytes: Some(MEMORY_LIMIT_BYTES), ..LowerLimits::default() };
    limited_command(command, limits)
}

fn assert_killed_for_memory(response: &RunResponse) {
    let reported = (response.outcome(), response.limit.as_str(), response.signal.as_str());
    assert_eq!(reported, (Outcome::OomKilled, "memory", "SIGKILL"), "{response:?}");
    assert_eq!(response.exit_code, None);
}

#[tokio::test]
async fn memory_limit_kills_every_kind_of_bomb() {
    let daemon = Setup::new().exclusive().start().await;
    for attack in [
        // One process, touched page by page.
        "python3 -c 'x = bytearray(10); print(1, flush=True)\nwhile True: x += bytearray(1 << 20)'",
        // Many, each with little memory.
        "python3 -c 'import os, time\nprint(1, flush=True)\nwhile True:\n  if os.fork() == 0:\n    x = bytearray(30 << 20); time.sleep(100)'",
        // A file in memory that no process maps.
        "python3 -c 'import os\nf = os.memfd_create(\"x\")\nprint(1, flush=True)\nwhile True: os.write(f, bytes(1 << 20))'",
        // Shared anonymous memory.
        "python3 -c 'import mmap\nprint(1, flush=True)\nkeep = []\nwhile True:\n  m = mmap.mmap(-1, 1 << 20); m.write(bytes(1 << 20)); keep.append(m)'",
        // A process whose name is not UTF-8.
        "python3 -c 'open(\"/proc/self/comm\", \"wb\").write(b\"\\xff\")\nx = bytearray(10); print(1, flush=True)\nwhile True: x += bytearray(1 << 20)'",
        // A process whose first thread has ended.
        "python3 -c 'import ctypes, threading\ndef fill():\n  x = bytearray(10); print(1, flush=True)\n  while True: x += bytearray(1 << 20)\nthreading.Thread(target=fill).start()\nctypes.CDLL(None).syscall(60, 0)'",
        // Page tables: memory that is only read uses nothing else.
        "python3 -c 'import mmap, time\nprint(1, flush=True)\nm = mmap.mmap(-1, 1 << 38, flags=mmap.MAP_PRIVATE | 0x4000, prot=mmap.PROT_READ)\nfor i in range(0, 1 << 38, 1 << 21): m[i]\ntime.sleep(100)'",
        // Shared memory and a file in memory: each alone is below the limit.
        "python3 -c 'import mmap, time\nprint(1, flush=True)\nm = mmap.mmap(-1, 150 << 20)\nf = open(\"/dev/shm/x\", \"wb\")\nfor _ in range(150): m.write(bytes(1 << 20)); f.write(bytes(1 << 20))\ntime.sleep(100)'",
        // The run's own tmpfs mounts, together.
        "echo 1; for d in /tmp /dev/shm $HOME; do head -c 100000000 /dev/zero > $d/x; done; sleep 100",
    ] {
        let mark = Mark::new();
        let response = daemon.run(mark.on(memory_limited_command(attack))).await;
        assert_killed_for_memory(&response);
        assert_eq!(response.stdout, "1\n", "output before the kill is returned: {attack}");
        mark.assert_gone();
    }

    // The daemon and other runs continue.
    assert_eq!(daemon.output(shell("echo fine")).await, "fine\n");
}

#[tokio::test]
async fn memory_shared_after_fork_counts_once() {
    let daemon = Setup::new().exclusive().start().await;
    // Ten copies of 100 MB would take a gigabyte.
    let script = "python3 -c 'import os, time\nx = bytearray(100 << 20)\nfor _ in range(10):\n  if os.fork() == 0:\n    time.sleep(2); os._exit(0)\ntime.sleep(2)'";
    let response = daemon.run(memory_limited_command(script)).await;
    assert_eq!(response.exit_code, Some(0), "{response:?}");
}

#[tokio::test]
async fn memory_shared_by_vfork_counts_once() {
    let daemon = Setup::new().exclusive().start().await;
    // Until execve, each child shares the 120 MB (vfork(2)).
    let script = "python3 -c 'import subprocess, time\nx = bytearray(b\"x\") * (120 << 20)\nend = time.monotonic() + 4\nwhile time.monotonic() < end: subprocess.run([\"/bin/true\"], close_fds=False)'";
    let response = daemon.run(memory_limited_command(script)).await;
    assert_eq!(response.exit_code, Some(0), "{response:?}");
}

#[tokio::test]
async fn mapped_memory_files_count_once() {
    let daemon = Setup::new().exclusive().start().await;
    // 150 MB in each of two processes: one file has a name, the other has none.
    let script = "python3 -c 'import mmap, os, time\nfor f in [os.open(\"/dev/shm/x\", os.O_RDWR | os.O_CREAT), os.memfd_create(\"x\")]:\n  os.ftruncate(f, 75 << 20); m = mmap.mmap(f, 75 << 20)\n  for _ in range(75): m.write(bytes(1 << 20))\n  keep = [m, globals().get(\"keep\")]\nif os.fork() == 0:\n  for m in [keep[0], keep[1][0]]: m[::4096]\n  time.sleep(2); os._exit(0)\ntime.sleep(2)'";
    let response = daemon.run(memory_limited_command(script)).await;
    assert_eq!(response.exit_code, Some(0), "{response:?}");
}

#[tokio::test]
async fn memory_bombs_do_not_disturb_other_runs() {
    let daemon = Setup::new().exclusive().start().await;
    let bomb = "python3 -c 'x = bytearray(10)\nwhile True: x += bytearray(1 << 20)'";
    let bombs: Vec<_> = (0..3).map(|_| daemon.spawn_run(memory_limited_command(bomb))).collect();
    let neighbours: Vec<_> =
        (0..10).map(|number| daemon.spawn_run(shell(&format!("sleep 1; echo {number}")))).collect();
    for (number, neighbour) in neighbours.into_iter().enumerate() {
        let response = neighbour.await.unwrap().unwrap();
        assert_eq!(response.stdout, format!("{number}\n"));
    }

    for bomb in bombs {
        assert_killed_for_memory(&bomb.await.unwrap().unwrap());
    }
}

#[tokio::test]
async fn daemon_reports_how_it_enforces_memory_limits() {
    let daemon = Daemon::start().await;
    let memory = isolation_layer(&daemon, "memory_limit").await;
    assert!(memory.applied);
    assert!(memory.detail.contains("watchdog"), "{memory:?}");

    let processes = isolation_layer(&daemon, "process_limit").await;
    assert!(processes.detail.contains("not reported"), "{processes:?}");
}

#[tokio::test]
async fn process_stream_reports_an_oom_kill() {
    let daemon = Setup::new().exclusive().start().await;
    let request = memory_limited_command("echo here; tail /dev/zero");
    let request = jig::api::v1::StartRequest {
        limits: request.limits,
        ..crate::support::start_request(request)
    };
    let mut watch = daemon.start_process(request).await;
    let exited = watch.wait_for_exit().await;
    assert_eq!((exited.outcome(), exited.limit.as_str()), (Outcome::OomKilled, "memory"));
    assert_eq!(watch.stdout_text(), "here\n");

    let listed = daemon.list_processes().await;
    assert_eq!(listed[0].outcome(), Outcome::OomKilled);

    eventually("the sandbox is released", async || {
        daemon.info().await.counts.unwrap().runs_active == 0
    })
    .await;
    assert_eq!(daemon.output(argv(&["echo", "next"])).await, "next\n");
}
