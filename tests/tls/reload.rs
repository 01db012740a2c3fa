//! Files of TLS that are replaced while the daemon runs.

use std::{
    fs,
    os::unix::fs::{PermissionsExt as _, symlink},
    path::PathBuf,
    process::Command,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
};

use rustix::process::Signal;

use super::{TlsDaemon, openssl_client, start_tls_daemon, tls_setup};
use crate::support::{
    CertificateAuthority, CertificateFiles, Daemon, Validity, eventually, full_size, run_jigd,
    shell, tool_client, write_key,
};

const SERVER_NAMES: [&str; 2] = ["localhost", "127.0.0.1"];

/// The serial number in a certificate file.
fn serial_of(path: &std::path::Path) -> String {
    let arguments = ["x509", "-noout", "-serial", "-in", path.to_str().unwrap()];
    let output = Command::new("openssl").args(arguments).output().unwrap();
    String::from_utf8(output.stdout).unwrap()
}

/// The serial number of the certificate that the daemon serves.
fn served_serial(daemon: &Daemon) -> String {
    let session = openssl_client(daemon, &[]);
    let begin = session.find("-----BEGIN CERTIFICATE-----").unwrap();
    let end = session.find("-----END CERTIFICATE-----").unwrap();
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("served.pem");
    fs::write(&path, format!("{}-----END CERTIFICATE-----\n", &session[begin..end])).unwrap();
    serial_of(&path)
}

async fn wait_for_certificate(daemon: &Daemon, path: &std::path::Path) {
    let expected = serial_of(path);
    eventually("the new certificate is served", async || served_serial(daemon) == expected).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn no_call_fails_while_certificates_are_replaced() {
    let tls = Arc::new(start_tls_daemon().await);
    let stop = Arc::new(AtomicBool::new(false));
    let (calls, connections) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let workers: Vec<_> = (0..4)
        .map(|_| {
            let (tls, stop) = (Arc::clone(&tls), Arc::clone(&stop));
            let (calls, connections) = (Arc::clone(&calls), Arc::clone(&connections));
            tokio::spawn(async move {
                while !stop.load(Ordering::Relaxed) {
                    let mut tools = tool_client(tls.ca.channel(tls.daemon.port(), None));
                    connections.fetch_add(1, Ordering::Relaxed);
                    for _ in 0..3 {
                        tools.run(shell("true")).await.expect("a call failed");
                        calls.fetch_add(1, Ordering::Relaxed);
                    }
                }
            })
        })
        .collect();

    let TlsDaemon { daemon, ca, server } = &*tls;
    for round in 0..full_size(3, 20) {
        ca.renew(server, &SERVER_NAMES, Validity::Now);
        if round % 2 == 1 {
            daemon.signal(Signal::HUP);
        }
        wait_for_certificate(daemon, &server.cert).await;
    }
    stop.store(true, Ordering::Relaxed);
    for worker in workers {
        worker.await.unwrap();
    }
    let (calls, connections) = (calls.load(Ordering::Relaxed), connections.load(Ordering::Relaxed));
    assert!(calls > 20 && connections > 5, "{calls} calls on {connections} connections");
}

#[tokio::test]
async fn connections_outlive_the_replacement_of_a_certificate() {
    let TlsDaemon { daemon, ca, server } = start_tls_daemon().await;
    let mut tools = tool_client(ca.channel(daemon.port(), None));
    tools.run(shell("true")).await.unwrap();
    ca.renew(&server, &SERVER_NAMES, Validity::Now);
    wait_for_certificate(&daemon, &server.cert).await;
    tools.run(shell("true")).await.unwrap();
    assert_eq!(daemon.log().matches("reloaded the TLS certificate").count(), 1);
}

#[tokio::test]
async fn bad_files_keep_the_certificate_in_use() {
    let TlsDaemon { daemon, ca, server } = start_tls_daemon().await;
    let before = served_serial(&daemon);
    let [cert, key] = server.pem();
    let failures = || daemon.log().matches("the TLS files cannot be reloaded").count();
    let other = ca.issue("other", &SERVER_NAMES, Validity::Now);

    let mut expected = 0;
    for (bad_cert, bad_key, problem) in [
        ("", key.as_str(), "contains no certificate"),
        (&cert[..cert.len() / 2], &key, "PEM"),
        (&cert, &key[..key.len() / 2], "contains no private key"),
        // The pair of another certificate that is only half written.
        (&other.pem()[0], &key, "does not belong to the certificate"),
    ] {
        fs::write(&server.cert, bad_cert).unwrap();
        write_key(&server.key, bad_key);
        expected += 1;
        eventually("the problem is logged", async || failures() == expected).await;
        assert!(daemon.log().contains(problem), "{problem}: {}", daemon.log());
        assert_eq!(served_serial(&daemon), before);
        // The same problem is logged once.
        daemon.reload_config(Daemon::RELOADED).await;
        fs::write(&server.cert, &cert).unwrap();
        write_key(&server.key, &key);
        daemon.reload_config(Daemon::RELOADED).await;
        assert_eq!(failures(), expected, "{}", daemon.log());
    }

    fs::set_permissions(&server.key, fs::Permissions::from_mode(0o644)).unwrap();
    eventually("the problem is logged", async || failures() == expected + 1).await;
    assert!(daemon.log().contains("chmod o= it"), "{}", daemon.log());
    assert_eq!(served_serial(&daemon), before);

    ca.renew(&server, &SERVER_NAMES, Validity::Now);
    wait_for_certificate(&daemon, &server.cert).await;
}

/// Certificates as Kubernetes mounts a secret: links to a directory that is replaced as a whole.
#[tokio::test]
async fn mounted_secret_is_reloaded() {
    let ca = CertificateAuthority::new();
    let volume = ca.path("volume");
    let version = |number: usize| -> CertificateFiles {
        let directory = volume.join(format!("..{number}"));
        fs::create_dir_all(&directory).unwrap();
        let [cert, key] = ["tls.crt", "tls.key"].map(|name| directory.join(name));
        let issued = ca.issue(&format!("version-{number}"), &SERVER_NAMES, Validity::Now);
        fs::copy(issued.cert, &cert).unwrap();
        fs::copy(issued.key, &key).unwrap();
        CertificateFiles { cert, key }
    };
    version(1);
    symlink("..1", volume.join("..data")).unwrap();
    let files: Vec<PathBuf> = ["tls.crt", "tls.key"]
        .map(|name| {
            symlink(format!("..data/{name}"), volume.join(name)).unwrap();
            volume.join(name)
        })
        .into();
    let mounted = CertificateFiles { cert: files[0].clone(), key: files[1].clone() };
    let daemon = tls_setup(&mounted).start().await;

    for number in 2..4 {
        let expected = version(number);
        symlink(format!("..{number}"), volume.join("..data_tmp")).unwrap();
        fs::rename(volume.join("..data_tmp"), volume.join("..data")).unwrap();
        wait_for_certificate(&daemon, &expected.cert).await;
        fs::remove_dir_all(volume.join(format!("..{}", number - 1))).unwrap();
    }
}

#[test]
fn daemon_does_not_start_with_bad_files() {
    let ca = CertificateAuthority::new();
    let server = ca.issue_server();
    let directory = tempfile::tempdir().unwrap();
    let workspace = directory.path().join("workspace");
    fs::create_dir(&workspace).unwrap();
    let state = directory.path().join("state");
    let start = |more: &[&str]| {
        let flags = ["--workspace", workspace.to_str().unwrap(), "--state-dir"];
        let flags = [&flags, &[state.to_str().unwrap(), "--listen", "127.0.0.1:0"][..], more];
        let output = run_jigd(&flags.concat());
        assert_eq!(output.status.code(), Some(78), "{output:?}");
        String::from_utf8(output.stderr).unwrap()
    };
    let [cert, key] = [&server.cert, &server.key].map(|path| path.to_str().unwrap());
    let other = ca.issue("other", &SERVER_NAMES, Validity::Now);
    let in_workspace = workspace.join("key.pem");
    fs::copy(key, &in_workspace).unwrap();
    fs::set_permissions(&in_workspace, fs::Permissions::from_mode(0o600)).unwrap();

    for (flags, expected) in [
        (&["--tls-cert", cert][..], "--tls-cert needs --tls-key"),
        (&["--tls-cert", "/nowhere", "--tls-key", key], "/nowhere"),
        (
            &["--tls-cert", cert, "--tls-key", other.key.to_str().unwrap()],
            "does not belong to the certificate",
        ),
        (
            &["--tls-cert", cert, "--tls-key", in_workspace.to_str().unwrap()],
            "commands could reach",
        ),
        (&["--tls-cert", cert, "--tls-key", key, "--tls-client-ca", cert], "needs --keys"),
    ] {
        let stderr = start(flags);
        assert!(stderr.contains(expected), "{expected}: {stderr}");
    }
}
