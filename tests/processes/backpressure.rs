//! Slow and fast readers of one process, and endless output.

use super::keep_request;
use crate::support::{Daemon, Mark, eventually, full_size, promptly, shell, start_request};

/// Whether a process blocks on a write to a full pipe (proc_pid_syscall(5)).
fn blocks_writing_to_pipe(pid: i32) -> bool {
    let syscall = std::fs::read_to_string(format!("/proc/{pid}/syscall")).unwrap_or_default();
    syscall.starts_with("1 0x1 ")
}

#[tokio::test]
async fn stalled_reader_does_not_slow_another() {
    let daemon = Daemon::start().await;
    let mut fast = daemon.start_process(keep_request("read go; head -c 50000000 /dev/zero")).await;

    // Each stalled reader has its own connection and never reads. Buffers on the way hold
    // megabytes, so these readers are the fastest for a moment.
    let mut stalled = Vec::new();
    for _ in 0..3 {
        let channel = daemon.new_connection();
        let processes = jig::api::v1::process_service_client::ProcessServiceClient::new(channel);
        let watch = crate::support::WatchedProcess::attach(processes, fast.resume_request()).await;
        stalled.push(watch.unwrap());
    }

    daemon.send_stdin(&fast.id, b"\n").await.unwrap();
    let exited = fast.wait_for_exit().await;
    assert_eq!(exited.stdout_bytes, 50_000_000);
    assert_eq!(fast.stdout.len(), 50_000_000);
    assert!(fast.gaps.is_empty());

    // The stalled readers receive a gap and the exit.
    for mut watch in stalled {
        assert_eq!(watch.wait_for_exit().await, exited);
        assert_eq!(watch.gaps.len(), 1, "{:?}", watch.gaps);
        assert!(watch.stdout.len() < 50_000_000);
    }
}

#[tokio::test]
async fn command_blocks_until_its_only_reader_reads() {
    let daemon = Daemon::start().await;
    let mark = Mark::new();
    let request = keep_request("read go; head -c 20000000 /dev/zero; echo written > flag");
    let mut watch = daemon.start_process(mark.on_start(request)).await;
    daemon.send_stdin(&watch.id, b"\n").await.unwrap();

    // No client reads here. The connection's windows, the replay buffer and the pipe fill up, and
    // the command keeps the rest.
    eventually("the command blocks on its pipe", async || {
        let written = daemon.list_processes().await[0].last_sequence > 4;
        written && mark.processes().iter().any(|pid| blocks_writing_to_pipe(*pid))
    })
    .await;
    assert!(!daemon.file("flag").exists());

    let exited = watch.wait_for_exit().await;
    assert!(daemon.file("flag").exists());
    assert_eq!(watch.stdout.len(), 20_000_000);
    assert!(watch.gaps.is_empty() && exited.exit_code == Some(0));
}

#[tokio::test]
async fn endless_output_uses_bounded_memory() {
    let daemon = crate::support::Setup::new().exclusive().start().await;
    let bytes = full_size(10_000_000_000, 200_000_000);
    let request = start_request(shell(&format!("yes | head -c {bytes}")));
    let mut stream = daemon.processes().start(request).await.unwrap().into_inner();
    let before = daemon.resident_bytes();
    let (mut received_bytes, mut max_resident_bytes, mut gaps) = (0_usize, 0, 0);
    let mut next_sample_at = 0;
    let mut exited = None;

    // The test counts and drops the output, to use no memory itself.
    while let Some(message) = promptly("the next message arrives", stream.message()).await.unwrap()
    {
        use jig::api::v1::start_response::Event;
        match message.event.unwrap() {
            Event::Stdout(output) => {
                assert_eq!(output.offset, received_bytes as u64);
                assert_eq!(output.data.first(), Some(&b"y\n"[received_bytes % 2]));
                received_bytes += output.data.len();
            }
            Event::Gap(_) => gaps += 1,
            Event::Exited(exit) => exited = Some(exit),
            _ => {}
        }

        if received_bytes >= next_sample_at {
            max_resident_bytes = max_resident_bytes.max(daemon.resident_bytes());
            next_sample_at += 10_000_000;
        }
    }

    assert_eq!((received_bytes, gaps), (bytes, 0));
    assert_eq!(exited.unwrap().stdout_bytes, bytes as u64);

    let grown = max_resident_bytes.saturating_sub(before);
    eprintln!("{bytes} bytes, at most {} MiB more memory", grown >> 20);
    assert!(grown < 16 << 20, "{grown} bytes more than {before}");
}

#[tokio::test]
async fn unread_output_uses_bounded_memory() {
    let daemon = Daemon::start().await;
    let before = daemon.resident_bytes();
    let watch = daemon
        .start_process(keep_request("read go; yes | head -c 300000000; echo; read stop"))
        .await;
    let id = watch.id.clone();
    drop(watch);
    daemon.send_stdin(&id, b"\n\n").await.unwrap();
    let mut late = daemon.attach(&id).await;
    let exited = promptly("the process ends", late.read_to_exit()).await;

    assert_eq!(exited.stdout_bytes, 300_000_001);
    let grown = daemon.resident_bytes().saturating_sub(before);
    assert!(grown < 16 << 20, "{grown} bytes more than {before}");
}
