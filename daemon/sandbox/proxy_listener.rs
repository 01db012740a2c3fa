//! The listener through which runs with the network `proxy` reach the daemon's proxy. The slot
//! keeper makes it in the slot's network namespace, and the daemon accepts from it.
//!
//! Only processes in that namespace can connect, so the listener identifies the run of a
//! connection. There is one exception: runs of one workspace share its files, and can pass sockets
//! to one another. The namespace and the listener outlive a run, but connections must not. So each
//! run gets a lease:
//!
//! ```text
//!          lease
//! closed ─────────────────────────────────────────────────────▶ open, for one lease
//!    ▲                                                              │
//!    └──────────────────────────────────────────────────────────────┘
//!          close: the lease accepts no more and is cancelled;
//!          pending connections are dropped
//! ```
//!
//! The lease starts before the sandbox receives its command, and ends before the slot is free.
//! Start, end and each accept hold one lock: no lease can accept a connection of the next run.

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

/// Port of the proxy on 127.0.0.1 in a run: the well-known port of squid.
pub(crate) const PROXY_PORT: u16 = 3128;
/// Connections that may wait to be accepted (the backlog).
const MAX_PENDING_CONNECTIONS: i32 = 128;

#[derive(Debug)]
pub(crate) struct ProxyListener {
    listener: AsyncFd<OwnedFd>,
    /// Cancelled at the end of the current lease.
    current_lease: Mutex<Option<CancellationToken>>,
}

/// The right to accept one run's connections.
#[derive(Debug, Clone)]
pub(crate) struct ProxyLease {
    listener: Arc<ProxyListener>,
    ended: CancellationToken,
}

/// Makes the listener in this process's network namespace.
pub(super) fn bind_proxy_listener() -> Result<OwnedFd, StageFailure> {
    let failed = |what| at_stage(Stage::NetworkNamespace, what);
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::INET, SocketType::STREAM, flags, None)
        .map_err(failed("creating the proxy's socket"))?;
    let address = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), PROXY_PORT);
    bind(&socket, &address).map_err(failed("binding the proxy's address"))?;
    start_listening(&socket, MAX_PENDING_CONNECTIONS).map_err(failed("listening for the proxy"))?;
    Ok(socket)
}

// === impl ProxyListener ===

impl ProxyListener {
    pub(super) fn new(listener: OwnedFd) -> io::Result<Self> {
        Ok(Self { listener: watch_readable(listener)?, current_lease: Mutex::new(None) })
    }

    /// Starts a lease for the run whose command is sent next. That run cannot have connected yet,
    /// so pending connections are of a killed run and are dropped.
    pub(super) fn lease(self: &Arc<Self>) -> ProxyLease {
        let mut current = self.current_lease();
        if let Some(previous) = current.take() {
            previous.cancel();
        }
        self.drop_pending_connections();

        let ended = CancellationToken::new();
        *current = Some(ended.clone());
        ProxyLease { listener: Arc::clone(self), ended }
    }

    /// Drops pending connections: at most a full backlog, however fast more arrive.
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
                // The peer closed the connection before it was accepted (accept(2)).
                Err(Errno::INTR | Errno::CONNABORTED) => {}
                result => return result,
            }
        }
    }

    fn current_lease(&self) -> MutexGuard<'_, Option<CancellationToken>> {
        self.current_lease.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// === impl ProxyLease ===

impl ProxyLease {
    /// Waits for the run's next connection. Returns `None` once the lease has ended. An error means
    /// that this process lacks descriptors or memory.
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
                let _lock = self.listener.current_lease();
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

    /// Cancelled when the run has ended: its connections must be closed.
    pub(crate) fn ended(&self) -> &CancellationToken {
        &self.ended
    }

    /// Ends the lease. Pending connections are dropped, because they would keep the slot from the
    /// next run ([`super::netns_check`]).
    pub(super) fn close(&self) {
        let _lock = self.listener.current_lease();
        if !self.ended.is_cancelled() {
            self.ended.cancel();
            self.listener.drop_pending_connections();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{net::TcpStream, thread};

    use nix::sched::{CloneFlags, unshare};

    use super::*;
    use crate::daemon::{sys::network::bring_up_loopback, task};

    /// Makes a listener with pending connections, in a network namespace of its own.
    fn listener_with_pending(connections: usize) -> (OwnedFd, Vec<TcpStream>) {
        let thread = thread::spawn(move || {
            unshare(CloneFlags::CLONE_NEWNET).unwrap();
            bring_up_loopback().unwrap();
            let listener = bind_proxy_listener().unwrap();
            let connect = |_| TcpStream::connect(("127.0.0.1", PROXY_PORT)).unwrap();
            (listener, (0..connections).map(connect).collect())
        });
        thread.join().unwrap()
    }

    #[tokio::test]
    async fn pending_connections_of_a_run_are_not_passed_to_the_next() {
        let (listener, pending) = listener_with_pending(5);
        let listener = Arc::new(ProxyListener::new(listener).unwrap());

        let first = listener.lease();
        for stream in pending {
            // Dropped by the start of the lease.
            let mut byte = [0];
            assert_eq!(io::Read::read(&mut &stream, &mut byte).unwrap_or(0), 0);
        }

        let second = listener.lease();
        assert!(first.ended().is_cancelled());
        assert!(first.accept().await.is_none());
        assert!(!second.ended().is_cancelled());
        second.close();
        assert!(second.accept().await.is_none());
    }

    #[tokio::test]
    async fn endless_connections_do_not_starve_the_runtime() {
        let (listener, _pending) = listener_with_pending(MAX_PENDING_CONNECTIONS as usize + 1);
        let listener = Arc::new(ProxyListener::new(listener).unwrap());
        let ended = CancellationToken::new();
        *listener.current_lease() = Some(ended.clone());
        let lease = ProxyLease { listener, ended };

        let other = task::spawn("other", async {});
        let mut accepted = 0;
        while !other.is_finished() {
            lease.accept().await.unwrap().unwrap();
            accepted += 1;
        }
        assert!(accepted <= MAX_PENDING_CONNECTIONS, "{accepted}");
    }
}
