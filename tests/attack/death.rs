//! Callers, daemons and launchers that die while a command runs: nothing of it is left, and nothing
//! is run without its sandbox.

use std::time::Instant;

use jig::api::v1::{Outcome, RunRequest};
use rustix::process::{Pid, Signal, kill_process};
use tonic_health::pb::health_check_response::ServingStatus;

use crate::support::{
    Daemon, Mark, PROMPT, Proxy, Refusal, argv, descendants, eventually, host_status, is_alive,
    promptly, shell, tools,
};

/// A command that does what it can to live on.
fn stubborn() -> RunRequest {
    shell(
        "trap '' TERM INT HUP; for n in 1 2 3 4 5 6 7 8; do setsid sleep 1000 & done; \
         setsid sleep 1000 & kill -STOP $!; wait; sleep 1000",
    )
}

#[tokio::test]
async fn case_12_a_call_that_is_cancelled_leaves_nothing() {
    let daemon = Daemon::start().await;
    let mark = Mark::new();
    let call = daemon.begin(mark.on(stubborn()));
    mark.appears(10).await;
    call.abort();
    let began = Instant::now();
    mark.vanishes().await;
    assert!(began.elapsed() < PROMPT, "{:?}", began.elapsed());
    assert_eq!(daemon.output(shell("echo after")).await, "after\n");
}

#[tokio::test]
async fn case_12_a_connection_that_is_lost_leaves_nothing() {
    let daemon = Daemon::start().await;
    let proxy = Proxy::to(&daemon);
    let mut tools = tools(proxy.channel());
    let mark = Mark::new();
    let request = mark.on(stubborn());
    let call = tokio::spawn(async move { tools.run(request).await });
    mark.appears(10).await;
    proxy.cut();
    let began = Instant::now();
    mark.vanishes().await;
    assert!(began.elapsed() < PROMPT, "{:?}", began.elapsed());
    promptly("the caller notices", call).await.unwrap().unwrap_err();
    assert_eq!(daemon.output(shell("echo after")).await, "after\n");
}

#[tokio::test]
async fn case_12_a_cancelled_call_leaves_the_others_alone() {
    let daemon = Daemon::start().await;
    let (cancelled, other) = (Mark::new(), Mark::new());
    let mut tools = daemon.tools_on_a_new_connection();
    let request = cancelled.on(stubborn());
    let call = tokio::spawn(async move { tools.run(request).await });
    let rest = daemon.begin(other.on(stubborn()));
    cancelled.appears(10).await;
    other.appears(10).await;
    call.abort();
    cancelled.vanishes().await;
    assert_eq!(other.processes().len(), 10);
    rest.abort();
    other.vanishes().await;
}

#[tokio::test]
async fn case_13_a_daemon_that_is_killed_leaves_nothing() {
    let mut daemon = Daemon::start().await;
    let (first, second) = (Mark::new(), Mark::new());
    let calls = [daemon.begin(first.on(stubborn())), daemon.begin(second.on(stubborn()))];
    first.appears(10).await;
    second.appears(10).await;
    let everything = descendants(daemon.pid());
    assert!(everything.len() >= 20, "{everything:?}");
    daemon.signal(Signal::KILL);
    daemon.exit().await;
    first.vanishes().await;
    second.vanishes().await;
    eventually("keeper, launcher, templates and sandboxes are gone", async || {
        !everything.iter().any(is_alive)
    })
    .await;
    for call in calls {
        promptly("the caller notices", call).await.unwrap().unwrap_err();
    }
    // Its socket and its state are no obstacle to the next one.
    let daemon = daemon.restart().await;
    assert_eq!(daemon.output(shell("echo again")).await, "again\n");
}

/// The daemon's own processes: the keeper that it started, the launcher that the keeper started,
/// and the templates below.
pub(super) fn keeper_and_launcher(daemon: &Daemon) -> (i32, i32) {
    let below = |parent: i32| {
        let processes = descendants(parent);
        let child = processes
            .iter()
            .find(|process| host_status(process.pid, "PPid") == Some(parent.to_string()));
        child.expect("it has a child").pid
    };
    let keeper = below(daemon.pid());
    (keeper, below(keeper))
}

fn kill(pid: i32) {
    kill_process(Pid::from_raw(pid).unwrap(), Signal::KILL).unwrap();
}

#[tokio::test]
async fn case_14_a_launcher_that_is_killed_takes_its_runs_along_and_is_replaced() {
    let daemon = Daemon::start().await;
    let level = daemon.level().await;
    let mark = Mark::new();
    let call = daemon.begin(mark.on(stubborn()));
    mark.appears(10).await;
    let (_, launcher) = keeper_and_launcher(&daemon);
    kill(launcher);
    let status = promptly("the call is answered", call).await.unwrap().unwrap_err();
    assert_eq!(Refusal::of(&status).reason, "SANDBOX_ERROR");
    mark.vanishes().await;
    eventually("commands are run again", async || {
        match daemon.try_run(shell("id -u; exit 6")).await {
            Ok(response) => {
                assert_eq!(response.isolation, level);
                assert_eq!(response.exit_code, Some(6));
                assert_ne!(response.stdout, "0\n");
                true
            }
            Err(status) => {
                let reason = Refusal::of(&status).reason;
                assert!(reason == "SANDBOX_ERROR" || reason == "SANDBOX_UNAVAILABLE", "{reason}");
                false
            }
        }
    })
    .await;
    let (_, successor) = keeper_and_launcher(&daemon);
    assert_ne!(successor, launcher);
    assert_eq!(daemon.health().await, ServingStatus::Serving);
}

#[tokio::test]
async fn case_14_without_a_keeper_nothing_is_run() {
    let daemon = Daemon::start().await;
    let mark = Mark::new();
    let call = daemon.begin(mark.on(stubborn()));
    mark.appears(10).await;
    let (keeper, launcher) = keeper_and_launcher(&daemon);
    kill(keeper);
    let status = promptly("the call is answered", call).await.unwrap().unwrap_err();
    assert_eq!(Refusal::of(&status).reason, "SANDBOX_ERROR");
    mark.vanishes().await;
    eventually("the launcher is gone", async || {
        // A daemon that is process 1 of a container inherits it, and does not wait for it.
        host_status(launcher, "State").is_none_or(|state| state.starts_with('Z'))
    })
    .await;
    for _ in 0..3 {
        let answer = promptly("an answer", daemon.try_run(mark.on(shell("touch ran")))).await;
        let reason = Refusal::of(&answer.unwrap_err()).reason;
        assert!(reason == "SANDBOX_ERROR" || reason == "SANDBOX_UNAVAILABLE", "{reason}");
    }
    assert!(!daemon.file("ran").exists());
}

#[tokio::test]
async fn case_14_an_init_that_is_killed_takes_only_its_own_run_along() {
    let daemon = Daemon::start().await;
    let (victim, other) = (Mark::new(), Mark::new());
    let call = daemon.begin(victim.on(shell("sleep 1000")));
    let rest = daemon.begin(other.on(shell("sleep 1000; exit 9")));
    let command = victim.appears(1).await;
    other.appears(1).await;
    // The init is the parent of the command.
    let init = command.iter().find_map(|pid| {
        let parent: i32 = host_status(*pid, "PPid")?.parse().ok()?;
        (host_status(parent, "NSpid")?.split_whitespace().next_back() == Some("1"))
            .then_some(parent)
    });
    kill(init.expect("the command's parent is process 1 of its namespace"));
    let status = promptly("the call is answered", call).await.unwrap().unwrap_err();
    assert_eq!(Refusal::of(&status).reason, "SANDBOX_ERROR");
    victim.vanishes().await;
    assert!(!other.processes().is_empty());
    rest.abort();
    other.vanishes().await;
    assert_eq!(daemon.run(shell("exit 3")).await.outcome(), Outcome::Exited);
}

#[tokio::test]
async fn case_14_a_killed_run_is_told_as_it_was_even_when_the_host_did_it() {
    let daemon = Daemon::start().await;
    let mark = Mark::new();
    let call = daemon.begin(mark.on(argv(&["sleep", "1000"])));
    let command = mark.appears(1).await;
    kill(*command.first().unwrap());
    let response = promptly("the call is answered", call).await.unwrap().unwrap();
    assert_eq!(response.outcome(), Outcome::Signaled);
    assert_eq!(response.signal, "SIGKILL");
}
