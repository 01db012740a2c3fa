//! A key for one workspace has no access to another.

use std::{fs, sync::Arc};

use jig::api::v1::{
    AttachRequest, CancelJobRequest, Counts, GetInfoRequest, GetJobRequest, GetUploadRequest,
    ListJobsRequest, ListProcessesRequest, ReadArtifactRequest, ReadFileRequest, StartRequest,
    SubmitJobRequest, UploadRequest, UploadStart, WaitJobRequest, WatchJobRequest,
    artifact_service_client::ArtifactServiceClient, daemon_service_client::DaemonServiceClient,
    job_service_client::JobServiceClient, process_service_client::ProcessServiceClient,
    start_response, transfer_service_client::TransferServiceClient, upload_request::Part,
};
use tempfile::TempDir;
use tonic::Request;

use super::start_daemon_with_keys;
use crate::support::{Daemon, KeyFile, Refusal, Setup, eventually, shell, with_key};

/// A daemon with two workspaces, and a key for each.
struct TwoWorkspaces {
    daemon: Daemon,
    /// Key for the first workspace.
    first: String,
    /// Key for the workspace `other`.
    other: String,
    keys: Arc<KeyFile>,
    directory: TempDir,
}

impl TwoWorkspaces {
    async fn start() -> Self {
        let directory = TempDir::with_prefix("jig-test-other-").unwrap();
        fs::write(directory.path().join("secret"), "of the other").unwrap();
        let keys = Arc::new(KeyFile::new());
        let first = keys.add_key("first", "admin", &["--for-workspace", "workspace"]);
        let other = keys.add_key("other", "admin", &["--for-workspace", "other"]);
        let workspace = format!("other={}", directory.path().display());
        let setup = Setup::new().arguments(&["--workspace", &workspace]);

        Self { daemon: start_daemon_with_keys(setup, &keys).await, first, other, keys, directory }
    }

    fn request_in_other<T>(key: &str, message: T) -> Request<T> {
        let mut request = with_key(key, message);
        let name = "other".parse().unwrap();
        request.metadata_mut().insert("jig-workspace", name);
        request
    }
}

#[tokio::test]
async fn workspaces_outside_a_keys_scope_are_hidden() {
    let two = TwoWorkspaces::start().await;
    let refusal_in = |key: &str, name: &str| {
        let mut request = with_key(key, shell("true"));
        let name = name.parse().unwrap();
        request.metadata_mut().insert("jig-workspace", name);
        let daemon = &two.daemon;
        async move { Refusal::from_status(&daemon.try_run(request).await.unwrap_err()) }
    };

    let hidden = refusal_in(&two.first, "other").await;
    let missing = refusal_in(&two.first, "third").await;
    assert_eq!(hidden.reason, "UNKNOWN_WORKSPACE");
    assert_eq!(hidden.reason, missing.reason);
    assert_eq!(hidden.message.replace("other", "third"), missing.message);

    // Each key has its own workspace as the default.
    let read = ReadFileRequest { path: "secret".to_owned(), ..ReadFileRequest::default() };
    let request = with_key(&two.other, read.clone());
    let response = two.daemon.tools().read_file(request).await;
    assert_eq!(response.unwrap().into_inner().content, "of the other");

    let response = two.daemon.tools().read_file(with_key(&two.first, read)).await;
    assert_eq!(Refusal::from_status(&response.unwrap_err()).reason, "FILE_NOT_FOUND");

    let mut info = DaemonServiceClient::new(two.daemon.channel());
    for (key, own, foreign) in
        [(&two.first, "workspace", "other"), (&two.other, "other", "workspace")]
    {
        let info = info.get_info(with_key(key, GetInfoRequest {})).await.unwrap();
        let info = info.into_inner();
        let names: Vec<_> = info.workspaces.iter().map(|workspace| &*workspace.name).collect();
        assert_eq!(names, [own], "and not {foreign}");
    }
}

#[tokio::test]
async fn sessions_of_one_name_are_separate_per_workspace() {
    let two = TwoWorkspaces::start().await;
    let artifacts = |key: String, path: String| {
        let mut client = ArtifactServiceClient::new(two.daemon.channel());
        async move {
            let request = ReadArtifactRequest { path, ..ReadArtifactRequest::default() };
            let response = client.read_artifact(with_key(&key, request)).await;
            let mut messages =
                response.map_err(|status| Refusal::from_status(&status).reason)?.into_inner();
            Ok::<_, String>(messages.message().await.unwrap().unwrap().data)
        }
    };

    let run = |key: &str, text: &str| two.daemon.run(with_key(key, shell(&format!("echo {text}"))));
    let first = run(&two.first, "1").await.stdout_path;
    assert_eq!(first, "logs/tool_step_0001_stdout.txt");

    let missing = artifacts(two.other.clone(), first.clone()).await;
    assert_eq!(missing, Err("ARTIFACT_NOT_FOUND".to_owned()));

    let other = run(&two.other, "2").await.stdout_path;
    assert_eq!(other, first, "steps are not counted per workspace");

    for (key, expected) in [(&two.first, "1\n"), (&two.other, "2\n")] {
        let data = artifacts(key.clone(), first.clone()).await;
        assert_eq!(data.unwrap(), expected);
    }

    let state = two.daemon.state_dir();
    for directory in ["default", "default@other"] {
        let events = state.join("sessions").join(directory).join("events.jsonl");
        assert_eq!(fs::read_to_string(events).unwrap().lines().count(), 2);
    }
}

#[tokio::test]
async fn processes_are_separate_per_workspace() {
    let two = TwoWorkspaces::start().await;
    let mut processes = ProcessServiceClient::new(two.daemon.channel());
    let start = StartRequest { command: Some("sleep 100".to_owned()), ..StartRequest::default() };
    let stream = processes.start(with_key(&two.first, start)).await.unwrap();
    let mut stream = stream.into_inner();
    let Some(start_response::Event::Started(started)) =
        stream.message().await.unwrap().unwrap().event
    else {
        panic!("the first message is not `started`");
    };

    let mut process_count = async |key: &str| {
        let response = processes.list_processes(with_key(key, ListProcessesRequest {}));
        response.await.unwrap().into_inner().processes.len()
    };
    assert_eq!(process_count(&two.first).await, 1);
    assert_eq!(process_count(&two.other).await, 0);

    let attach = AttachRequest { process_id: started.process_id, ..AttachRequest::default() };
    let response = processes.attach(with_key(&two.other, attach.clone())).await;
    assert_eq!(Refusal::from_status(&response.unwrap_err()).reason, "PROCESS_NOT_FOUND");

    let response = processes.attach(TwoWorkspaces::request_in_other(&two.first, attach)).await;
    assert_eq!(Refusal::from_status(&response.unwrap_err()).reason, "UNKNOWN_WORKSPACE");
}

#[tokio::test]
async fn jobs_are_separate_per_workspace() {
    let two = TwoWorkspaces::start().await;
    let mut jobs = JobServiceClient::new(two.daemon.channel());
    let submit = SubmitJobRequest {
        tool: "run".to_owned(),
        params_json: "{\"command\": \"sleep 1000\"}".to_owned(),
        ..SubmitJobRequest::default()
    };
    let submitted = jobs.submit_job(with_key(&two.other, submit)).await.unwrap();
    let job_id = submitted.into_inner().job.unwrap().job_id;

    let get = GetJobRequest { job_id: job_id.clone() };
    let wait = WaitJobRequest { job_id: job_id.clone(), wait_ms: Some(1) };

    let watch = WatchJobRequest { job_id: job_id.clone(), ..WatchJobRequest::default() };
    let cancel = CancelJobRequest { job_id: job_id.clone() };
    for (in_other, reason) in [(false, "JOB_NOT_FOUND"), (true, "UNKNOWN_WORKSPACE")] {
        fn request<T>(two: &TwoWorkspaces, in_other: bool, message: T) -> Request<T> {
            if in_other {
                TwoWorkspaces::request_in_other(&two.first, message)
            } else {
                with_key(&two.first, message)
            }
        }
        let errors = [
            jobs.get_job(request(&two, in_other, get.clone())).await.err(),
            jobs.wait_job(request(&two, in_other, wait.clone())).await.err(),
            jobs.watch_job(request(&two, in_other, watch.clone())).await.err(),
            jobs.cancel_job(request(&two, in_other, cancel.clone())).await.err(),
        ];

        for error in errors {
            assert_eq!(Refusal::from_status(&error.unwrap()).reason, reason);
        }
    }

    for (key, number) in [(&two.first, 0), (&two.other, 1)] {
        let response = jobs.list_jobs(with_key(key, ListJobsRequest::default()));
        assert_eq!(response.await.unwrap().into_inner().jobs.len(), number);
    }

    jobs.cancel_job(with_key(&two.other, cancel)).await.unwrap();
}

#[tokio::test]
async fn uploads_are_separate_per_workspace() {
    let two = TwoWorkspaces::start().await;
    let mut transfers = TransferServiceClient::new(two.daemon.channel());
    let start = UploadStart {
        path: "f".to_owned(),
        upload_id: Some("one".to_owned()),
        size_bytes: 10,
        sha256: "0".repeat(64),
        ..UploadStart::default()
    };

    // An interrupted upload, which the daemon stores.
    let parts = tokio_stream::iter([UploadRequest { part: Some(Part::Start(start)) }]);
    transfers.upload(with_key(&two.other, parts)).await.unwrap_err();
    let upload = GetUploadRequest { upload_id: "one".to_owned() };
    let response = transfers.get_upload(with_key(&two.other, upload.clone()));
    assert_eq!(response.await.unwrap().into_inner().path, "f");

    let response = transfers.get_upload(with_key(&two.first, upload)).await;
    assert_eq!(Refusal::from_status(&response.unwrap_err()).reason, "UPLOAD_NOT_FOUND");
}

#[tokio::test]
async fn calls_in_another_workspace_are_not_counted() {
    let two = TwoWorkspaces::start().await;
    let all = two.keys.add_key("all", "read", &[]);
    two.daemon.reload_config(Daemon::RELOADED).await;
    let running = two.daemon.spawn_run(with_key(
        &two.other,
        shell("touch begun; until [ -e go ]; do sleep 0.01; done"),
    ));
    let started_file = two.directory.path().join("begun");
    eventually("the command runs", async || started_file.exists()).await;

    let counts = async |key: &str| -> Counts {
        let mut info = DaemonServiceClient::new(two.daemon.channel());
        let info = info.get_info(with_key(key, GetInfoRequest {})).await;
        info.unwrap().into_inner().counts.unwrap()
    };
    for (key, number) in [(&two.first, 0), (&two.other, 1), (&all, 1)] {
        let counts = counts(key).await;
        assert_eq!((counts.calls_running, counts.runs_active), (number, number), "{counts:?}");
    }

    fs::write(two.directory.path().join("go"), "").unwrap();
    running.await.unwrap().unwrap();

    for (key, number) in [(&two.first, 0), (&two.other, 1), (&all, 1)] {
        let counts = counts(key).await;
        assert_eq!(counts.calls_finished, number, "{counts:?}");
    }

    let mut info = DaemonServiceClient::new(two.daemon.channel());
    let request = TwoWorkspaces::request_in_other(&two.first, GetInfoRequest {});
    let status = info.get_info(request).await.unwrap_err();
    assert_eq!(Refusal::from_status(&status).reason, "UNKNOWN_WORKSPACE");
}
