//! Starting a process, and the reports of its start and end.

use jig::api::v1::{Outcome, ProcessExited, StartRequest, TerminalSize};

use crate::support::{Daemon, Mark, Refusal, Setup, argv, eventually, shell, start_request};

#[tokio::test]
async fn output_streams_as_written_and_exit_arrives_once() {
    let daemon = Daemon::start().await;

    // The command waits for the test between its writes, so the output cannot have been buffered.
    let mut watch = daemon
        .start_process(start_request(shell(
            "echo one; read a; echo two >&2; read b; printf three; exit 3",
        )))
        .await;
    watch.read_until("one\n").await;
    daemon.send_stdin(&watch.id, b"\n").await.unwrap();
    while watch.stderr != b"two\n" {
        assert!(watch.next_event().await.unwrap());
    }

    daemon.send_stdin(&watch.id, b"\n").await.unwrap();
    let exited = watch.wait_for_exit().await;
    assert_eq!(watch.stdout, b"one\nthree");

    let expected = [(1, false, 0, 4), (2, true, 0, 4), (3, false, 4, 5)];
    assert_eq!(watch.chunks, expected);
    assert_eq!(exited.outcome(), Outcome::Exited);
    assert_eq!(exited.exit_code, Some(3));
    assert_eq!((exited.stdout_bytes, exited.stderr_bytes), (9, 4));
    assert_eq!(exited.last_sequence, 3);
    assert_eq!(exited.isolation, "L3");
    assert_eq!((exited.stdout.as_str(), exited.stderr.as_str()), ("", ""));
    assert_eq!(exited.stdout_path, watch.started().stdout_path);
    assert_eq!(daemon.artifact(&exited.stdout_path).await.0, watch.stdout);
}

#[tokio::test]
async fn exit_reports_outcome_code_and_signal() {
    let daemon = Daemon::start().await;
    let cases: [(&str, Outcome, Option<i32>, &str); 6] = [
        ("exit 0", Outcome::Exited, Some(0), ""),
        ("exit 255", Outcome::Exited, Some(255), ""),
        ("kill -9 $$", Outcome::Signaled, None, "SIGKILL"),
        ("kill -SEGV $$", Outcome::Signaled, None, "SIGSEGV"),
        ("no_such_command", Outcome::Exited, Some(127), ""),
        ("sleep 100 & exit 5", Outcome::Exited, Some(5), ""),
    ];

    for (command, outcome, exit_code, signal) in cases {
        for terminal in [None, Some(TerminalSize { cols: 80, rows: 24 })] {
            let request = StartRequest { pty: terminal, ..start_request(shell(command)) };
            let exited = daemon.start_process(request).await.wait_for_exit().await;
            let end = (exited.outcome(), exited.exit_code, exited.signal.as_str());
            assert_eq!(end, (outcome, exit_code, signal), "{command}");
        }
    }
}

#[tokio::test]
async fn grandchild_with_open_output_does_not_delay_the_exit() {
    let daemon = Daemon::start().await;
    let mark = Mark::new();
    let request =
        start_request(shell("(setsid sleep 1000 &) ; cat <(sleep 1000 & echo x) & echo done"));
    let request = StartRequest {
        command: None,
        argv: vec!["bash".into(), "-c".into(), request.command.unwrap()],
        ..StartRequest::default()
    };

    let mut watch = daemon.start_process(mark.on_start(request)).await;
    let exited = watch.wait_for_exit().await;
    assert_eq!(exited.exit_code, Some(0));
    assert!(watch.stdout_text().contains("done"));

    mark.assert_gone();
}

#[tokio::test]
async fn failed_start_returns_an_error_and_creates_no_process() {
    let daemon = Daemon::start().await;
    std::fs::write(daemon.file("data"), "x").unwrap();
    let in_directory =
        |cwd: &str| StartRequest { cwd: Some(cwd.to_owned()), ..start_request(argv(&["true"])) };

    for (request, reason) in [
        (start_request(argv(&["no_such_program"])), "COMMAND_NOT_FOUND"),
        (start_request(argv(&["/workspace/data"])), "PERMISSION_DENIED"),
        (in_directory("missing"), "DIRECTORY_NOT_FOUND"),
        (in_directory("data"), "NOT_A_DIRECTORY"),
        (in_directory("../.."), "PATH_ESCAPE"),
    ] {
        for pty in [None, Some(TerminalSize { cols: 1, rows: 1 })] {
            let request = StartRequest { pty, ..request.clone() };
            let status = daemon.try_start_process(request.clone()).await.unwrap_err();
            assert_eq!(Refusal::from_status(&status).reason, reason, "{request:?}");
        }
    }

    assert!(daemon.list_processes().await.is_empty());
}

#[tokio::test]
async fn every_invalid_field_is_reported() {
    let daemon = Daemon::start().await;
    let request = StartRequest {
        command: Some("true".into()),
        argv: vec!["true".into()],
        pty: Some(TerminalSize { cols: 0, rows: 70_000 }),
        timeout_sec: Some(0),
        keep_alive_sec: Some(3601),
        on_disconnect: Some(9),
        env: [("A=B".to_owned(), String::new())].into(),
        ..StartRequest::default()
    };

    let status = daemon.try_start_process(request).await.unwrap_err();
    let refusal = Refusal::from_status(&status);
    let expected = [
        "argv",
        "command",
        "env[\"A=B\"]",
        "keep_alive_sec",
        "on_disconnect",
        "pty.cols",
        "pty.rows",
        "timeout_sec",
    ];

    assert_eq!(refusal.invalid_fields(), expected, "{refusal:?}");
}

#[tokio::test]
async fn timeout_ends_a_process() {
    let daemon = Daemon::start().await;
    let mark = Mark::new();
    let request =
        StartRequest { timeout_sec: Some(1), ..start_request(shell("echo before; sleep 1000")) };
    let mut watch = daemon.start_process(mark.on_start(request)).await;
    let exited = watch.wait_for_exit().await;
    assert_eq!(exited.outcome(), Outcome::TimedOut);

    // On a busy machine the command may take longer than the grace period.
    assert!(["SIGTERM", "SIGKILL"].contains(&exited.signal.as_str()), "{exited:?}");
    assert_eq!(watch.stdout_text(), "before\n");

    mark.assert_gone();
}

#[tokio::test]
async fn exit_includes_head_and_tail_on_request() {
    let daemon = Daemon::start().await;
    let request = StartRequest {
        max_output_bytes: Some(8),
        ..start_request(shell("printf 0123456789abcdef"))
    };
    let exited = daemon.start_process(request).await.wait_for_exit().await;
    assert!(exited.stdout.starts_with("0123\n[jig: 8 bytes left out"), "{exited:?}");
    assert!(exited.stdout.ends_with("cdef") && exited.stdout_truncated);
}

#[tokio::test]
async fn process_is_recorded_and_counted_as_a_run() {
    let daemon = Daemon::start().await;
    let mut watch = daemon.start_process(start_request(shell("cat"))).await;
    assert_eq!(daemon.info().await.counts.unwrap().runs_active, 1);

    daemon.close_stdin(&watch.id).await.unwrap();
    let ProcessExited { exit_code, .. } = watch.wait_for_exit().await;
    assert_eq!(exit_code, Some(0));

    let records = || {
        let path = daemon.state_dir().join("sessions/default/events.jsonl");
        let text = std::fs::read_to_string(path).unwrap();
        let records = text.lines().map(|line| serde_json::from_str(line).unwrap());
        records.collect::<Vec<serde_json::Value>>()
    };

    eventually("the end of the call is recorded", async || records().len() == 2).await;
    let (start, end) = (&records()[0], &records()[1]);
    assert_eq!(start["event"], "tool_call_started");
    assert_eq!(start["tool"], "run");
    assert_eq!(start["params"]["command"], "cat");
    assert_eq!(end["event"], "tool_call_finished");
    assert_eq!(end["outcome"], "EXITED");
    assert_eq!(end["exit_code"], 0);
}

#[tokio::test]
async fn keep_alives_arrive_at_the_requested_interval() {
    let daemon = Daemon::start().await;
    let request =
        StartRequest { keep_alive_sec: Some(1), ..start_request(shell("read a; echo end")) };
    let mut watch = daemon.start_process(request).await;
    while watch.keep_alives < 2 {
        assert!(watch.next_event().await.unwrap());
    }

    daemon.send_stdin(&watch.id, b"\n").await.unwrap();
    assert_eq!(watch.wait_for_exit().await.exit_code, Some(0));
    assert_eq!(watch.stdout_text(), "end\n");
}

#[tokio::test]
async fn stopping_daemon_cancels_its_processes() {
    let mut daemon = Setup::new().arguments(&["--drain-timeout", "100ms"]).start().await;
    let mark = Mark::new();
    let mut watch = daemon.start_process(mark.on_start(start_request(shell("sleep 1000")))).await;
    daemon.signal(rustix::process::Signal::TERM);
    let exited = watch.wait_for_exit().await;
    assert_eq!(exited.outcome(), Outcome::Cancelled);
    assert!(daemon.wait_for_exit().await.success());

    mark.assert_gone();
}
