//! Users of this machine, who show no key: the daemon's own and root are let in, others are not.

use std::{
    fs,
    os::unix::{fs::PermissionsExt as _, process::CommandExt as _},
    path::{Path, PathBuf},
    process::{Command, Output},
};

use serde_json::Value;
use tempfile::TempDir;

use crate::support::{Daemon, Setup, USER, copy_program};

/// A user that is neither root nor the daemon's.
const OTHER: u32 = 23_456;

/// `jig`, where everybody may execute it.
struct Jig {
    _folder: TempDir,
    path: PathBuf,
}

impl Jig {
    fn new() -> Self {
        let folder = tempfile::Builder::new()
            .prefix("jig-test-jig-")
            .permissions(fs::Permissions::from_mode(0o755))
            .tempdir()
            .unwrap();
        let path = folder.path().join("jig");
        copy_program(Path::new(env!("CARGO_BIN_EXE_jig")), &path);
        Self { _folder: folder, path }
    }

    fn info(&self, user: u32, address: &str) -> Output {
        Command::new(&self.path)
            .args(["--json", "--address", address, "info"])
            .current_dir("/")
            .env_clear()
            .uid(user)
            .gid(user)
            .output()
            .unwrap()
    }

    /// Who the daemon takes the user for.
    fn caller(&self, user: u32, address: &str) -> String {
        let output = self.info(user, address);
        assert!(output.status.success(), "{address}: {output:?}");
        let info: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(info["caller"]["role"], "ROLE_ADMIN");
        info["caller"]["name"].as_str().unwrap().to_owned()
    }

    fn is_refused(&self, user: u32, address: &str) {
        let output = self.info(user, address);
        assert_eq!(output.status.code(), Some(1), "{address}: {output:?}");
        let told = String::from_utf8(output.stdout).unwrap();
        for part in ["UNAUTHENTICATED", "--keys", "--trust-loopback"] {
            assert!(told.contains(part), "{part}: {told}");
        }
    }
}

/// Where a daemon listens: at its socket, which everybody may connect to, and at its port.
fn open_addresses(daemon: &Daemon) -> [String; 2] {
    let everybody = fs::Permissions::from_mode(0o666);
    fs::set_permissions(daemon.socket(), everybody).unwrap();
    [format!("unix:{}", daemon.socket().display()), format!("127.0.0.1:{}", daemon.port())]
}

#[tokio::test]
async fn another_user_is_refused_by_root() {
    let jig = Jig::new();
    let daemon = Setup::new().tcp().start().await;
    for address in open_addresses(&daemon) {
        assert_eq!(jig.caller(0, &address), "uid:0");
        jig.is_refused(OTHER, &address);
    }
}

#[tokio::test]
async fn another_user_is_refused_by_an_ordinary_one() {
    let jig = Jig::new();
    let daemon = Setup::new().user(USER).tcp().start().await;
    for address in open_addresses(&daemon) {
        assert_eq!(jig.caller(USER, &address), format!("uid:{USER}"));
        assert_eq!(jig.caller(0, &address), "uid:0");
        jig.is_refused(OTHER, &address);
    }
}

#[tokio::test]
async fn whoever_reaches_loopback_may_be_trusted() {
    let jig = Jig::new();
    let setup = Setup::new().tcp().arguments(&["--trust-loopback"]);
    let daemon = setup.start().await;
    let [socket, port] = open_addresses(&daemon);
    assert_eq!(jig.caller(OTHER, &port), "loopback");
    jig.is_refused(OTHER, &socket);
    assert_eq!(jig.caller(0, &socket), "uid:0");
}

#[tokio::test]
async fn commands_with_the_network_of_an_ordinary_daemon_are_not_its_user() {
    let jig = Jig::new();
    let setup = Setup::new().user(USER).tcp();
    let daemon = setup.arguments(&["--network", "host"]).start().await;
    let [socket, port] = open_addresses(&daemon);
    let output = jig.info(USER, &port);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let told = String::from_utf8(output.stdout).unwrap();
    assert!(told.contains("--listen unix:/path"), "{told}");
    assert_eq!(jig.caller(USER, &socket), format!("uid:{USER}"));
}

#[tokio::test]
async fn a_proxy_that_may_reach_loopback_is_not_its_user_there() {
    let jig = Jig::new();
    let proxied = |addresses: &str| {
        let table =
            format!("[sandbox]\nnetwork = \"proxy\"\n[proxy]\nallow_addresses = [{addresses}]");
        Setup::new().workspace_table(&table).tcp()
    };
    let daemon = proxied("\"127.0.0.0/8\"").start().await;
    let [socket, port] = open_addresses(&daemon);
    let output = jig.info(0, &port);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert_eq!(jig.caller(0, &socket), "uid:0");
    let daemon = proxied("\"10.0.0.0/8\"").start().await;
    let [_, port] = open_addresses(&daemon);
    assert_eq!(jig.caller(0, &port), "uid:0");
}

#[tokio::test]
async fn root_of_a_namespace_above_is_known_by_what_it_gets_past() {
    let jig = Jig::new();
    let daemon = Setup::new().without_namespaces().start().await;
    let address = format!("unix:{}", daemon.socket().display());
    assert_eq!(jig.caller(USER, &address), format!("uid:{USER}"));
    assert_eq!(jig.caller(0, &address), "uid:0");
    // Who has no number there could be anybody now.
    let everybody = fs::Permissions::from_mode(0o666);
    fs::set_permissions(daemon.socket(), everybody).unwrap();
    jig.is_refused(0, &address);
    jig.is_refused(OTHER, &address);
}

#[tokio::test]
async fn a_daemon_for_one_call_takes_its_own_call_as_whichever_user() {
    // In a user namespace in which the user has the number that stands for all without one.
    let jig = Jig::new();
    let here = tempfile::tempdir().unwrap();
    fs::set_permissions(here.path(), fs::Permissions::from_mode(0o777)).unwrap();
    let output = Command::new("setpriv")
        .args(["--reuid", "65534", "--regid", "65534", "--clear-groups"])
        .args(["unshare", "--user", "--map-current-user"])
        .arg(&jig.path)
        .args(["write", "f", "--text", "x"])
        .current_dir(here.path())
        .env_clear()
        .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
        .env("HOME", "/nowhere")
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    assert_eq!(fs::read_to_string(here.path().join("f")).unwrap(), "x");
}
