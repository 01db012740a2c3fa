//! Pending calls of a batch, and the tool that waits for their jobs.

use serde_json::{Value, json};

use super::{
    batch::{batch_request, invoke_batch, tool_messages},
    call, invoke, json_of,
    model_output::COMMAND_TOOLS,
};
use crate::support::{Daemon, KeyFile, Setup, with_key};

#[tokio::test]
async fn wait_job_works_in_every_dialect() {
    let daemon = Daemon::start().await;
    for (dialect, tool, params) in COMMAND_TOOLS {
        let go = format!("go_{dialect}");
        let command = format!("until [ -e {go} ]; do sleep 0.05; done; echo done");
        let mut request = batch_request(dialect, &[("a", tool, params(&command))]);
        request.wait_ms = Some(100);
        let pending = invoke_batch(&daemon, request).await;
        assert!(pending.results[0].pending, "{dialect}: {pending:?}");

        let pending_messages: Value = serde_json::from_str(&pending.messages_json).unwrap();
        let pending_content = pending_messages[0]["content"].as_str().unwrap();
        let knows_tool = ["", "openai", "anthropic"].contains(&dialect);
        assert_eq!(
            pending_content.contains("call wait_job"),
            knows_tool,
            "{dialect}: {pending_content}"
        );

        let (_, after_prefix) = pending_content.split_once("continues as job ").unwrap();
        let job = after_prefix.split_once(':').unwrap().0;

        // A wait for an unfinished job ends with the wait time of its batch, and reports the job as
        // pending.
        let mut request = batch_request(dialect, &[("b", "wait_job", json!({ "job_id": job }))]);
        request.wait_ms = Some(300);
        let again = invoke_batch(&daemon, request).await;
        assert!(!again.results[0].pending, "{dialect}: {again:?}");

        let wait_content = &tool_messages(&again)[0]["content"];
        let wait_result: Value = serde_json::from_str(wait_content.as_str().unwrap()).unwrap();
        assert_eq!(wait_result["result"]["pending"], true, "{dialect}: {wait_result}");

        std::fs::write(daemon.file(&go), "").unwrap();
        let wait = json!({"job_id": job, "wait_ms": 60_000});
        let mut request = batch_request(dialect, &[("c", "wait_job", wait)]);
        request.wait_ms = Some(60_000);
        let ended = invoke_batch(&daemon, request).await;
        let ended_messages: Value = serde_json::from_str(&ended.messages_json).unwrap();

        let ended_result: Value =
            serde_json::from_str(ended_messages[0]["content"].as_str().unwrap()).unwrap();
        assert_eq!(ended_result["ok"], true, "{dialect}: {ended_result}");

        let has_result = match dialect {
            // Its document has only the path.
            "agentbench" => ended_result["output"]["exit_code"] == 0,
            _ => ended_result.to_string().contains("done\\n"),
        };
        assert!(has_result, "{dialect}: {ended_result}");

        // A job of one dialect cannot be read in another.
        if !["", "openai", "anthropic"].contains(&dialect) {
            let other = if dialect == "claude" { "dracode" } else { "claude" };
            let wait = json!({ "job_id": job });
            let refused = invoke(&daemon, call(other, "wait_job", wait)).await;
            let error = refused.error.unwrap();
            let expected = format!("a job of the dialect {dialect}: ");
            assert!(error.message.contains(&expected), "{error:?}");
        }
    }
}

#[tokio::test]
async fn wait_job_finds_only_jobs_visible_to_its_key() {
    let keys = KeyFile::new();
    let unlimited_key = keys.add_key("all", "invoke", &[]);
    let wait_key =
        keys.add_key("waits", "invoke", &["--for-tool", "wait_job", "--for-tool", "stat"]);
    let run_key = keys.add_key("runs", "invoke", &["--for-tool", "run"]);
    let path = keys.path().display().to_string();
    let daemon = Setup::new().arguments(&["--keys", &path]).start().await;

    let pending = || {
        let mut request = batch_request("", &[("a", "run", json!({"command": "sleep 1; exit 3"}))]);
        request.wait_ms = Some(100);
        request
    };
    let runs_response = invoke_batch(&daemon, with_key(&run_key, pending())).await;
    assert!(!runs_response.messages_json.contains("wait_job"), "{runs_response:?}");

    let all_response = invoke_batch(&daemon, with_key(&unlimited_key, pending())).await;
    let wait = |job: &str| call("", "wait_job", json!({ "job_id": job }));
    let job = &all_response.results[0].job_id;

    for request in [with_key(&wait_key, wait(job)), with_key(&unlimited_key, wait("none"))] {
        let refused = invoke(&daemon, request).await;
        let error = refused.error.unwrap();
        assert_eq!(error.error_type, "job_not_found");
        // Models cannot call RPCs.
        assert!(!error.message.contains("ListJobs"), "{}", error.message);
    }

    let ended = invoke(&daemon, with_key(&unlimited_key, wait(job))).await;
    assert_eq!(ended.text, r#"{"ok":true,"output":{"exit_code":3}}"#);

    // For a failed job, the reason.
    let mut request = batch_request("", &[("a", "read_file", json!({"path": "none"}))]);
    request.mode = Some(jig::api::v1::BatchMode::Async.into());
    let async_response = invoke_batch(&daemon, with_key(&unlimited_key, request)).await;
    let failed =
        invoke(&daemon, with_key(&unlimited_key, wait(&async_response.results[0].job_id))).await;
    let data = json_of(&failed.data.unwrap());
    assert_eq!((&data["ok"], &data["error_type"]), (&false.into(), &"file_not_found".into()));
}
