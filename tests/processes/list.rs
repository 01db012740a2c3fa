//! The list of a workspace's processes.

use jig::api::v1::{OnDisconnect, Outcome, ProcessState, StartRequest, TerminalSize};

use crate::support::{Daemon, argv, shell, start_request};

#[tokio::test]
async fn running_and_ended_processes_are_listed_oldest_first() {
    let daemon = Daemon::start().await;
    let request = StartRequest {
        cwd: Some("/workspace".to_owned()),
        on_disconnect: Some(OnDisconnect::Keep.into()),
        pty: Some(TerminalSize { cols: 80, rows: 24 }),
        ..start_request(argv(&["sleep", "1000"]))
    };

    let first = daemon.start_process(request).await;
    let mut second = daemon.start_process(start_request(shell("echo x; exit 3"))).await;
    second.wait_for_exit().await;

    // An unspecified value counts as the default.
    let third = StartRequest {
        on_disconnect: Some(OnDisconnect::Unspecified.into()),
        ..start_request(shell("kill -9 $$"))
    };
    let mut third = daemon.start_process(third).await;
    third.wait_for_exit().await;

    // A run is not listed: no client can attach to it.
    daemon.output(shell("true")).await;
    let processes = daemon.list_processes().await;
    let [a, b, c] = &processes[..] else {
        panic!("{processes:?}");
    };
    assert_eq!([&a.process_id, &b.process_id, &c.process_id], [&first.id, &second.id, &third.id]);
    assert_eq!(a.state(), ProcessState::Running);
    assert_eq!((a.command.as_str(), a.cwd.as_str()), ("sleep 1000", "/workspace"));
    assert!(a.has_terminal && a.on_disconnect() == OnDisconnect::Keep);
    assert_eq!((a.attached, a.outcome(), a.exit_code), (1, Outcome::Unspecified, None));
    assert!(a.start_time.is_some() && a.end_time.is_none());
    assert_eq!(a.session, "default");
    assert_eq!((b.state(), b.outcome()), (ProcessState::Ended, Outcome::Exited));
    assert_eq!((b.exit_code, b.last_sequence, b.has_terminal), (Some(3), 1, false));
    assert_eq!(b.on_disconnect(), OnDisconnect::Kill);
    assert_eq!(c.on_disconnect(), OnDisconnect::Kill);
    assert!(b.end_time.is_some());
    assert_eq!((c.outcome(), c.signal.as_str()), (Outcome::Signaled, "SIGKILL"));
}

#[tokio::test]
async fn long_command_is_shortened_in_listing() {
    let daemon = Daemon::start().await;
    let mut watch =
        daemon.start_process(start_request(shell(&format!(": {}", "ä".repeat(2000))))).await;
    watch.wait_for_exit().await;
    let processes = daemon.list_processes().await;
    assert!(processes[0].command.len() <= 1024 && processes[0].command.starts_with(": ä"));
}
