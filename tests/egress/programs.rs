//! Common programs work through the proxy.

use std::{fs, path::Path, process::Command};

use jig::api::v1::RunRequest;
use tempfile::TempDir;

use super::{ALLOWED, OTHER, egress_records, start_with_proxy};
use crate::support::{Daemon, TlsServer, argv, eventually, shell, start_http_server};

/// Runs a program on the host to its end.
fn run_on_host(program: &str, arguments: &[&str], directory: &Path) {
    let output = Command::new(program).args(arguments).current_dir(directory).output().unwrap();
    assert!(
        output.status.success(),
        "{program} {arguments:?}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
}

/// A directory with a package index that has one package.
fn package_index() -> TempDir {
    let directory = TempDir::with_prefix("jig-test-index-").unwrap();
    let script = "
import os, zipfile
os.makedirs('simple/jigpkg')
with zipfile.ZipFile('simple/jigpkg/jigpkg-1.0-py3-none-any.whl', 'w') as wheel:
    info = 'jigpkg-1.0.dist-info/'
    wheel.writestr('jigpkg.py', 'def says():\\n    return \"installed\"\\n')
    wheel.writestr(info + 'METADATA', 'Metadata-Version: 2.1\\nName: jigpkg\\nVersion: 1.0\\n')
    wheel.writestr(info + 'WHEEL', 'Wheel-Version: 1.0\\nGenerator: test\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n')
    wheel.writestr(info + 'RECORD', 'jigpkg.py,,\\n')
with open('simple/jigpkg/index.html', 'w') as index:
    index.write('<a href=\"jigpkg-1.0-py3-none-any.whl\">jigpkg-1.0-py3-none-any.whl</a>')
";

    run_on_host("python3", &["-c", script], directory.path());
    directory
}

fn pip_install(index: &str) -> RunRequest {
    let host = index.split('/').nth(2).unwrap();
    shell(&format!(
        "/usr/bin/python3 -m pip install -vv --no-cache-dir --disable-pip-version-check --retries 0 --target /tmp/here \
         --trusted-host {host} --index-url {index} jigpkg && PYTHONPATH=/tmp/here /usr/bin/python3 -c 'import jigpkg; print(jigpkg.says())'"
    ))
}

#[tokio::test]
async fn pip_installs_only_from_the_allowed_host() {
    let (_network, daemon) = start_with_proxy().await;
    let index = package_index();
    let allowed = start_http_server(&daemon, ALLOWED.1, 80, Some(index.path().to_owned()));
    let other = start_http_server(&daemon, OTHER.1, 80, Some(index.path().to_owned()));
    let output = daemon.output(pip_install("http://packages.jig.test/simple")).await;
    assert!(output.ends_with("installed\n"), "{output}");
    assert!(allowed.heads().len() >= 2, "{:?}", allowed.heads());

    let response = daemon.run(pip_install("http://other.jig.test/simple")).await;
    assert_ne!(response.exit_code, Some(0), "{response:?}");
    assert!(response.stdout.contains("EGRESS_DENIED"), "{response:?}");

    let response = daemon.run(pip_install("http://203.0.113.10/simple")).await;
    assert_ne!(response.exit_code, Some(0), "{response:?}");
    assert_eq!(other.heads(), [""; 0]);
}

/// Creates a certificate for both hosts, and its key, in a directory.
fn create_certificate(directory: &Path) {
    run_on_host(
        "openssl",
        &[
            "req",
            "-x509",
            "-newkey",
            "rsa:2048",
            "-nodes",
            "-keyout",
            "key.pem",
            "-out",
            "certificate.pem",
            "-days",
            "2",
            "-subj",
            "/CN=packages.jig.test",
            "-addext",
            "subjectAltName=DNS:packages.jig.test,DNS:other.jig.test",
        ],
        directory,
    );
}

#[tokio::test]
async fn curl_speaks_tls_with_an_allowed_host() {
    let (_network, daemon) = start_with_proxy().await;
    let directory = TempDir::with_prefix("jig-test-tls-").unwrap();
    create_certificate(directory.path());
    fs::write(directory.path().join("hello"), "hello over TLS\n").unwrap();
    fs::copy(directory.path().join("certificate.pem"), daemon.file("certificate.pem")).unwrap();

    let _servers =
        [ALLOWED.1, OTHER.1].map(|address| TlsServer::start(&daemon, directory.path(), address));

    let curl = |url: &str| argv(&["curl", "-sS", "--cacert", "certificate.pem", url]);
    eventually("the server listens", async || {
        let response = daemon.run(curl("https://packages.jig.test/hello")).await;
        response.stdout == "hello over TLS\n"
    })
    .await;
    let response = daemon.run(curl("https://other.jig.test/hello")).await;

    assert_eq!(response.exit_code, Some(56), "{response:?}");
    assert!(response.stderr.contains("403"), "{response:?}");

    // The proxy records the names of a tunnel's host, not the content of the tunnel.
    let records = egress_records(&daemon);
    let allowed = records.iter().rfind(|record| record["decision"] == "allowed").unwrap();
    assert_eq!(allowed["method"], "CONNECT");
    assert_eq!(allowed["host"], "packages.jig.test");
    assert_eq!(allowed["port"], 443);
    assert_eq!(allowed["address"], ALLOWED.1);
    assert!(allowed["received_bytes"].as_u64().unwrap() > 500);
    assert!(allowed["sent_bytes"].as_u64().unwrap() > 200);
}

#[tokio::test]
async fn git_clones_only_from_the_allowed_host() {
    let (_network, daemon) = start_with_proxy().await;
    let directory = TempDir::with_prefix("jig-test-git-").unwrap();
    let script = "
        git init --quiet --initial-branch main source && cd source
        echo content > file && git add file
        git -c user.name=a -c user.email=a@b commit --quiet -m first
        cd .. && git clone --quiet --bare source project.git && cd project.git && git update-server-info
    ";

    run_on_host("sh", &["-e", "-c", script], directory.path());
    start_http_server(&daemon, ALLOWED.1, 80, Some(directory.path().to_owned()));
    let output = daemon
        .output(shell(
            "git clone --quiet http://packages.jig.test/project.git /tmp/project && cat /tmp/project/file",
        ))
        .await;
    assert_eq!(output, "content\n");

    let response =
        daemon.run(shell("git clone --quiet http://other.jig.test/project.git /tmp/project")).await;
    assert_eq!(response.exit_code, Some(128), "{response:?}");
    assert!(response.stderr.contains("403"), "{response:?}");
}

#[tokio::test]
async fn proxy_serves_several_requests_per_connection() {
    let (_network, daemon) = start_with_proxy().await;
    let requests = start_http_server(&daemon, ALLOWED.1, 80, None);
    let response = daemon
        .run(argv(&[
            "curl",
            "-sS",
            "-v",
            "http://packages.jig.test/one",
            "-d",
            "a body",
            "http://packages.jig.test/two",
            "http://other.jig.test/three",
            "http://packages.jig.test/four",
        ]))
        .await;

    let lines: Vec<&str> = response.stdout.lines().collect();
    assert_eq!(lines.len(), 4, "{response:?}");
    assert_eq!(
        [lines[0], lines[1], lines[3]],
        ["6 bytes at /one", "6 bytes at /two", "6 bytes at /four"]
    );
    assert!(lines[2].starts_with("EGRESS_DENIED: "), "{response:?}");

    let reuses = response.stderr.matches("Re-using existing connection");
    assert_eq!(reuses.count(), 3, "{response:?}");
    assert_eq!(requests.heads().len(), 3);
}

#[tokio::test]
async fn caller_environment_overrides_the_proxy_variables() {
    let (_network, daemon) = start_with_proxy().await;
    let print_variables = "env | grep -i _proxy= | LC_ALL=C sort";
    assert_eq!(
        daemon.output(shell(print_variables)).await,
        "HTTPS_PROXY=http://127.0.0.1:3128\nHTTP_PROXY=http://127.0.0.1:3128\nNO_PROXY=localhost,127.0.0.1,::1\n\
         http_proxy=http://127.0.0.1:3128\nhttps_proxy=http://127.0.0.1:3128\nno_proxy=localhost,127.0.0.1,::1\n"
    );

    let mut request = shell(print_variables);
    let variables = [("HTTP_PROXY", "mine"), ("no_proxy", "*")];
    request.env = variables.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
    assert_eq!(
        daemon.output(request).await,
        "HTTPS_PROXY=http://127.0.0.1:3128\nHTTP_PROXY=mine\nhttps_proxy=http://127.0.0.1:3128\nno_proxy=*\n"
    );

    // The proxy does not affect servers within the run.
    let output = daemon
        .output(shell(
            "python3 -m http.server --bind 127.0.0.1 8000 >/dev/null 2>&1 & \
             until curl -sS http://127.0.0.1:8000/ 2>/dev/null >/dev/null; do :; done; echo reached",
        ))
        .await;
    assert_eq!(output, "reached\n");

    let without_proxy = Daemon::start().await;
    assert_eq!(without_proxy.run(shell(print_variables)).await.stdout, "");
}
