//! Limits on CPU time.

use jig::api::v1::{LowerLimits, Outcome};

use super::limited_command;
use crate::support::{Daemon, Mark};

fn limited_to_one_second(command: &str) -> jig::api::v1::RunRequest {
    let limits = LowerLimits { cpu_sec: Some(1), ..LowerLimits::default() };
    limited_command(command, limits)
}

#[tokio::test]
async fn cpu_limit_ends_a_computing_process() {
    let daemon = Daemon::start().await;
    let response = daemon.run(limited_to_one_second("while :; do :; done")).await;
    assert_eq!(response.outcome(), Outcome::Signaled, "{response:?}");
    assert!(["SIGXCPU", "SIGKILL"].contains(&response.signal.as_str()), "{response:?}");
    assert_eq!(response.limit, "cpu");
}

#[tokio::test]
async fn self_sent_sigxcpu_reports_no_limit() {
    let daemon = Daemon::start().await;
    for request in [crate::support::shell("kill -XCPU $$"), limited_to_one_second("kill -XCPU $$")]
    {
        let response = daemon.run(request).await;
        assert_eq!((response.signal.as_str(), response.limit.as_str()), ("SIGXCPU", ""));
    }
}

#[tokio::test]
async fn cpu_limit_sums_over_all_processes() {
    let daemon = Daemon::start().await;
    let mark = Mark::new();

    // No process uses a second of CPU time, and each ignores SIGXCPU.
    let script =
        "trap '' XCPU; while :; do (j=0; while [ $j -lt 40000 ]; do j=$((j + 1)); done); done";
    let response = daemon.run(mark.on(limited_to_one_second(script))).await;
    assert_eq!(response.outcome(), Outcome::Signaled, "{response:?}");
    assert_eq!((response.signal.as_str(), response.limit.as_str()), ("SIGKILL", "cpu"));
    mark.assert_gone();
}

#[tokio::test]
async fn sleep_uses_no_cpu_time() {
    let daemon = Daemon::start().await;
    let response = daemon.run(limited_to_one_second("sleep 2; echo awake")).await;
    assert_eq!((response.exit_code, response.stdout.as_str()), (Some(0), "awake\n"));
}

#[tokio::test]
async fn file_over_the_size_limit_reports_disk() {
    let daemon = Daemon::start().await;
    let limits = LowerLimits { file_size_bytes: Some(1 << 20), ..LowerLimits::default() };
    let response =
        daemon.run(limited_command("exec head -c 2000000 /dev/zero > file", limits)).await;
    assert_eq!(response.outcome(), Outcome::Signaled, "{response:?}");
    assert_eq!((response.signal.as_str(), response.limit.as_str()), ("SIGXFSZ", "disk"));
    assert_eq!(daemon.file("file").metadata().unwrap().len(), 1 << 20);
}
