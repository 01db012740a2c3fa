//! Watches of a job: its states and the whole output of its command, from any offset.

use std::fs;

use jig::api::v1::{Job, JobState, WatchJobRequest, watch_job_response::Event};
use tonic::Streaming;

use super::{Jobs, WAIT_FOR_GO_FILE, command_job, expect_result, result_data};
use crate::support::{Daemon, Refusal, Setup, eventually, promptly};

/// What a watch has received.
#[derive(Default)]
pub(crate) struct WatchedEvents {
    pub(crate) states: Vec<JobState>,
    pub(crate) stdout: Vec<u8>,
    pub(crate) stderr: Vec<u8>,
    pub(crate) last: Option<Job>,
}

impl WatchedEvents {
    /// Reads the next message. Returns false at the end of the stream.
    pub(crate) async fn read_next(
        &mut self,
        stream: &mut Streaming<jig::api::v1::WatchJobResponse>,
        offsets: (u64, u64),
    ) -> bool {
        let Some(message) = stream.message().await.unwrap() else {
            return false;
        };
        match message.event.unwrap() {
            Event::Job(job) => {
                self.states.push(job.state());
                self.last = Some(job);
            }
            Event::Stdout(output) => {
                assert_eq!(output.offset, offsets.0 + self.stdout.len() as u64);
                self.stdout.extend_from_slice(&output.data);
            }
            Event::Stderr(output) => {
                assert_eq!(output.offset, offsets.1 + self.stderr.len() as u64);
                self.stderr.extend_from_slice(&output.data);
            }
            Event::KeepAlive(_) => {}
        }
        true
    }
}

async fn watch_to_end(jobs: &mut Jobs, id: &str, offsets: (u64, u64)) -> WatchedEvents {
    let request = WatchJobRequest {
        job_id: id.to_owned(),
        stdout_offset: offsets.0,
        stderr_offset: offsets.1,
        ..WatchJobRequest::default()
    };
    let mut stream = jobs.0.watch_job(request).await.unwrap().into_inner();
    let mut watched = WatchedEvents::default();
    while promptly("a message arrives", watched.read_next(&mut stream, offsets)).await {}

    watched
}

#[tokio::test]
async fn watch_streams_output_live_and_result_last() {
    let setup = Setup::new().workspace_table("[jobs]\nqueue_concurrency = 1\n");
    let daemon = setup.start().await;
    let mut jobs = Jobs::of(&daemon);

    let first = jobs.submit(command_job(WAIT_FOR_GO_FILE)).await;
    let line = "echo one; echo two >&2; until [ -e on ]; do sleep 0.05; done; seq 20000; exit 4";
    let id = jobs.submit(command_job(line)).await;
    let request = WatchJobRequest { job_id: id.clone(), ..WatchJobRequest::default() };
    let mut stream = jobs.0.watch_job(request).await.unwrap().into_inner();

    let mut watched = WatchedEvents::default();
    watched.read_next(&mut stream, (0, 0)).await;
    assert_eq!(watched.states, [JobState::Queued]);

    fs::write(daemon.file("go"), "").unwrap();
    while watched.stdout.is_empty() || watched.stderr.is_empty() {
        assert!(promptly("output arrives", watched.read_next(&mut stream, (0, 0))).await);
    }
    assert_eq!((&*watched.stdout, &*watched.stderr), (&b"one\n"[..], &b"two\n"[..]));

    fs::write(daemon.file("on"), "").unwrap();
    while promptly("the watch ends", watched.read_next(&mut stream, (0, 0))).await {}
    let expected: String = (1..=20_000).map(|number| format!("{number}\n")).collect();
    assert_eq!(watched.stdout, format!("one\n{expected}").into_bytes());
    use JobState::{Queued, Running, Succeeded};

    assert_eq!(watched.states, [Queued, Running, Succeeded]);

    let response = expect_result(watched.last.unwrap(), JobState::Succeeded);
    assert_eq!(response.exit_code, Some(4));

    // From any offset, once the job has ended, after a restart.
    let whole_stdout = watched.stdout;
    expect_result(jobs.wait(&first).await, JobState::Succeeded);

    let daemon = daemon.restart().await;
    let mut jobs = Jobs::of(&daemon);
    for offsets in [
        (0, 0),
        (4, 4),
        (70_000, 2),
        (whole_stdout.len() as u64, 0),
        (1 << 40, 1 << 40),
        // Larger than the kernel's signed file offsets.
        (1 << 63, u64::MAX),
    ] {
        let watched = watch_to_end(&mut jobs, &id, offsets).await;
        let rest = whole_stdout.get(usize::try_from(offsets.0).unwrap()..).unwrap_or_default();
        assert_eq!(watched.stdout, rest);
        assert_eq!(watched.states, [JobState::Succeeded]);
    }
}

#[tokio::test]
async fn watch_of_other_tools_streams_only_states() {
    let daemon = Daemon::start().await;
    let mut jobs = Jobs::of(&daemon);
    let request = super::tool_job("list_files", serde_json::json!({}));
    let id = jobs.submit(request).await;
    let watched = watch_to_end(&mut jobs, &id, (0, 0)).await;
    let response = expect_result(watched.last.unwrap(), JobState::Succeeded);
    assert_eq!(result_data(&response)["truncated"], false);
    assert!(watched.stdout.is_empty());
}

#[tokio::test]
async fn watcher_disconnect_or_timeout_does_not_end_job() {
    let daemon = Daemon::start().await;
    let mut jobs = Jobs::of(&daemon);

    let id = jobs.submit(command_job("until [ -e go ]; do echo x; sleep 0.01; done")).await;
    let request = |keep_alive_sec| WatchJobRequest {
        job_id: id.clone(),
        keep_alive_sec,
        ..WatchJobRequest::default()
    };
    for _ in 0..10 {
        let mut stream = jobs.0.watch_job(request(None)).await.unwrap().into_inner();
        stream.message().await.unwrap();
    }

    let mut late = tonic::Request::new(request(None));
    late.set_timeout(std::time::Duration::from_millis(300));
    let mut stream = jobs.0.watch_job(late).await.unwrap().into_inner();
    let status = loop {
        match stream.message().await {
            Ok(message) => assert!(message.is_some()),
            Err(status) => break status,
        }
    };

    assert_eq!(Refusal::from_status(&status).reason, "TIMEOUT");
    assert_eq!(jobs.get(&id).await.state(), JobState::Running);

    fs::write(daemon.file("go"), "").unwrap();
    eventually("the job succeeds", async || jobs.get(&id).await.state() == JobState::Succeeded)
        .await;
}
