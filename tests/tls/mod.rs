//! TLS: handshakes, client certificates, reload of files, and clients.

mod activation;
mod certificates;
mod clients;
mod export;
mod handshake;
mod protocols;
mod reload;

use std::{process::Command, sync::Arc};

use crate::support::{CertificateAuthority, CertificateFiles, Daemon, KeyFile, Setup};

/// A daemon with a TLS listener at 127.0.0.1, and what it was made from.
#[derive(Debug)]
struct TlsDaemon {
    daemon: Daemon,
    ca: CertificateAuthority,
    server: CertificateFiles,
}

/// Settings of a daemon with a TLS listener.
fn tls_setup(server: &CertificateFiles) -> Setup {
    let arguments = server.listener_arguments();
    Setup::new().listen_tcp().arguments(&arguments.each_ref().map(String::as_str))
}

/// Starts a daemon with a TLS listener and without keys.
async fn start_tls_daemon() -> TlsDaemon {
    let ca = CertificateAuthority::new();
    let server = ca.issue_server();
    let daemon = tls_setup(&server).start().await;
    TlsDaemon { daemon, ca, server }
}

/// Starts a daemon with a TLS listener that verifies client certificates.
async fn start_daemon_with_client_ca(keys: &Arc<KeyFile>) -> TlsDaemon {
    let ca = CertificateAuthority::new();
    let server = ca.issue_server();
    let path = keys.path().display().to_string();
    let flags = ["--tls-client-ca", &ca.ca(), "--keys", &path];
    let setup = tls_setup(&server).arguments(&flags).with_resource(Arc::clone(keys) as Arc<_>);
    let daemon = setup.start().await;
    TlsDaemon { daemon, ca, server }
}

/// Runs `openssl s_client` against the daemon and returns all of its output.
fn openssl_client(daemon: &Daemon, arguments: &[&str]) -> String {
    let output = Command::new("openssl")
        .args(["s_client", "-connect", &format!("127.0.0.1:{}", daemon.port())])
        .args(arguments)
        .stdin(std::process::Stdio::null())
        .output()
        .unwrap();
    let text = [output.stdout, output.stderr].concat();
    String::from_utf8_lossy(&text).into_owned()
}
