//! The way from a run to the daemon where commands have the network `proxy`: a listener in the
//! slot's own network namespace, made by the slot's keeper and accepted from by the daemon.
//!
//! Who can connect to it is in that namespace, so it tells whose a connection is; runs of one
//! workspace, which share its files, can give one another sockets of theirs. The namespace
//! outlives the run, and the listener with it; what must not is a connection:
//!
//! ```text
//!          open
//! closed ─────────────────────────────────────────────────────▶ open, for one visit
//!    ▲                                                              │
//!    └──────────────────────────────────────────────────────────────┘
//!          close: the visit accepts no more, and is told to cut what it has;
//!          what still waits to be accepted is dropped
//! ```
//!
//! It is opened before a sandbox gets its command and closed before its slot is free again. Both,
//! and each accept, hold one lock: no visit can take a connection that is the next run's.

use std::{
    io,
    net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream},
    os::fd::OwnedFd,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use rustix::net::{
    AddressFamily, SocketFlags, SocketType, accept_with, bind, listen as start_listening,
    socket_with,
};
use tokio::io::unix::AsyncFd;
use tokio_util::sync::CancellationToken;

use super::stage::{Failure, Stage, at};
use crate::daemon::sys::{Errno, readiness::watch};

/// Port of 127.0.0.1 at which a run finds the proxy: that of squid, which people know.
pub(crate) const PORT: u16 = 3128;
/// Connections that may wait to be accepted.
const BACKLOG: i32 = 128;

/// The listener of one slot.
#[derive(Debug)]
pub(crate) struct Entrance {
    listener: AsyncFd<OwnedFd>,
    /// The end of the visit that it is open for.
    open: Mutex<Option<CancellationToken>>,
}

/// The right to accept what comes from one run.
#[derive(Debug, Clone)]
pub(crate) struct Visit {
    entrance: Arc<Entrance>,
    end: CancellationToken,
}

/// Makes the listener, in the network namespace that this process is in.
pub(super) fn listen() -> Result<OwnedFd, Failure> {
    let failed = |what| at(Stage::NetworkNamespace, what);
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::INET, SocketType::STREAM, flags, None)
        .map_err(failed("the proxy's socket"))?;
    let address = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), PORT);
    bind(&socket, &address).map_err(failed("the proxy's address"))?;
    start_listening(&socket, BACKLOG).map_err(failed("the proxy's listener"))?;
    Ok(socket)
}

// === impl Entrance ===

impl Entrance {
    /// Takes over a listener that [`listen`] has made.
    pub(super) fn new(listener: OwnedFd) -> io::Result<Self> {
        Ok(Self { listener: watch(listener)?, open: Mutex::new(None) })
    }

    /// Opens it for the run whose command is sent next. Nothing of that run can be waiting yet:
    /// what is, was left by one that was killed meanwhile.
    pub(super) fn open(self: &Arc<Self>) -> Visit {
        let mut open = self.lock();
        if let Some(end) = open.take() {
            end.cancel();
        }
        self.drop_waiting();
        let end = CancellationToken::new();
        *open = Some(end.clone());
        Visit { entrance: Arc::clone(self), end }
    }

    /// Drops what waits to be accepted: as many as can wait at one time, however fast more come.
    fn drop_waiting(&self) {
        for _ in 0..=BACKLOG {
            if self.accept_one().is_err() {
                return;
            }
        }
    }

    fn accept_one(&self) -> Result<OwnedFd, Errno> {
        loop {
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            match accept_with(self.listener.get_ref(), flags) {
                // One that was gone before it was accepted (accept(2)).
                Err(Errno::INTR | Errno::CONNABORTED) => {}
                result => return result,
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Option<CancellationToken>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// === impl Visit ===

impl Visit {
    /// Waits for the run's next connection. Answers nothing once the visit is over; an error is
    /// this process's want of descriptors or memory.
    pub(crate) async fn accept(&self) -> Option<io::Result<TcpStream>> {
        loop {
            let mut ready = tokio::select! {
                biased;
                () = self.end.cancelled() => return None,
                ready = self.entrance.listener.readable() => match ready {
                    Ok(ready) => ready,
                    Err(error) => return Some(Err(error)),
                },
            };
            let accepted = {
                let _open = self.entrance.lock();
                if self.end.is_cancelled() {
                    return None;
                }
                self.entrance.accept_one()
            };
            match accepted {
                Ok(stream) => return Some(Ok(stream.into())),
                Err(Errno::AGAIN) => ready.clear_ready(),
                Err(errno) => return Some(Err(errno.into())),
            }
        }
    }

    /// Cancelled when the run is over: nothing that it has opened may live on.
    pub(crate) fn end(&self) -> &CancellationToken {
        &self.end
    }

    /// Ends the visit. What waits to be accepted would keep the slot from the next run
    /// ([`super::vacancy`]).
    pub(super) fn close(&self) {
        let _open = self.entrance.lock();
        if !self.end.is_cancelled() {
            self.end.cancel();
            self.entrance.drop_waiting();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{net::TcpStream, thread};

    use super::*;
    use crate::daemon::{
        sys::{network::bring_up_loopback, process::unshare},
        task,
    };

    /// A listener, and what makes connections to it, in a network namespace of their own.
    fn entrance(connections: usize) -> (OwnedFd, Vec<TcpStream>) {
        let made = thread::spawn(move || {
            unshare(libc::CLONE_NEWNET).unwrap();
            bring_up_loopback().unwrap();
            let listener = listen().unwrap();
            let connect = |_| TcpStream::connect(("127.0.0.1", PORT)).unwrap();
            (listener, (0..connections).map(connect).collect())
        });
        made.join().unwrap()
    }

    #[tokio::test]
    async fn what_one_run_left_waiting_is_not_the_next_ones() {
        let (listener, waiting) = entrance(5);
        let entrance = Arc::new(Entrance::new(listener).unwrap());
        let first = entrance.open();
        for stream in waiting {
            // Dropped by the opening.
            let mut byte = [0];
            assert_eq!(io::Read::read(&mut &stream, &mut byte).unwrap_or(0), 0);
        }
        let second = entrance.open();
        assert!(first.end().is_cancelled());
        assert!(first.accept().await.is_none());
        assert!(!second.end().is_cancelled());
        second.close();
        assert!(second.accept().await.is_none());
    }

    #[tokio::test]
    async fn who_connects_without_end_does_not_keep_others_from_the_runtime() {
        let (listener, _waiting) = entrance(BACKLOG as usize + 1);
        let entrance = Arc::new(Entrance::new(listener).unwrap());
        let end = CancellationToken::new();
        *entrance.lock() = Some(end.clone());
        let visit = Visit { entrance, end };
        let others = task::spawn("others", async {});
        let mut accepted = 0;
        while !others.is_finished() {
            visit.accept().await.unwrap().unwrap();
            accepted += 1;
        }
        assert!(accepted <= BACKLOG, "{accepted}");
    }
}
