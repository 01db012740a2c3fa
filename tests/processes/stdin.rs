//! What a process is given to read while it runs.

use std::time::Duration;

use jig::api::v1::{StartRequest, WriteStdinRequest};
use tonic::Request;

use crate::support::{Daemon, Refusal, argv, eventually, promptly, shell, started};

fn write(id: &str, data: &[u8], write_id: &str) -> WriteStdinRequest {
    WriteStdinRequest {
        process_id: id.to_owned(),
        data: data.to_vec().into(),
        write_id: write_id.to_owned(),
        ..WriteStdinRequest::default()
    }
}

#[tokio::test]
async fn what_is_written_is_read_in_order_and_ends_when_it_is_told_to() {
    let daemon = Daemon::start().await;
    let mut watch = daemon.watch(started(argv(&["cat"]))).await;
    assert_eq!(daemon.write(&watch.id, b"one\n").await.unwrap(), 4);
    watch.until("one\n").await;
    assert_eq!(daemon.write(&watch.id, b"\0\xfftwo").await.unwrap(), 9);
    let last = WriteStdinRequest { eof: true, ..write(&watch.id, b"!", "") };
    assert_eq!(daemon.write_stdin(last).await.unwrap(), 10);
    assert_eq!(watch.finish().await.exit_code, Some(0));
    assert_eq!(watch.stdout, b"one\n\0\xfftwo!");
}

#[tokio::test]
async fn a_write_that_is_repeated_is_given_once() {
    let daemon = Daemon::start().await;
    let mut watch = daemon.watch(started(argv(&["cat"]))).await;
    for (data, name) in [("a", "1"), ("b", "2"), ("a", "1"), ("b", "2"), ("c", "3")] {
        let accepted = daemon.write_stdin(write(&watch.id, data.as_bytes(), name)).await;
        assert_eq!(accepted.unwrap(), name.parse::<u64>().unwrap());
    }
    let refusal = daemon.write_stdin(write(&watch.id, b"x", "2")).await.unwrap_err();
    assert_eq!(refusal.reason, "REQUEST_ID_REUSED");
    let last = WriteStdinRequest { eof: true, ..write(&watch.id, b"", "4") };
    daemon.write_stdin(last.clone()).await.unwrap();
    // Also the end, and also behind the end of the process.
    daemon.write_stdin(last.clone()).await.unwrap();
    watch.finish().await;
    assert_eq!(watch.text(), "abc");
    assert_eq!(daemon.write_stdin(last).await.unwrap(), 3);
}

#[tokio::test]
async fn large_input_goes_through_whole() {
    let daemon = Daemon::start().await;
    let mut watch = daemon.watch(started(argv(&["sha256sum"]))).await;
    let part = vec![7; 1 << 20];
    for _ in 0..40 {
        daemon.write(&watch.id, &part).await.unwrap();
    }
    assert_eq!(daemon.end_input(&watch.id).await.unwrap(), 40 << 20);
    watch.finish().await;
    let same = "head -c 41943040 /dev/zero | tr '\\0' '\\7' | sha256sum";
    assert_eq!(watch.text(), daemon.output(shell(same)).await);
}

#[tokio::test]
async fn a_process_that_does_not_read_is_given_no_more_than_a_mebibyte() {
    let daemon = Daemon::start().await;
    let mut watch = daemon
        .watch(started(shell("trap go=1 USR1; while [ -z \"$go\" ]; do sleep 0.05; done; wc -c")))
        .await;
    // What the pipe takes has left the queue, so the first writes that wait are taken in the end.
    let part = vec![b'x'; 1 << 20];
    let mut accepted = daemon.write(&watch.id, &part).await.unwrap();
    for number in 0.. {
        let mut request = Request::new(write(&watch.id, &part, &format!("part {number}")));
        request.set_timeout(Duration::from_millis(500));
        let wrote = daemon.processes().write_stdin(request).await;
        let Ok(answer) = wrote else { break };
        accepted = answer.into_inner().accepted_bytes;
        assert!(accepted < 4 << 20, "{accepted}");
    }
    let end = WriteStdinRequest { eof: true, ..write(&watch.id, b"", "end") };
    // The write that was not taken was not taken in part either.
    assert_eq!(daemon.write_stdin(end).await.unwrap(), accepted);
    daemon.send_signal(&watch.id, "USR1").await.unwrap();
    assert_eq!(watch.finish().await.exit_code, Some(0));
    assert_eq!(watch.text().trim(), accepted.to_string());
}

#[tokio::test]
async fn input_that_nobody_reads_any_more_is_refused() {
    let daemon = Daemon::start().await;
    let mut watch = daemon.watch(started(shell("exec < /dev/null; echo closed; sleep 1000"))).await;
    watch.until("closed\n").await;
    let mut refused = None;
    eventually("the pipe is known to be closed", async || {
        refused = daemon.write(&watch.id, b"x").await.err();
        refused.is_some()
    })
    .await;
    assert_eq!(refused.unwrap().reason, "STDIN_CLOSED");
    daemon.send_signal(&watch.id, "KILL").await.unwrap();
    watch.finish().await;
    let refusal = daemon.write(&watch.id, b"x").await.unwrap_err();
    assert_eq!(refusal.reason, "PROCESS_ENDED");
}

#[tokio::test]
async fn a_write_that_waits_learns_of_the_end() {
    let daemon = Daemon::start().await;
    let watch = daemon.watch(started(shell("sleep 1000"))).await;
    let part = vec![b'x'; 1 << 20];
    daemon.write(&watch.id, &part).await.unwrap();
    let request = write(&watch.id, &part, "");
    let mut processes = daemon.processes();
    let waiting = tokio::spawn(async move {
        // The second one cannot fit in any case.
        processes.write_stdin(request.clone()).await?;
        processes.write_stdin(request).await
    });
    daemon.send_signal(&watch.id, "KILL").await.unwrap();
    let status = promptly("it ends", waiting).await.unwrap().unwrap_err();
    let reason = Refusal::of(&status).reason;
    assert!(["PROCESS_ENDED", "STDIN_CLOSED"].contains(&reason.as_str()), "{reason}");
}

#[tokio::test]
async fn bytes_of_the_start_are_all_unless_more_is_to_come() {
    let daemon = Daemon::start().await;
    let request = StartRequest { stdin: b"first ".to_vec().into(), ..started(argv(&["cat"])) };
    let mut watch = daemon.watch(request.clone()).await;
    assert_eq!(watch.finish().await.exit_code, Some(0));
    assert_eq!(watch.text(), "first ");
    let request = StartRequest { stdin_open: Some(true), ..request };
    let mut watch = daemon.watch(request.clone()).await;
    assert_eq!(daemon.write(&watch.id, b"second").await.unwrap(), 12);
    daemon.end_input(&watch.id).await.unwrap();
    watch.finish().await;
    assert_eq!(watch.text(), "first second");
    let request = StartRequest { stdin: Vec::new().into(), stdin_open: Some(false), ..request };
    let mut watch = daemon.watch(request).await;
    assert_eq!(watch.finish().await.stdout_bytes, 0);
    // More than the queue holds.
    let request = StartRequest {
        stdin: vec![b'z'; 8 << 20].into(),
        stdin_open: Some(true),
        ..started(argv(&["wc", "-c"]))
    };
    let mut watch = daemon.watch(request).await;
    daemon.write(&watch.id, b"z").await.unwrap();
    daemon.end_input(&watch.id).await.unwrap();
    watch.finish().await;
    assert_eq!(watch.text(), "8388609\n");
}

#[tokio::test]
async fn what_is_wrong_with_a_write_is_named() {
    let daemon = Daemon::start().await;
    let refusal = daemon
        .write_stdin(WriteStdinRequest {
            data: vec![0; (1 << 20) + 1].into(),
            write_id: "x".repeat(121),
            ..WriteStdinRequest::default()
        })
        .await
        .unwrap_err();
    assert_eq!(refusal.fields(), ["data", "process_id", "write_id"]);
    let watch = daemon.watch(started(argv(&["cat"]))).await;
    let refusal = daemon.write(&watch.id, b"").await.unwrap_err();
    assert_eq!(refusal.fields(), ["data"]);
    let refusal = daemon.write("nobody", b"x").await.unwrap_err();
    assert_eq!(refusal.reason, "PROCESS_NOT_FOUND");
}
