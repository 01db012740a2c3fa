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

use super::stage::{Stage, StageFailure, at_stage};
use crate::daemon::sys::{Errno, readiness::watch_readable};

/// Port of 127.0.0.1 at which a run finds the proxy: that of squid, which people know.
pub(crate) const PROXY_PORT: u16 = 3128;
/// Connections that may wait to be accepted.
const MAX_PENDING_CONNECTIONS: i32 = 128;

/// The listener of one slot.
#[derive(Debug)]
pub(crate) struct ProxyListener {
    listener: AsyncFd<OwnedFd>,
    /// The end of the visit that it is open for.
    current_lease: Mutex<Option<CancellationToken>>,
}

/// The right to accept what comes from one run.
#[derive(Debug, Clone)]
pub(crate) struct ProxyLease {
    listener: Arc<ProxyListener>,
    ended: CancellationToken,
}

/// Makes the listener, in the network namespace that this process is in.
pub(super) fn bind_proxy_listener() -> Result<OwnedFd, StageFailure> {
    let failed = |what| at_stage(Stage::NetworkNamespace, what);
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::INET, SocketType::STREAM, flags, None)
        .map_err(failed("the proxy's socket"))?;
    let address = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), PROXY_PORT);
    bind(&socket, &address).map_err(failed("the proxy's address"))?;
    start_listening(&socket, MAX_PENDING_CONNECTIONS).map_err(failed("the proxy's listener"))?;
    Ok(socket)
}

// === impl Entrance ===

impl ProxyListener {
    /// Takes over a listener that [`listen`] has made.
    pub(super) fn new(listener: OwnedFd) -> io::Result<Self> {
        Ok(Self { listener: watch_readable(listener)?, current_lease: Mutex::new(None) })
    }

    /// Opens it for the run whose command is sent next. Nothing of that run can be waiting yet:
    /// what is, was left by one that was killed meanwhile.
    pub(super) fn lease(self: &Arc<Self>) -> ProxyLease {
        let mut open = self.current_lease();
        if let Some(end) = open.take() {
            end.cancel();
        }
        self.drop_pending_connections();
        let end = CancellationToken::new();
        *open = Some(end.clone());
        ProxyLease { listener: Arc::clone(self), ended: end }
    }

    /// Drops what waits to be accepted: as many as can wait at one time, however fast more come.
    fn drop_pending_connections(&self) {
        for _ in 0..=MAX_PENDING_CONNECTIONS {
            if self.accept_pending().is_err() {
                return;
            }
        }
    }

    fn accept_pending(&self) -> Result<OwnedFd, Errno> {
        loop {
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            match accept_with(self.listener.get_ref(), flags) {
                // One that was gone before it was accepted (accept(2)).
                Err(Errno::INTR | Errno::CONNABORTED) => {}
                result => return result,
            }
        }
    }

    fn current_lease(&self) -> MutexGuard<'_, Option<CancellationToken>> {
        self.current_lease.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// === impl Visit ===

impl ProxyLease {
    /// Waits for the run's next connection. Answers nothing once the visit is over; an error is
    /// this process's want of descriptors or memory.
    pub(crate) async fn accept(&self) -> Option<io::Result<TcpStream>> {
        loop {
            let mut ready = tokio::select! {
                biased;
                () = self.ended.cancelled() => return None,
                ready = self.listener.listener.readable() => match ready {
                    Ok(ready) => ready,
                    Err(error) => return Some(Err(error)),
                },
            };
            let accepted = {
                let _open = self.listener.current_lease();
                if self.ended.is_cancelled() {
                    return None;
                }
                self.listener.accept_pending()
            };
            match accepted {
                Ok(stream) => return Some(Ok(stream.into())),
                Err(Errno::AGAIN) => ready.clear_ready(),
                Err(errno) => return Some(Err(errno.into())),
            }
        }
    }

    /// Cancelled when the run is over: nothing that it has opened may live on.
    pub(crate) fn ended(&self) -> &CancellationToken {
        &self.ended
    }

    /// Ends the visit. What waits to be accepted would keep the slot from the next run
    /// ([`super::vacancy`]).
    pub(super) fn close(&self) {
        let _open = self.listener.current_lease();
        if !self.ended.is_cancelled() {
            self.ended.cancel();
            self.listener.drop_pending_connections();
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
            let listener = bind_proxy_listener().unwrap();
            let connect = |_| TcpStream::connect(("127.0.0.1", PROXY_PORT)).unwrap();
            (listener, (0..connections).map(connect).collect())
        });
        made.join().unwrap()
    }

    #[tokio::test]
    async fn what_one_run_left_waiting_is_not_the_next_ones() {
        let (listener, waiting) = entrance(5);
        let entrance = Arc::new(ProxyListener::new(listener).unwrap());
        let first = entrance.lease();
        for stream in waiting {
            // Dropped by the opening.
            let mut byte = [0];
            assert_eq!(io::Read::read(&mut &stream, &mut byte).unwrap_or(0), 0);
        }
        let second = entrance.lease();
        assert!(first.ended().is_cancelled());
        assert!(first.accept().await.is_none());
        assert!(!second.ended().is_cancelled());
        second.close();
        assert!(second.accept().await.is_none());
    }

    #[tokio::test]
    async fn who_connects_without_end_does_not_keep_others_from_the_runtime() {
        let (listener, _waiting) = entrance(MAX_PENDING_CONNECTIONS as usize + 1);
        let entrance = Arc::new(ProxyListener::new(listener).unwrap());
        let end = CancellationToken::new();
        *entrance.current_lease() = Some(end.clone());
        let visit = ProxyLease { listener: entrance, ended: end };
        let others = task::spawn("others", async {});
        let mut accepted = 0;
        while !others.is_finished() {
            visit.accept().await.unwrap().unwrap();
            accepted += 1;
        }
        assert!(accepted <= MAX_PENDING_CONNECTIONS, "{accepted}");
    }
}
