//! The network mode `host`, which the operator chooses, and its description in `GetInfo`.

use crate::support::{Setup, TestNetwork, argv, shell, start_http_server};

#[tokio::test]
async fn commands_share_the_host_network_and_info_reports_it() {
    let network = TestNetwork::with_hosts(&[("", "203.0.113.10")]);
    let daemon = network.setup().arguments(&["--network", "host"]).listen_tcp().start().await;
    let requests = start_http_server(&daemon, "203.0.113.10", 80, None);
    let output =
        daemon.output(shell("curl -sS http://203.0.113.10/x; env | grep -i _proxy; true")).await;
    assert_eq!(output, "0 bytes at /x\n");
    assert_eq!(requests.heads().len(), 1);

    // The command has the daemon's namespace, with its name servers.
    let namespace = daemon.output(shell("readlink /proc/self/ns/net")).await;
    let daemon_namespace = std::fs::read_link(format!("/proc/{}/ns/net", daemon.pid())).unwrap();
    assert_eq!(namespace.trim(), daemon_namespace.to_str().unwrap());

    let resolver = daemon.output(argv(&["cat", "/etc/resolv.conf"])).await;
    assert!(resolver.starts_with("nameserver 127.0.0.1\n"), "{resolver}");

    let info = daemon.info().await;
    assert_eq!(info.egress, None);

    let isolation = info.isolation.unwrap();
    assert!(isolation.ready);
    assert_eq!(isolation.network, "host");

    let missing: Vec<_> = isolation.layers.iter().filter(|layer| !layer.applied).collect();
    let [layer] = missing.as_slice() else {
        panic!("{missing:?}");
    };
    assert_eq!(layer.name, "network_namespace");

    for text in ["the daemon's own TCP ports", "127.0.0.1", "metadata"] {
        assert!(layer.detail.contains(text), "{layer:?}");
    }
    assert!(layer.remedy.contains("--network none"), "{layer:?}");

    let log = daemon.log();
    assert!(log.contains("if they obtain a key"), "{log}");
}

#[tokio::test]
async fn commands_cannot_change_the_host_network() {
    let network = TestNetwork::with_hosts(&[("", "203.0.113.10")]);
    let daemon = network.setup().arguments(&["--network", "host"]).start().await;
    for command in [
        "ip address add 203.0.113.12/32 dev lo",
        "ip link set lo down",
        "ip route add 203.0.113.0/24 dev lo",
        "echo 1 > /proc/sys/net/ipv4/ip_forward",
        "echo 1 > /proc/sys/net/ipv4/tcp_max_tw_buckets",
    ] {
        let response = daemon.run(argv(&["sh", "-c", command])).await;
        assert_ne!(response.exit_code, Some(0), "{command}: {response:?}");
    }

    // The daemon has not changed the setting either: a slot sets it only in namespaces of its own.
    let setting = daemon.output(shell("cat /proc/sys/net/ipv4/tcp_max_tw_buckets")).await;
    assert_ne!(setting.trim(), "0");
}

#[tokio::test]
async fn unprivileged_daemon_offers_host_and_proxy_networks() {
    let unprivileged_setup = |mode| {
        let setup = Setup::new().user(12345);
        setup.arguments(&["--network", mode])
    };

    // In the machine's own network, so the test sends no request.
    let daemon = unprivileged_setup("host").start().await;
    assert_eq!(daemon.output(shell("echo there")).await, "there\n");

    let daemon = unprivileged_setup("proxy").start().await;
    let output = daemon.output(shell("curl -sS http://other.jig.test/")).await;
    assert!(output.starts_with("EGRESS_DENIED: "), "{output}");
}
