//! What is told about the processes of a workspace.

use jig::api::v1::{OnDisconnect, Outcome, ProcessState, StartRequest, TerminalSize};

use crate::support::{Daemon, argv, shell, started};

#[tokio::test]
async fn those_that_run_and_those_that_ended_are_listed_oldest_first() {
    let daemon = Daemon::start().await;
    let request = StartRequest {
        cwd: Some("/workspace".to_owned()),
        on_disconnect: Some(OnDisconnect::Keep.into()),
        pty: Some(TerminalSize { cols: 80, rows: 24 }),
        ..started(argv(&["sleep", "1000"]))
    };
    let first = daemon.watch(request).await;
    let mut second = daemon.watch(started(shell("echo x; exit 3"))).await;
    second.finish().await;
    // What is not declared is as good as not given.
    let third = StartRequest {
        on_disconnect: Some(OnDisconnect::Unspecified.into()),
        ..started(shell("kill -9 $$"))
    };
    let mut third = daemon.watch(third).await;
    third.finish().await;
    // A run is not among them: nobody can come back to it.
    daemon.output(shell("true")).await;
    let listed = daemon.list_processes().await;
    let [a, b, c] = &listed[..] else {
        panic!("{listed:?}");
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
async fn a_long_command_is_shortened() {
    let daemon = Daemon::start().await;
    let mut watch = daemon.watch(started(shell(&format!(": {}", "ä".repeat(2000))))).await;
    watch.finish().await;
    let listed = daemon.list_processes().await;
    assert!(listed[0].command.len() <= 1024 && listed[0].command.starts_with(": ä"));
}
