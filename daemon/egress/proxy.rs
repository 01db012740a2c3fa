//! The proxy of all runs: whom it serves, and how much each may have at a time.

use std::{
    io::{Read as _, Write as _},
    sync::Arc,
    time::Duration,
};

use tokio::{net::TcpStream, sync::Semaphore, time::sleep};
use tokio_util::task::TaskTracker;

use super::{
    connection::ConnectionHandler,
    connection_log::{ConnectionLog, EgressTotals},
    dial::MAX_LOOKUPS_PER_RUN,
};
use crate::daemon::{
    netpolicy::{NetworkPolicy, rules::NetworkRules},
    sandbox::proxy_listener::ProxyLease,
    task,
};

/// Connections of one run at a time: more than a browser or a package manager opens. Each holds at
/// most 100 KiB of buffers, and two descriptors.
const MAX_CONNECTIONS_PER_RUN: usize = 256;
/// Connections of all runs at a time.
const MAX_CONNECTIONS: usize = 4096;
/// Pause after accept(2) has failed for want of descriptors or memory: it would fail again at once.
const ACCEPT_RETRY_DELAY: Duration = Duration::from_millis(100);

/// What a connection beyond those gets.
const TOO_MANY_CONNECTIONS_RESPONSE: &[u8] = b"HTTP/1.1 503 Too Many Connections\r\nContent-Type: text/plain\r\nContent-Length: 59\r\nConnection: close\r\n\r\njigd: too many connections at a time: close some and retry\n";

/// The proxy of all runs.
#[derive(Debug)]
pub(crate) struct EgressProxy {
    policy: Arc<NetworkPolicy>,
    connections: Arc<Semaphore>,
}

/// The proxy's side of one run.
#[derive(Debug)]
pub(crate) struct ProxyRun {
    tasks: TaskTracker,
    log: Arc<ConnectionLog>,
}

impl EgressProxy {
    /// A proxy that allows what `policy` does, but for the daemon itself, which listens on `own_ports`.
    pub(crate) fn new(policy: NetworkRules, own_ports: Vec<u16>) -> Self {
        Self {
            policy: Arc::new(NetworkPolicy::new(policy, own_ports)),
            connections: Arc::new(Semaphore::new(MAX_CONNECTIONS)),
        }
    }

    /// What it allows.
    pub(crate) fn rules(&self) -> &NetworkRules {
        self.policy.rules()
    }

    /// Connections that commands have.
    pub(crate) fn active_connections(&self) -> usize {
        MAX_CONNECTIONS - self.connections.available_permits()
    }

    /// Serves one run until its visit is over.
    pub(crate) fn serve_run(
        self: &Arc<Self>,
        visit: ProxyLease,
        journal: ConnectionLog,
    ) -> ProxyRun {
        let (tasks, journal) = (TaskTracker::new(), Arc::new(journal));
        let guest = ConnectionHandler {
            policy: Arc::clone(&self.policy),
            log: Arc::clone(&journal),
            lookups: Arc::new(Semaphore::new(MAX_LOOKUPS_PER_RUN)),
            tasks: tasks.clone(),
            shutdown: visit.ended().clone(),
        };
        task::spawn(
            "egress",
            tasks.track_future(accept_loop(visit, guest, Arc::clone(&self.connections))),
        );
        tasks.close();
        ProxyRun { tasks, log: journal }
    }
}

impl ProxyRun {
    /// Waits until nothing of a run whose visit is over is left here, which is at once; answers what
    /// there was.
    pub(crate) async fn finish(self) -> EgressTotals {
        self.tasks.wait().await;
        self.log.finish()
    }
}

/// Takes the run's connections until its visit is over.
async fn accept_loop(visit: ProxyLease, guest: ConnectionHandler, of_all: Arc<Semaphore>) {
    let of_run = Arc::new(Semaphore::new(MAX_CONNECTIONS_PER_RUN));
    while let Some(accepted) = visit.accept().await {
        let stream = match accepted {
            Ok(stream) => stream,
            Err(error) => {
                tracing::warn!(%error, "a command's connection to the proxy could not be accepted");
                tokio::select! {
                    () = visit.ended().cancelled() => return,
                    () = sleep(ACCEPT_RETRY_DELAY) => continue,
                }
            }
        };
        let own = Arc::clone(&of_run).try_acquire_owned();
        let (Ok(own), Ok(shared)) = (own, Arc::clone(&of_all).try_acquire_owned()) else {
            reject_connection(&stream);
            continue;
        };
        let guest = guest.clone();
        let tasks = guest.tasks.clone();
        let connection = async move {
            let _permits = (own, shared);
            let end = guest.shutdown.clone();
            tokio::select! {
                biased;
                () = end.cancelled() => {}
                () = serve_connection(&guest, stream) => {}
            }
        };
        task::spawn("egress connection", tasks.track_future(connection));
    }
}

async fn serve_connection(guest: &ConnectionHandler, stream: std::net::TcpStream) {
    match TcpStream::from_std(stream) {
        Ok(stream) => guest.serve(stream).await,
        Err(error) => tracing::warn!(%error, "a command's connection could not be driven"),
    }
}

/// Tells a command that it has too many connections, without waiting for it: first what it has sent
/// is read, because a connection that is closed before takes the answer along.
fn reject_connection(mut stream: &std::net::TcpStream) {
    let _request = stream.read(&mut [0; 4096]);
    let _told = stream.write(TOO_MANY_CONNECTIONS_RESPONSE);
}
