//! Calls in the same shell run one after the other. Jobs have a copy.

use jig::api::v1::RunRequest;
use serde_json::json;

use super::{in_shell, remembered};
use crate::{
    jobs::{Jobs, tool_job},
    support::{Daemon, Setup, eventually},
};

#[tokio::test]
async fn calls_at_once_run_one_after_the_other() {
    let daemon = Daemon::start().await;
    remembered(&daemon, "n=0").await;
    let runs: Vec<_> = (0..20)
        .map(|_| daemon.spawn_run(in_shell("m=$n; sleep 0.01; n=$((m + 1)); echo $n")))
        .collect();
    let mut numbers = Vec::new();
    for run in runs {
        let response = run.await.unwrap().unwrap();
        numbers.push(response.stdout.trim().parse::<u32>().unwrap());
    }
    numbers.sort_unstable();
    assert_eq!(numbers, (1..=20).collect::<Vec<_>>());
    assert_eq!(remembered(&daemon, "echo $n").await, "20\n");
}

#[tokio::test]
async fn waiting_calls_hold_no_sandbox() {
    let setup = Setup::new().workspace_table("[limits]\nconcurrent_runs = 2");
    let daemon = setup.start().await;
    let held = daemon.spawn_run(in_shell("touch begun; until [ -e go ]; do sleep 0.01; done"));
    eventually("the command runs", async || daemon.file("begun").exists()).await;
    let waiting: Vec<_> = (0..5).map(|_| daemon.spawn_run(in_shell("true"))).collect();

    // The other sandbox is free for other calls, and other shells.
    let other = RunRequest { shell: Some("t".to_owned()), ..in_shell("echo free") };
    assert_eq!(daemon.output(other).await, "free\n");
    std::fs::write(daemon.file("go"), "").unwrap();
    assert_eq!(held.await.unwrap().unwrap().shell_state, "updated");
    for run in waiting {
        assert_eq!(run.await.unwrap().unwrap().exit_code, Some(0));
    }
}

#[tokio::test]
async fn caller_that_leaves_the_queue_runs_nothing() {
    let daemon = Daemon::start().await;
    let held = daemon.spawn_run(in_shell("touch begun; until [ -e go ]; do sleep 0.01; done"));
    eventually("the command runs", async || daemon.file("begun").exists()).await;
    let mut request = tonic::Request::new(in_shell("touch ran"));
    request.set_timeout(std::time::Duration::from_millis(300));
    let status = daemon.try_run(request).await.unwrap_err();
    assert!(matches!(status.code(), tonic::Code::DeadlineExceeded | tonic::Code::Cancelled));
    std::fs::write(daemon.file("go"), "").unwrap();
    held.await.unwrap().unwrap();
    remembered(&daemon, "true").await;
    assert!(!daemon.file("ran").exists());
}

#[tokio::test]
async fn jobs_have_a_copy_of_the_shell() {
    let daemon = Daemon::start().await;
    remembered(&daemon, "x=1; cd /usr").await;
    let params = json!({ "command": "echo $x; pwd; x=2", "shell": "s" });
    let mut jobs = Jobs::of(&daemon);
    let id = jobs.submit(tool_job("run", params)).await;
    let result = format!("{:?}", jobs.wait(&id).await.result);
    assert!(result.contains("1\\n/usr\\n") && result.contains("job"), "{result}");
    assert_eq!(remembered(&daemon, "echo $x").await, "1\n");
}
