//! A server that speaks TLS.

use std::{
    path::Path,
    process::{Child, Command, Stdio},
};

use super::{Daemon, kill_and_reap, run_in_network_of};

/// An HTTPS server, which is killed when the handle is dropped.
#[derive(Debug)]
pub(crate) struct TlsServer(Child);

impl TlsServer {
    /// Serves the files of `directory` at port 443 of `address`, in the network of `daemon`. The
    /// directory has `certificate.pem` and `key.pem`.
    pub(crate) fn start(daemon: &Daemon, directory: &Path, address: &str) -> Self {
        let (directory, accept) = (directory.to_owned(), format!("{address}:443"));
        run_in_network_of(daemon, move || {
            let child = Command::new("openssl")
                .args(["s_server", "-quiet", "-WWW", "-accept", &accept])
                .args(["-cert", "certificate.pem", "-key", "key.pem"])
                .current_dir(&directory)
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .spawn();
            Self(child.unwrap())
        })
    }
}

impl Drop for TlsServer {
    fn drop(&mut self) {
        kill_and_reap(&mut self.0);
    }
}
