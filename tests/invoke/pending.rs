//! Calls of a batch that are pending, and the tool that waits for their jobs.

use serde_json::{Value, json};

use super::{
    batch::{batch, messages, of},
    call, invoke, json_of,
    rest::RUN,
};
use crate::support::{Daemon, KeyFile, Setup, with_key};

#[tokio::test]
async fn a_pending_call_is_waited_for_in_every_vocabulary() {
    let daemon = Daemon::start().await;
    for (dialect, tool, params) in RUN {
        let go = format!("go_{dialect}");
        let command = format!("until [ -e {go} ]; do sleep 0.05; done; echo done");
        let mut request = of(dialect, &[("a", tool, params(&command))]);
        request.wait_ms = Some(100);
        let pending = batch(&daemon, request).await;
        assert!(pending.results[0].pending, "{dialect}: {pending:?}");
        let told: Value = serde_json::from_str(&pending.messages_json).unwrap();
        let told = told[0]["content"].as_str().unwrap();
        let knows_tool = ["", "openai", "anthropic"].contains(&dialect);
        assert_eq!(told.contains("call wait_job"), knows_tool, "{dialect}: {told}");
        let (_, told) = told.split_once("goes on as job ").unwrap();
        let job = told.split_once(':').unwrap().0;
        // One that is waited for in vain is pending, as long as its caller waits.
        let mut request = of(dialect, &[("b", "wait_job", json!({ "job_id": job }))]);
        request.wait_ms = Some(300);
        let again = batch(&daemon, request).await;
        assert!(!again.results[0].pending, "{dialect}: {again:?}");
        let told = &messages(&again)[0]["content"];
        let told: Value = serde_json::from_str(told.as_str().unwrap()).unwrap();
        assert_eq!(told["result"]["pending"], true, "{dialect}: {told}");
        std::fs::write(daemon.file(&go), "").unwrap();
        let wait = json!({"job_id": job, "wait_ms": 60_000});
        let mut request = of(dialect, &[("c", "wait_job", wait)]);
        request.wait_ms = Some(60_000);
        let ended = batch(&daemon, request).await;
        let told: Value = serde_json::from_str(&ended.messages_json).unwrap();
        let told: Value = serde_json::from_str(told[0]["content"].as_str().unwrap()).unwrap();
        assert_eq!(told["ok"], true, "{dialect}: {told}");
        let is_answered = match dialect {
            // Its document has nothing but the path.
            "agentbench" => told["output"]["exit_code"] == 0,
            _ => told.to_string().contains("done\\n"),
        };
        assert!(is_answered, "{dialect}: {told}");
        // Its words are not those of another vocabulary.
        if !["", "openai", "anthropic"].contains(&dialect) {
            let other = if dialect == "claude" { "dracode" } else { "claude" };
            let wait = json!({ "job_id": job });
            let refused = invoke(&daemon, call(other, "wait_job", wait)).await;
            let error = refused.error.unwrap();
            let expected = format!("a job of the vocabulary {dialect}, ");
            assert!(error.message.contains(&expected), "{error:?}");
        }
    }
}

#[tokio::test]
async fn a_job_is_waited_for_by_who_may_see_it() {
    let keys = KeyFile::new();
    let all = keys.add("all", "invoke", &[]);
    let waits = keys.add("waits", "invoke", &["--for-tool", "wait_job", "--for-tool", "stat"]);
    let runs = keys.add("runs", "invoke", &["--for-tool", "run"]);
    let path = keys.path().display().to_string();
    let daemon = Setup::new().arguments(&["--keys", &path]).start().await;
    let pending = || {
        let mut request = of("", &[("a", "run", json!({"command": "sleep 1; exit 3"}))]);
        request.wait_ms = Some(100);
        request
    };
    let told = batch(&daemon, with_key(&runs, pending())).await;
    assert!(!told.messages_json.contains("wait_job"), "{told:?}");
    let told = batch(&daemon, with_key(&all, pending())).await;
    let wait = |job: &str| call("", "wait_job", json!({ "job_id": job }));
    let job = &told.results[0].job_id;
    for request in [with_key(&waits, wait(job)), with_key(&all, wait("none"))] {
        let refused = invoke(&daemon, request).await;
        let error = refused.error.unwrap();
        assert_eq!(error.error_type, "job_not_found");
        // No model can call an RPC.
        assert!(!error.message.contains("ListJobs"), "{}", error.message);
    }
    let ended = invoke(&daemon, with_key(&all, wait(job))).await;
    assert_eq!(ended.text, r#"{"ok":true,"output":{"exit_code":3}}"#);
    // Of one that failed, why.
    let mut request = of("", &[("a", "read_file", json!({"path": "none"}))]);
    request.mode = Some(jig::api::v1::BatchMode::Async.into());
    let told = batch(&daemon, with_key(&all, request)).await;
    let failed = invoke(&daemon, with_key(&all, wait(&told.results[0].job_id))).await;
    let data = json_of(&failed.data.unwrap());
    assert_eq!((&data["ok"], &data["error_type"]), (&false.into(), &"file_not_found".into()));
}
