//! Users of this machine without keys. The daemon admits its own user and root, and rejects others.

use std::{
    fs,
    os::unix::{fs::PermissionsExt as _, process::CommandExt as _},
    path::{Path, PathBuf},
    process::{Command, Output},
};

use serde_json::Value;
use tempfile::TempDir;

use crate::support::{DAEMON_UID, Daemon, Setup, copy_program};

/// A user other than root and the daemon's.
const OTHER_UID: u32 = 23_456;

/// A copy of `jig` that all users can execute.
struct SharedJig {
    _directory: TempDir,
    path: PathBuf,
}

impl SharedJig {
    fn new() -> Self {
        let directory = tempfile::Builder::new()
            .prefix("jig-test-jig-")
            .permissions(fs::Permissions::from_mode(0o755))
            .tempdir()
            .unwrap();
        let path = directory.path().join("jig");
        copy_program(Path::new(env!("CARGO_BIN_EXE_jig")), &path);

        Self { _directory: directory, path }
    }

    fn run_info(&self, user: u32, address: &str) -> Output {
        Command::new(&self.path)
            .args(["--json", "--address", address, "info"])
            .current_dir("/")
            .env_clear()
            .uid(user)
            .gid(user)
            .output()
            .unwrap()
    }

    /// The name that the daemon gives the caller.
    fn caller_name(&self, user: u32, address: &str) -> String {
        let output = self.run_info(user, address);
        assert!(output.status.success(), "{address}: {output:?}");
        let info: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(info["caller"]["role"], "ROLE_ADMIN");
        info["caller"]["name"].as_str().unwrap().to_owned()
    }

    fn assert_rejected(&self, user: u32, address: &str) {
        let output = self.run_info(user, address);
        assert_eq!(output.status.code(), Some(1), "{address}: {output:?}");
        let stdout = String::from_utf8(output.stdout).unwrap();
        for text in ["UNAUTHENTICATED", "--keys", "--trust-loopback"] {
            assert!(stdout.contains(text), "{text}: {stdout}");
        }
    }
}

/// The daemon's addresses: its socket, opened to all users, and its TCP port.
fn open_addresses(daemon: &Daemon) -> [String; 2] {
    let all_users = fs::Permissions::from_mode(0o666);
    fs::set_permissions(daemon.socket(), all_users).unwrap();
    [format!("unix:{}", daemon.socket().display()), format!("127.0.0.1:{}", daemon.port())]
}

#[tokio::test]
async fn root_daemon_rejects_other_users() {
    let jig = SharedJig::new();
    let daemon = Setup::new().listen_tcp().start().await;
    for address in open_addresses(&daemon) {
        assert_eq!(jig.caller_name(0, &address), "uid:0");
        jig.assert_rejected(OTHER_UID, &address);
    }
}

#[tokio::test]
async fn unprivileged_daemon_rejects_other_users() {
    let jig = SharedJig::new();
    let daemon = Setup::new().user(DAEMON_UID).listen_tcp().start().await;
    for address in open_addresses(&daemon) {
        assert_eq!(jig.caller_name(DAEMON_UID, &address), format!("uid:{DAEMON_UID}"));
        assert_eq!(jig.caller_name(0, &address), "uid:0");
        jig.assert_rejected(OTHER_UID, &address);
    }
}

#[tokio::test]
async fn trust_loopback_accepts_any_loopback_caller() {
    let jig = SharedJig::new();
    let setup = Setup::new().listen_tcp().arguments(&["--trust-loopback"]);
    let daemon = setup.start().await;
    let [socket, port] = open_addresses(&daemon);
    assert_eq!(jig.caller_name(OTHER_UID, &port), "loopback");

    jig.assert_rejected(OTHER_UID, &socket);
    assert_eq!(jig.caller_name(0, &socket), "uid:0");
}

#[tokio::test]
async fn host_network_commands_are_not_trusted_on_loopback() {
    let jig = SharedJig::new();
    let setup = Setup::new().user(DAEMON_UID).listen_tcp();
    let daemon = setup.arguments(&["--network", "host"]).start().await;
    let [socket, port] = open_addresses(&daemon);
    let output = jig.run_info(DAEMON_UID, &port);
    assert_eq!(output.status.code(), Some(1), "{output:?}");

    let stdout = String::from_utf8(output.stdout).unwrap();
    assert!(stdout.contains("--listen unix:/path"), "{stdout}");
    assert_eq!(jig.caller_name(DAEMON_UID, &socket), format!("uid:{DAEMON_UID}"));
}

#[tokio::test]
async fn loopback_is_not_trusted_when_the_proxy_reaches_it() {
    let jig = SharedJig::new();
    let proxy_setup = |addresses: &str| {
        let table =
            format!("[sandbox]\nnetwork = \"proxy\"\n[proxy]\nallow_addresses = [{addresses}]");
        Setup::new().workspace_table(&table).listen_tcp()
    };
    let daemon = proxy_setup("\"127.0.0.0/8\"").start().await;
    let [socket, port] = open_addresses(&daemon);
    let output = jig.run_info(0, &port);

    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert_eq!(jig.caller_name(0, &socket), "uid:0");

    let daemon = proxy_setup("\"10.0.0.0/8\"").start().await;
    let [_, port] = open_addresses(&daemon);
    assert_eq!(jig.caller_name(0, &port), "uid:0");
}

#[tokio::test]
async fn parent_namespace_root_is_identified_by_socket_permissions() {
    let jig = SharedJig::new();
    let daemon = Setup::new().without_namespaces().start().await;
    let address = format!("unix:{}", daemon.socket().display());
    assert_eq!(jig.caller_name(DAEMON_UID, &address), format!("uid:{DAEMON_UID}"));
    assert_eq!(jig.caller_name(0, &address), "uid:0");

    // With the socket open to all users, a caller without an id in this namespace could be any of
    // them.
    let all_users = fs::Permissions::from_mode(0o666);
    fs::set_permissions(daemon.socket(), all_users).unwrap();
    jig.assert_rejected(0, &address);
    jig.assert_rejected(OTHER_UID, &address);
}

#[tokio::test]
async fn embedded_daemon_accepts_its_own_call_as_any_user() {
    // In a user namespace that maps the user to the overflow id, which stands for all unmapped
    // users.
    let jig = SharedJig::new();
    let directory = tempfile::tempdir().unwrap();
    fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o777)).unwrap();
    let output = Command::new("setpriv")
        .args(["--reuid", "65534", "--regid", "65534", "--clear-groups"])
        .args(["unshare", "--user", "--map-current-user"])
        .arg(&jig.path)
        .args(["write", "f", "--text", "x"])
        .current_dir(directory.path())
        .env_clear()
        .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
        .env("HOME", "/nowhere")
        .output()
        .unwrap();

    assert!(output.status.success(), "{output:?}");
    assert_eq!(fs::read_to_string(directory.path().join("f")).unwrap(), "x");
}
