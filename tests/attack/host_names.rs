//! Host names that two programs may read as different hosts. The proxy checks, resolves, connects
//! to and forwards the same bytes.

use jig::api::v1::RunRequest;

use crate::support::{Daemon, TestNetwork, argv, start_http_server, start_name_server};

/// A public address in the daemon's network, to which the name server resolves every name.
const PUBLIC_ADDRESS: &str = "8.8.8.8";
const ALLOWED_NAME: &str = "good.jig.test";

/// Hosts that share a prefix or suffix with an allowed name, or look like one.
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

/// Sends requests to the proxy, each over a new connection, and returns the responses.
pub(super) async fn exchange_with_proxy(daemon: &Daemon, requests: &[Vec<u8>]) -> Vec<String> {
    let program = "
import socket, sys
for line in sys.stdin:
    end = socket.create_connection(('127.0.0.1', 3128))
    end.sendall(bytes.fromhex(line))
    answer = b''
    # A response through a tunnel ends so; after other responses the proxy closes.
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
    let network = TestNetwork::with_hosts(&[("", PUBLIC_ADDRESS)]);
    let hosts = ["*.jig.test", ALLOWED_NAME, "[::1]"];
    let daemon = network.proxy_setup(&hosts, &[]).start().await;
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

        // The same hosts in the header field only.
        requests.push(join_parts(&[b"GET http://good.jig.test/ HTTP/1.1\r\nHost: ", &host, end]));
        requests.push(join_parts(&[b"CONNECT good.jig.test:80 HTTP/1.1\r\nHost: ", &host, end]));
    }

    // IPv6 addresses that embed IPv4 addresses are not host names, whatever is allowed.
    for host in ["[::ffff:8.8.8.8]", "[::ffff:808:808]", "[64:ff9b::8.8.8.8]"] {
        requests.push(join_parts(&[b"CONNECT ", host.as_bytes(), b":80 HTTP/1.1", end]));
    }

    for (request, answer) in requests.iter().zip(exchange_with_proxy(&daemon, &requests).await) {
        let request_text = String::from_utf8_lossy(request);
        let refusals = ["HTTP/1.1 400 ", "HTTP/1.1 403 EGRESS_DENIED\r\n"];
        assert!(
            refusals.iter().any(|status_line| answer.starts_with(status_line)),
            "{request_text:?}: {answer:?}"
        );
    }

    assert_eq!(names.questions(), [""; 0]);
    assert_eq!(site.heads(), [""; 0]);
}

#[tokio::test]
async fn case_n14_proxy_checks_resolves_and_forwards_the_same_name() {
    let network = TestNetwork::with_hosts(&[("", PUBLIC_ADDRESS)]);
    let daemon = network.proxy_setup(&["*.jig.test"], &[]).start().await;
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

    for (host, normalized) in hosts {
        let (earlier_questions, earlier_requests) = (names.question_count(), site.heads().len());
        let get =
            format!("GET http://{host}/ HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");

        // The tunnel carries bytes that the proxy does not inspect.
        let connect = format!(
            "CONNECT {host}:80 HTTP/1.1\r\n\r\nGET / HTTP/1.1\r\nHost: in-the-tunnel\r\n\r\n"
        );
        for answer in exchange_with_proxy(&daemon, &[get.into_bytes(), connect.into_bytes()]).await
        {
            assert!(answer.starts_with("HTTP/1.1 200 "), "{host}: {answer}");
        }

        assert_eq!(names.questions().split_off(earlier_questions), [normalized, normalized]);

        let heads = site.heads().split_off(earlier_requests);
        let [proxied_head, tunnelled_head] = heads.as_slice() else {
            panic!("{host}: {heads:?}");
        };

        let header = format!("\r\nhost: {normalized}\r\n");
        assert!(proxied_head.contains(&header), "{proxied_head}");
        assert!(tunnelled_head.contains("in-the-tunnel"), "{tunnelled_head}");
    }
}
