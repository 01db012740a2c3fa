//! Signals that callers send to processes.

use jig::api::v1::Outcome;

use crate::support::{Daemon, Mark, eventually, shell, start_request, status_field};

#[tokio::test]
async fn signal_reaches_the_command_and_its_group() {
    let daemon = Daemon::start().await;
    for (signal, expected) in [
        ("SIGTERM", "SIGTERM"),
        ("term", "SIGTERM"),
        ("15", "SIGTERM"),
        ("KILL", "SIGKILL"),
        ("SIGINT", "SIGINT"),
        ("HUP", "SIGHUP"),
        ("SIGRTMIN+3", "SIGRTMIN+3"),
    ] {
        let mark = Mark::new();
        let request = mark.on_start(start_request(shell("sleep 1000 & sleep 1000; echo survived")));
        let mut watch = daemon.start_process(request).await;

        // Waits until both processes run `sleep`. Until then, the shell's child would handle the
        // signal as the shell does.
        let is_sleep = |pid: &i32| status_field(*pid, "Name").is_some_and(|name| name == "sleep");
        eventually("both processes sleep", async || {
            mark.processes().iter().filter(|pid| is_sleep(pid)).count() == 2
        })
        .await;
        daemon.send_signal(&watch.id, signal).await.unwrap();
        let exited = watch.wait_for_exit().await;

        assert_eq!(exited.outcome(), Outcome::Signaled, "{signal}: {exited:?}");
        assert_eq!(exited.signal, expected);
        assert_eq!(watch.stdout_text(), "");

        mark.assert_gone();
    }
}

#[tokio::test]
async fn command_handles_its_signals() {
    let daemon = Daemon::start().await;
    let script = "trap 'echo usr1' USR1; trap 'echo term; exit 7' TERM; echo ready; while :; do sleep 0.05; done";
    let mut watch = daemon.start_process(start_request(shell(script))).await;
    watch.read_until("ready\n").await;
    daemon.send_signal(&watch.id, "USR1").await.unwrap();
    watch.read_until("usr1\n").await;
    daemon.send_signal(&watch.id, "TERM").await.unwrap();

    assert_eq!(watch.wait_for_exit().await.exit_code, Some(7));
    assert_eq!(watch.stdout_text(), "ready\nusr1\nterm\n");
}

#[tokio::test]
async fn signals_stop_and_continue_a_command() {
    let daemon = Daemon::start().await;
    let mark = Mark::new();
    let mut watch = daemon
        .start_process(mark.on_start(start_request(shell("echo ready; read a; echo end"))))
        .await;
    watch.read_until("ready\n").await;
    let has_state = |expected: &'static str| {
        let pid = mark.processes()[0];
        async move || status_field(pid, "State").is_some_and(|state| state.starts_with(expected))
    };
    daemon.send_signal(&watch.id, "STOP").await.unwrap();
    eventually("the command is stopped", has_state("T")).await;
    daemon.send_stdin(&watch.id, b"\n").await.unwrap();
    daemon.send_signal(&watch.id, "CONT").await.unwrap();

    assert_eq!(watch.wait_for_exit().await.exit_code, Some(0));
    assert_eq!(watch.stdout_text(), "ready\nend\n");
}

#[tokio::test]
async fn kill_ends_a_stopped_command() {
    let daemon = Daemon::start().await;
    let mark = Mark::new();
    let mut watch = daemon
        .start_process(
            mark.on_start(start_request(shell("trap '' TERM; kill -STOP $$; echo survived"))),
        )
        .await;
    mark.wait_for_processes(1).await;
    daemon.send_signal(&watch.id, "KILL").await.unwrap();
    assert_eq!(watch.wait_for_exit().await.signal, "SIGKILL");

    mark.assert_gone();
}

#[tokio::test]
async fn unknown_signals_and_ended_processes_are_rejected() {
    let daemon = Daemon::start().await;
    let mut watch = daemon.start_process(start_request(shell("read a"))).await;
    for signal in ["", "NOPE", "0", "65", "-9", "SIGTERM\n"] {
        let refusal = daemon.send_signal(&watch.id, signal).await.unwrap_err();
        assert_eq!(refusal.invalid_fields(), ["signal"], "{signal:?}");
    }

    daemon.close_stdin(&watch.id).await.unwrap();
    watch.wait_for_exit().await;
    let refusal = daemon.send_signal(&watch.id, "TERM").await.unwrap_err();
    assert_eq!(refusal.reason, "PROCESS_ENDED");

    let refusal = daemon.send_signal("nobody", "TERM").await.unwrap_err();
    assert_eq!(refusal.reason, "PROCESS_NOT_FOUND");
}
