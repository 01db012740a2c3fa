//! Starting, and what is told of it.

use jig::api::v1::{Outcome, ProcessExited, StartRequest, TerminalSize};

use crate::support::{Daemon, Mark, Refusal, Setup, argv, eventually, shell, started};

#[tokio::test]
async fn output_comes_while_it_is_written_and_the_end_comes_once() {
    let daemon = Daemon::start().await;
    // It waits for the test between its words: they cannot have been gathered.
    let mut watch = daemon
        .watch(started(shell("echo one; read a; echo two >&2; read b; printf three; exit 3")))
        .await;
    watch.until("one\n").await;
    daemon.write(&watch.id, b"\n").await.unwrap();
    while watch.stderr != b"two\n" {
        assert!(watch.step().await.unwrap());
    }
    daemon.write(&watch.id, b"\n").await.unwrap();
    let exited = watch.finish().await;
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
async fn the_end_is_told_exactly() {
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
            let request = StartRequest { pty: terminal, ..started(shell(command)) };
            let exited = daemon.watch(request).await.finish().await;
            let told = (exited.outcome(), exited.exit_code, exited.signal.as_str());
            assert_eq!(told, (outcome, exit_code, signal), "{command}");
        }
    }
}

#[tokio::test]
async fn what_a_grandchild_holds_open_does_not_hold_up_the_end() {
    let daemon = Daemon::start().await;
    let mark = Mark::new();
    let request = started(shell("(setsid sleep 1000 &) ; cat <(sleep 1000 & echo x) & echo done"));
    let request = StartRequest {
        command: None,
        argv: vec!["bash".into(), "-c".into(), request.command.unwrap()],
        ..StartRequest::default()
    };
    let mut watch = daemon.watch(mark.on_process(request)).await;
    let exited = watch.finish().await;
    assert_eq!(exited.exit_code, Some(0));
    assert!(watch.text().contains("done"));
    mark.assert_gone();
}

#[tokio::test]
async fn what_cannot_be_started_is_an_error_and_no_process() {
    let daemon = Daemon::start().await;
    std::fs::write(daemon.file("data"), "x").unwrap();
    let in_directory =
        |cwd: &str| StartRequest { cwd: Some(cwd.to_owned()), ..started(argv(&["true"])) };
    for (request, reason) in [
        (started(argv(&["no_such_program"])), "COMMAND_NOT_FOUND"),
        (started(argv(&["/workspace/data"])), "PERMISSION_DENIED"),
        (in_directory("missing"), "DIRECTORY_NOT_FOUND"),
        (in_directory("data"), "NOT_A_DIRECTORY"),
        (in_directory("../.."), "PATH_ESCAPE"),
    ] {
        for pty in [None, Some(TerminalSize { cols: 1, rows: 1 })] {
            let request = StartRequest { pty, ..request.clone() };
            let status = daemon.try_watch(request.clone()).await.unwrap_err();
            assert_eq!(Refusal::of(&status).reason, reason, "{request:?}");
        }
    }
    assert!(daemon.list_processes().await.is_empty());
}

#[tokio::test]
async fn every_field_that_is_wrong_is_named() {
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
    let status = daemon.try_watch(request).await.unwrap_err();
    let refusal = Refusal::of(&status);
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
    assert_eq!(refusal.fields(), expected, "{refusal:?}");
}

#[tokio::test]
async fn its_time_can_be_limited() {
    let daemon = Daemon::start().await;
    let mark = Mark::new();
    let request =
        StartRequest { timeout_sec: Some(1), ..started(shell("echo before; sleep 1000")) };
    let mut watch = daemon.watch(mark.on_process(request)).await;
    let exited = watch.finish().await;
    assert_eq!(exited.outcome(), Outcome::TimedOut);
    // A busy machine may need longer than the grace.
    assert!(["SIGTERM", "SIGKILL"].contains(&exited.signal.as_str()), "{exited:?}");
    assert_eq!(watch.text(), "before\n");
    mark.assert_gone();
}

#[tokio::test]
async fn head_and_tail_come_again_for_who_asks() {
    let daemon = Daemon::start().await;
    let request =
        StartRequest { max_output_bytes: Some(8), ..started(shell("printf 0123456789abcdef")) };
    let exited = daemon.watch(request).await.finish().await;
    assert!(exited.stdout.starts_with("0123\n[jig: 8 bytes left out"), "{exited:?}");
    assert!(exited.stdout.ends_with("cdef") && exited.stdout_truncated);
}

#[tokio::test]
async fn it_is_recorded_and_counted_as_a_run() {
    let daemon = Daemon::start().await;
    let mut watch = daemon.watch(started(shell("cat"))).await;
    assert_eq!(daemon.info().await.counts.unwrap().runs_active, 1);
    daemon.end_input(&watch.id).await.unwrap();
    let ProcessExited { exit_code, .. } = watch.finish().await;
    assert_eq!(exit_code, Some(0));
    let records = || {
        let path = daemon.state().join("sessions/default/events.jsonl");
        let text = std::fs::read_to_string(path).unwrap();
        let records = text.lines().map(|line| serde_json::from_str(line).unwrap());
        records.collect::<Vec<serde_json::Value>>()
    };
    eventually("its end is recorded", async || records().len() == 2).await;
    let (start, end) = (&records()[0], &records()[1]);
    assert_eq!(start["event"], "tool_call_started");
    assert_eq!(start["tool"], "run");
    assert_eq!(start["params"]["command"], "cat");
    assert_eq!(end["event"], "tool_call_finished");
    assert_eq!(end["outcome"], "EXITED");
    assert_eq!(end["exit_code"], 0);
}

#[tokio::test]
async fn silence_is_told_as_often_as_asked_for() {
    let daemon = Daemon::start().await;
    let request = StartRequest { keep_alive_sec: Some(1), ..started(shell("read a; echo end")) };
    let mut watch = daemon.watch(request).await;
    while watch.keep_alives < 2 {
        assert!(watch.step().await.unwrap());
    }
    daemon.write(&watch.id, b"\n").await.unwrap();
    assert_eq!(watch.finish().await.exit_code, Some(0));
    assert_eq!(watch.text(), "end\n");
}

#[tokio::test]
async fn a_daemon_that_ends_ends_its_processes_and_says_so() {
    let mut daemon = Setup::new().arguments(&["--drain-timeout", "100ms"]).start().await;
    let mark = Mark::new();
    let mut watch = daemon.watch(mark.on_process(started(shell("sleep 1000")))).await;
    daemon.signal(rustix::process::Signal::TERM);
    let exited = watch.finish().await;
    assert_eq!(exited.outcome(), Outcome::Cancelled);
    assert!(daemon.exit().await.success());
    mark.assert_gone();
}
