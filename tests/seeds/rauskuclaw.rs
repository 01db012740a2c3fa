//! RauskuClaw (rows E): its registry, and the scenarios of its tools and batches. Jobs of batches
//! are tested in `tests/invoke/batch_jobs.rs`.

use jig::api::v1::{
    BatchCall, BatchMode, InvokeBatchRequest, ToolFormat, WaitJobRequest,
    invoke_service_client::InvokeServiceClient, job_service_client::JobServiceClient,
};

use super::{fixture::list_tools, rows};
use crate::support::{Daemon, Setup};

rows!("rauskuclaw":
    e01_registry e02_data_file_read e02_tools_file_search e02_tool_exec e02_sync e03_async e04_pending e05_errors
    e07_validation e08_limits e10_call_ids
);

#[tokio::test]
async fn e01_only_enabled_tools_are_listed() {
    for (policy, names) in [
        ("", &["data_file_read", "tools_file_search", "tool_exec"][..]),
        ("[policy]\ndeny_tools = [\"run\"]", &["data_file_read", "tools_file_search"]),
        ("[policy]\ndeny_tools = [\"tool_exec\", \"list_files\"]", &["data_file_read"]),
    ] {
        let daemon = Setup::new().workspace_table(policy).start().await;
        let listed = list_tools(&daemon, "rauskuclaw", ToolFormat::OpenaiChat).await;
        assert_eq!(listed.names, names, "{policy}");
    }
}

#[tokio::test]
async fn e12_jobs_have_uuids_and_ulids() {
    let daemon = Daemon::start().await;

    let request = InvokeBatchRequest {
        calls: vec![BatchCall {
            call_id: "a".to_owned(),
            name: "tool_exec".to_owned(),
            arguments_json: r#"{"command": "true"}"#.to_owned(),
            ..BatchCall::default()
        }],
        mode: Some(BatchMode::Async.into()),
        dialect: "rauskuclaw".to_owned(),
        ..InvokeBatchRequest::default()
    };
    let mut client = InvokeServiceClient::new(daemon.channel());
    let response = client.invoke_batch(request).await.unwrap().into_inner();
    assert_eq!((response.ok, &*response.mode), (true, "async"));

    let uuid = response.results[0].job_id.clone();
    let parts: Vec<_> = uuid.split('-').map(str::len).collect();
    assert_eq!(parts, [8, 4, 4, 4, 12], "{uuid}");
    assert!(!uuid.contains(|letter: char| !letter.is_ascii_hexdigit() && letter != '-'));

    let mut jobs = JobServiceClient::new(daemon.channel());
    let mut wait = async |job_id: String| {
        let request = WaitJobRequest { job_id, ..WaitJobRequest::default() };
        jobs.wait_job(request).await.unwrap().into_inner().job.unwrap()
    };
    let by_uuid = wait(uuid).await;
    let ulid = by_uuid.job_id.clone();
    assert_eq!(ulid.len(), 26);
    assert_eq!(wait(ulid).await, by_uuid);
}
