//! Addresses that a command must not reach, and sockets that it must not create.

use std::{
    fs::File,
    net::{TcpListener, TcpStream, UdpSocket},
    os::{
        fd::AsFd as _,
        linux::net::SocketAddrExt as _,
        unix::net::{SocketAddr, UnixListener, UnixStream},
    },
    thread,
    time::Instant,
};

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use tempfile::TempDir;

use crate::support::{
    Daemon, MAX_REACTION_TIME, Mark, Setup, argv, check_answers, compile_in_workspace,
    copy_program, eventually, promptly, shell, with_metadata,
};

/// Addresses on the loopback interface of the daemon's network in these tests, so that every
/// process of that network reaches them: the metadata service of clouds, a cluster's API server, a
/// public name server.
const HOST_ADDRESSES: [&str; 4] = ["169.254.169.254", "fd00:ec2::254", "10.96.0.1", "8.8.8.8"];

/// What the program `reach` connects to (the kind of socket, the address, the port or `-`), and the
/// answers that are right.
pub(super) type Target<'a> = ([&'a str; 3], &'static str);

/// TCP and UDP ports of addresses that a command without their network cannot reach.
pub(super) fn unreachable_targets<'a>(addresses: &[&'a str]) -> Vec<Target<'a>> {
    let mut targets = Vec::new();
    for address in addresses {
        for target in [["tcp", *address, "80"], ["tcp", *address, "443"], ["udp", *address, "53"]] {
            targets.push((target, "ENETUNREACH|EADDRNOTAVAIL|EACCES|EPERM"));
        }
    }
    targets
}

/// Runs `reach` and checks its answers. `program` is the path of `reach` in the workspace.
pub(super) async fn check_reach(daemon: &Daemon, program: &str, targets: &[Target<'_>]) {
    let arguments = targets.iter().flat_map(|(target, _)| target.iter().copied());
    let words: Vec<&str> = [program].into_iter().chain(arguments).collect();
    let expected: Vec<_> =
        targets.iter().map(|(target, answer)| (target.join(" "), *answer)).collect();
    check_answers(&daemon.run(argv(&words)).await, &expected);
}

/// Checks that a command can create only sockets of the common families.
pub(super) async fn check_socket_families(daemon: &Daemon) {
    let unsupported = [
        "AF_VSOCK",
        "AF_VSOCK, more bits",
        "AF_ALG",
        "AF_PACKET",
        "AF_BLUETOOTH",
        "AF_XDP",
        "netlink audit",
        "netlink netfilter",
        "netlink sock_diag",
        "netlink xfrm",
        "netlink uevent",
        "netlink generic",
        "netlink crypto",
    ];
    let not_permitted = ["raw ICMP", "raw IP", "raw ICMPv6", "IPv6 flow label", "mark"];
    let mut expected = vec![
        ("other families", "none"),
        ("netlink route", "ok"),
        ("ping", "EACCES|EPERM"),
        ("io_uring, which makes sockets too", "ENOSYS"),
    ];
    expected.extend(unsupported.map(|what| (what, "EAFNOSUPPORT")));
    expected.extend(not_permitted.map(|what| (what, "EPERM")));

    let program = compile_in_workspace(daemon, "families");
    check_answers(&daemon.run(argv(&[&program])).await, &expected);
}

#[tokio::test]
async fn case_75_command_fails_promptly_to_reach_the_daemons_network() {
    let addresses: Vec<String> = HOST_ADDRESSES
        .iter()
        .map(|address| format!("{address}/{}", if address.contains(':') { 128 } else { 32 }))
        .collect();
    let addresses: Vec<&str> = addresses.iter().map(String::as_str).collect();
    let daemon = Setup::new().with_network_addresses(&addresses).start().await;

    // Listeners in the daemon's network. The connections check that the addresses work there.
    let network = File::open(format!("/proc/{}/ns/net", daemon.pid())).unwrap();
    let listeners: Vec<(TcpListener, UdpSocket)> = thread::spawn(move || {
        move_into_link_name_space(network.as_fd(), Some(LinkNameSpaceType::Network)).unwrap();
        HOST_ADDRESSES
            .iter()
            .map(|address| {
                let listener = TcpListener::bind((*address, 80)).unwrap();
                TcpStream::connect((*address, 80)).expect("a neighbour can connect");
                (listener, UdpSocket::bind((*address, 53)).unwrap())
            })
            .collect()
    })
    .join()
    .unwrap();

    let program = compile_in_workspace(&daemon, "reach");
    let start = Instant::now();
    check_reach(&daemon, &program, &unreachable_targets(&HOST_ADDRESSES)).await;

    // Resolvers and programs that would wait for a response.
    for command in [
        "getent hosts example.com",
        "getent ahosts metadata.google.internal",
        "echo > /dev/tcp/8.8.8.8/80",
        "echo > /dev/udp/8.8.8.8/53",
    ] {
        let response = daemon.run(argv(&["bash", "-c", command])).await;
        assert_ne!(response.exit_code, Some(0), "{command}: {response:?}");
    }

    assert!(start.elapsed() < MAX_REACTION_TIME, "{:?}", start.elapsed());

    for (listener, datagrams) in listeners {
        datagrams.set_nonblocking(true).unwrap();
        datagrams.recv(&mut [0; 8]).expect_err("no datagram arrives");

        // The only connection is the one made above.
        listener.set_nonblocking(true).unwrap();
        listener.accept().unwrap();
        listener.accept().expect_err("no other connection arrives");
    }
}

#[tokio::test]
async fn case_76_command_cannot_reach_the_daemon_or_its_neighbours() {
    let daemon = Setup::new().listen_tcp().start().await;
    let neighbour = TcpListener::bind("127.0.0.1:0").unwrap();
    let neighbour_port = neighbour.local_addr().unwrap().port().to_string();
    let name = format!("jig-test-{}", std::process::id());
    let abstract_name = SocketAddr::from_abstract_name(&name).unwrap();
    let _abstract_listener = UnixListener::bind_addr(&abstract_name).unwrap();
    UnixStream::connect_addr(&abstract_name).unwrap();

    let (port, socket) = (daemon.port().to_string(), daemon.socket());
    let socket = socket.to_str().unwrap();
    let targets = [
        (["tcp", "127.0.0.1", &port], "ECONNREFUSED"),
        (["tcp", "::1", &port], "ECONNREFUSED"),
        (["tcp", "0.0.0.0", &port], "ECONNREFUSED"),
        (["tcp", "::ffff:127.0.0.1", &port], "ECONNREFUSED"),
        (["tcp", "127.0.0.1", &neighbour_port], "ECONNREFUSED"),
        (["unix", socket, "-"], "ENOENT"),
        (["unix", "/run/docker.sock", "-"], "ENOENT"),
        (["unix", "/var/run/docker.sock", "-"], "ENOENT"),
        (["unix", "/run/containerd/containerd.sock", "-"], "ENOENT"),
        (["unix", "/run/dbus/system_bus_socket", "-"], "ENOENT"),
        (["abstract", &name, "-"], "ECONNREFUSED|EPERM"),
    ];

    let program = compile_in_workspace(&daemon, "reach");
    check_reach(&daemon, &program, &targets).await;
}

#[tokio::test]
async fn case_76_concurrent_runs_cannot_reach_each_other() {
    let daemon = Daemon::start().await;
    let program = compile_in_workspace(&daemon, "reach");
    let listen = compile_in_workspace(&daemon, "listen");
    let mark = Mark::new();
    let listener = daemon.spawn_run(mark.on(argv(&[&listen])));
    eventually("the other run listens", async || daemon.file("listening").exists()).await;

    let response = daemon
        .run(argv(&[&program, "tcp", "127.0.0.1", "8080", "abstract", "neighbour", "-"]))
        .await;
    check_answers(
        &response,
        &[("tcp 127.0.0.1 8080", "ECONNREFUSED"), ("abstract neighbour -", "ECONNREFUSED|EPERM")],
    );

    listener.abort();
    mark.wait_until_gone().await;
}

#[tokio::test]
async fn case_76_passed_socket_reaches_only_the_run_that_passed_it() {
    // Runs of one workspace share its files, so the two may meet at a socket in it.
    let daemon = Setup::new()
        .with_network_addresses(&["10.96.0.1/32", "8.8.8.8/32"])
        .listen_tcp()
        .start()
        .await;
    let program = compile_in_workspace(&daemon, "pass_network");
    let giver = daemon.spawn_run(argv(&[&program, "give", "meet"]));
    let port = daemon.port().to_string();
    let response =
        daemon.run(argv(&[&program, "take", "meet", &port, "10.96.0.1", "8.8.8.8"])).await;

    let unreachable = "ENETUNREACH|EACCES|EPERM";
    check_answers(
        &response,
        &[
            ("own socket to the giver's port", "ECONNREFUSED"),
            ("passed socket to the daemon's port", "ECONNREFUSED"),
            ("passed socket to the giver's port", "ok"),
            ("tcp 10.96.0.1", unreachable),
            ("udp 10.96.0.1", unreachable),
            ("tcp 8.8.8.8", unreachable),
            ("udp 8.8.8.8", unreachable),
            ("enter the namespace", "EPERM"),
            ("owner of the namespace", "EPERM"),
            ("1/environ of the giver", "EACCES|EPERM"),
            ("1/root of the giver", "EACCES|EPERM"),
            ("1/ns/net of the giver", "EACCES|EPERM"),
        ],
    );

    let response = promptly("the giver ends", giver).await.unwrap().unwrap();
    assert_eq!(response.exit_code, Some(0), "{response:?}");
}

#[tokio::test]
async fn case_76_runs_of_two_workspaces_cannot_reach_each_other() {
    let directory = TempDir::with_prefix("jig-test-other-").unwrap();
    let other_workspace = format!("other={}", directory.path().display());
    let daemon = Setup::new().arguments(&["--workspace", &other_workspace]).start().await;
    let (listen, reach) =
        (compile_in_workspace(&daemon, "listen"), compile_in_workspace(&daemon, "reach"));
    copy_program(&daemon.file("reach"), &directory.path().join("reach"));

    let sockets = ["/workspace/meet", "/tmp/meet", "/dev/shm/meet", "/home/agent/meet"];
    let mark = Mark::new();
    let words: Vec<&str> = [listen.as_str()].into_iter().chain(sockets).collect();
    let listener = daemon.spawn_run(mark.on(argv(&words)));
    eventually("the other run listens", async || daemon.file("listening").exists()).await;

    let mut targets = vec![["tcp", "127.0.0.1", "8080"], ["abstract", "neighbour", "-"]];
    targets.extend(sockets.map(|socket| ["unix", socket, "-"]));
    let words: Vec<&str> =
        [reach.as_str()].into_iter().chain(targets.iter().flatten().copied()).collect();

    for (workspace, workspace_socket) in [("workspace", "ok"), ("other", "ENOENT")] {
        let response = daemon.run(with_metadata("jig-workspace", workspace, argv(&words))).await;
        check_answers(
            &response,
            &[
                ("tcp 127.0.0.1 8080", "ECONNREFUSED"),
                ("abstract neighbour -", "ECONNREFUSED|EPERM"),
                ("unix /workspace/meet -", workspace_socket),
                ("unix /tmp/meet -", "ENOENT"),
                ("unix /dev/shm/meet -", "ENOENT"),
                ("unix /home/agent/meet -", "ENOENT"),
            ],
        );
    }

    listener.abort();
    mark.wait_until_gone().await;
}

#[tokio::test]
async fn case_77_command_cannot_create_sockets_of_other_families() {
    let daemon = Daemon::start().await;
    check_socket_families(&daemon).await;

    let response = daemon.run(shell("ping -c 1 127.0.0.1")).await;
    assert_ne!(response.exit_code, Some(0), "{response:?}");
}
