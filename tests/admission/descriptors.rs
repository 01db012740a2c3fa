//! A daemon without free descriptors: it retries calls, then rejects them with the cause, and
//! serves them once descriptors are free.

use std::{fs, os::unix::net::UnixStream, time::Duration};

use jig::api::v1::{
    ApplyPatchRequest, CreateDirectoryRequest, DeletePathRequest, DownloadRequest, Edit,
    EditFileRequest, JobState, ListDirectoryRequest, ListFilesRequest, MovePathRequest, RunRequest,
    SearchRequest, StatPathRequest, SubmitJobRequest, UploadRequest, UploadStart, WaitJobRequest,
    WatchJobRequest, WriteFileRequest, job_service_client::JobServiceClient,
    transfer_service_client::TransferServiceClient, upload_request::Part,
};
use tonic::Status;

use crate::support::{Daemon, Refusal, Setup, eventually, promptly, shell, start_request};

fn open_descriptor_count(daemon: &Daemon) -> u64 {
    let listed = fs::read_dir(format!("/proc/{}/fd", daemon.pid())).unwrap();
    listed.count() as u64
}

/// Runs an operation of each kind. Later ones need the results of earlier ones.
async fn run_operation(daemon: &Daemon, number: usize) -> Result<(), Status> {
    match number {
        0..=5 => change_files(daemon, number).await,
        6..=9 => read_files(daemon, number).await,
        10 => {
            // Without input, a command may need no descriptor: its pipes are there already.
            let stdin = b"input".to_vec().into();
            daemon.try_run(RunRequest { stdin, ..shell("touch ran") }).await.map(drop)
        }
        11 | 12 => transfer_file(daemon, number == 11).await,
        _ => match daemon.try_start_process(start_request(shell("true"))).await {
            Ok(mut watch) => {
                watch.wait_for_exit().await;
                Ok(())
            }
            Err(status) => Err(status),
        },
    }
}

async fn change_files(daemon: &Daemon, number: usize) -> Result<(), Status> {
    let mut tools = daemon.tools();
    let text = |text: &str| text.to_owned();
    match number {
        0 => {
            let request = WriteFileRequest {
                path: text("d/new"),
                content: text("one\n"),
                ..WriteFileRequest::default()
            };
            tools.write_file(request).await.map(drop)
        }
        1 => {
            let edit = Edit { old_string: text("one"), new_string: text("two"), ..Edit::default() };
            let request = EditFileRequest {
                path: text("d/new"),
                edits: vec![edit],
                ..EditFileRequest::default()
            };
            tools.edit_file(request).await.map(drop)
        }
        2 => {
            let request = ApplyPatchRequest {
                unified_diff: text("--- a/d/new\n+++ b/d/new\n@@ -1 +1 @@\n-two\n+three\n"),
                ..ApplyPatchRequest::default()
            };
            tools.apply_patch(request).await.map(drop)
        }
        3 => {
            let path = text("e/f");
            let request = CreateDirectoryRequest { path };
            tools.create_directory(request).await.map(drop)
        }
        4 => {
            let request = MovePathRequest {
                source: text("d/new"),
                destination: text("e/new"),
                ..MovePathRequest::default()
            };
            tools.move_path(request).await.map(drop)
        }
        _ => {
            let request = DeletePathRequest { path: text("e"), recursive: Some(true) };
            tools.delete_path(request).await.map(drop)
        }
    }
}

async fn read_files(daemon: &Daemon, number: usize) -> Result<(), Status> {
    let mut tools = daemon.tools();
    match number {
        6 => tools.list_files(ListFilesRequest::default()).await.map(drop),
        7 => tools.list_directory(ListDirectoryRequest::default()).await.map(drop),
        8 => {
            let path = ".".to_owned();
            tools.stat_path(StatPathRequest { path }).await.map(drop)
        }
        _ => {
            let query = "x".to_owned();
            let request = SearchRequest { query, ..SearchRequest::default() };
            tools.search(request).await.map(drop)
        }
    }
}

async fn transfer_file(daemon: &Daemon, is_upload: bool) -> Result<(), Status> {
    let mut transfers = TransferServiceClient::new(daemon.channel());
    if !is_upload {
        let path = "ran".to_owned();
        let request = DownloadRequest { path, ..DownloadRequest::default() };
        return transfers.download(request).await.map(drop);
    }

    let start = UploadStart {
        path: "uploaded".to_owned(),
        // The digest of no bytes.
        sha256: "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855".to_owned(),
        ..UploadStart::default()
    };
    let part = Some(Part::Start(start));
    let messages = tokio_stream::iter([UploadRequest { part }]);
    transfers.upload(messages).await.map(drop)
}

/// Number of operations of [`run_operation`].
const OPERATION_COUNT: usize = 14;

#[tokio::test]
async fn calls_without_descriptors_fail_and_change_nothing() {
    let daemon = Daemon::start().await;
    daemon.run(shell("true")).await;
    for number in 0..OPERATION_COUNT {
        let before = daemon.list_files().await;
        let usual_limit = daemon.set_descriptor_limit(3);
        let refused =
            promptly("the daemon rejects the operation", run_operation(&daemon, number)).await;
        daemon.set_descriptor_limit(usual_limit);
        let refusal = Refusal::from_status(&refused.expect_err(&format!("{number}")));
        assert_eq!(refusal.reason, "RESOURCE_EXHAUSTED", "{number}: {refusal:?}");
        assert!(refusal.message.contains("ulimit -n"), "{number}: {refusal:?}");
        assert!(refusal.retry_after.is_some(), "{number}");
        assert_eq!(daemon.list_files().await, before, "{number}");
        assert!(!daemon.file("ran").exists() && !daemon.file("e/f").exists() || number > 3);

        // With free descriptors, the operation succeeds.
        let done = promptly("the operation succeeds", run_operation(&daemon, number)).await;
        done.unwrap_or_else(|status| panic!("{number}: {status:?}"));
    }
}

#[tokio::test]
async fn calls_wait_out_brief_descriptor_shortage() {
    let daemon = Daemon::start().await;
    daemon.run(shell("true")).await;
    for number in 0..OPERATION_COUNT {
        let usual_limit = daemon.set_descriptor_limit(3);
        let (done, ()) = tokio::join!(run_operation(&daemon, number), async {
            // Less than all pauses between the retries.
            tokio::time::sleep(Duration::from_millis(150)).await;
            daemon.set_descriptor_limit(usual_limit);
        });
        done.unwrap_or_else(|status| panic!("{number}: {status:?}"));
    }

    assert_eq!(daemon.list_files().await, ["ran", "uploaded"]);
}

#[tokio::test]
async fn a_job_waits_for_descriptors() {
    let table = "[jobs]\nqueue_concurrency = 1\n";
    let daemon = Setup::new().workspace_table(table).start().await;
    let mut jobs = JobServiceClient::new(daemon.channel());

    let request = |line: &str| SubmitJobRequest {
        tool: "run".to_owned(),
        params_json: serde_json::json!({ "command": line }).to_string(),
        ..SubmitJobRequest::default()
    };
    let first = jobs.submit_job(request("until [ -e go ]; do sleep 0.01; done; touch went"));
    first.await.unwrap();
    let second = jobs.submit_job(request("echo ran >> runs")).await;
    let job_id = second.unwrap().into_inner().job.unwrap().job_id;
    let usual_limit = daemon.set_descriptor_limit(3);

    let refused = promptly("the daemon rejects the job", jobs.submit_job(request("true"))).await;
    let refusal = Refusal::from_status(&refused.unwrap_err());
    assert_eq!(refusal.reason, "RESOURCE_EXHAUSTED", "{refusal:?}");
    assert!(refusal.retry_after.is_some());

    fs::write(daemon.file("go"), "").unwrap();
    eventually("the daemon cannot read the job parameters", async || {
        daemon.log().contains("cannot read the parameters of a job yet")
    })
    .await;

    daemon.set_descriptor_limit(usual_limit);
    let request = WaitJobRequest { job_id, wait_ms: None };
    let done = promptly("the job ends", jobs.wait_job(request)).await;
    let done = done.unwrap().into_inner().job.unwrap();
    assert_eq!(done.state(), JobState::Succeeded, "{done:?}");
    assert_eq!(fs::read_to_string(daemon.file("runs")).unwrap(), "ran\n");
}

#[tokio::test]
async fn job_watch_reports_descriptor_shortage() {
    let daemon = Daemon::start().await;
    let mut jobs = JobServiceClient::new(daemon.channel());

    let request = SubmitJobRequest {
        tool: "run".to_owned(),
        params_json: serde_json::json!({ "command": "echo kept" }).to_string(),
        ..SubmitJobRequest::default()
    };
    let submitted = jobs.submit_job(request).await.unwrap().into_inner();
    let job_id = submitted.job.unwrap().job_id;
    let request = WaitJobRequest { job_id: job_id.clone(), wait_ms: None };
    promptly("the job ends", jobs.wait_job(request)).await.unwrap();

    let mut watch = async || {
        let request = WatchJobRequest { job_id: job_id.clone(), ..WatchJobRequest::default() };
        let mut stream = jobs.watch_job(request).await?.into_inner();
        while promptly("a message arrives or the watch ends", stream.message()).await?.is_some() {}
        Ok::<_, Status>(())
    };
    let usual_limit = daemon.set_descriptor_limit(3);
    let refused = watch().await;
    daemon.set_descriptor_limit(usual_limit);
    let refusal = Refusal::from_status(&refused.unwrap_err());
    assert_eq!(refusal.reason, "RESOURCE_EXHAUSTED", "{refusal:?}");
    assert!(refusal.message.contains("ulimit -n"), "{refusal:?}");
    assert!(refusal.retry_after.is_some());

    watch().await.unwrap();
}

#[tokio::test]
async fn connections_that_exhaust_descriptors_do_not_stop_daemon() {
    let daemon = Daemon::start().await;

    daemon.run(shell("true")).await;
    let usual_limit = daemon.set_descriptor_limit(open_descriptor_count(&daemon) + 8);
    let connections: Vec<_> =
        (0..64).map_while(|_| UnixStream::connect(daemon.socket()).ok()).collect();
    eventually("there are no descriptors left", async || {
        matches!(run_operation(&daemon, 7).await, Err(status) if Refusal::from_status(&status).reason == "RESOURCE_EXHAUSTED")
    })
    .await;

    // A call that needs no descriptor is answered.
    promptly("the daemon answers GetInfo", daemon.info()).await;
    drop(connections);
    eventually("the daemon serves calls again", async || {
        run_operation(&daemon, 7).await.is_ok() && daemon.try_run(shell("true")).await.is_ok()
    })
    .await;

    let mut tools = daemon.tools_on_new_connection();
    let listed = promptly(
        "the daemon accepts new connections",
        tools.list_files(ListFilesRequest::default()),
    );
    listed.await.unwrap();
    daemon.set_descriptor_limit(usual_limit);
}
