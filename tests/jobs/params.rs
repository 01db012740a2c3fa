//! Parameters of a job are stored until it starts, and nowhere afterwards.

use std::{fs, os::unix::fs::PermissionsExt as _, path::Path};

use jig::api::v1::JobState;
use serde_json::json;

use super::{Jobs, WAIT_FOR_GO_FILE, command_job, expect_result, tool_job};
use crate::support::{Setup, eventually};

/// A value that only the command may see.
const SECRET: &str = "very-secret-value-of-a-variable";

/// The files below `directory` that contain [`SECRET`].
fn files_with_secret(directory: &Path) -> Vec<String> {
    let mut found = Vec::new();
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(files_with_secret(&path));
        } else if let Ok(bytes) = fs::read(&path)
            && bytes.windows(SECRET.len()).any(|part| part == SECRET.as_bytes())
        {
            found.push(path.display().to_string());
        }
    }
    found
}

#[tokio::test]
async fn job_params_leave_the_disk_once_job_runs() {
    let setup = Setup::new().workspace_table("[jobs]\nqueue_concurrency = 1\n");
    let daemon = setup.arguments(&["--log-level", "trace"]).start().await;
    let mut jobs = Jobs::of(&daemon);

    let first = jobs.submit(command_job(WAIT_FOR_GO_FILE)).await;
    eventually("the first job runs", async || jobs.get(&first).await.state() == JobState::Running)
        .await;

    let params = json!({
        "command": "[ \"$TOKEN\" ] && until [ -e on ]; do sleep 0.05; done",
        "env": {"TOKEN": SECRET},
        "stdin": "",
    });
    let second = jobs.submit(tool_job("run", params)).await;
    let file = daemon.state_dir().join(format!("jobs/{second}.json"));
    assert_eq!(files_with_secret(&daemon.state_dir()), [file.display().to_string()]);

    let mode = fs::metadata(file).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);

    fs::write(daemon.file("go"), "").unwrap();
    eventually("the second job runs", async || jobs.get(&second).await.step.is_some()).await;
    assert_eq!(files_with_secret(&daemon.state_dir()), [""; 0]);

    fs::write(daemon.file("on"), "").unwrap();
    for id in [&first, &second] {
        expect_result(jobs.wait(id).await, JobState::Succeeded);
    }
    assert_eq!(files_with_secret(&daemon.state_dir()), [""; 0]);
    assert!(!daemon.log().contains(SECRET));
}

#[tokio::test]
async fn job_without_disk_space_is_rejected() {
    let daemon = Setup::new().state_on_small_disk("").start().await;
    let mut jobs = Jobs::of(&daemon);
    let large = tool_job("write_file", json!({"path": "f", "content": "x".repeat(6 << 20)}));
    let refusal = jobs.try_submit(large).await.unwrap_err();
    assert_eq!(refusal.reason, "NO_SPACE");
    let id = jobs.submit(command_job("true")).await;
    expect_result(jobs.wait(&id).await, JobState::Succeeded);
}
