//! Unix sockets of host programs in directories that commands can see.

use std::{
    fs::{self, Permissions},
    os::unix::{
        fs::{PermissionsExt as _, symlink},
        net::UnixListener,
    },
    path::Path,
};

use tempfile::TempDir;

use super::network::check_reach;
use crate::support::{Daemon, Setup, argv, compile_in_workspace, shell};

/// The first version of Landlock that can refuse connections to the sockets of other processes.
const MIN_LANDLOCK_VERSION: u32 = 9;
/// What the daemon logs if the kernel cannot refuse these connections.
const LOG_WARNING: &str = "commands can connect to Unix sockets of the host";

/// The version of Landlock that the daemon reports.
async fn landlock_version(daemon: &Daemon) -> u32 {
    let layers = daemon.info().await.isolation.unwrap().layers;
    let layer = layers.iter().find(|layer| layer.name == "landlock").unwrap();
    let version = layer.detail.strip_prefix("version ").unwrap_or("0");
    let version = version.split(|end: char| !end.is_ascii_digit()).next();
    version.unwrap().parse().unwrap()
}

/// Listens on a Unix socket to which every user may connect.
fn listen_for_all_users(path: &Path) -> UnixListener {
    let listener = UnixListener::bind(path).unwrap();
    fs::set_permissions(path, Permissions::from_mode(0o666)).unwrap();
    listener
}

#[tokio::test]
async fn daemon_blocks_host_sockets_or_warns_about_them() {
    for user in [None, Some(12345)] {
        let directory = TempDir::with_prefix("jig-test-shown-").unwrap();
        fs::set_permissions(directory.path(), Permissions::from_mode(0o755)).unwrap();

        // The configuration and the host program name the bound directory by different paths.
        let link = TempDir::with_prefix("jig-test-link-").unwrap();
        let bound = link.path().join("bound");
        symlink(directory.path(), &bound).unwrap();
        let bind = format!("{}:/shown", bound.display());

        let elsewhere = TempDir::with_prefix("jig-test-elsewhere-").unwrap();
        let _bound_socket = listen_for_all_users(&directory.path().join("shown.sock"));
        let _unbound_socket = listen_for_all_users(&elsewhere.path().join("elsewhere.sock"));

        let setup = Setup::new().arguments(&["--bind-ro", &bind]);
        let setup = match user {
            Some(user) => setup.user(user),
            None => setup,
        };
        let daemon = setup.start().await;
        let _workspace_socket = listen_for_all_users(&daemon.file("in the workspace.sock"));
        let daemon = daemon.restart().await;

        let is_refused = landlock_version(&daemon).await >= MIN_LANDLOCK_VERSION;
        let answer = if is_refused { "EACCES" } else { "ok" };
        let targets = [
            (["unix", "/workspace/in the workspace.sock", "-"], answer),
            (["unix", "/shown/shown.sock", "-"], answer),
        ];
        let reach = compile_in_workspace(&daemon, "reach");
        check_reach(&daemon, &reach, &targets).await;

        let report = String::from_utf8(daemon.run_check().stdout).unwrap();
        let log = daemon.log();
        for text in [&report, &log] {
            for name in ["in the workspace.sock", "shown.sock"] {
                assert_eq!(!text.contains(name), is_refused, "{name} in {text}");
            }
            assert!(!text.contains("elsewhere.sock"), "{text}");
        }

        let warnings = log.matches(LOG_WARNING).count();
        assert_eq!(warnings, usize::from(!is_refused), "{log}");
    }
}

#[tokio::test]
async fn command_reaches_its_own_sockets() {
    let daemon = Daemon::start().await;
    for directory in ["/workspace", "/tmp", "/dev/shm", "/home/agent"] {
        let line = format!(
            "import os, socket; path = '{directory}/own.sock'\n\
             for kind in (socket.SOCK_STREAM, socket.SOCK_SEQPACKET):\n  \
               with socket.socket(socket.AF_UNIX, kind) as server, socket.socket(socket.AF_UNIX, kind) as client:\n    \
                 server.bind(path); server.listen(1); client.connect(path); os.unlink(path)\n\
             with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as server, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as client:\n  \
               server.bind(path); client.sendto(b'x', path); print(server.recv(1)); os.unlink(path)\n"
        );
        let request = argv(&["python3", "-c", &line]);
        assert_eq!(daemon.output(request).await, "b'x'\n", "{directory}");
    }

    // A child process of the command has the same rights.
    let line = "python3 -c \"import socket; s = socket.socket(socket.AF_UNIX); s.bind('child.sock'); s.listen(1); open('ready', 'w'); s.accept()\" & \
                until [ -e ready ]; do sleep 0.01; done; \
                python3 -c \"import socket; s = socket.socket(socket.AF_UNIX); s.connect('child.sock'); print('met')\"; wait";
    assert_eq!(daemon.output(shell(line)).await, "met\n");
}
