//! Listeners that hold: ages of connections, the phases of a shutdown, the listener for health
//! checks, and clients that abuse the protocols.

mod abuse;
mod ages;
mod cancelled_calls;
mod frames;
mod half_closed;
mod health_port;
mod idle_connections;
mod pings;
mod shutdown_delay;
mod slow_clients;
mod unread_floods;
mod web_sockets;

use std::time::{Duration, Instant};

use jig::api::v1::{GetInfoRequest, ReadFileRequest, daemon_service_client::DaemonServiceClient};
use tonic::transport::Channel;

use crate::support::{Daemon, Setup, full_size, lazy_channel, promptly, status_field, tool_client};

/// A file of the workspace that neighbours read, with its size.
const NEIGHBOUR_FILE: &str = "neighbour.txt";
const NEIGHBOUR_FILE_BYTES: usize = 4096;

/// How long an abuse lasts at least with `JIG_FULL=1`, so that there are enough calls for a p99.
const MIN_MEASURED_TIME: Duration = Duration::from_secs(5);

/// A daemon that listens on TCP too.
async fn start_tcp_daemon(arguments: &[&str]) -> Daemon {
    let content = "x".repeat(NEIGHBOUR_FILE_BYTES);
    let setup = Setup::new().listen_tcp().workspace_file(NEIGHBOUR_FILE, &content);
    setup.arguments(arguments).start().await
}

/// Resident memory of the daemon.
fn resident_bytes(pid: i32) -> u64 {
    let text = status_field(pid, "VmRSS").unwrap();
    text.split_whitespace().next().unwrap().parse::<u64>().unwrap() << 10
}

/// A new connection to the TCP port.
fn tcp_channel(daemon: &Daemon) -> Channel {
    lazy_channel(&format!("http://127.0.0.1:{}", daemon.port()))
}

async fn get_info(channel: &Channel) -> Duration {
    let start = Instant::now();
    let mut client = DaemonServiceClient::new(channel.clone());
    let info = promptly("a neighbour is served", client.get_info(GetInfoRequest {})).await;
    info.unwrap();
    start.elapsed()
}

async fn read_file(channel: &Channel) -> Duration {
    let start = Instant::now();
    let mut tools = tool_client(channel.clone());
    let request = ReadFileRequest { path: NEIGHBOUR_FILE.to_owned(), ..Default::default() };
    promptly("a neighbour reads a file", tools.read_file(request)).await.unwrap();
    start.elapsed()
}

/// How long the calls of neighbours took.
#[derive(Debug, Default)]
struct Latencies {
    infos: Vec<Duration>,
    reads: Vec<Duration>,
    /// Calls of GetInfo on connections of their own, to the Unix socket: an abuse may use all
    /// connections of the TCP port.
    new_connections: Vec<Duration>,
}

impl Latencies {
    /// Makes one call of each kind.
    async fn measure(&mut self, daemon: &Daemon, old: &Channel) {
        self.infos.push(get_info(old).await);
        self.reads.push(read_file(old).await);
        self.new_connections.push(get_info(&daemon.new_connection()).await);
    }

    fn describe(self) -> String {
        let count = self.infos.len();
        let [infos, reads, new] = [self.infos, self.reads, self.new_connections].map(percentiles);
        format!("GetInfo {infos}, read_file {reads}, GetInfo on new connections {new} ({count})")
    }
}

/// Runs `abuse` while neighbours call the daemon on an old connection and on new ones. With
/// `JIG_FULL=1`, repeats it for a while, and prints how long their calls took, as p50/p99.
async fn serve_during<T: Send + 'static>(
    daemon: &Daemon,
    name: &str,
    mut abuse: impl FnMut() -> T + Send + 'static,
) -> T {
    let old = tcp_channel(daemon);
    let (mut quiet, mut abused) = (Latencies::default(), Latencies::default());
    for _ in 0..full_size(300, 1) {
        quiet.measure(daemon, &old).await;
    }

    let abuse = tokio::task::spawn_blocking(move || {
        let start = Instant::now();
        let mut result = abuse();
        while full_size(1, 0) == 1 && start.elapsed() < MIN_MEASURED_TIME {
            result = abuse();
        }
        result
    });
    loop {
        abused.measure(daemon, &old).await;
        if abuse.is_finished() {
            break;
        }
    }
    if full_size(1, 0) == 1 {
        eprintln!("{name}: quiet:  {}", quiet.describe());
        eprintln!("{name}: abused: {}", abused.describe());
    }
    abuse.await.unwrap()
}

fn percentiles(mut times: Vec<Duration>) -> String {
    times.sort_unstable();
    let at = |percent: usize| {
        let index = (times.len() * percent / 100).min(times.len() - 1);
        format!("{:.1}", times[index].as_secs_f64() * 1000.0)
    };
    format!("{}/{} ms", at(50), at(99))
}
