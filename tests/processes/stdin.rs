//! Input that a client writes to a running process.

use std::time::Duration;

use jig::api::v1::{StartRequest, WriteStdinRequest};
use tonic::Request;

use crate::support::{Daemon, Refusal, argv, eventually, promptly, shell, start_request};

fn write_request(id: &str, data: &[u8], write_id: &str) -> WriteStdinRequest {
    WriteStdinRequest {
        process_id: id.to_owned(),
        data: data.to_vec().into(),
        write_id: write_id.to_owned(),
        ..WriteStdinRequest::default()
    }
}

#[tokio::test]
async fn writes_arrive_in_order_until_eof() {
    let daemon = Daemon::start().await;
    let mut watch = daemon.start_process(start_request(argv(&["cat"]))).await;
    assert_eq!(daemon.send_stdin(&watch.id, b"one\n").await.unwrap(), 4);

    watch.read_until("one\n").await;
    assert_eq!(daemon.send_stdin(&watch.id, b"\0\xfftwo").await.unwrap(), 9);

    let last = WriteStdinRequest { eof: true, ..write_request(&watch.id, b"!", "") };
    assert_eq!(daemon.write_stdin(last).await.unwrap(), 10);
    assert_eq!(watch.wait_for_exit().await.exit_code, Some(0));
    assert_eq!(watch.stdout, b"one\n\0\xfftwo!");
}

#[tokio::test]
async fn repeated_write_is_delivered_once() {
    let daemon = Daemon::start().await;
    let mut watch = daemon.start_process(start_request(argv(&["cat"]))).await;
    for (data, write_id) in [("a", "1"), ("b", "2"), ("a", "1"), ("b", "2"), ("c", "3")] {
        let accepted =
            daemon.write_stdin(write_request(&watch.id, data.as_bytes(), write_id)).await;
        assert_eq!(accepted.unwrap(), write_id.parse::<u64>().unwrap());
    }

    let refusal = daemon.write_stdin(write_request(&watch.id, b"x", "2")).await.unwrap_err();
    assert_eq!(refusal.reason, "REQUEST_ID_REUSED");

    let last = WriteStdinRequest { eof: true, ..write_request(&watch.id, b"", "4") };
    daemon.write_stdin(last.clone()).await.unwrap();

    // The end of input can be repeated as well, and after the process has exited.
    daemon.write_stdin(last.clone()).await.unwrap();
    watch.wait_for_exit().await;
    assert_eq!(watch.stdout_text(), "abc");
    assert_eq!(daemon.write_stdin(last).await.unwrap(), 3);
}

#[tokio::test]
async fn large_input_arrives_unchanged() {
    let daemon = Daemon::start().await;
    let mut watch = daemon.start_process(start_request(argv(&["sha256sum"]))).await;
    let chunk = vec![7; 1 << 20];
    for _ in 0..40 {
        daemon.send_stdin(&watch.id, &chunk).await.unwrap();
    }
    assert_eq!(daemon.close_stdin(&watch.id).await.unwrap(), 40 << 20);

    watch.wait_for_exit().await;
    let reference = "head -c 41943040 /dev/zero | tr '\\0' '\\7' | sha256sum";
    assert_eq!(watch.stdout_text(), daemon.output(shell(reference)).await);
}

#[tokio::test]
async fn stdin_queue_of_a_non_reading_process_is_limited() {
    let daemon = Daemon::start().await;
    let mut watch = daemon
        .start_process(start_request(shell(
            "trap go=1 USR1; while [ -z \"$go\" ]; do sleep 0.05; done; wc -c",
        )))
        .await;

    // Bytes in the pipe have left the queue, so the first waiting writes succeed.
    let chunk = vec![b'x'; 1 << 20];
    let mut accepted = daemon.send_stdin(&watch.id, &chunk).await.unwrap();
    for number in 0.. {
        let mut request = Request::new(write_request(&watch.id, &chunk, &format!("part {number}")));
        request.set_timeout(Duration::from_millis(500));
        let result = daemon.processes().write_stdin(request).await;
        let Ok(response) = result else { break };
        accepted = response.into_inner().accepted_bytes;
        assert!(accepted < 4 << 20, "{accepted}");
    }

    let end = WriteStdinRequest { eof: true, ..write_request(&watch.id, b"", "end") };

    // The rejected write was not accepted in part either.
    assert_eq!(daemon.write_stdin(end).await.unwrap(), accepted);

    daemon.send_signal(&watch.id, "USR1").await.unwrap();
    assert_eq!(watch.wait_for_exit().await.exit_code, Some(0));
    assert_eq!(watch.stdout_text().trim(), accepted.to_string());
}

#[tokio::test]
async fn write_to_closed_stdin_is_rejected() {
    let daemon = Daemon::start().await;
    let mut watch = daemon
        .start_process(start_request(shell("exec < /dev/null; echo closed; sleep 1000")))
        .await;
    watch.read_until("closed\n").await;
    let mut refusal = None;
    eventually("the daemon detects the closed pipe", async || {
        refusal = daemon.send_stdin(&watch.id, b"x").await.err();
        refusal.is_some()
    })
    .await;
    assert_eq!(refusal.unwrap().reason, "STDIN_CLOSED");

    daemon.send_signal(&watch.id, "KILL").await.unwrap();
    watch.wait_for_exit().await;
    let refusal = daemon.send_stdin(&watch.id, b"x").await.unwrap_err();
    assert_eq!(refusal.reason, "PROCESS_ENDED");
}

#[tokio::test]
async fn process_exit_fails_a_pending_write() {
    let daemon = Daemon::start().await;
    let watch = daemon.start_process(start_request(shell("sleep 1000"))).await;
    let chunk = vec![b'x'; 1 << 20];
    daemon.send_stdin(&watch.id, &chunk).await.unwrap();
    let request = write_request(&watch.id, &chunk, "");
    let mut processes = daemon.processes();
    let write = tokio::spawn(async move {
        // The second write cannot fit in any case.
        processes.write_stdin(request.clone()).await?;
        processes.write_stdin(request).await
    });
    daemon.send_signal(&watch.id, "KILL").await.unwrap();

    let status = promptly("the write fails", write).await.unwrap().unwrap_err();
    let reason = Refusal::from_status(&status).reason;
    assert!(["PROCESS_ENDED", "STDIN_CLOSED"].contains(&reason.as_str()), "{reason}");
}

#[tokio::test]
async fn stdin_closes_after_start_bytes_unless_left_open() {
    let daemon = Daemon::start().await;
    let request =
        StartRequest { stdin: b"first ".to_vec().into(), ..start_request(argv(&["cat"])) };
    let mut watch = daemon.start_process(request.clone()).await;
    assert_eq!(watch.wait_for_exit().await.exit_code, Some(0));
    assert_eq!(watch.stdout_text(), "first ");

    let request = StartRequest { stdin_open: Some(true), ..request };
    let mut watch = daemon.start_process(request.clone()).await;
    assert_eq!(daemon.send_stdin(&watch.id, b"second").await.unwrap(), 12);

    daemon.close_stdin(&watch.id).await.unwrap();
    watch.wait_for_exit().await;
    assert_eq!(watch.stdout_text(), "first second");

    let request = StartRequest { stdin: Vec::new().into(), stdin_open: Some(false), ..request };
    let mut watch = daemon.start_process(request).await;
    assert_eq!(watch.wait_for_exit().await.stdout_bytes, 0);

    // More than the queue's capacity.
    let request = StartRequest {
        stdin: vec![b'z'; 8 << 20].into(),
        stdin_open: Some(true),
        ..start_request(argv(&["wc", "-c"]))
    };
    let mut watch = daemon.start_process(request).await;
    daemon.send_stdin(&watch.id, b"z").await.unwrap();
    daemon.close_stdin(&watch.id).await.unwrap();
    watch.wait_for_exit().await;

    assert_eq!(watch.stdout_text(), "8388609\n");
}

#[tokio::test]
async fn invalid_fields_of_a_write_are_reported() {
    let daemon = Daemon::start().await;
    let refusal = daemon
        .write_stdin(WriteStdinRequest {
            data: vec![0; (1 << 20) + 1].into(),
            write_id: "x".repeat(121),
            ..WriteStdinRequest::default()
        })
        .await
        .unwrap_err();
    assert_eq!(refusal.invalid_fields(), ["data", "process_id", "write_id"]);

    let watch = daemon.start_process(start_request(argv(&["cat"]))).await;
    let refusal = daemon.send_stdin(&watch.id, b"").await.unwrap_err();
    assert_eq!(refusal.invalid_fields(), ["data"]);

    let refusal = daemon.send_stdin("nobody", b"x").await.unwrap_err();
    assert_eq!(refusal.reason, "PROCESS_NOT_FOUND");
}
