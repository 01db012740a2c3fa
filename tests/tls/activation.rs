//! Listeners that the service manager has bound (`LISTEN_FDS`).

use std::{
    os::unix::fs::PermissionsExt as _,
    process::{Command, Stdio},
    sync::Arc,
};

use crate::support::{
    CertificateAuthority, KeyFile, Setup, daemon_binary, lazy_channel, shell, tool_client, with_key,
};

/// Binds a listener as descriptor 3 and executes the daemon. The first argument is a port of an
/// address, or the path of a Unix socket.
const LAUNCHER: &str = r#"
import os, socket, sys
kind, address = sys.argv[1].split("=", 1)
if kind == "tcp":
    listener = socket.create_server((address, 0))
elif kind == "unix":
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(address)
    listener.listen()
else:
    listener = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
os.dup2(listener.fileno(), 3)
os.set_inheritable(3, True)
os.environ.update(LISTEN_PID=str(os.getpid()), LISTEN_FDS="1")
os.execv(sys.argv[2], sys.argv[2:])
"#;

fn launched(setup: Setup, listener: &str) -> Setup {
    setup.wrapped_by(["/usr/bin/python3", "-c", LAUNCHER, listener])
}

#[tokio::test]
async fn inherited_tcp_listener_is_served_with_tls() {
    let ca = CertificateAuthority::new();
    let server = ca.issue_server();
    let arguments = server.listener_arguments();
    let setup = Setup::new().arguments(&arguments.each_ref().map(String::as_str));
    let daemon = launched(setup, "tcp=127.0.0.1").start().await;
    let mut tools = tool_client(ca.channel(daemon.port(), None));
    let response = tools.run(shell("ls /proc/self/fd; env")).await.unwrap().into_inner();
    assert!(!response.stdout.contains("LISTEN_FDS"), "{}", response.stdout);
}

#[tokio::test]
async fn inherited_unix_listener_is_served_and_stays() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("activated.sock");
    let mut daemon = launched(Setup::new(), &format!("unix={}", path.display())).start().await;
    let mode = std::fs::metadata(&path).unwrap().permissions().mode();
    let channel = lazy_channel(&format!("unix:{}", path.display()));
    tool_client(channel).run(shell("true")).await.unwrap();
    daemon.signal(rustix::process::Signal::TERM);
    assert!(daemon.wait_for_exit().await.success());
    // The service manager owns the socket.
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode(), mode);
}

#[tokio::test]
async fn inherited_listener_replaces_the_default_address_only() {
    // The socket of the test is a listener beside the inherited one.
    let daemon = launched(Setup::new(), "tcp=127.0.0.1").start().await;
    let channel = lazy_channel(&format!("http://127.0.0.1:{}", daemon.port()));
    tool_client(channel).run(shell("true")).await.unwrap();
    daemon.run(shell("true")).await;
}

/// Runs a `jigd` that must reject its inherited listener, and returns its standard error.
fn failed_start(listener: &str, arguments: &[&str]) -> String {
    let directory = tempfile::tempdir().unwrap();
    let workspace = directory.path().join("workspace");
    std::fs::create_dir(&workspace).unwrap();
    let output = Command::new("/usr/bin/python3")
        .args(["-c", LAUNCHER, listener])
        .arg(daemon_binary())
        .arg("--workspace")
        .arg(workspace)
        .arg("--state-dir")
        .arg(directory.path().join("state"))
        .args(arguments)
        .env_clear()
        .stdin(Stdio::null())
        .output()
        .unwrap();
    assert!(!output.status.success(), "{output:?}");
    String::from_utf8(output.stderr).unwrap()
}

#[tokio::test]
async fn inherited_listeners_follow_the_rules_of_others() {
    let ca = CertificateAuthority::new();
    let server = ca.issue_server();
    let keys = Arc::new(KeyFile::new());
    let key = keys.add_key("a", "invoke", &[]);
    let path = keys.path().display().to_string();

    let log = failed_start("tcp=0.0.0.0", &[]);
    assert!(log.contains("no keys") && log.contains("without TLS"), "{log}");
    let log = failed_start("tcp=0.0.0.0", &["--keys", &path]);
    assert!(!log.contains("no keys") && log.contains("without TLS"), "{log}");
    let log = failed_start("udp=", &[]);
    assert!(log.contains("not a listening stream socket"), "{log}");

    let arguments = server.listener_arguments();
    let setup = Setup::new().arguments(&arguments.each_ref().map(String::as_str));
    let daemon = launched(setup.arguments(&["--keys", &path]), "tcp=0.0.0.0").start().await;
    let mut tools = tool_client(ca.channel(daemon.port(), None));
    tools.run(with_key(&key, shell("true"))).await.unwrap();
}
