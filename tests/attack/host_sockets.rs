//! Unix sockets on which programs of the host listen, in what commands are shown.

use std::{
    fs,
    os::unix::{fs::symlink, net::UnixListener},
};

use tempfile::TempDir;

use crate::support::{Daemon, Setup, argv, check_answers, compile_in_workspace, shell};

/// The first version of Landlock that refuses commands the sockets of others.
const MIN_LANDLOCK_VERSION: u32 = 9;
/// What the log says where the kernel does not refuse them.
const LOG_WARNING: &str = "commands can connect to Unix sockets of the host";

/// The version of Landlock that the daemon tells.
async fn landlock_version(daemon: &Daemon) -> u32 {
    let layers = daemon.info().await.isolation.unwrap().layers;
    let layer = layers.iter().find(|layer| layer.name == "landlock").unwrap();
    let version = layer.detail.strip_prefix("version ").unwrap_or("0");
    let version = version.split(|end: char| !end.is_ascii_digit()).next();
    version.unwrap().parse().unwrap()
}

#[tokio::test]
async fn daemon_blocks_host_sockets_or_warns_about_them() {
    for user in [None, Some(12345)] {
        let shown = TempDir::with_prefix("jig-test-shown-").unwrap();
        let open = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        fs::set_permissions(shown.path(), open).unwrap();

        // The workspace's configuration has other names for what is bound than the socket.
        let link = TempDir::with_prefix("jig-test-link-").unwrap();
        let bound = link.path().join("bound");
        symlink(shown.path(), &bound).unwrap();
        let bind = format!("{}:/shown", bound.display());
        let elsewhere = TempDir::with_prefix("jig-test-elsewhere-").unwrap();
        let bind_socket = |path| {
            let listener = UnixListener::bind(&path).unwrap();
            let open = std::os::unix::fs::PermissionsExt::from_mode(0o666);
            fs::set_permissions(&path, open).unwrap();
            listener
        };
        let _shown = bind_socket(shown.path().join("shown.sock"));
        let _elsewhere = bind_socket(elsewhere.path().join("elsewhere.sock"));
        let setup = Setup::new().arguments(&["--bind-ro", &bind]);
        let setup = match user {
            Some(user) => setup.user(user),
            None => setup,
        };
        let daemon = setup.start().await;
        let _own = bind_socket(daemon.file("in the workspace.sock"));
        let daemon = daemon.restart().await;
        let reach = compile_in_workspace(&daemon, "reach");
        let response = daemon
            .run(argv(&[
                &reach,
                "unix",
                "/workspace/in the workspace.sock",
                "-",
                "unix",
                "/shown/shown.sock",
                "-",
            ]))
            .await;
        let names = ["in the workspace.sock", "shown.sock"];
        let report = String::from_utf8(daemon.run_check().stdout).unwrap();
        let log = daemon.log();
        let refuses = landlock_version(&daemon).await >= MIN_LANDLOCK_VERSION;
        let right = if refuses { "EACCES" } else { "ok" };
        check_answers(
            &response,
            &[
                ("unix /workspace/in the workspace.sock -", right),
                ("unix /shown/shown.sock -", right),
            ],
        );
        for text in [&report, &log] {
            for name in names {
                assert_eq!(!text.contains(name), refuses, "{name} in {text}");
            }
            assert!(!text.contains("elsewhere.sock"), "{text}");
        }
        let warnings = log.matches(LOG_WARNING).count();
        assert_eq!(warnings, usize::from(!refuses), "{log}");
    }
}

#[tokio::test]
async fn command_reaches_its_own_sockets() {
    let daemon = Daemon::start().await;
    for folder in ["/workspace", "/tmp", "/dev/shm", "/home/agent"] {
        let line = format!(
            "import os, socket; path = '{folder}/own.sock'\n\
             for kind in (socket.SOCK_STREAM, socket.SOCK_SEQPACKET):\n  \
               with socket.socket(socket.AF_UNIX, kind) as server, socket.socket(socket.AF_UNIX, kind) as client:\n    \
                 server.bind(path); server.listen(1); client.connect(path); os.unlink(path)\n\
             with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as server, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as client:\n  \
               server.bind(path); client.sendto(b'x', path); print(server.recv(1)); os.unlink(path)\n"
        );
        let request = argv(&["python3", "-c", &line]);
        assert_eq!(daemon.output(request).await, "b'x'\n", "{folder}");
    }

    // A child that it starts is under the same rules.
    let line = "python3 -c \"import socket; s = socket.socket(socket.AF_UNIX); s.bind('child.sock'); s.listen(1); open('ready', 'w'); s.accept()\" & \
                until [ -e ready ]; do sleep 0.01; done; \
                python3 -c \"import socket; s = socket.socket(socket.AF_UNIX); s.connect('child.sock'); print('met')\"; wait";
    assert_eq!(daemon.output(shell(line)).await, "met\n");
}
