//! Limits: parameters with a million errors, and results larger than a message.

use std::{fs, sync::Arc, time::Duration};

use jig::api::v1::{JobState, RunRequest, SubmitJobRequest};
use prost_types::value::Kind;
use serde_json::json;

use super::{Jobs, command_job, expect_result, field, tool_job};
use crate::support::{Daemon, Refusal, promptly};

fn job_from_json(tool: &str, params_json: String) -> SubmitJobRequest {
    SubmitJobRequest { tool: tool.to_owned(), params_json, ..SubmitJobRequest::default() }
}

/// Peak resident memory of the daemon, in KiB.
fn peak_kib(daemon: &Daemon) -> u64 {
    daemon.peak_bytes() >> 10
}

#[tokio::test]
async fn huge_invalid_requests_use_bounded_memory() {
    let daemon = Daemon::start().await;
    let mut jobs = Jobs::of(&daemon);

    let many_items = "1,".repeat(6_500_000);
    let many_names: String = (0..1_000_000).map(|n| format!("\"{n}\":1,")).collect();
    let invalid_items = vec!["1"; 1000].join(",");

    for (params, fields, expected) in [
        (format!("{{\"argv\":[{many_items}1]}}"), 1, "262144"),
        (format!("{{{many_names}\"x\":1}}"), 1, "262144"),
        (format!("{{\"argv\":[{invalid_items}]}}"), 20, "more than 20 fields are invalid"),
    ] {
        let submitting = jobs.try_submit(job_from_json("run", params));
        let refused = tokio::time::timeout(Duration::from_secs(20), submitting).await;
        let refusal = refused.unwrap().unwrap_err();
        assert_eq!(refusal.reason, "INVALID_PARAMS");
        assert_eq!(refusal.violations.len(), fields, "{refusal:?}");
        assert!(refusal.message.contains(expected), "{refusal:?}");
    }

    let run = RunRequest {
        argv: vec!["\0".to_owned(); 100_000],
        env: (0..20_000).map(|n| (format!("A={n}"), "x".to_owned())).collect(),
        ..RunRequest::default()
    };
    let refused = promptly("the daemon rejects the run", daemon.try_run(run)).await;
    let refusal = Refusal::from_status(&refused.unwrap_err());
    assert!(refusal.invalid_fields().contains(&"argv"), "{refusal:?}");
    assert!(refusal.violations.len() <= 20);

    let peak = peak_kib(&daemon);
    assert!(peak < 700 << 10, "{peak} KiB");
}

#[tokio::test]
async fn duplicate_json_names_are_rejected() {
    let daemon = Daemon::start().await;
    let mut jobs = Jobs::of(&daemon);
    let json = r#"{"command": "true", "command": "touch ran", "env": {"A": "1", "A": "2"}}"#;
    let refusal = jobs.try_submit(job_from_json("run", json.to_owned())).await;
    let refusal = refusal.unwrap_err();
    assert_eq!(refusal.invalid_fields(), ["params.command", "params.env.A"]);
}

#[tokio::test]
async fn enum_params_accept_names_and_numbers() {
    let daemon = Daemon::start().await;
    let mut jobs = Jobs::of(&daemon);
    for (mode, path) in [
        (json!(2), "by-number"),
        (json!("WRITE_MODE_CREATE_NEW"), "by-name"),
        (json!("WRITE_MODE_UNSPECIFIED"), "by-default"),
        (json!(0), "by-zero"),
    ] {
        let params = json!({"path": path, "content": "x", "mode": mode});
        let id = jobs.submit(tool_job("write_file", params.clone())).await;
        expect_result(jobs.wait(&id).await, JobState::Succeeded);
        let repeated_id = jobs.submit(tool_job("write_file", params)).await;
        let expected = match path {
            "by-number" | "by-name" => JobState::Failed,
            _ => JobState::Succeeded,
        };
        expect_result(jobs.wait(&repeated_id).await, expected);
    }
}

#[tokio::test]
async fn large_results_are_truncated_to_fit_a_message() {
    let daemon = Daemon::start().await;
    let mut jobs = Jobs::of(&daemon);

    fs::write(daemon.file("fits"), "x".repeat(3 << 20)).unwrap();
    fs::write(daemon.file("large"), vec![1_u8; 10 << 20]).unwrap();
    for (path, is_whole) in [("fits", true), ("large", false)] {
        let params = json!({"path": path, "max_bytes": 10 << 20});
        let id = jobs.submit(tool_job("read_file", params)).await;
        let response = expect_result(jobs.wait(&id).await, JobState::Succeeded);
        let data = response.data.unwrap();
        let Kind::StringValue(content) = field(&data, "content") else { panic!("no text") };
        assert!(response.truncated);

        let text_json: serde_json::Value = serde_json::from_str(&response.text).unwrap();
        assert_eq!(text_json["truncated"], true);
        assert!(text_json["content"].as_str().unwrap().len() > 10 << 10);
        assert_eq!(content.len() == 3 << 20, is_whole, "{}", content.len());
        assert_eq!(content.contains(" bytes left out: "), !is_whole);
    }

    let id = jobs.submit(command_job("echo short")).await;
    let response = expect_result(jobs.wait(&id).await, JobState::Succeeded);
    assert!(!response.truncated);
}

#[tokio::test]
async fn job_ids_sort_by_submission_order() {
    let daemon = Arc::new(Daemon::start().await);
    let mut jobs = Jobs::of(&daemon);
    let mut ids = Vec::new();
    for _ in 0..50 {
        ids.push(jobs.submit(tool_job("list_files", json!({}))).await);
    }
    assert!(ids.is_sorted(), "{ids:?}");
}
