//! Listeners that the service manager has bound: socket activation (sd_listen_fds(3)).

use std::{
    ffi::OsStr,
    io,
    net::{SocketAddr, TcpListener},
    os::{
        fd::OwnedFd,
        unix::{ffi::OsStrExt as _, net::UnixListener},
    },
    path::{Path, PathBuf},
};

use rustix::net::{SocketAddrUnix, SocketType, getsockname, sockopt};

use crate::daemon::{
    config::listen::inherited_descriptors, sys::inherited_descriptor::take_inherited_descriptor,
};

/// A listening socket that the service manager has passed.
#[derive(Debug)]
pub(crate) enum InheritedListener {
    Tcp(TcpListener, SocketAddr),
    Unix(UnixListener, PathBuf),
}

impl InheritedListener {
    /// Takes all listeners that were passed. No other program inherits them afterwards.
    ///
    /// Must be called once, before the process starts others.
    ///
    /// # Errors
    ///
    /// Fails if a descriptor is not a listening TCP or Unix socket.
    pub(crate) fn take_all() -> io::Result<Vec<Self>> {
        inherited_descriptors()
            .map(|descriptor| {
                let taken = take_inherited_descriptor(descriptor).and_then(Self::from_descriptor);
                taken.map_err(|error| {
                    io::Error::new(
                        error.kind(),
                        format!("descriptor {descriptor} of LISTEN_FDS: {error}"),
                    )
                })
            })
            .collect()
    }

    fn from_descriptor(descriptor: OwnedFd) -> io::Result<Self> {
        let not_a_listener = || {
            io::Error::other(
                "it is not a listening stream socket: give ListenStream= in the socket unit",
            )
        };
        let is_stream = sockopt::socket_type(&descriptor)? == SocketType::STREAM;
        if !is_stream || !sockopt::socket_acceptconn(&descriptor)? {
            return Err(not_a_listener());
        }

        let address = getsockname(&descriptor)?;
        if let Ok(address) = SocketAddr::try_from(address.clone()) {
            let listener = TcpListener::from(descriptor);
            listener.set_nonblocking(true)?;
            return Ok(Self::Tcp(listener, address));
        }
        let address = SocketAddrUnix::try_from(address).map_err(|_| not_a_listener())?;
        // Every process of the network namespace can connect to an abstract socket.
        let path = address.path_bytes().ok_or_else(|| {
            io::Error::other("an abstract Unix socket has no owner and no mode: give it a path")
        })?;
        let path = Path::new(OsStr::from_bytes(path)).to_owned();
        let listener = UnixListener::from(descriptor);
        listener.set_nonblocking(true)?;
        Ok(Self::Unix(listener, path))
    }
}
