//! Commands with the daemon's proxy or in the host's network that try to reach further.

use std::{
    net::{TcpListener, UdpSocket},
    time::Instant,
};

use super::{
    host_names::exchange_with_proxy,
    network::{Target, check_reach, check_socket_families, unreachable_targets},
};
use crate::support::{
    Daemon, MAX_REACTION_TIME, Mark, Setup, TestNetwork, argv, check_answers, compile_in_workspace,
    eventually, run_in_network_of, shell, start_http_server, start_name_server,
};

const PUBLIC_ADDRESS: &str = "8.8.8.8";
const PRIVATE_ADDRESS: &str = "10.1.2.3";
/// Addresses in the daemon's network: public, private, and of metadata services.
const NETWORK_ADDRESSES: [&str; 5] =
    [PUBLIC_ADDRESS, PRIVATE_ADDRESS, "169.254.169.254", "fd00:ec2::254", "100.64.0.1"];

fn test_network() -> TestNetwork {
    TestNetwork::with_hosts(&NETWORK_ADDRESSES.map(|address| ("", address)))
}

/// A daemon whose commands may connect to hosts below `jig.test` on the ports of these tests. Two
/// private addresses are allowed as hosts, but not as addresses.
async fn start_proxied_daemon(network: &TestNetwork) -> Daemon {
    let hosts = ["*.jig.test", "*.jig.test:8080", "169.254.169.254", PRIVATE_ADDRESS];
    network.proxy_setup(&hosts, &[]).listen_tcp().start().await
}

/// Sends requests to the proxy, each over a new connection, and returns the responses. Each must
/// start with `status_line`.
async fn send_to_proxy(daemon: &Daemon, requests: &[String], status_line: &str) -> Vec<String> {
    let bytes: Vec<Vec<u8>> = requests.iter().map(|text| text.clone().into_bytes()).collect();
    let responses = exchange_with_proxy(daemon, &bytes).await;
    for (request, response) in requests.iter().zip(&responses) {
        assert!(response.starts_with(status_line), "{request:?}: {response:?}");
    }
    responses
}

/// Like [`send_to_proxy`], for one request.
async fn send_one_to_proxy(daemon: &Daemon, request: String, status_line: &str) -> String {
    send_to_proxy(daemon, &[request], status_line).await.remove(0)
}

fn get_request(host: &str) -> String {
    format!("GET http://{host}/x HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n")
}

fn connect_request(target: &str) -> String {
    format!("CONNECT {target} HTTP/1.1\r\nConnection: close\r\n\r\n")
}

const DENIED_STATUS_LINE: &str = "HTTP/1.1 403 EGRESS_DENIED\r\n";

#[tokio::test]
async fn case_75_connections_bypassing_the_proxy_fail_promptly() {
    let network = test_network();
    let daemon = start_proxied_daemon(&network).await;
    let program = compile_in_workspace(&daemon, "reach");
    let start = Instant::now();
    check_reach(&daemon, &program, &unreachable_targets(&NETWORK_ADDRESSES)).await;

    for command in [
        "getent hosts a.jig.test",
        "curl -sS --noproxy '*' http://a.jig.test/",
        "curl -sS --noproxy '*' http://8.8.8.8/",
        "test -e /etc/resolv.conf",
    ] {
        let response = daemon.run(argv(&["bash", "-c", command])).await;
        assert_ne!(response.exit_code, Some(0), "{command}: {response:?}");
    }

    assert!(start.elapsed() < MAX_REACTION_TIME, "{:?}", start.elapsed());
}

#[tokio::test]
async fn case_75_command_in_host_network_reaches_the_daemons_addresses() {
    let network = test_network();
    let daemon = network.setup().arguments(&["--network", "host"]).start().await;
    let listeners = run_in_network_of(&daemon, || {
        NETWORK_ADDRESSES.map(|address| {
            (TcpListener::bind((address, 80)).unwrap(), UdpSocket::bind((address, 53)).unwrap())
        })
    });

    let targets: Vec<Target<'_>> = NETWORK_ADDRESSES
        .iter()
        .flat_map(|address| [(["tcp", address, "80"], "ok"), (["udp", address, "53"], "ok")])
        .collect();
    let program = compile_in_workspace(&daemon, "reach");
    check_reach(&daemon, &program, &targets).await;

    drop(listeners);
}

#[tokio::test]
async fn case_76_proxy_denies_the_daemon_and_its_neighbours() {
    let network =
        TestNetwork::with_hosts(&[("loop.jig.test", "127.0.0.1"), ("all.jig.test", "0.0.0.0")]);
    let daemon = start_proxied_daemon(&network).await;
    let port = daemon.port();
    let neighbour = run_in_network_of(&daemon, || TcpListener::bind("127.0.0.1:8080").unwrap());
    let program = compile_in_workspace(&daemon, "reach");
    let (daemon_port, socket) = (port.to_string(), daemon.socket());
    let socket = socket.to_str().unwrap();
    let targets = [
        (["tcp", "127.0.0.1", daemon_port.as_str()], "ECONNREFUSED"),
        (["tcp", "::1", &daemon_port], "ECONNREFUSED"),
        (["tcp", "127.0.0.1", "8080"], "ECONNREFUSED"),
        (["unix", socket, "-"], "ENOENT"),
        (["tcp", "127.0.0.1", "3128"], "ok"),
    ];

    check_reach(&daemon, &program, &targets).await;

    // The names are allowed, the addresses are not.
    let hosts = [
        format!("127.0.0.1:{port}"),
        format!("localhost:{port}"),
        format!("[::1]:{port}"),
        format!("0.0.0.0:{port}"),
        "loop.jig.test:8080".to_owned(),
        "all.jig.test:8080".to_owned(),
    ];

    let requests = hosts.iter().flat_map(|host| [connect_request(host), get_request(host)]);
    send_to_proxy(&daemon, &requests.collect::<Vec<_>>(), DENIED_STATUS_LINE).await;

    neighbour.set_nonblocking(true).unwrap();
    neighbour.accept().expect_err("no connection arrives");
}

#[tokio::test]
async fn case_76_host_network_does_not_expose_unix_sockets() {
    let network = TestNetwork::with_hosts(&[]);
    let daemon = network.setup().arguments(&["--network", "host"]).start().await;
    let name = format!("jig-test-host-{}", std::process::id());
    let listener_name = name.clone();
    let _listener = run_in_network_of(&daemon, move || {
        use std::os::{
            linux::net::SocketAddrExt as _,
            unix::net::{SocketAddr, UnixListener},
        };
        UnixListener::bind_addr(&SocketAddr::from_abstract_name(listener_name).unwrap()).unwrap()
    });

    let program = compile_in_workspace(&daemon, "reach");
    let socket = daemon.socket();
    let socket = socket.to_str().unwrap();
    let response = daemon.run(argv(&[&program, "unix", socket, "-", "abstract", &name, "-"])).await;
    check_answers(
        &response,
        &[(&format!("unix {socket} -"), "ENOENT"), (&format!("abstract {name} -"), "EPERM")],
    );
}

#[tokio::test]
async fn case_77_every_network_mode_blocks_other_socket_families() {
    let network = TestNetwork::with_hosts(&[]);
    for mode in ["host", "proxy"] {
        let daemon = network.setup().arguments(&["--network", mode]).start().await;
        check_socket_families(&daemon).await;
    }
}

#[tokio::test]
async fn case_78_runs_share_ports_only_in_the_host_network() {
    let network = TestNetwork::with_hosts(&[]);
    for (mode, expected) in [("none", "ok"), ("proxy", "ok"), ("host", "EADDRINUSE")] {
        let daemon = network.setup().arguments(&["--network", mode]).start().await;
        let listen = compile_in_workspace(&daemon, "listen");
        let mark = Mark::new();
        let first = daemon.spawn_run(mark.on(argv(&[&listen])));
        eventually("the first run listens", async || daemon.file("listening").exists()).await;

        let bind = "import errno, socket\nend = socket.socket()\ntry:\n    end.bind(('127.0.0.1', 8080))\n    end.listen()\n    print('bind: ok')\nexcept OSError as error:\n    print('bind: ' + errno.errorcode[error.errno])";
        let response = daemon.run(argv(&["python3", "-c", bind])).await;
        check_answers(&response, &[("bind", expected)]);

        first.abort();
        mark.wait_until_gone().await;
    }
}

/// Hosts that the proxy of [`start_proxied_daemon`] denies, on port 80 or on the port that they name.
const DENIED_HOSTS: [&str; 19] = [
    // The name is not allowed.
    "evil.test",
    "good.jig.test.evil.test",
    "evilgood.jig.testx",
    "jig.test",
    "8.8.8.8",
    "[::ffff:8.8.8.8]",
    "[::ffff:10.1.2.3]",
    // Other spellings of an address.
    "134744072",
    "0x8.8.8.8",
    "0x08080808",
    "010.8.8.8",
    "8.8.2056",
    // The name is allowed, its address is not.
    "private.jig.test",
    "metadata.jig.test",
    "metadata6.jig.test",
    "nat.jig.test",
    "169.254.169.254",
    PRIVATE_ADDRESS,
    // The port is not allowed.
    "good.jig.test:22",
];

#[tokio::test]
async fn case_79_proxy_connects_only_to_allowed_targets() {
    let network = TestNetwork::with_hosts(&[
        ("good.jig.test", PUBLIC_ADDRESS),
        ("evil.test", PUBLIC_ADDRESS),
        ("private.jig.test", PRIVATE_ADDRESS),
        ("metadata.jig.test", "169.254.169.254"),
        ("metadata6.jig.test", "fd00:ec2::254"),
        ("nat.jig.test", "100.64.0.1"),
    ]);

    let daemon = start_proxied_daemon(&network).await;
    let good = start_http_server(&daemon, PUBLIC_ADDRESS, 80, None);
    let private_servers = [PRIVATE_ADDRESS, "169.254.169.254", "fd00:ec2::254", "100.64.0.1"]
        .map(|address| start_http_server(&daemon, address, 80, None));
    send_one_to_proxy(&daemon, get_request("good.jig.test"), "HTTP/1.1 200 OK\r\n").await;

    let requests = DENIED_HOSTS.iter().flat_map(|host| {
        let has_port = host.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok());
        let target = if has_port { (*host).to_owned() } else { format!("{host}:80") };
        [get_request(host), connect_request(&target)]
    });

    let requests: Vec<String> = requests.collect();
    for text in send_to_proxy(&daemon, &requests, DENIED_STATUS_LINE).await {
        assert!(text.contains("EGRESS_DENIED: "), "{text}");
    }
    assert_eq!(good.heads().len(), 1, "{:?}", good.heads());

    for server in private_servers {
        assert_eq!(server.heads(), [""; 0]);
    }

    // Without the proxy variables, or with another protocol than HTTP, commands reach nothing.
    for command in [
        "env -u http_proxy -u HTTP_PROXY curl -sS http://good.jig.test/",
        "curl -sS --socks5-hostname 127.0.0.1:3128 http://good.jig.test/",
        "echo > /dev/udp/8.8.8.8/53",
        "exec 3<>/dev/udp/127.0.0.1/3128; echo >&3; cat <&3",
    ] {
        let response = daemon.run(argv(&["bash", "-c", command])).await;
        assert_ne!(response.exit_code, Some(0), "{command}: {response:?}");
    }
}

#[tokio::test]
async fn case_79_proxy_blocks_dns_rebinding() {
    let network = test_network();
    let daemon = start_proxied_daemon(&network).await;
    let (public, private) = (
        start_http_server(&daemon, PUBLIC_ADDRESS, 80, None),
        start_http_server(&daemon, PRIVATE_ADDRESS, 80, None),
    );
    let names = start_name_server(
        &daemon,
        &[
            &[PUBLIC_ADDRESS],
            &[PRIVATE_ADDRESS],
            &[PRIVATE_ADDRESS, PUBLIC_ADDRESS],
            &["::ffff:10.1.2.3", "64:ff9b::10.1.2.3", "fd00:ec2::254"],
        ],
    );

    // The proxy asks once and connects to the address in the answer.
    send_one_to_proxy(&daemon, get_request("rebind.jig.test"), "HTTP/1.1 200 OK\r\n").await;
    assert_eq!((names.question_count(), public.heads().len()), (1, 1));

    // Then the name resolves to a denied address.
    let text = send_one_to_proxy(&daemon, get_request("rebind.jig.test"), DENIED_STATUS_LINE).await;
    assert!(text.contains("leads to 10.1.2.3, a private address"), "{text}");
    assert_eq!(names.question_count(), 2);

    // Of several addresses, the proxy connects to an allowed one.
    send_one_to_proxy(&daemon, get_request("rebind.jig.test"), "HTTP/1.1 200 OK\r\n").await;
    assert_eq!((names.question_count(), public.heads().len()), (3, 2));

    // IPv6 addresses that embed private IPv4 addresses, and a private IPv6 address.
    send_one_to_proxy(&daemon, get_request("rebind.jig.test"), DENIED_STATUS_LINE).await;
    assert_eq!(private.heads(), [""; 0]);
    assert_eq!(public.heads().len(), 2);

    // Each request of a connection is checked anew.
    let first = get_request("rebind.jig.test").replace("close", "keep-alive");
    send_one_to_proxy(&daemon, first + &get_request("rebind.jig.test"), DENIED_STATUS_LINE).await;

    // The proxy does not resolve a denied name.
    let before = names.question_count();
    send_one_to_proxy(&daemon, get_request("rebind.evil.test"), DENIED_STATUS_LINE).await;
    assert_eq!(names.question_count(), before);

    // Tunnels follow the same rule.
    let response = daemon.run(shell("curl -sS https://rebind.jig.test/")).await;
    assert_eq!(response.exit_code, Some(56), "{response:?}");
}

#[tokio::test]
async fn case_79_proxy_without_rules_connects_to_nothing() {
    let network = TestNetwork::with_hosts(&[("good.jig.test", PUBLIC_ADDRESS)]);
    let daemon = network.setup().arguments(&["--network", "proxy"]).start().await;
    let requests = start_http_server(&daemon, PUBLIC_ADDRESS, 80, None);
    send_one_to_proxy(&daemon, get_request("good.jig.test"), DENIED_STATUS_LINE).await;
    assert_eq!(requests.heads(), [""; 0]);
    assert!(daemon.log().contains("commands can connect to no host"), "{}", daemon.log());

    let daemon_without_proxy: Daemon = Setup::new().start().await;
    let response = daemon_without_proxy.run(shell("echo > /dev/tcp/127.0.0.1/3128")).await;
    assert_ne!(response.exit_code, Some(0), "{response:?}");
}

#[tokio::test]
async fn case_75_proxy_never_connects_a_command_to_the_daemon() {
    let network = test_network();

    // The operator allows all of these.
    let targets = [
        "127.0.0.1:50051",
        "127.0.0.2:50051",
        "0.0.0.0:50051",
        "[::1]:50051",
        "[::]:50051",
        "10.1.2.3:50051",
        "8.8.8.8:50051",
    ];

    let setup = network.proxy_setup(&targets, &["0.0.0.0/0", "::/0"]);
    let daemon = setup.arguments(&["--listen", "127.0.0.1:50051"]).start().await;
    let requests = targets.map(connect_request);
    for answer in send_to_proxy(&daemon, &requests, DENIED_STATUS_LINE).await {
        assert!(answer.contains("jigd itself"), "{answer:?}");
    }
}
