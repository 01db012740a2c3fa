//! A host that withdraws what sandboxes need while the daemon runs. The daemon refuses commands
//! that it cannot isolate, reports it through health, and uses no weaker level.

use std::{
    process::Command,
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, kill_process};
use tonic_health::pb::health_check_response::ServingStatus;

use super::killed_processes::keeper_and_launcher_pids;
use crate::support::{Daemon, HostProgram, Refusal, Setup, eventually, shell};

/// Sets the limit of user namespaces in the user namespace of a root daemon.
fn set_max_user_namespaces(daemon: &Daemon, count: u32) {
    let pid = daemon.pid().to_string();
    let script = format!("echo {count} > /proc/sys/user/max_user_namespaces");
    let mut command = Command::new("nsenter");
    command.args(["--user", "--target", &pid]);
    let status = command.args(["sh", "-c", &script]).status();
    assert!(status.unwrap().success());
}

/// Disables user namespaces, then kills the sandboxes that exist already.
async fn check_daemon_fails_closed(setup: Setup) {
    let limit = ("JIG_TEST_LIMIT", "max_user_namespaces=1000");
    let host = HostProgram::compile("no_namespaces");
    let setup = setup.environment(limit.0, limit.1).wrapped_by([&host.path]);
    let daemon = setup.arguments(&["--chown-workspace"]).start().await;
    assert_eq!(daemon.run(shell("true")).await.isolation, "L3");

    set_max_user_namespaces(&daemon, 0);

    // Existing sandboxes stay usable.
    assert_eq!(daemon.run(shell("true")).await.isolation, "L3");

    let (_, launcher) = keeper_and_launcher_pids(&daemon);
    kill_process(Pid::from_raw(launcher).unwrap(), Signal::KILL).unwrap();
    eventually("the daemon is not ready", async || {
        match daemon.try_run(shell("touch ran")).await {
            // An existing sandbox ran it.
            Ok(response) => assert_eq!(response.isolation, "L3"),
            Err(status) => {
                let reason = Refusal::from_status(&status).reason;
                let reasons = ["RESOURCE_EXHAUSTED", "SANDBOX_ERROR", "SANDBOX_UNAVAILABLE"];
                assert!(reasons.contains(&reason.as_str()), "{reason}");
            }
        }
        daemon.health().await == ServingStatus::NotServing
    })
    .await;

    let _may_not_exist = std::fs::remove_file(daemon.file("ran"));

    for _ in 0..10 {
        let status = daemon.try_run(shell("touch ran")).await.unwrap_err();
        let refusal = Refusal::from_status(&status);
        assert_eq!(refusal.metadata["errno"], "ENOSPC", "{refusal:?}");
        assert!(refusal.message.contains("max_user_namespaces"), "{refusal:?}");
    }

    assert!(!daemon.file("ran").exists());

    // The daemon tries two sandboxes each second, however many calls it refused.
    let attempts = || daemon.log().matches("sandbox slot lost").count();
    let (before, start) = (attempts(), Instant::now());
    eventually("the daemon tries again", async || attempts() >= before + 4).await;
    assert!(start.elapsed() >= Duration::from_secs(1));

    // The daemon recovers without calls: clients send none to a daemon that is not ready.
    set_max_user_namespaces(&daemon, 1000);
    eventually("the daemon is ready again", async || {
        daemon.health().await == ServingStatus::Serving
    })
    .await;
    assert_eq!(daemon.run(shell("true")).await.isolation, "L3");

    let log = daemon.log();
    assert_eq!(log.matches("no sandbox can be built").count(), 1, "{log}");
    assert_eq!(log.matches("commands can be run again").count(), 1, "{log}");
}

#[tokio::test]
async fn case_n28_daemon_runs_nothing_after_user_namespaces_are_disabled() {
    check_daemon_fails_closed(Setup::new()).await;
}

#[tokio::test]
async fn case_n28_running_daemon_never_lowers_its_isolation_level() {
    check_daemon_fails_closed(Setup::new().arguments(&["--minimum-level", "L1"])).await;
}
