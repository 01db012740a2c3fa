//! The command `jig` and the Rust client with `https://` addresses.

use std::{
    process::{Command, Output},
    sync::Arc,
};

use jig::client::{Client, ConnectError, Options, TlsOptions};

use super::{TlsDaemon, start_daemon_with_client_ca, start_tls_daemon, tls_setup};
use crate::support::{CertificateAuthority, KeyFile, Setup, Validity, lazy_channel, promptly};

fn run_jig(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_jig"))
        .args(arguments)
        .env_clear()
        .env("PATH", "/usr/bin:/bin")
        .output()
        .unwrap()
}

/// The standard error of a `jig run` that cannot connect.
fn connect_failure(address: &str, more: &[&str]) -> String {
    let arguments = [&["--address", address][..], more, &["run", "true"]].concat();
    let output = run_jig(&arguments);
    assert!(!output.status.success(), "{output:?}");
    String::from_utf8(output.stderr).unwrap()
}

#[tokio::test]
async fn jig_calls_over_tls_with_a_client_certificate() {
    let keys = Arc::new(KeyFile::new());
    let uri = "spiffe://example.org/builder";
    let flags = ["new", "builder", "--certificate", &format!("uri:{uri}")];
    assert!(keys.run_jig_key(&flags).status.success());
    let TlsDaemon { daemon, ca, .. } = start_daemon_with_client_ca(&keys).await;
    let builder = ca.issue("builder", &[uri], Validity::Now);
    let address = format!("https://localhost:{}", daemon.port());
    let [cert, key] = [&builder.cert, &builder.key].map(|path| path.to_str().unwrap());

    let flags = ["--address", &address, "--ca", &ca.ca(), "--client-cert", cert];
    let arguments = [&flags[..], &["--client-key", key, "run", "echo hello"]].concat();
    let output = run_jig(&arguments);
    assert_eq!(String::from_utf8(output.stdout).unwrap(), "hello\n", "{:?}", output.stderr);

    // The same by the environment.
    let output = Command::new(env!("CARGO_BIN_EXE_jig"))
        .args(["run", "echo hello"])
        .env_clear()
        .envs([("JIG_ADDRESS", address.as_str()), ("JIG_CA", &ca.ca())])
        .envs([("JIG_CLIENT_CERT", cert), ("JIG_CLIENT_KEY", key)])
        .output()
        .unwrap();
    assert_eq!(output.stdout, b"hello\n", "{output:?}");

    // The CA as one of the system.
    let output = Command::new(env!("CARGO_BIN_EXE_jig"))
        .args(["--address", &address, "--client-cert", cert, "--client-key", key])
        .args(["run", "echo hello"])
        .env_clear()
        .env("SSL_CERT_FILE", ca.ca())
        .output()
        .unwrap();
    assert_eq!(output.stdout, b"hello\n", "{output:?}");
}

#[tokio::test]
async fn errors_say_what_is_wrong_with_a_certificate() {
    let TlsDaemon { daemon, ca, .. } = start_tls_daemon().await;
    let other_ca = CertificateAuthority::new();
    let address = |host: &str| format!("https://{host}:{}", daemon.port());
    for (address, flags, expected) in [
        (address("localhost"), vec!["--ca", &other_ca.ca()], "unknown CA: name the CA with --ca"),
        (address("localhost"), vec![], "unknown CA: name the CA with --ca"),
        (format!("localhost:{}", daemon.port()), vec![], "write `https://`"),
        (format!("localhost:{}", daemon.port()), vec!["--ca", &ca.ca()], "write https://"),
        (address("localhost"), vec!["--ca", "/nowhere"], "/nowhere"),
    ] {
        let stderr = connect_failure(&address, &flags);
        assert!(stderr.contains(expected), "{address} {flags:?}: {stderr}");
    }

    let expired = ca.issue("expired", &["localhost"], Validity::Expired);
    let future = ca.issue("future", &["localhost"], Validity::NotYet);
    let elsewhere = ca.issue("elsewhere", &["elsewhere.example"], Validity::Now);
    for (files, expected) in [
        (expired, "certificate has expired"),
        (future, "is not valid yet"),
        (elsewhere, "is for another name"),
    ] {
        let daemon = tls_setup(&files).start().await;
        let address = format!("https://localhost:{}", daemon.port());
        let stderr = connect_failure(&address, &["--ca", &ca.ca()]);
        assert!(stderr.contains(expected), "{stderr}");
    }
}

#[tokio::test]
async fn errors_say_that_a_peer_speaks_plaintext() {
    let daemon = Setup::new().listen_tcp().start().await;
    let address = format!("https://127.0.0.1:{}", daemon.port());
    let ca = CertificateAuthority::new();
    let stderr = connect_failure(&address, &["--ca", &ca.ca()]);
    assert!(stderr.contains("does not speak TLS"), "{stderr}");
}

#[tokio::test]
async fn rejected_client_certificate_is_an_error_of_the_connection() {
    let keys = Arc::new(KeyFile::new());
    let key = keys.add_key("a", "invoke", &[]);
    let TlsDaemon { daemon, ca, .. } = start_daemon_with_client_ca(&keys).await;
    let forger = CertificateAuthority::new();
    let address = format!("https://127.0.0.1:{}", daemon.port());
    for (files, expected) in [
        (ca.issue("expired", &["a.example"], Validity::Expired), "client certificate has expired"),
        (forger.issue("forged", &["a.example"], Validity::Now), "does not know the CA"),
    ] {
        let options = Options {
            key: Some(key.clone()),
            tls: TlsOptions {
                ca: Some(ca.ca().into()),
                client_cert: Some(files.cert),
                client_key: Some(files.key),
            },
            ..Options::default()
        };
        let connecting = promptly("the connection fails", Client::connect(&address, options));
        let error = connecting.await.unwrap_err();
        assert!(matches!(error, ConnectError::Tls { .. }), "{error:?}");
        assert!(error.to_string().contains(expected), "{error}");
    }
}

#[tokio::test]
async fn listeners_of_the_file_have_tls_of_their_own() {
    let ca = CertificateAuthority::new();
    let server = ca.issue_server();
    let lines = format!(
        "[[listeners]]\naddress = \"127.0.0.1:0\"\ntls_cert = {:?}\ntls_key = {:?}",
        server.cert, server.key
    );
    let daemon = Setup::new().workspace_table(&lines).without_listen_flag().start().await;
    let mut tools = crate::support::tool_client(ca.channel(daemon.port(), None));
    tools.run(crate::support::shell("true")).await.unwrap();
    let plaintext = lazy_channel(&format!("http://127.0.0.1:{}", daemon.port()));
    let mut tools = crate::support::tool_client(plaintext);
    assert!(tools.run(crate::support::shell("true")).await.is_err());
}
