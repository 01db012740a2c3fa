//! A Unix socket that forwards connections to a daemon until the test cuts them. A cut is silent,
//! as when a network fails: neither end receives a message.

use std::{
    io,
    net::Shutdown,
    os::unix::net::{UnixListener, UnixStream},
    path::PathBuf,
    sync::{Arc, Mutex},
    thread,
};

use tonic::transport::Channel;

use super::{Daemon, daemon::lazy_channel};

/// Forwards connections to a daemon.
#[derive(Debug)]
pub(crate) struct ConnectionProxy {
    path: PathBuf,
    streams: Arc<Mutex<Vec<UnixStream>>>,
}

impl ConnectionProxy {
    /// Starts forwarding to `daemon`.
    pub(crate) fn start(daemon: &Daemon) -> Self {
        let path = daemon.sibling_path("proxy.sock");
        let listener = UnixListener::bind(&path).unwrap();
        let streams = Arc::new(Mutex::new(Vec::new()));
        let (socket, open_streams) = (daemon.socket(), Arc::clone(&streams));

        // The thread runs until the test process ends: there are few such threads.
        thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                let Ok(server) = UnixStream::connect(&socket) else {
                    break;
                };
                let mut open_streams = open_streams.lock().unwrap();
                open_streams.push(client.try_clone().unwrap());
                open_streams.push(server.try_clone().unwrap());
                forward(client.try_clone().unwrap(), server.try_clone().unwrap());
                forward(server, client);
            }
        });

        Self { path, streams }
    }

    /// A channel through the proxy.
    pub(crate) fn channel(&self) -> Channel {
        lazy_channel(&format!("unix:{}", self.path.display()))
    }

    /// Path of the proxy's socket.
    pub(crate) fn socket(&self) -> PathBuf {
        self.path.clone()
    }

    /// Cuts all connections.
    pub(crate) fn cut(&self) {
        for stream in self.streams.lock().unwrap().drain(..) {
            // A stream that is already closed counts as cut.
            let _closed = stream.shutdown(Shutdown::Both);
        }
    }
}

fn forward(mut from: UnixStream, mut to: UnixStream) {
    thread::spawn(move || io::copy(&mut from, &mut to));
}
