//! The proxy of all runs: whom it serves, and how much each may have at a time.

use std::{
    io::{Read as _, Write as _},
    sync::Arc,
    time::Duration,
};

use tokio::{net::TcpStream, sync::Semaphore, time::sleep};
use tokio_util::task::TaskTracker;

use super::{
    connection::Guest,
    dial::LOOKUPS_OF_RUN,
    journal::{Journal, Totals},
};
use crate::daemon::{
    outside::{Outside, policy::Policy},
    sandbox::entrance::Visit,
    task,
};

/// Connections of one run at a time: more than a browser or a package manager opens. Each holds at
/// most 100 KiB of buffers, and two descriptors.
const CONNECTIONS_OF_RUN: usize = 256;
/// Connections of all runs at a time.
const CONNECTIONS: usize = 4096;
/// Pause after accept(2) has failed for want of descriptors or memory: it would fail again at once.
const EXHAUSTED_PAUSE: Duration = Duration::from_millis(100);

/// What a connection beyond those gets.
const TOO_MANY: &[u8] = b"HTTP/1.1 503 Too Many Connections\r\nContent-Type: text/plain\r\nContent-Length: 59\r\nConnection: close\r\n\r\njigd: too many connections at a time: close some and retry\n";

/// The proxy of all runs.
#[derive(Debug)]
pub(crate) struct Proxy {
    outside: Arc<Outside>,
    connections: Arc<Semaphore>,
}

/// The proxy's side of one run.
#[derive(Debug)]
pub(crate) struct Attendance {
    tasks: TaskTracker,
    journal: Arc<Journal>,
}

impl Proxy {
    /// A proxy that allows what `policy` does, but for the daemon itself, which listens on `own_ports`.
    pub(crate) fn new(policy: Policy, own_ports: Vec<u16>) -> Self {
        Self {
            outside: Arc::new(Outside::new(policy, own_ports)),
            connections: Arc::new(Semaphore::new(CONNECTIONS)),
        }
    }

    /// What it allows.
    pub(crate) fn policy(&self) -> &Policy {
        self.outside.policy()
    }

    /// Connections that commands have.
    pub(crate) fn active(&self) -> usize {
        CONNECTIONS - self.connections.available_permits()
    }

    /// Serves one run until its visit is over.
    pub(crate) fn attend(self: &Arc<Self>, visit: Visit, journal: Journal) -> Attendance {
        let (tasks, journal) = (TaskTracker::new(), Arc::new(journal));
        let guest = Guest {
            outside: Arc::clone(&self.outside),
            journal: Arc::clone(&journal),
            lookups: Arc::new(Semaphore::new(LOOKUPS_OF_RUN)),
            tasks: tasks.clone(),
            end: visit.end().clone(),
        };
        task::spawn(
            "egress",
            tasks.track_future(accept(visit, guest, Arc::clone(&self.connections))),
        );
        tasks.close();
        Attendance { tasks, journal }
    }
}

impl Attendance {
    /// Waits until nothing of a run whose visit is over is left here, which is at once; answers what
    /// there was.
    pub(crate) async fn end(self) -> Totals {
        self.tasks.wait().await;
        self.journal.end()
    }
}

/// Takes the run's connections until its visit is over.
async fn accept(visit: Visit, guest: Guest, of_all: Arc<Semaphore>) {
    let of_run = Arc::new(Semaphore::new(CONNECTIONS_OF_RUN));
    while let Some(accepted) = visit.accept().await {
        let stream = match accepted {
            Ok(stream) => stream,
            Err(error) => {
                tracing::warn!(%error, "a command's connection to the proxy could not be accepted");
                tokio::select! {
                    () = visit.end().cancelled() => return,
                    () = sleep(EXHAUSTED_PAUSE) => continue,
                }
            }
        };
        let own = Arc::clone(&of_run).try_acquire_owned();
        let (Ok(own), Ok(shared)) = (own, Arc::clone(&of_all).try_acquire_owned()) else {
            refuse(&stream);
            continue;
        };
        let guest = guest.clone();
        let tasks = guest.tasks.clone();
        let connection = async move {
            let _permits = (own, shared);
            let end = guest.end.clone();
            tokio::select! {
                biased;
                () = end.cancelled() => {}
                () = serve(&guest, stream) => {}
            }
        };
        task::spawn("egress connection", tasks.track_future(connection));
    }
}

async fn serve(guest: &Guest, stream: std::net::TcpStream) {
    match TcpStream::from_std(stream) {
        Ok(stream) => guest.serve(stream).await,
        Err(error) => tracing::warn!(%error, "a command's connection could not be driven"),
    }
}

/// Tells a command that it has too many connections, without waiting for it: first what it has sent
/// is read, because a connection that is closed before takes the answer along.
fn refuse(mut stream: &std::net::TcpStream) {
    let _request = stream.read(&mut [0; 4096]);
    let _told = stream.write(TOO_MANY);
}
