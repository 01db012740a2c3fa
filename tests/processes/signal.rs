//! Signals that callers send.

use jig::api::v1::Outcome;

use crate::support::{Daemon, Mark, eventually, host_status, shell, started};

#[tokio::test]
async fn a_signal_reaches_the_command_and_its_group() {
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
        let request = mark.on_process(started(shell("sleep 1000 & sleep 1000; echo survived")));
        let mut watch = daemon.watch(request).await;
        // Not before both are what they are to be: a shell's child that is not yet takes a signal for
        // the shell's.
        let is_sleep = |pid: &i32| host_status(*pid, "Name").is_some_and(|name| name == "sleep");
        eventually("both sleep", async || {
            mark.processes().iter().filter(|pid| is_sleep(pid)).count() == 2
        })
        .await;
        daemon.send_signal(&watch.id, signal).await.unwrap();
        let exited = watch.finish().await;
        assert_eq!(exited.outcome(), Outcome::Signaled, "{signal}: {exited:?}");
        assert_eq!(exited.signal, expected);
        assert_eq!(watch.text(), "");
        mark.assert_gone();
    }
}

#[tokio::test]
async fn a_command_may_mind_its_signals() {
    let daemon = Daemon::start().await;
    let script = "trap 'echo usr1' USR1; trap 'echo term; exit 7' TERM; echo ready; while :; do sleep 0.05; done";
    let mut watch = daemon.watch(started(shell(script))).await;
    watch.until("ready\n").await;
    daemon.send_signal(&watch.id, "USR1").await.unwrap();
    watch.until("usr1\n").await;
    daemon.send_signal(&watch.id, "TERM").await.unwrap();
    assert_eq!(watch.finish().await.exit_code, Some(7));
    assert_eq!(watch.text(), "ready\nusr1\nterm\n");
}

#[tokio::test]
async fn a_command_can_be_stopped_and_continued() {
    let daemon = Daemon::start().await;
    let mark = Mark::new();
    let mut watch =
        daemon.watch(mark.on_process(started(shell("echo ready; read a; echo end")))).await;
    watch.until("ready\n").await;
    let state = |expected: &'static str| {
        let pid = mark.processes()[0];
        async move || host_status(pid, "State").is_some_and(|state| state.starts_with(expected))
    };
    daemon.send_signal(&watch.id, "STOP").await.unwrap();
    eventually("it is stopped", state("T")).await;
    daemon.write(&watch.id, b"\n").await.unwrap();
    daemon.send_signal(&watch.id, "CONT").await.unwrap();
    assert_eq!(watch.finish().await.exit_code, Some(0));
    assert_eq!(watch.text(), "ready\nend\n");
}

#[tokio::test]
async fn a_stopped_command_is_killed_all_the_same() {
    let daemon = Daemon::start().await;
    let mark = Mark::new();
    let mut watch = daemon
        .watch(mark.on_process(started(shell("trap '' TERM; kill -STOP $$; echo survived"))))
        .await;
    mark.appears(1).await;
    daemon.send_signal(&watch.id, "KILL").await.unwrap();
    assert_eq!(watch.finish().await.signal, "SIGKILL");
    mark.assert_gone();
}

#[tokio::test]
async fn what_is_no_signal_is_refused_and_what_has_ended_gets_none() {
    let daemon = Daemon::start().await;
    let mut watch = daemon.watch(started(shell("read a"))).await;
    for signal in ["", "NOPE", "0", "65", "-9", "SIGTERM\n"] {
        let refusal = daemon.send_signal(&watch.id, signal).await.unwrap_err();
        assert_eq!(refusal.fields(), ["signal"], "{signal:?}");
    }
    daemon.end_input(&watch.id).await.unwrap();
    watch.finish().await;
    let refusal = daemon.send_signal(&watch.id, "TERM").await.unwrap_err();
    assert_eq!(refusal.reason, "PROCESS_ENDED");
    let refusal = daemon.send_signal("nobody", "TERM").await.unwrap_err();
    assert_eq!(refusal.reason, "PROCESS_NOT_FOUND");
}
