//! Commands that have the daemon's proxy, or its network, and try for more.

use std::{
    net::{TcpListener, UdpSocket},
    time::Instant,
};

use jig::api::v1::RunRequest;

use crate::support::{
    Daemon, Mark, PROMPT_TIMEOUT, Setup, TestNetwork, argv, check_answers, compile_in_workspace,
    eventually, run_in_network_of, shell, start_http_server, start_name_server,
};

/// A public address, a private one, and those of metadata services: all in the daemon's own network.
const PUBLIC_ADDRESS: &str = "8.8.8.8";
const PRIVATE_ADDRESS: &str = "10.1.2.3";
const NETWORK_ADDRESSES: [&str; 5] =
    [PUBLIC_ADDRESS, PRIVATE_ADDRESS, "169.254.169.254", "fd00:ec2::254", "100.64.0.1"];

fn test_network() -> TestNetwork {
    TestNetwork::with_hosts(&NETWORK_ADDRESSES.map(|address| ("", address)))
}

/// A daemon whose commands may connect to `rebind.jig.test` and what is below `jig.test`, on any of
/// the ports that the tests use.
async fn start_proxied_daemon(world: &TestNetwork) -> Daemon {
    let hosts = ["*.jig.test", "*.jig.test:8080", "169.254.169.254", PRIVATE_ADDRESS];
    world.proxy_setup(&hosts, &[]).listen_tcp().start().await
}

/// Sends requests to the proxy, each over a connection of its own; each answer must begin so.
async fn send_to_proxy(daemon: &Daemon, requests: &[String], begin: &str) -> Vec<String> {
    let program = "
import socket, sys
for request in sys.stdin.buffer.read().split(b'\\0'):
    end = socket.create_connection(('127.0.0.1', 3128))
    end.sendall(request)
    while piece := end.recv(65536):
        sys.stdout.buffer.write(piece)
    sys.stdout.buffer.write(b'\\0')
";

    let response = daemon
        .run(RunRequest {
            stdin: requests.join("\0").into_bytes().into(),
            ..argv(&["python3", "-c", program])
        })
        .await;
    let answers: Vec<&str> = response.stdout.split_terminator('\0').collect();
    assert_eq!(answers.len(), requests.len(), "{response:?}");

    for (request, answer) in requests.iter().zip(&answers) {
        assert!(answer.starts_with(begin), "{request:?}: {answer:?}");
    }
    answers.into_iter().map(str::to_owned).collect()
}

/// The same for one request.
async fn send_one_to_proxy(daemon: &Daemon, request: String, begin: &str) -> String {
    send_to_proxy(daemon, &[request], begin).await.remove(0)
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
    let world = test_network();
    let daemon = start_proxied_daemon(&world).await;
    let mut tries = Vec::new();
    for address in NETWORK_ADDRESSES {
        tries.extend([["tcp", address, "80"], ["tcp", address, "443"], ["udp", address, "53"]]);
    }
    let expected: Vec<String> = tries.iter().map(|three| three.join(" ")).collect();
    let expected: Vec<_> = expected
        .iter()
        .map(|what| (what.as_str(), "ENETUNREACH|EADDRNOTAVAIL|EACCES|EPERM"))
        .collect();
    let program = compile_in_workspace(&daemon, "reach");
    let words: Vec<&str> =
        [program.as_str()].into_iter().chain(tries.iter().flatten().copied()).collect();
    let began = Instant::now();
    check_answers(&daemon.run(argv(&words)).await, &expected);

    for command in [
        "getent hosts a.jig.test",
        "curl -sS --noproxy '*' http://a.jig.test/",
        "curl -sS --noproxy '*' http://8.8.8.8/",
        "test -e /etc/resolv.conf",
    ] {
        let response = daemon.run(argv(&["bash", "-c", command])).await;
        assert_ne!(response.exit_code, Some(0), "{command}: {response:?}");
    }

    assert!(began.elapsed() < PROMPT_TIMEOUT, "{:?}", began.elapsed());
}

#[tokio::test]
async fn case_75_command_in_host_network_reaches_the_daemons_addresses() {
    let world = test_network();
    let daemon = world.setup().arguments(&["--network", "host"]).start().await;
    let listeners = run_in_network_of(&daemon, || {
        NETWORK_ADDRESSES.map(|address| {
            (TcpListener::bind((address, 80)).unwrap(), UdpSocket::bind((address, 53)).unwrap())
        })
    });
    let tries: Vec<[&str; 3]> = NETWORK_ADDRESSES
        .iter()
        .flat_map(|address| [["tcp", address, "80"], ["udp", address, "53"]])
        .collect();
    let expected: Vec<String> = tries.iter().map(|three| three.join(" ")).collect();
    let expected: Vec<_> = expected.iter().map(|what| (what.as_str(), "ok")).collect();
    let program = compile_in_workspace(&daemon, "reach");
    let words: Vec<&str> =
        [program.as_str()].into_iter().chain(tries.iter().flatten().copied()).collect();
    check_answers(&daemon.run(argv(&words)).await, &expected);

    drop(listeners);
}

#[tokio::test]
async fn case_76_proxy_denies_the_daemon_and_its_neighbours() {
    let world =
        TestNetwork::with_hosts(&[("loop.jig.test", "127.0.0.1"), ("all.jig.test", "0.0.0.0")]);
    let daemon = start_proxied_daemon(&world).await;
    let port = daemon.port();
    let neighbour = run_in_network_of(&daemon, || TcpListener::bind("127.0.0.1:8080").unwrap());
    let program = compile_in_workspace(&daemon, "reach");
    let (own, socket) = (port.to_string(), daemon.socket());
    let socket = socket.to_str().unwrap();
    let tries = [
        (["tcp", "127.0.0.1", own.as_str()], "ECONNREFUSED"),
        (["tcp", "::1", &own], "ECONNREFUSED"),
        (["tcp", "127.0.0.1", "8080"], "ECONNREFUSED"),
        (["unix", socket, "-"], "ENOENT"),
        (["tcp", "127.0.0.1", "3128"], "ok"),
    ];

    let expected: Vec<_> = tries.iter().map(|(three, right)| (three.join(" "), *right)).collect();
    let expected: Vec<_> = expected.iter().map(|(what, right)| (what.as_str(), *right)).collect();
    let words: Vec<&str> = [program.as_str()]
        .into_iter()
        .chain(tries.iter().flat_map(|(three, _)| three.iter().copied()))
        .collect();
    check_answers(&daemon.run(argv(&words)).await, &expected);

    // A name that leads there is allowed by itself.
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
    neighbour.accept().expect_err("nobody came");
}

#[tokio::test]
async fn case_76_host_network_does_not_expose_unix_sockets() {
    let world = TestNetwork::with_hosts(&[]);
    let daemon = world.setup().arguments(&["--network", "host"]).start().await;
    let name = format!("jig-test-host-{}", std::process::id());
    let listening = name.clone();
    let _listener = run_in_network_of(&daemon, move || {
        use std::os::{
            linux::net::SocketAddrExt as _,
            unix::net::{SocketAddr, UnixListener},
        };
        UnixListener::bind_addr(&SocketAddr::from_abstract_name(listening).unwrap()).unwrap()
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
    let world = TestNetwork::with_hosts(&[]);
    for mode in ["host", "proxy"] {
        let daemon = world.setup().arguments(&["--network", mode]).start().await;
        let program = compile_in_workspace(&daemon, "families");
        let response = daemon.run(argv(&[&program])).await;
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
        check_answers(&response, &expected);
    }
}

#[tokio::test]
async fn case_78_runs_share_ports_only_in_the_host_network() {
    let world = TestNetwork::with_hosts(&[]);
    for (mode, expected) in [("none", "ok"), ("proxy", "ok"), ("host", "EADDRINUSE")] {
        let daemon = world.setup().arguments(&["--network", mode]).start().await;
        let listen = compile_in_workspace(&daemon, "listen");
        let mark = Mark::new();
        let first = daemon.spawn_run(mark.on(argv(&[&listen])));
        eventually("the first listens", async || daemon.file("listening").exists()).await;
        let bind = "import errno, socket\nend = socket.socket()\ntry:\n    end.bind(('127.0.0.1', 8080))\n    end.listen()\n    print('bind: ok')\nexcept OSError as error:\n    print('bind: ' + errno.errorcode[error.errno])";
        let response = daemon.run(argv(&["python3", "-c", bind])).await;
        check_answers(&response, &[("bind", expected)]);
        first.abort();
        mark.wait_until_gone().await;
    }
}

#[tokio::test]
async fn case_79_proxy_connects_only_to_allowed_targets() {
    let world = TestNetwork::with_hosts(&[
        ("good.jig.test", PUBLIC_ADDRESS),
        ("evil.test", PUBLIC_ADDRESS),
        ("private.jig.test", PRIVATE_ADDRESS),
        ("metadata.jig.test", "169.254.169.254"),
        ("metadata6.jig.test", "fd00:ec2::254"),
        ("nat.jig.test", "100.64.0.1"),
    ]);

    let daemon = start_proxied_daemon(&world).await;
    let good = start_http_server(&daemon, PUBLIC_ADDRESS, 80, None);
    let others = [PRIVATE_ADDRESS, "169.254.169.254", "fd00:ec2::254", "100.64.0.1"]
        .map(|address| start_http_server(&daemon, address, 80, None));
    send_one_to_proxy(&daemon, get_request("good.jig.test"), "HTTP/1.1 200 OK\r\n").await;
    let hosts = [
        // Not allowed by name.
        "evil.test",
        "good.jig.test.evil.test",
        "evilgood.jig.testx",
        "jig.test",
        "8.8.8.8",
        "[::ffff:8.8.8.8]",
        "[::ffff:10.1.2.3]",
        // Ways to write an address.
        "134744072",
        "0x8.8.8.8",
        "0x08080808",
        "010.8.8.8",
        "8.8.2056",
        // Allowed by name, and leading to what must not be reached.
        "private.jig.test",
        "metadata.jig.test",
        "metadata6.jig.test",
        "nat.jig.test",
        "169.254.169.254",
        PRIVATE_ADDRESS,
        // On another port.
        "good.jig.test:22",
    ];

    let requests = hosts.iter().flat_map(|host| {
        let has_port = host.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok());
        let target = match has_port {
            true => (*host).to_owned(),
            false => format!("{host}:80"),
        };
        [get_request(host), connect_request(&target)]
    });

    let requests: Vec<String> = requests.collect();
    for text in send_to_proxy(&daemon, &requests, DENIED_STATUS_LINE).await {
        assert!(text.contains("EGRESS_DENIED: "), "{text}");
    }
    assert_eq!(good.heads().len(), 1, "{:?}", good.heads());

    for other in others {
        assert_eq!(other.heads(), [""; 0]);
    }

    // Without the variables, or with what is no HTTP, there is nothing.
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
    let world = test_network();
    let daemon = start_proxied_daemon(&world).await;
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

    // Asked once, and what was answered is what is connected to.
    send_one_to_proxy(&daemon, get_request("rebind.jig.test"), "HTTP/1.1 200 OK\r\n").await;
    assert_eq!((names.question_count(), public.heads().len()), (1, 1));

    // Then it leads to what must not be reached.
    let text = send_one_to_proxy(&daemon, get_request("rebind.jig.test"), DENIED_STATUS_LINE).await;
    assert!(text.contains("leads to 10.1.2.3, a private address"), "{text}");
    assert_eq!(names.question_count(), 2);

    // Of several addresses those that may be reached are.
    send_one_to_proxy(&daemon, get_request("rebind.jig.test"), "HTTP/1.1 200 OK\r\n").await;
    assert_eq!((names.question_count(), public.heads().len()), (3, 2));

    // Addresses that hold others.
    send_one_to_proxy(&daemon, get_request("rebind.jig.test"), DENIED_STATUS_LINE).await;
    assert_eq!(private.heads(), [""; 0]);
    assert_eq!(public.heads().len(), 2);

    // Each request of one connection is looked at anew.
    let keep = get_request("rebind.jig.test").replace("close", "keep-alive");
    send_one_to_proxy(&daemon, keep + &get_request("rebind.jig.test"), DENIED_STATUS_LINE).await;

    // A name that is not allowed is not even looked up.
    let before = names.question_count();
    send_one_to_proxy(&daemon, get_request("rebind.evil.test"), DENIED_STATUS_LINE).await;
    assert_eq!(names.question_count(), before);

    // The tunnel of a tool is under the same rule.
    let response = daemon.run(shell("curl -sS https://rebind.jig.test/")).await;
    assert_eq!(response.exit_code, Some(56), "{response:?}");
}

#[tokio::test]
async fn case_79_proxy_without_rules_connects_to_nothing() {
    let world = TestNetwork::with_hosts(&[("good.jig.test", PUBLIC_ADDRESS)]);
    let daemon = world.setup().arguments(&["--network", "proxy"]).start().await;
    let requests = start_http_server(&daemon, PUBLIC_ADDRESS, 80, None);
    send_one_to_proxy(&daemon, get_request("good.jig.test"), DENIED_STATUS_LINE).await;
    assert_eq!(requests.heads(), [""; 0]);
    assert!(daemon.log().contains("commands can connect to nothing"), "{}", daemon.log());

    let without: Daemon = Setup::new().start().await;
    let response = without.run(shell("echo > /dev/tcp/127.0.0.1/3128")).await;
    assert_ne!(response.exit_code, Some(0), "{response:?}");
}

#[tokio::test]
async fn case_75_proxy_never_connects_a_command_to_the_daemon() {
    let world = test_network();

    // Whatever the operator allows.
    let targets = [
        "127.0.0.1:50051",
        "127.0.0.2:50051",
        "0.0.0.0:50051",
        "[::1]:50051",
        "[::]:50051",
        "10.1.2.3:50051",
        "8.8.8.8:50051",
    ];

    let setup = world.proxy_setup(&targets, &["0.0.0.0/0", "::/0"]);
    let daemon = setup.arguments(&["--listen", "127.0.0.1:50051"]).start().await;
    let requests = targets.map(connect_request);
    for answer in send_to_proxy(&daemon, &requests, DENIED_STATUS_LINE).await {
        assert!(answer.contains("jigd itself"), "{answer:?}");
    }
}
