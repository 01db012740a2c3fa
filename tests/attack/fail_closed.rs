//! A host that stops giving what sandboxes are made of while the daemon runs: what cannot be isolated is
//! refused, health says so, and no weaker level takes its place.

use std::{
    process::Command,
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, kill_process};
use tonic_health::pb::health_check_response::ServingStatus;

use super::killed_processes::keeper_and_launcher_pids;
use crate::support::{Daemon, HostProgram, Refusal, Setup, eventually, shell};

/// Sets how many user namespaces a daemon of root's may have in its own.
fn set_max_user_namespaces(daemon: &Daemon, count: u32) {
    let pid = daemon.pid().to_string();
    let set = format!("echo {count} > /proc/sys/user/max_user_namespaces");
    let mut command = Command::new("nsenter");
    command.args(["--user", "--target", &pid]);
    let set = command.args(["sh", "-c", &set]).status();
    assert!(set.unwrap().success());
}

/// Takes the namespaces away, and then the sandboxes that were made before.
async fn check_daemon_fails_closed(setup: Setup) {
    let many = ("JIG_TEST_LIMIT", "max_user_namespaces=1000");
    let host = HostProgram::compile("no_namespaces");
    let setup = setup.environment(many.0, many.1).wrapped_by([&host.path]);
    let daemon = setup.arguments(&["--chown-workspace"]).start().await;
    assert_eq!(daemon.run(shell("true")).await.isolation, "L3");

    set_max_user_namespaces(&daemon, 0);

    // What was made before is as good as it was.
    assert_eq!(daemon.run(shell("true")).await.isolation, "L3");

    let (_, launcher) = keeper_and_launcher_pids(&daemon);
    kill_process(Pid::from_raw(launcher).unwrap(), Signal::KILL).unwrap();
    eventually("it is not ready", async || {
        match daemon.try_run(shell("touch ran")).await {
            // By a sandbox that was still alive.
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

    let _gone = std::fs::remove_file(daemon.file("ran"));

    for _ in 0..10 {
        let refused = daemon.try_run(shell("touch ran")).await.unwrap_err();
        let refusal = Refusal::from_status(&refused);
        assert_eq!(refusal.metadata["errno"], "ENOSPC", "{refusal:?}");
        assert!(refusal.message.contains("max_user_namespaces"), "{refusal:?}");
    }

    assert!(!daemon.file("ran").exists());

    // It tries two sandboxes each second, however many calls were refused.
    let attempts = || daemon.log().matches("sandbox slot lost").count();
    let (before, since) = (attempts(), Instant::now());
    eventually("it tries again", async || attempts() >= before + 4).await;
    assert!(since.elapsed() >= Duration::from_secs(1));

    // It becomes ready without a call: clients send none to a daemon that is not.
    set_max_user_namespaces(&daemon, 1000);
    eventually("it is ready again", async || daemon.health().await == ServingStatus::Serving).await;
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
