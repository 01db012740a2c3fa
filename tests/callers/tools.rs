//! A key for some tools can do nothing about what others do.

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

use super::with_keys;
use crate::support::{Daemon, KeyFile, Refusal, Setup, promptly, shell, started, with_key};

async fn start(daemon: &Daemon, key: &str, command: &str) -> (String, Streaming<StartResponse>) {
    let mut processes = ProcessServiceClient::new(daemon.channel());
    let mut request = started(shell(command));
    request.stdin_open = Some(true);
    let request = with_key(key, request);
    let mut stream = processes.start(request).await.unwrap().into_inner();
    let first = stream.message().await.unwrap().unwrap();
    let Some(Event::Started(started)) = first.event else {
        panic!("{first:?}");
    };
    (started.process_id, stream)
}

fn reason<T>(answer: Result<Response<T>, Status>) -> String {
    match answer {
        Ok(_) => "let in".to_owned(),
        Err(status) => Refusal::of(&status).reason,
    }
}

fn write(process_id: &str, text: &str) -> WriteStdinRequest {
    WriteStdinRequest {
        process_id: process_id.to_owned(),
        data: text.as_bytes().to_vec().into(),
        ..WriteStdinRequest::default()
    }
}

#[tokio::test]
async fn processes_are_for_those_who_may_run_commands() {
    let keys = Arc::new(KeyFile::new());
    let runner = keys.add("runner", "invoke", &[]);
    let lister = keys.add("lister", "invoke", &["--for-tool", "list_files"]);
    let daemon = with_keys(Setup::new(), &keys).await;
    let (id, _stream) = start(&daemon, &runner, "read line; touch \"$line\"").await;
    let mut client = ProcessServiceClient::new(daemon.channel());
    let attach = AttachRequest { process_id: id.clone(), ..AttachRequest::default() };
    let signal = SendSignalRequest { process_id: id.clone(), signal: "KILL".to_owned() };
    let resize = ResizeTerminalRequest { process_id: id.clone(), cols: 80, rows: 24 };
    let fed = write(&id, "bypassed\n");
    let list = ListProcessesRequest::default();
    for (what, answer) in [
        ("Attach", reason(client.attach(with_key(&lister, attach)).await)),
        ("WriteStdin", reason(client.write_stdin(with_key(&lister, fed)).await)),
        ("SendSignal", reason(client.send_signal(with_key(&lister, signal)).await)),
        ("ResizeTerminal", reason(client.resize_terminal(with_key(&lister, resize)).await)),
        ("ListProcesses", reason(client.list_processes(with_key(&lister, list)).await)),
    ] {
        assert_eq!(answer, "FORBIDDEN", "{what}");
    }
    let request = with_key(&runner, ListProcessesRequest::default());
    let listed = client.list_processes(request).await.unwrap().into_inner();
    assert_eq!(listed.processes.len(), 1);
    assert!(!daemon.file("bypassed").exists());
}

#[tokio::test]
async fn a_shell_gets_nothing_more_to_do_once_commands_are_switched_off() {
    let keys = Arc::new(KeyFile::new());
    let key = keys.add("runner", "invoke", &[]);
    let daemon = with_keys(Setup::new().workspace_table(""), &keys).await;
    let (id, _stream) = start(&daemon, &key, "while read line; do touch \"$line\"; done").await;
    let file = daemon.beside("jig.toml");
    let before = fs::read_to_string(&file).unwrap();
    fs::write(&file, format!("{before}\n[policy]\ndeny_tools = [\"run\"]\n")).unwrap();
    daemon.reload(Daemon::READ_AGAIN).await;
    let mut client = ProcessServiceClient::new(daemon.channel());
    let answer = client.write_stdin(with_key(&key, write(&id, "late\n"))).await;
    assert_eq!(reason(answer), "TOOL_DISABLED");
    // It can still be ended.
    let signal = SendSignalRequest { process_id: id, signal: "KILL".to_owned() };
    client.send_signal(with_key(&key, signal)).await.unwrap();
    assert!(!daemon.file("late").exists());
}

#[tokio::test]
async fn jobs_of_other_tools_are_not_there() {
    let keys = Arc::new(KeyFile::new());
    let runner = keys.add("runner", "invoke", &[]);
    let lister = keys.add("lister", "invoke", &["--for-tool", "list_files"]);
    let daemon = with_keys(Setup::new(), &keys).await;
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
    for (what, answer) in [
        ("GetJob", reason(jobs.get_job(with_key(&lister, get.clone())).await)),
        ("WaitJob", reason(jobs.wait_job(with_key(&lister, wait)).await)),
        ("WatchJob", reason(jobs.watch_job(with_key(&lister, watch)).await)),
        ("CancelJob", reason(jobs.cancel_job(with_key(&lister, cancel.clone())).await)),
    ] {
        assert_eq!(answer, "JOB_NOT_FOUND", "{what}");
    }
    // One of its own tool, behind which the other one stands.
    let list = submit("list_files", "{}");
    let own = jobs.submit_job(with_key(&lister, list)).await.unwrap();
    let own = own.into_inner().job.unwrap().job_id;
    let request = with_key(&lister, ListJobsRequest::default());
    let listed = jobs.list_jobs(request).await.unwrap().into_inner();
    let listed: Vec<_> = listed.jobs.iter().map(|job| &*job.job_id).collect();
    assert_eq!(listed, [own]);
    let unknown = submit("dance", "{}");
    let refused = jobs.submit_job(with_key(&lister, unknown)).await;
    let refusal = Refusal::of(&refused.unwrap_err());
    assert_eq!(refusal.reason, "UNKNOWN_TOOL");
    assert!(refusal.message.contains("list_files"), "{refusal:?}");
    assert!(!refusal.message.contains("apply_patch"), "{refusal:?}");
    jobs.cancel_job(with_key(&runner, cancel)).await.unwrap();
}

#[tokio::test]
async fn what_other_tools_left_cannot_be_read() {
    let keys = Arc::new(KeyFile::new());
    let runner = keys.add("runner", "invoke", &[]);
    let lister = keys.add("lister", "invoke", &["--for-tool", "list_files"]);
    let daemon = with_keys(Setup::new(), &keys).await;
    let ran = daemon.run(with_key(&runner, shell("echo secret"))).await;
    let mut artifacts = ArtifactServiceClient::new(daemon.channel());
    let request = |path: &str| ReadArtifactRequest {
        path: path.to_owned(),
        ..ReadArtifactRequest::default()
    };
    for path in [&*ran.stdout_path, "diffs/step_0001.patch"] {
        let read = artifacts.read_artifact(with_key(&lister, request(path)));
        assert_eq!(reason(read.await), "FORBIDDEN", "{path}");
    }
    for (key, number) in [(&runner, 1), (&lister, 0)] {
        let request = with_key(key, ListArtifactsRequest::default());
        let listed = artifacts.list_artifacts(request).await.unwrap();
        assert_eq!(listed.into_inner().artifacts.len(), number);
    }
    let mut transfers = TransferServiceClient::new(daemon.channel());
    let upload = GetUploadRequest { upload_id: "some".to_owned() };
    let answer = transfers.get_upload(with_key(&lister, upload)).await;
    assert_eq!(reason(answer), "FORBIDDEN");
}

#[tokio::test]
async fn who_waits_for_a_job_learns_nothing_when_his_key_is_gone() {
    let keys = Arc::new(KeyFile::new());
    let gone = keys.add("gone", "invoke", &[]);
    let daemon = with_keys(Setup::new(), &keys).await;
    let mut jobs = JobServiceClient::new(daemon.channel());
    let run = SubmitJobRequest {
        tool: "run".to_owned(),
        params_json: "{\"command\": \"sleep 1000\"}".to_owned(),
        ..SubmitJobRequest::default()
    };
    let submitted = jobs.submit_job(with_key(&gone, run)).await.unwrap();
    let wait = WaitJobRequest { job_id: submitted.into_inner().job.unwrap().job_id, wait_ms: None };
    let channel = daemon.channel();
    let mut waiting = JobServiceClient::new(channel.clone());
    let mut waiting = Box::pin(waiting.wait_job(with_key(&gone, wait)));
    let early = timeout(Duration::from_millis(1), &mut waiting).await;
    assert!(early.is_err(), "{early:?}");
    // Behind it on the same connection: that it is answered shows that the other one waits.
    let mut behind = JobServiceClient::new(channel);
    let request = with_key(&gone, ListJobsRequest::default());
    behind.list_jobs(request).await.unwrap();
    assert!(keys.jig(&["revoke", "gone"]).status.success());
    daemon.reload(Daemon::READ_AGAIN).await;
    let answer = promptly("the wait ends", waiting).await;
    assert_eq!(reason(answer), "UNAUTHENTICATED");
}
