//! A key for some tools has no access to the work of other tools.

use std::{fs, sync::Arc, time::Duration};

use jig::api::v1::{
    AttachRequest, CancelJobRequest, GetJobRequest, GetUploadRequest, ListArtifactsRequest,
    ListJobsRequest, ListProcessesRequest, ReadArtifactRequest, ResizeTerminalRequest,
    SendSignalRequest, StartResponse, SubmitJobRequest, WaitJobRequest, WatchJobRequest,
    WriteStdinRequest, artifact_service_client::ArtifactServiceClient,
    job_service_client::JobServiceClient, process_service_client::ProcessServiceClient,
    start_response::Event, transfer_service_client::TransferServiceClient,
};
use tokio::time::timeout;
use tonic::{Response, Status, Streaming};

use super::start_daemon_with_keys;
use crate::support::{Daemon, KeyFile, Refusal, Setup, promptly, shell, start_request, with_key};

async fn start_process(
    daemon: &Daemon,
    key: &str,
    command: &str,
) -> (String, Streaming<StartResponse>) {
    let mut processes = ProcessServiceClient::new(daemon.channel());
    let mut request = start_request(shell(command));
    request.stdin_open = Some(true);
    let request = with_key(key, request);
    let mut stream = processes.start(request).await.unwrap().into_inner();
    let first = stream.message().await.unwrap().unwrap();
    let Some(Event::Started(started)) = first.event else {
        panic!("{first:?}");
    };

    (started.process_id, stream)
}

fn rejection_reason<T>(response: Result<Response<T>, Status>) -> String {
    match response {
        Ok(_) => "authorized".to_owned(),
        Err(status) => Refusal::from_status(&status).reason,
    }
}

fn write_request(process_id: &str, text: &str) -> WriteStdinRequest {
    WriteStdinRequest {
        process_id: process_id.to_owned(),
        data: text.as_bytes().to_vec().into(),
        ..WriteStdinRequest::default()
    }
}

#[tokio::test]
async fn process_rpcs_require_permission_for_run() {
    let keys = Arc::new(KeyFile::new());
    let runner = keys.add_key("runner", "invoke", &[]);
    let lister = keys.add_key("lister", "invoke", &["--for-tool", "list_files"]);
    let daemon = start_daemon_with_keys(Setup::new(), &keys).await;
    let (id, _stream) = start_process(&daemon, &runner, "read line; touch \"$line\"").await;
    let mut client = ProcessServiceClient::new(daemon.channel());
    let attach = AttachRequest { process_id: id.clone(), ..AttachRequest::default() };
    let signal = SendSignalRequest { process_id: id.clone(), signal: "KILL".to_owned() };
    let resize = ResizeTerminalRequest { process_id: id.clone(), cols: 80, rows: 24 };

    let write = write_request(&id, "bypassed\n");
    let list = ListProcessesRequest::default();
    for (rpc, reason) in [
        ("Attach", rejection_reason(client.attach(with_key(&lister, attach)).await)),
        ("WriteStdin", rejection_reason(client.write_stdin(with_key(&lister, write)).await)),
        ("SendSignal", rejection_reason(client.send_signal(with_key(&lister, signal)).await)),
        (
            "ResizeTerminal",
            rejection_reason(client.resize_terminal(with_key(&lister, resize)).await),
        ),
        ("ListProcesses", rejection_reason(client.list_processes(with_key(&lister, list)).await)),
    ] {
        assert_eq!(reason, "FORBIDDEN", "{rpc}");
    }

    let request = with_key(&runner, ListProcessesRequest::default());
    let response = client.list_processes(request).await.unwrap().into_inner();
    assert_eq!(response.processes.len(), 1);
    assert!(!daemon.file("bypassed").exists());
}

#[tokio::test]
async fn disabling_run_blocks_input_to_running_processes() {
    let keys = Arc::new(KeyFile::new());
    let key = keys.add_key("runner", "invoke", &[]);
    let daemon = start_daemon_with_keys(Setup::new().workspace_table(""), &keys).await;
    let (id, _stream) =
        start_process(&daemon, &key, "while read line; do touch \"$line\"; done").await;
    let file = daemon.sibling_path("jig.toml");
    let before = fs::read_to_string(&file).unwrap();
    fs::write(&file, format!("{before}\n[policy]\ndeny_tools = [\"run\"]\n")).unwrap();
    daemon.reload_config(Daemon::RELOADED).await;

    let mut client = ProcessServiceClient::new(daemon.channel());
    let response = client.write_stdin(with_key(&key, write_request(&id, "late\n"))).await;
    assert_eq!(rejection_reason(response), "TOOL_DISABLED");

    // The caller can still end the process.
    let signal = SendSignalRequest { process_id: id, signal: "KILL".to_owned() };
    client.send_signal(with_key(&key, signal)).await.unwrap();
    assert!(!daemon.file("late").exists());
}

#[tokio::test]
async fn jobs_of_other_tools_are_hidden() {
    let keys = Arc::new(KeyFile::new());
    let runner = keys.add_key("runner", "invoke", &[]);
    let lister = keys.add_key("lister", "invoke", &["--for-tool", "list_files"]);
    let daemon = start_daemon_with_keys(Setup::new(), &keys).await;
    let mut jobs = JobServiceClient::new(daemon.channel());
    let submit = |tool: &str, params: &str| SubmitJobRequest {
        tool: tool.to_owned(),
        params_json: params.to_owned(),
        ..SubmitJobRequest::default()
    };

    let run = submit("run", "{\"command\": \"sleep 1000\"}");
    let submitted = jobs.submit_job(with_key(&runner, run)).await.unwrap();
    let job_id = submitted.into_inner().job.unwrap().job_id;
    let get = GetJobRequest { job_id: job_id.clone() };
    let wait = WaitJobRequest { job_id: job_id.clone(), wait_ms: Some(1) };

    let watch = WatchJobRequest { job_id: job_id.clone(), ..WatchJobRequest::default() };
    let cancel = CancelJobRequest { job_id: job_id.clone() };
    for (rpc, reason) in [
        ("GetJob", rejection_reason(jobs.get_job(with_key(&lister, get.clone())).await)),
        ("WaitJob", rejection_reason(jobs.wait_job(with_key(&lister, wait)).await)),
        ("WatchJob", rejection_reason(jobs.watch_job(with_key(&lister, watch)).await)),
        ("CancelJob", rejection_reason(jobs.cancel_job(with_key(&lister, cancel.clone())).await)),
    ] {
        assert_eq!(reason, "JOB_NOT_FOUND", "{rpc}");
    }

    // A job of its own tool. The hidden job would follow it in the list.
    let list = submit("list_files", "{}");
    let own_job = jobs.submit_job(with_key(&lister, list)).await.unwrap();
    let own_job = own_job.into_inner().job.unwrap().job_id;
    let request = with_key(&lister, ListJobsRequest::default());
    let list = jobs.list_jobs(request).await.unwrap().into_inner();
    let list: Vec<_> = list.jobs.iter().map(|job| &*job.job_id).collect();
    assert_eq!(list, [own_job]);

    let unknown = submit("dance", "{}");
    let response = jobs.submit_job(with_key(&lister, unknown)).await;
    let refusal = Refusal::from_status(&response.unwrap_err());
    assert_eq!(refusal.reason, "UNKNOWN_TOOL");
    assert!(refusal.message.contains("list_files"), "{refusal:?}");
    assert!(!refusal.message.contains("apply_patch"), "{refusal:?}");

    jobs.cancel_job(with_key(&runner, cancel)).await.unwrap();
}

#[tokio::test]
async fn artifacts_of_other_tools_cannot_be_read() {
    let keys = Arc::new(KeyFile::new());
    let runner = keys.add_key("runner", "invoke", &[]);
    let lister = keys.add_key("lister", "invoke", &["--for-tool", "list_files"]);
    let daemon = start_daemon_with_keys(Setup::new(), &keys).await;
    let run = daemon.run(with_key(&runner, shell("echo secret"))).await;
    let mut artifacts = ArtifactServiceClient::new(daemon.channel());
    let request = |path: &str| ReadArtifactRequest {
        path: path.to_owned(),
        ..ReadArtifactRequest::default()
    };

    for path in [&*run.stdout_path, "diffs/step_0001.patch"] {
        let response = artifacts.read_artifact(with_key(&lister, request(path)));
        assert_eq!(rejection_reason(response.await), "FORBIDDEN", "{path}");
    }

    for (key, number) in [(&runner, 1), (&lister, 0)] {
        let request = with_key(key, ListArtifactsRequest::default());
        let response = artifacts.list_artifacts(request).await.unwrap();
        assert_eq!(response.into_inner().artifacts.len(), number);
    }

    let mut transfers = TransferServiceClient::new(daemon.channel());
    let upload = GetUploadRequest { upload_id: "some".to_owned() };
    let response = transfers.get_upload(with_key(&lister, upload)).await;
    assert_eq!(rejection_reason(response), "FORBIDDEN");
}

#[tokio::test]
async fn revoked_key_ends_its_wait_for_a_job() {
    let keys = Arc::new(KeyFile::new());
    let key = keys.add_key("gone", "invoke", &[]);
    let daemon = start_daemon_with_keys(Setup::new(), &keys).await;
    let mut jobs = JobServiceClient::new(daemon.channel());
    let run = SubmitJobRequest {
        tool: "run".to_owned(),
        params_json: "{\"command\": \"sleep 1000\"}".to_owned(),
        ..SubmitJobRequest::default()
    };

    let submitted = jobs.submit_job(with_key(&key, run)).await.unwrap();
    let wait = WaitJobRequest { job_id: submitted.into_inner().job.unwrap().job_id, wait_ms: None };
    let channel = daemon.channel();
    let mut client = JobServiceClient::new(channel.clone());
    let mut wait_call = Box::pin(client.wait_job(with_key(&key, wait)));
    let early = timeout(Duration::from_millis(1), &mut wait_call).await;
    assert!(early.is_err(), "{early:?}");

    // A second call on the same connection. Its response shows that the daemon has received the
    // first call.
    let mut second = JobServiceClient::new(channel);
    let request = with_key(&key, ListJobsRequest::default());
    second.list_jobs(request).await.unwrap();
    assert!(keys.run_jig_key(&["revoke", "gone"]).status.success());

    daemon.reload_config(Daemon::RELOADED).await;
    let response = promptly("the wait ends", wait_call).await;
    assert_eq!(rejection_reason(response), "UNAUTHENTICATED");
}
