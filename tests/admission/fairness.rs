//! Fairness: calls of one caller are about as quick beside a flood of another caller as alone.
//! Measured by how many calls of the flood end during one call, not by time: other processes on the
//! machine affect times.

use std::{
    fs,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use jig::api::v1::{
    ReadFileRequest, RunRequest, SearchRequest, StatPathRequest, SubmitJobRequest,
    job_service_client::JobServiceClient,
};
use tokio::task::JoinSet;
use tonic::transport::Channel;

use super::{call_counts, run_until, start_limited, wait_for_call_counts};
use crate::support::{
    Daemon, KeyFile, Refusal, eventually, full_size, promptly, shell, tool_client, with_key,
};

/// Concurrent calls of the flood.
const CONCURRENT_FLOOD_CALLS: usize = 32;

#[derive(Debug, Clone, Copy)]
enum CallKind {
    /// Costs the daemon some milliseconds, with a small response.
    Read,
    /// A large request that proves invalid only after much validation.
    InvalidRun,
    /// The same as parameters of a job.
    InvalidJob,
    /// A short invalid request, for whose validation globs are compiled.
    InvalidGlobs,
    /// Costs nearly nothing.
    Stat,
}

impl CallKind {
    async fn send(self, channel: &Channel, key: &str) {
        let mut tools = tool_client(channel.clone());
        match self {
            Self::Read => {
                let request = ReadFileRequest {
                    path: "file".to_owned(),
                    max_bytes: Some(1),
                    ..ReadFileRequest::default()
                };
                tools.read_file(with_key(key, request)).await.unwrap();
            }
            Self::InvalidRun => {
                let request = RunRequest {
                    command: Some("true".to_owned()),
                    argv: vec!["xxx".to_owned(); 20_000],
                    ..RunRequest::default()
                };
                let refused = tools.run(with_key(key, request)).await.unwrap_err();
                assert_eq!(Refusal::from_status(&refused).reason, "INVALID_PARAMS");
            }
            Self::InvalidJob => {
                let argv = vec!["xxx"; 20_000];
                let params = serde_json::json!({ "command": "true", "argv": argv });
                let request = SubmitJobRequest {
                    tool: "run".to_owned(),
                    params_json: params.to_string(),
                    ..SubmitJobRequest::default()
                };
                let mut jobs = JobServiceClient::new(channel.clone());
                let refused = jobs.submit_job(with_key(key, request)).await.unwrap_err();
                assert_eq!(Refusal::from_status(&refused).reason, "INVALID_PARAMS");
            }
            Self::InvalidGlobs => {
                let mut globs = vec!["{a?b,*[!c-f]g,h*i?j}".repeat(10); 20];
                globs.push("{".to_owned());
                let request =
                    SearchRequest { query: "x".to_owned(), globs, ..SearchRequest::default() };
                let refused = tools.search(with_key(key, request)).await.unwrap_err();
                assert_eq!(Refusal::from_status(&refused).reason, "INVALID_GLOB");
            }
            Self::Stat => {
                let path = ".".to_owned();
                let request = with_key(key, StatPathRequest { path });
                tools.stat_path(request).await.unwrap();
            }
        }
    }
}

/// Starts a flood of calls that lasts until it is dropped. Returns it with its count of ended
/// calls.
async fn start_flood(
    daemon: &Daemon,
    key: &str,
    call: CallKind,
) -> (JoinSet<()>, Arc<AtomicUsize>) {
    let ended = Arc::new(AtomicUsize::new(0));
    let mut flood = JoinSet::new();
    for _ in 0..CONCURRENT_FLOOD_CALLS {
        let (channel, key, ended) = (daemon.channel(), key.to_owned(), Arc::clone(&ended));
        flood.spawn(async move {
            loop {
                call.send(&channel, &key).await;
                ended.fetch_add(1, Ordering::Relaxed);
            }
        });
    }

    eventually("the flood is running", async || {
        ended.load(Ordering::Relaxed) > CONCURRENT_FLOOD_CALLS / 4
    })
    .await;
    (flood, ended)
}

/// The median of how many flood calls of `key` end during one call of `other`.
async fn median_flood_calls_during(
    daemon: &Daemon,
    (key, flooding): (&str, CallKind),
    (other, call): (&str, CallKind),
) -> usize {
    let (_flood, ended) = start_flood(daemon, key, flooding).await;

    let channel = daemon.new_connection();
    let mut counts = Vec::new();
    for _ in 0..21 {
        let before = ended.load(Ordering::Relaxed);
        promptly("the daemon answers", call.send(&channel, other)).await;
        counts.push(ended.load(Ordering::Relaxed) - before);
    }

    counts.sort_unstable();
    counts[counts.len() / 2]
}

#[tokio::test]
async fn flood_of_one_key_barely_delays_another() {
    let keys = Arc::new(KeyFile::new());
    let [a, b] = ["a", "b"].map(|name| keys.add_key(name, "invoke", &[]));
    let daemon = start_limited("", &keys).await;

    fs::write(daemon.file("file"), "line\n".repeat(40_000)).unwrap();
    let flood_calls =
        median_flood_calls_during(&daemon, (&a, CallKind::Read), (&b, CallKind::Read)).await;

    // Flood calls that already run when the call arrives, and those that end while its answer is in
    // transit. Without fair queueing, all calls of the flood would end first.
    assert!(flood_calls <= CONCURRENT_FLOOD_CALLS / 4, "{flood_calls}");
}

#[tokio::test]
async fn expensive_validation_does_not_delay_others() {
    let keys = Arc::new(KeyFile::new());
    let [a, b] = ["a", "b"].map(|name| keys.add_key(name, "invoke", &[]));
    let daemon = start_limited("", &keys).await;

    for call in [CallKind::InvalidRun, CallKind::InvalidJob, CallKind::InvalidGlobs] {
        let (flood, _) = start_flood(&daemon, &a, call).await;
        eventually("calls of the flood wait for validation", async || {
            call_counts(&daemon, Some(&b)).await.1 > 0
        })
        .await;
        drop(flood);
        wait_for_call_counts(&daemon, Some(&b), (0, 0)).await;
    }

    let small =
        median_flood_calls_during(&daemon, (&a, CallKind::InvalidRun), (&b, CallKind::Stat)).await;
    let alike =
        median_flood_calls_during(&daemon, (&a, CallKind::InvalidRun), (&b, CallKind::InvalidRun))
            .await;
    assert!(
        small <= CONCURRENT_FLOOD_CALLS / 4 && alike <= CONCURRENT_FLOOD_CALLS / 4,
        "{small} {alike}"
    );
}

#[tokio::test]
async fn thousands_of_queued_calls_use_little_memory() {
    let keys = Arc::new(KeyFile::new());
    let key = keys.add_key("a", "invoke", &[]);

    let limits = "concurrent_calls = 1\nqueued_calls = 10000\nqueue_timeout = \"10m\"\n";
    let daemon = start_limited(limits, &keys).await;
    let blocker = daemon.spawn_run(with_key(&key, run_until("go")));
    wait_for_call_counts(&daemon, Some(&key), (1, 0)).await;

    let before = daemon.resident_bytes();
    let count = full_size(10_000, 1000);
    let mut calls = Vec::new();
    while calls.len() < count {
        // One connection carries about a thousand calls.
        let tools = daemon.tools_on_new_connection();
        for _ in 0..500 {
            let (mut tools, request) = (tools.clone(), with_key(&key, shell("true")));
            calls.push(tokio::spawn(async move { tools.run(request).await }));
        }
    }

    wait_for_call_counts(&daemon, Some(&key), (1, u32::try_from(count).unwrap())).await;
    let grown = daemon.resident_bytes().saturating_sub(before);
    assert!(grown / (count as u64) < 64 << 10, "{grown} bytes");

    for call in calls {
        call.abort();
    }

    wait_for_call_counts(&daemon, Some(&key), (1, 0)).await;
    fs::write(daemon.file("go"), "").unwrap();
    blocker.await.unwrap().unwrap();
}
