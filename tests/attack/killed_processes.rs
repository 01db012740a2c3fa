//! Clients, daemons and launchers that die during a run. No process remains, and the daemon runs
//! nothing outside a sandbox.

use std::time::Instant;

use jig::api::v1::{Outcome, RunRequest};
use rustix::process::{Pid, Signal, kill_process};
use tonic_health::pb::health_check_response::ServingStatus;

use crate::support::{
    ConnectionProxy, Daemon, MAX_REACTION_TIME, Mark, Refusal, argv, descendants, eventually,
    is_alive, promptly, shell, status_field, tool_client,
};

/// A command whose processes resist signals, start sessions and stop themselves.
fn stubborn_command() -> RunRequest {
    shell(
        "trap '' TERM INT HUP; for n in 1 2 3 4 5 6 7 8; do setsid sleep 1000 & done; \
         setsid sleep 1000 & kill -STOP $!; wait; sleep 1000",
    )
}

#[tokio::test]
async fn case_12_cancelled_call_leaves_no_process() {
    let daemon = Daemon::start().await;
    let mark = Mark::new();
    let call = daemon.spawn_run(mark.on(stubborn_command()));
    mark.wait_for_processes(10).await;
    call.abort();

    let start = Instant::now();
    mark.wait_until_gone().await;
    assert!(start.elapsed() < MAX_REACTION_TIME, "{:?}", start.elapsed());
    assert_eq!(daemon.output(shell("echo after")).await, "after\n");
}

#[tokio::test]
async fn case_12_lost_connection_leaves_no_process() {
    let daemon = Daemon::start().await;
    let proxy = ConnectionProxy::start(&daemon);
    let mut tools = tool_client(proxy.channel());
    let mark = Mark::new();
    let request = mark.on(stubborn_command());
    let call = tokio::spawn(async move { tools.run(request).await });
    mark.wait_for_processes(10).await;

    proxy.cut();

    let start = Instant::now();
    mark.wait_until_gone().await;
    assert!(start.elapsed() < MAX_REACTION_TIME, "{:?}", start.elapsed());

    promptly("the call fails", call).await.unwrap().unwrap_err();
    assert_eq!(daemon.output(shell("echo after")).await, "after\n");
}

#[tokio::test]
async fn case_12_cancelled_call_does_not_affect_other_runs() {
    let daemon = Daemon::start().await;
    let (cancelled, other) = (Mark::new(), Mark::new());
    let mut tools = daemon.tools_on_new_connection();
    let request = cancelled.on(stubborn_command());
    let call = tokio::spawn(async move { tools.run(request).await });
    let other_call = daemon.spawn_run(other.on(stubborn_command()));
    cancelled.wait_for_processes(10).await;
    other.wait_for_processes(10).await;

    call.abort();

    cancelled.wait_until_gone().await;
    assert_eq!(other.processes().len(), 10);

    other_call.abort();
    other.wait_until_gone().await;
}

#[tokio::test]
async fn case_13_killed_daemon_leaves_no_process() {
    let mut daemon = Daemon::start().await;
    let (first, second) = (Mark::new(), Mark::new());
    let calls = [
        daemon.spawn_run(first.on(stubborn_command())),
        daemon.spawn_run(second.on(stubborn_command())),
    ];
    first.wait_for_processes(10).await;
    second.wait_for_processes(10).await;
    let processes = descendants(daemon.pid());
    assert!(processes.len() >= 20, "{processes:?}");

    daemon.signal(Signal::KILL);
    daemon.wait_for_exit().await;
    first.wait_until_gone().await;
    second.wait_until_gone().await;

    eventually("the keeper, the launcher, the templates and the sandboxes end", async || {
        !processes.iter().any(is_alive)
    })
    .await;

    for call in calls {
        promptly("the call fails", call).await.unwrap().unwrap_err();
    }

    // The killed daemon's socket and state do not prevent the next start.
    let daemon = daemon.restart().await;
    assert_eq!(daemon.output(shell("echo again")).await, "again\n");
}

/// The process ids of the daemon's keeper and of the launcher that the keeper started.
pub(super) fn keeper_and_launcher_pids(daemon: &Daemon) -> (i32, i32) {
    let child_of = |parent: i32| {
        let processes = descendants(parent);
        let child = processes
            .iter()
            .find(|process| status_field(process.pid, "PPid") == Some(parent.to_string()));
        child.expect("the process has a child").pid
    };

    let keeper = child_of(daemon.pid());
    (keeper, child_of(keeper))
}

fn kill_process_id(pid: i32) {
    kill_process(Pid::from_raw(pid).unwrap(), Signal::KILL).unwrap();
}

#[tokio::test]
async fn case_14_daemon_replaces_a_killed_launcher_and_ends_its_runs() {
    let daemon = Daemon::start().await;
    let level = daemon.level().await;
    let mark = Mark::new();
    let call = daemon.spawn_run(mark.on(stubborn_command()));
    mark.wait_for_processes(10).await;

    let (_, launcher) = keeper_and_launcher_pids(&daemon);
    kill_process_id(launcher);

    let status = promptly("the call ends", call).await.unwrap().unwrap_err();
    assert_eq!(Refusal::from_status(&status).reason, "SANDBOX_ERROR");

    mark.wait_until_gone().await;
    eventually("the daemon runs commands again", async || {
        match daemon.try_run(shell("id -u; exit 6")).await {
            Ok(response) => {
                assert_eq!(response.isolation, level);
                assert_eq!(response.exit_code, Some(6));
                assert_ne!(response.stdout, "0\n");
                true
            }
            Err(status) => {
                let reason = Refusal::from_status(&status).reason;
                assert!(reason == "SANDBOX_ERROR" || reason == "SANDBOX_UNAVAILABLE", "{reason}");
                false
            }
        }
    })
    .await;

    let (_, successor) = keeper_and_launcher_pids(&daemon);
    assert_ne!(successor, launcher);
    assert_eq!(daemon.health().await, ServingStatus::Serving);
}

#[tokio::test]
async fn case_14_daemon_without_keeper_runs_nothing() {
    let daemon = Daemon::start().await;
    let mark = Mark::new();
    let call = daemon.spawn_run(mark.on(stubborn_command()));
    mark.wait_for_processes(10).await;

    let (keeper, launcher) = keeper_and_launcher_pids(&daemon);
    kill_process_id(keeper);

    let status = promptly("the call ends", call).await.unwrap().unwrap_err();
    assert_eq!(Refusal::from_status(&status).reason, "SANDBOX_ERROR");

    mark.wait_until_gone().await;
    eventually("the launcher ends", async || {
        // A daemon that is process 1 of a container inherits the launcher and does not reap it.
        status_field(launcher, "State").is_none_or(|state| state.starts_with('Z'))
    })
    .await;

    for _ in 0..3 {
        let answer =
            promptly("the daemon responds", daemon.try_run(mark.on(shell("touch ran")))).await;
        let reason = Refusal::from_status(&answer.unwrap_err()).reason;
        assert!(reason == "SANDBOX_ERROR" || reason == "SANDBOX_UNAVAILABLE", "{reason}");
    }

    assert!(!daemon.file("ran").exists());
}

#[tokio::test]
async fn case_14_killed_init_ends_only_its_own_run() {
    let daemon = Daemon::start().await;
    let (victim, other) = (Mark::new(), Mark::new());
    let call = daemon.spawn_run(victim.on(shell("sleep 1000")));
    let other_call = daemon.spawn_run(other.on(shell("sleep 1000; exit 9")));
    let pids = victim.wait_for_processes(1).await;
    other.wait_for_processes(1).await;

    // The init is the parent of the command.
    let init = pids.iter().find_map(|pid| {
        let parent: i32 = status_field(*pid, "PPid")?.parse().ok()?;
        (status_field(parent, "NSpid")?.split_whitespace().next_back() == Some("1"))
            .then_some(parent)
    });

    kill_process_id(init.expect("the command's parent is process 1 of its namespace"));
    let status = promptly("the call ends", call).await.unwrap().unwrap_err();
    assert_eq!(Refusal::from_status(&status).reason, "SANDBOX_ERROR");

    victim.wait_until_gone().await;
    assert!(!other.processes().is_empty());

    other_call.abort();
    other.wait_until_gone().await;
    assert_eq!(daemon.run(shell("exit 3")).await.outcome(), Outcome::Exited);
}

#[tokio::test]
async fn case_14_daemon_reports_a_command_killed_by_the_host() {
    let daemon = Daemon::start().await;
    let mark = Mark::new();
    let call = daemon.spawn_run(mark.on(argv(&["sleep", "1000"])));
    let pids = mark.wait_for_processes(1).await;

    kill_process_id(*pids.first().unwrap());
    let response = promptly("the call ends", call).await.unwrap().unwrap();
    assert_eq!(response.outcome(), Outcome::Signaled);
    assert_eq!(response.signal, "SIGKILL");
}
