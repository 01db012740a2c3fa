//! The proxy of all runs: accepts their connections and limits their number.

use std::{
    io::{Read as _, Write as _},
    sync::Arc,
};

use tokio::{net::TcpStream, sync::Semaphore, time::sleep};
use tokio_util::task::TaskTracker;

use super::{
    connection::ConnectionHandler,
    connection_log::{ConnectionLog, EgressTotals},
    dial::MAX_LOOKUPS_PER_RUN,
};
use crate::daemon::{
    fd_exhaustion::ACCEPT_RETRY_DELAY,
    netpolicy::{NetworkPolicy, rules::NetworkRules},
    sandbox::proxy_listener::ProxyLease,
    task,
};

/// Connections of one run: more than a browser or a package manager opens. Each takes at most
/// 100 KiB of buffers and two file descriptors.
const MAX_CONNECTIONS_PER_RUN: usize = 256;
/// Connections of all runs.
const MAX_PROXY_CONNECTIONS: usize = 4096;

/// Sent on connections beyond these limits.
const TOO_MANY_CONNECTIONS_RESPONSE: &[u8] = b"HTTP/1.1 503 Too Many Connections\r\nContent-Type: text/plain\r\nContent-Length: 59\r\nConnection: close\r\n\r\njigd: too many connections at a time: close some and retry\n";

#[derive(Debug)]
pub(crate) struct EgressProxy {
    policy: Arc<NetworkPolicy>,
    connections: Arc<Semaphore>,
}

/// The proxy's state for one run.
#[derive(Debug)]
pub(crate) struct ProxyRun {
    tasks: TaskTracker,
    log: Arc<ConnectionLog>,
}

impl EgressProxy {
    /// Creates a proxy with these rules. The daemon itself, which listens on `own_ports`, is always
    /// denied.
    pub(crate) fn new(rules: NetworkRules, own_ports: Vec<u16>) -> Self {
        Self {
            policy: Arc::new(NetworkPolicy::new(rules, own_ports)),
            connections: Arc::new(Semaphore::new(MAX_PROXY_CONNECTIONS)),
        }
    }

    pub(crate) fn rules(&self) -> &NetworkRules {
        self.policy.rules()
    }

    /// Returns the number of open connections from commands.
    pub(crate) fn active_connections(&self) -> usize {
        MAX_PROXY_CONNECTIONS - self.connections.available_permits()
    }

    /// Serves one run until its lease ends.
    pub(crate) fn serve_run(
        self: &Arc<Self>,
        lease: ProxyLease,
        connection_log: ConnectionLog,
    ) -> ProxyRun {
        let (tasks, log) = (TaskTracker::new(), Arc::new(connection_log));
        let handler = ConnectionHandler {
            policy: Arc::clone(&self.policy),
            log: Arc::clone(&log),
            lookups: Arc::new(Semaphore::new(MAX_LOOKUPS_PER_RUN)),
            tasks: tasks.clone(),
            shutdown: lease.ended().clone(),
        };
        let accept = accept_loop(lease, handler, Arc::clone(&self.connections));
        task::spawn("egress", tasks.track_future(accept));
        tasks.close();
        ProxyRun { tasks, log }
    }
}

impl ProxyRun {
    /// Waits until all tasks of the run have ended, which is soon after its lease has. Returns the
    /// totals.
    pub(crate) async fn finish(self) -> EgressTotals {
        self.tasks.wait().await;
        self.log.finish()
    }
}

/// Accepts the connections of a run until its lease ends.
async fn accept_loop(
    lease: ProxyLease,
    handler: ConnectionHandler,
    all_connections: Arc<Semaphore>,
) {
    let run_connections = Arc::new(Semaphore::new(MAX_CONNECTIONS_PER_RUN));
    while let Some(accepted) = lease.accept().await {
        let stream = match accepted {
            Ok(stream) => stream,
            Err(error) => {
                tracing::warn!(%error, "cannot accept a command's connection to the proxy");
                tokio::select! {
                    () = lease.ended().cancelled() => return,
                    () = sleep(ACCEPT_RETRY_DELAY) => continue,
                }
            }
        };

        let run_permit = Arc::clone(&run_connections).try_acquire_owned();
        let (Ok(run_permit), Ok(total_permit)) =
            (run_permit, Arc::clone(&all_connections).try_acquire_owned())
        else {
            reject_connection(&stream);
            continue;
        };

        let handler = handler.clone();
        let tasks = handler.tasks.clone();
        let connection = async move {
            let _permits = (run_permit, total_permit);
            let shutdown = handler.shutdown.clone();
            tokio::select! {
                biased;
                () = shutdown.cancelled() => {}
                () = serve_connection(&handler, stream) => {}
            }
        };
        task::spawn("egress connection", tasks.track_future(connection));
    }
}

async fn serve_connection(handler: &ConnectionHandler, stream: std::net::TcpStream) {
    match TcpStream::from_std(stream) {
        Ok(stream) => handler.serve(stream).await,
        Err(error) => tracing::warn!(%error, "cannot serve a command's connection to the proxy"),
    }
}

/// Sends the rejection without waiting for the command. It first reads what the command has sent:
/// closing a connection with unread data would discard the response.
fn reject_connection(mut stream: &std::net::TcpStream) {
    let _request = stream.read(&mut [0; 4096]);
    let _written = stream.write(TOO_MANY_CONNECTIONS_RESPONSE);
}
