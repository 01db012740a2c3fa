//! That one caller's calls are about as quick beside a flood of another's as alone. Not by the clock, which
//! is also that of everything else on the machine: by how many calls of the flood end meanwhile.

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

use super::{counts, limited, settled, until};
use crate::support::{
    Daemon, KeyFile, Refusal, eventually, full_size, promptly, shell, tools, with_key,
};

/// Calls of the flood at one time.
const FLOOD: usize = 32;

#[derive(Debug, Clone, Copy)]
enum Call {
    /// Takes the daemon some milliseconds of work, and its answer is small.
    Read,
    /// There is much to look at of it, before it is seen to be wrong.
    Wrong,
    /// As that, and comes as the parameters of a job.
    WrongJob,
    /// As that, and it is short, but globs are compiled for it.
    WrongGlobs,
    /// Takes nearly nothing.
    Stat,
}

impl Call {
    async fn make(self, channel: &Channel, key: &str) {
        let mut tools = tools(channel.clone());
        match self {
            Self::Read => {
                let request = ReadFileRequest {
                    path: "file".to_owned(),
                    max_bytes: Some(1),
                    ..ReadFileRequest::default()
                };
                tools.read_file(with_key(key, request)).await.unwrap();
            }
            Self::Wrong => {
                let request = RunRequest {
                    command: Some("true".to_owned()),
                    argv: vec!["xxx".to_owned(); 20_000],
                    ..RunRequest::default()
                };
                let refused = tools.run(with_key(key, request)).await.unwrap_err();
                assert_eq!(Refusal::of(&refused).reason, "INVALID_PARAMS");
            }
            Self::WrongJob => {
                let argv = vec!["xxx"; 20_000];
                let params = serde_json::json!({ "command": "true", "argv": argv });
                let request = SubmitJobRequest {
                    tool: "run".to_owned(),
                    params_json: params.to_string(),
                    ..SubmitJobRequest::default()
                };
                let mut jobs = JobServiceClient::new(channel.clone());
                let refused = jobs.submit_job(with_key(key, request)).await.unwrap_err();
                assert_eq!(Refusal::of(&refused).reason, "INVALID_PARAMS");
            }
            Self::WrongGlobs => {
                let mut globs = vec!["{a?b,*[!c-f]g,h*i?j}".repeat(10); 20];
                globs.push("{".to_owned());
                let request =
                    SearchRequest { query: "x".to_owned(), globs, ..SearchRequest::default() };
                let refused = tools.search(with_key(key, request)).await.unwrap_err();
                assert_eq!(Refusal::of(&refused).reason, "INVALID_GLOB");
            }
            Self::Stat => {
                let path = ".".to_owned();
                let request = with_key(key, StatPathRequest { path });
                tools.stat_path(request).await.unwrap();
            }
        }
    }
}

/// A flood of calls, until it is dropped, and how many of them have ended.
async fn flood(daemon: &Daemon, key: &str, call: Call) -> (JoinSet<()>, Arc<AtomicUsize>) {
    let ended = Arc::new(AtomicUsize::new(0));
    let mut flood = JoinSet::new();
    for _ in 0..FLOOD {
        let (channel, key, ended) = (daemon.channel(), key.to_owned(), Arc::clone(&ended));
        flood.spawn(async move {
            loop {
                call.make(&channel, &key).await;
                ended.fetch_add(1, Ordering::Relaxed);
            }
        });
    }
    eventually("it floods", async || ended.load(Ordering::Relaxed) > FLOOD / 4).await;
    (flood, ended)
}

/// How many of a flood of calls of `key` end while each call of `other` goes on; the median.
async fn meanwhile(
    daemon: &Daemon,
    (key, flooding): (&str, Call),
    (other, call): (&str, Call),
) -> usize {
    let (_flood, ended) = flood(daemon, key, flooding).await;
    let channel = daemon.new_connection();
    let mut counts = Vec::new();
    for _ in 0..21 {
        let before = ended.load(Ordering::Relaxed);
        promptly("it is answered", call.make(&channel, other)).await;
        counts.push(ended.load(Ordering::Relaxed) - before);
    }
    counts.sort_unstable();
    counts[counts.len() / 2]
}

#[tokio::test]
async fn few_calls_of_a_flood_end_before_one_of_another_key() {
    let keys = Arc::new(KeyFile::new());
    let [a, b] = ["a", "b"].map(|name| keys.add(name, "invoke", &[]));
    let daemon = limited("", &keys).await;
    fs::write(daemon.file("file"), "line\n".repeat(40_000)).unwrap();
    let meanwhile = meanwhile(&daemon, (&a, Call::Read), (&b, Call::Read)).await;
    // Those that have their turn when it comes, and those that end while its answer is on its way. Without
    // turns it is as many as there are.
    assert!(meanwhile <= FLOOD / 4, "{meanwhile}");
}

#[tokio::test]
async fn calls_that_there_is_much_to_look_at_of_do_not_hold_up_others() {
    let keys = Arc::new(KeyFile::new());
    let [a, b] = ["a", "b"].map(|name| keys.add(name, "invoke", &[]));
    let daemon = limited("", &keys).await;
    for call in [Call::Wrong, Call::WrongJob, Call::WrongGlobs] {
        let (flood, _) = flood(&daemon, &a, call).await;
        eventually("they wait for their turn to be looked at", async || {
            counts(&daemon, Some(&b)).await.1 > 0
        })
        .await;
        drop(flood);
        settled(&daemon, Some(&b), (0, 0)).await;
    }
    let small = meanwhile(&daemon, (&a, Call::Wrong), (&b, Call::Stat)).await;
    let alike = meanwhile(&daemon, (&a, Call::Wrong), (&b, Call::Wrong)).await;
    assert!(small <= FLOOD / 4 && alike <= FLOOD / 4, "{small} {alike}");
}

#[tokio::test]
async fn thousands_of_calls_that_wait_take_little_memory() {
    let keys = Arc::new(KeyFile::new());
    let key = keys.add("a", "invoke", &[]);
    let limits = "concurrent_calls = 1\nqueued_calls = 10000\nqueue_timeout = \"10m\"\n";
    let daemon = limited(limits, &keys).await;
    let blocker = daemon.begin(with_key(&key, until("go")));
    settled(&daemon, Some(&key), (1, 0)).await;
    let before = daemon.resident_bytes();
    let count = full_size(10_000, 1000);
    let mut calls = Vec::new();
    while calls.len() < count {
        // A connection carries about a thousand.
        let tools = daemon.tools_on_a_new_connection();
        for _ in 0..500 {
            let (mut tools, request) = (tools.clone(), with_key(&key, shell("true")));
            calls.push(tokio::spawn(async move { tools.run(request).await }));
        }
    }
    settled(&daemon, Some(&key), (1, u32::try_from(count).unwrap())).await;
    let grown = daemon.resident_bytes().saturating_sub(before);
    assert!(grown / (count as u64) < 64 << 10, "{grown} bytes");
    for call in calls {
        call.abort();
    }
    settled(&daemon, Some(&key), (1, 0)).await;
    fs::write(daemon.file("go"), "").unwrap();
    blocker.await.unwrap().unwrap();
}
