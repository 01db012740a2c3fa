//! Listeners that hold: ages of connections, the phases of a shutdown, the listener for health
//! checks, and clients that abuse the protocols.

mod abuse;
mod ages;
mod cancelled_calls;
mod frames;
mod health_port;
mod idle_connections;
mod shutdown_delay;
mod web_sockets;

use std::time::{Duration, Instant};

use jig::api::v1::{GetInfoRequest, daemon_service_client::DaemonServiceClient};
use tonic::transport::Channel;

use crate::support::{Daemon, Setup, full_size, lazy_channel, promptly};

/// A daemon that listens on TCP too.
async fn start_tcp_daemon(arguments: &[&str]) -> Daemon {
    Setup::new().listen_tcp().arguments(arguments).start().await
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

/// Runs `abuse` while neighbours call the daemon on an old connection and on new ones. With
/// `JIG_FULL=1`, prints how long their calls took.
async fn serve_during<T: Send + 'static>(
    daemon: &Daemon,
    name: &str,
    abuse: impl FnOnce() -> T + Send + 'static,
) -> T {
    let old = tcp_channel(daemon);
    get_info(&old).await;
    let mut quiet = Vec::new();
    for _ in 0..full_size(300, 1) {
        quiet.push(get_info(&old).await);
    }

    let abuse = tokio::task::spawn_blocking(abuse);
    let (mut times, mut new_times) = (Vec::new(), Vec::new());
    loop {
        times.push(get_info(&old).await);
        new_times.push(get_info(&daemon.new_connection()).await);
        if abuse.is_finished() {
            break;
        }
    }
    if full_size(1, 0) == 1 {
        eprintln!(
            "{name}: p99 of GetInfo quiet {:?}, abused {:?}, on new connections {:?} ({} calls)",
            p99(quiet),
            p99(times.clone()),
            p99(new_times),
            times.len(),
        );
    }
    abuse.await.unwrap()
}

fn p99(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times[(times.len() * 99 / 100).min(times.len() - 1)]
}
