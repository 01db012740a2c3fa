//! Jobs of batch calls: asynchronous ones, and ones that outlast the wait (E3, E4).

use jig::api::v1::{
    BatchMode, InvokeBatchRequest, JobState, ListJobsRequest,
    invoke_service_client::InvokeServiceClient,
};
use serde_json::json;

use super::{
    batch::{batch_request, batch_result_json, invoke_batch, tool_messages},
    json_of,
};
use crate::{
    jobs::Jobs,
    support::{Daemon, Setup, eventually},
};

#[tokio::test]
async fn e03_async_call_becomes_a_job() {
    let daemon = Setup::new().workspace_file("README.md", "x").start().await;

    let request = InvokeBatchRequest {
        mode: Some(BatchMode::Async.into()),
        ..batch_request(
            "rauskuclaw",
            &[("call-abc-123", "data_file_read", json!({"path": "README.md"}))],
        )
    };
    let response = invoke_batch(&daemon, request).await;
    let result = &response.results[0];
    assert_eq!(
        batch_result_json(result),
        json!({
            "call_id": "call-abc-123",
            "name": "data_file_read",
            "ok": true,
            "job_id": result.job_id,
            "job_type": "data.file_read",
        })
    );
    assert_eq!((response.tool_messages.len(), response.messages_json.as_str()), (0, "[]"));

    let job = Jobs::of(&daemon).wait(&result.job_id).await;
    assert_eq!((job.tool.as_str(), job.dialect.as_str()), ("data_file_read", "rauskuclaw"));

    let result = job.result.unwrap();
    assert_eq!(json_of(&result.data.unwrap()), json!({"path": "README.md", "content_text": "x"}));
}

#[tokio::test]
async fn e04_call_beyond_wait_continues_as_a_job() {
    let daemon = Daemon::start().await;

    let command = json!({"command": "until [ -e go ]; do sleep 0.05; done; echo done"});
    let request = InvokeBatchRequest {
        wait_ms: Some(100),
        ..batch_request("rauskuclaw", &[("call-abc-123", "tool_exec", command)])
    };
    let response = invoke_batch(&daemon, request).await;
    let result = &response.results[0];
    let error = json!({"code": "TIMEOUT", "message": "Job did not complete within wait_ms"});
    assert_eq!(
        batch_result_json(result),
        json!({
            "call_id": "call-abc-123",
            "name": "tool_exec",
            "ok": false,
            "pending": true,
            "job_id": result.job_id,
            "error": error,
        })
    );
    assert_eq!(
        tool_messages(&response),
        json!([{
            "role": "tool",
            "tool_call_id": "call-abc-123",
            "name": "tool_exec",
            "content": format!(r#"{{"ok":false,"pending":true,"job_id":"{}","error":{{"code":"TIMEOUT","message":"Job did not complete within wait_ms"}}}}"#, result.job_id),
        }])
    );

    std::fs::write(daemon.file("go"), "").unwrap();
    let job = Jobs::of(&daemon).wait(&result.job_id).await;
    assert_eq!(job.state(), JobState::Succeeded, "{job:?}");
    assert_eq!(json_of(&job.result.unwrap().data.unwrap())["stdout"], "done\n");
}

#[tokio::test]
async fn e04_cancelled_calls_are_reported() {
    let setup = Setup::new().workspace_table("[jobs]\nqueue_concurrency = 1");
    let daemon = setup.start().await;

    let command = || json!({"command": "touch begun; sleep 1000; true"});
    let names = ["begun", "queued"].map(|id| (id, "run", command()));
    let (request, mut client) =
        (batch_request("", &names), InvokeServiceClient::new(daemon.channel()));
    let pending_batch = tokio::spawn(async move { client.invoke_batch(request).await });
    let mut jobs = Jobs::of(&daemon);
    let mut listed = Vec::new();
    eventually("one job runs and one is queued", async || {
        listed = jobs.list(ListJobsRequest::default()).await;
        let has = |state| listed.iter().any(|job| job.state() == state);
        daemon.file("begun").exists() && has(JobState::Running) && has(JobState::Queued)
    })
    .await;

    // The queued job first: otherwise it would start.
    for state in [JobState::Queued, JobState::Running] {
        let job = listed.iter().find(|job| job.state() == state).unwrap();
        jobs.cancel(&job.job_id).await;
    }

    let response = pending_batch.await.unwrap().unwrap().into_inner();
    let [begun, queued] = &response.results[..] else { panic!("{response:?}") };
    assert_eq!(json_of(begun.output.as_ref().unwrap())["outcome"], "OUTCOME_CANCELLED");

    let error = queued.error.as_ref().unwrap();
    assert_eq!((queued.ok, queued.pending), (false, false));
    assert_eq!(error.code, "CANCELLED", "{error:?}");
}

#[tokio::test]
async fn task_call_returns_its_job_id() {
    let daemon = Daemon::start().await;

    let task = json!({"command": "until [ -e go ]; do sleep 0.05; done"});
    let response = invoke_batch(&daemon, batch_request("claude", &[("a", "Task", task)])).await;
    let result = &response.results[0];
    let output = json_of(result.output.as_ref().unwrap());
    assert!(result.ok && result.pending, "{result:?}");
    assert_eq!(output["taskId"], result.job_id.as_str());

    std::fs::write(daemon.file("go"), "").unwrap();
    let job = Jobs::of(&daemon).wait(&result.job_id).await;
    assert_eq!(job.state(), JobState::Succeeded, "{job:?}");
}

/// A background command is watched and cancelled later: row C9 of tests/seeds/README.md.
#[tokio::test]
async fn c09_a_task_is_a_job() {
    let daemon = Daemon::start().await;

    let request = super::call("claude", "Task", json!({"command": "echo begun; sleep 1000; true"}));
    let response = super::invoke(&daemon, request).await;
    let id = response.job_id.clone();
    assert!(response.pending, "{response:?}");
    assert_eq!(json_of(&response.data.unwrap()), json!({"success": true, "taskId": id}));

    let mut jobs = Jobs::of(&daemon);
    crate::support::eventually("the job runs", async || {
        jobs.get(&id).await.state() == JobState::Running
    })
    .await;
    let job = jobs.cancel(&id).await;
    assert_eq!(job.state(), JobState::Cancelled);
}
