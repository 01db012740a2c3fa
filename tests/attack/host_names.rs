//! Names of hosts that one program reads as one host and another as another: the proxy checks, looks
//! up, connects to and passes on the same bytes.

use jig::api::v1::RunRequest;

use crate::support::{Daemon, TestNetwork, argv, start_http_server, start_name_server};

/// A public address, in the daemon's own network, to which every name leads.
const PUBLIC_ADDRESS: &str = "8.8.8.8";
const ALLOWED_NAME: &str = "good.jig.test";

/// Hosts that end as an allowed name does, or begin so, or look like one.
fn hostile_names() -> Vec<Vec<u8>> {
    let mut hosts: Vec<Vec<u8>> = [
        "evil.test\0.jig.test",
        "good.jig.test\0",
        "evil.test\r.jig.test",
        "evil.test\n.jig.test",
        "evil.test\r\n.jig.test",
        "evil.test\t.jig.test",
        "evil.test .jig.test",
        "evil.test%00.jig.test",
        "evil.test%0d%0a.jig.test",
        "good%2ejig%2etest",
        "evil.test%2e.jig.test",
        "evil.test%2f.jig.test",
        "evil.test..jig.test",
        "good.jig.test..",
        ".good.jig.test",
        ".jig.test",
        "..jig.test",
        "user@good.jig.test",
        "good.jig.test@evil.test",
        "good.jig.test%40evil.test",
        "evil.test#good.jig.test",
        "evil.test?good.jig.test",
        "good.jig.test\\.evil.test",
        "evil.test/.jig.test",
        "evil.test;.jig.test",
        "evil.test,good.jig.test",
        "g\u{43e}\u{43e}d.jig.test",
        "\u{ff47}ood.jig.test",
        "good\u{3002}jig\u{3002}test",
        "good\u{ad}.jig.test",
        "good\u{200b}.jig.test",
        "b\u{fc}cher.jig.test",
        "[::1%lo]",
        "[fe80::1%25lo]",
        "[fe80::1%lo]",
        "[good.jig.test]",
        "[::1].jig.test",
        "-good.jig.test",
        "good-.jig.test",
        "*.jig.test",
    ]
    .iter()
    .map(|host| host.as_bytes().to_vec())
    .collect();

    hosts.push(b"\xff.jig.test".to_vec());
    hosts.push(format!("{}jig.test", "a.".repeat(123)).into_bytes());
    hosts.push(format!("{}.jig.test", "a".repeat(64)).into_bytes());
    hosts
}

/// Sends requests to the proxy, each over a connection of its own, and answers what came back.
async fn send_to_proxy(daemon: &Daemon, requests: &[Vec<u8>]) -> Vec<String> {
    let program = "
import socket, sys
for line in sys.stdin:
    end = socket.create_connection(('127.0.0.1', 3128))
    end.sendall(bytes.fromhex(line))
    answer = b''
    # What comes through a tunnel ends so; the proxy closes after all else.
    while b' bytes at /\\n' not in answer and (piece := end.recv(65536)):
        answer += piece
    print(answer.hex())
";

    let line = |bytes: &Vec<u8>| bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    let lines: Vec<String> = requests.iter().map(line).collect();
    let request = RunRequest {
        stdin: (lines.join("\n") + "\n").into_bytes().into(),
        ..argv(&["python3", "-c", program])
    };
    let output = daemon.output(request).await;
    let bytes = |line: &str| -> Vec<u8> {
        let digits = line.as_bytes().chunks(2);
        digits
            .map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap())
            .collect()
    };
    let text = |line: &str| String::from_utf8_lossy(&bytes(line)).into_owned();
    let answers: Vec<String> = output.lines().map(text).collect();
    assert_eq!(answers.len(), requests.len());

    answers
}

fn join_parts(parts: &[&[u8]]) -> Vec<u8> {
    parts.concat()
}

#[tokio::test]
async fn case_n14_proxy_rejects_malformed_names_without_lookup() {
    let world = TestNetwork::with_hosts(&[("", PUBLIC_ADDRESS)]);
    let hosts = ["*.jig.test", ALLOWED_NAME, "[::1]"];
    let daemon = world.proxy_setup(&hosts, &[]).start().await;
    let site = start_http_server(&daemon, PUBLIC_ADDRESS, 80, None);
    let names = start_name_server(&daemon, &[&[PUBLIC_ADDRESS]]);
    let mut requests = Vec::new();
    let end = b"\r\nConnection: close\r\n\r\n";
    for host in hostile_names() {
        requests.push(join_parts(&[b"CONNECT ", &host, b":80 HTTP/1.1", end]));
        requests.push(join_parts(&[b"GET http://", &host, b"/ HTTP/1.1\r\nHost: ", &host, end]));
        requests.push(join_parts(&[
            b"GET http://",
            &host,
            b"/ HTTP/1.1\r\nHost: good.jig.test",
            end,
        ]));
        // The same where only the field differs.
        requests.push(join_parts(&[b"GET http://good.jig.test/ HTTP/1.1\r\nHost: ", &host, end]));
        requests.push(join_parts(&[b"CONNECT good.jig.test:80 HTTP/1.1\r\nHost: ", &host, end]));
    }

    // Addresses that hold others are no names, whatever is allowed.
    for host in ["[::ffff:8.8.8.8]", "[::ffff:808:808]", "[64:ff9b::8.8.8.8]"] {
        requests.push(join_parts(&[b"CONNECT ", host.as_bytes(), b":80 HTTP/1.1", end]));
    }
    for (request, answer) in requests.iter().zip(send_to_proxy(&daemon, &requests).await) {
        let shown = String::from_utf8_lossy(request);
        let refused = ["HTTP/1.1 400 ", "HTTP/1.1 403 EGRESS_DENIED\r\n"];
        assert!(refused.iter().any(|begin| answer.starts_with(begin)), "{shown:?}: {answer:?}");
    }

    assert_eq!(names.questions(), [""; 0]);
    assert_eq!(site.heads(), [""; 0]);
}

#[tokio::test]
async fn case_n14_proxy_checks_resolves_and_forwards_the_same_name() {
    let world = TestNetwork::with_hosts(&[("", PUBLIC_ADDRESS)]);
    let daemon = world.proxy_setup(&["*.jig.test"], &[]).start().await;
    let site = start_http_server(&daemon, PUBLIC_ADDRESS, 80, None);
    let names = start_name_server(&daemon, &[&[PUBLIC_ADDRESS]]);
    let longest = format!("{}.jig.test", "a.".repeat(122).trim_end_matches('.'));
    assert_eq!(longest.len(), 252);

    let hosts = [
        ("Good.JIG.test", "good.jig.test"),
        ("good.jig.test.", "good.jig.test"),
        ("xn--bcher-kva.jig.test", "xn--bcher-kva.jig.test"),
        ("_a-b.c.jig.test", "_a-b.c.jig.test"),
        (longest.as_str(), longest.as_str()),
    ];

    for (written, meant) in hosts {
        let (asked, passed) = (names.question_count(), site.heads().len());
        let get = format!(
            "GET http://{written}/ HTTP/1.1\r\nHost: {written}\r\nConnection: close\r\n\r\n"
        );
        // The tunnel carries what the proxy does not look at.
        let connect = format!(
            "CONNECT {written}:80 HTTP/1.1\r\n\r\nGET / HTTP/1.1\r\nHost: in-the-tunnel\r\n\r\n"
        );
        for answer in send_to_proxy(&daemon, &[get.into_bytes(), connect.into_bytes()]).await {
            assert!(answer.starts_with("HTTP/1.1 200 "), "{written}: {answer}");
        }
        assert_eq!(names.questions().split_off(asked), [meant, meant]);
        let heads = site.heads().split_off(passed);
        let [from_the_proxy, from_the_tunnel] = heads.as_slice() else {
            panic!("{written}: {heads:?}");
        };
        let field = format!("\r\nhost: {meant}\r\n");
        assert!(from_the_proxy.contains(&field), "{from_the_proxy}");
        assert!(from_the_tunnel.contains("in-the-tunnel"), "{from_the_tunnel}");
    }
}
