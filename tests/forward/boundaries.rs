//! What a connection must not reach, and what it must not leave.

use std::{net::TcpListener, sync::Arc};

use jig::api::v1::{OnDisconnect, StartRequest};

use super::{
    LISTEN, client, client_with_key, connect, connected, receive_all, start_server, wait_for_port,
};
use crate::{
    callers::start_daemon_with_keys,
    support::{Daemon, KeyFile, Setup, argv, promptly, shell, start_request, with_key},
};

const GREET: &str = "
while True:
    stream = listener.accept()[0]
    stream.sendall(b'hello')
    stream.close()
";

/// Number of the next run's command in its process namespace: 2 in a new sandbox.
async fn next_process(daemon: &Daemon) -> u32 {
    daemon.output(shell("echo $$")).await.trim().parse().unwrap()
}

pub(super) fn one_place() -> Setup {
    Setup::new().workspace_table("[limits]\nconcurrent_runs = 1")
}

/// Starts a server that ends after one connection, which has ended before.
async fn serve_once(daemon: &Daemon) {
    let body = "
stream = listener.accept()[0]
stream.sendall(b'hello')
stream.close()
sys.stdin.read()
";
    let mut server = start_server(daemon, body).await;
    let (mut reader, writer) = connected(&client(daemon).await, &server).await;
    assert_eq!(receive_all(&mut reader).await.unwrap(), b"hello");
    writer.finish().await;
    reader.finish().await.unwrap();
    daemon.close_stdin(&server.id).await.unwrap();
    assert_eq!(server.wait_for_exit().await.exit_code, Some(0));
}

#[tokio::test]
async fn ports_of_the_host_are_not_reached() {
    let daemon = Setup::new().listen_tcp().start().await;
    let server = start_server(&daemon, GREET).await;
    let client = client(&daemon).await;
    let host = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    host.set_nonblocking(true).unwrap();
    for port in [host.local_addr().unwrap().port(), daemon.port()] {
        let error = connect(&client, &server.id, port.into()).await.unwrap_err();
        assert_eq!(error.name(), "PORT_REFUSED", "{error}");
    }
    assert!(host.accept().is_err());
}

#[tokio::test]
async fn runs_are_kept_apart() {
    let daemon = Daemon::start().await;
    let server = start_server(&daemon, GREET).await;
    let neighbour = daemon.start_process(start_request(shell("sleep 1000"))).await;
    let client = client(&daemon).await;
    let error = connect(&client, &neighbour.id, 8000).await.unwrap_err();
    assert_eq!(error.name(), "PORT_REFUSED", "{error}");
    drop(connected(&client, &server).await);
}

#[tokio::test]
async fn run_without_a_network_of_its_own_is_refused() {
    let host = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    host.set_nonblocking(true).unwrap();
    let port = host.local_addr().unwrap().port().into();
    for setup in [Setup::new().arguments(&["--network", "host"]), Setup::new().at_l1()] {
        let daemon = setup.start().await;
        let process = daemon.start_process(start_request(shell("sleep 1000"))).await;
        let error = connect(&client(&daemon).await, &process.id, port).await.unwrap_err();
        assert_eq!(error.name(), "FORWARDING_UNAVAILABLE", "{error}");
        // The slot still serves.
        daemon.send_signal(&process.id, "KILL").await.unwrap();
        daemon.run(shell("true")).await;
    }
    assert!(host.accept().is_err());
}

#[tokio::test]
async fn ports_are_forwarded_at_l2() {
    let daemon = Setup::new().at_l2().start().await;
    assert_eq!(daemon.run(shell("true")).await.isolation, "L2");
    for _ in 0..3 {
        serve_once(&daemon).await;
    }
}

#[tokio::test]
async fn port_of_the_proxy_is_rejected() {
    let daemon = Setup::new().arguments(&["--network", "proxy"]).start().await;
    let server = start_server(&daemon, GREET).await;
    let client = client(&daemon).await;
    let error = connect(&client, &server.id, 3128).await.unwrap_err();
    assert_eq!(error.name(), "INVALID_PARAMS", "{error}");
    let (mut reader, _writer) = connected(&client, &server).await;
    assert_eq!(receive_all(&mut reader).await.unwrap(), b"hello");
}

#[tokio::test]
async fn sandbox_is_recycled_after_connections() {
    let daemon = one_place().start().await;
    next_process(&daemon).await;
    let mut last = next_process(&daemon).await;
    assert!(last > 2, "the sandbox is recycled");
    for _ in 0..3 {
        serve_once(&daemon).await;
        let next = next_process(&daemon).await;
        assert!(next > last, "{next} after {last}: the sandbox is recycled");
        last = next;
    }
}

/// A connection that is open at the end of a run does not reach the next one.
#[tokio::test]
async fn next_run_is_not_reached() {
    let keys = Arc::new(KeyFile::new());
    let [first, second] = ["first", "second"].map(|name| keys.add_key(name, "invoke", &[]));
    let daemon = start_daemon_with_keys(one_place(), &keys).await;
    let start = |key: &str, body: &str| {
        let script = format!("{LISTEN}{body}");
        with_key(key, start_request(argv(&["python3", "-c", &script])))
    };
    let hold = "held = []\nwhile True: held.append(listener.accept()[0])";

    for _ in 0..5 {
        let mut server = daemon.start_process(start(&first, hold)).await;
        server.read_until("ready\n").await;
        let client = client_with_key(&daemon, Some(&first)).await;
        let (mut reader, _writer) = connected(&client, &server).await;
        let ending = async {
            let mut request = with_key(
                &first,
                jig::api::v1::SendSignalRequest {
                    process_id: server.id.clone(),
                    signal: "KILL".to_owned(),
                },
            );
            request.set_timeout(std::time::Duration::from_secs(10));
            daemon.processes().send_signal(request).await.unwrap();
        };
        // Requests that are on their way when the run ends.
        let id = server.id.clone();
        let late = async {
            loop {
                if let Err(error) = connect(&client, &id, 8000).await {
                    return error;
                }
            }
        };
        let ((), late) = tokio::join!(ending, late);
        assert!(
            ["PROCESS_ENDED", "PORT_REFUSED", "RESOURCE_EXHAUSTED"].contains(&late.name()),
            "{late}"
        );
        server.wait_for_exit().await;

        let mut next = daemon.start_process(start(&second, GREET)).await;
        next.read_until("ready\n").await;
        let error = connect(&client, &server.id, 8000).await.unwrap_err();
        assert_eq!(error.name(), "PROCESS_ENDED", "{error}");
        assert!(!matches!(promptly("the end", reader.next()).await, Ok(Some(_))));
        let mut request = with_key(
            &second,
            jig::api::v1::SendSignalRequest {
                process_id: next.id.clone(),
                signal: "KILL".to_owned(),
            },
        );
        request.set_timeout(std::time::Duration::from_secs(10));
        daemon.processes().send_signal(request).await.unwrap();
        next.wait_for_exit().await;
    }
}

#[tokio::test]
async fn keys_without_the_tool_or_the_workspace_reach_nothing() {
    let keys = Arc::new(KeyFile::new());
    let owner = keys.add_key("owner", "invoke", &[]);
    let reader = keys.add_key("reader", "read", &[]);
    let tools = keys.add_key("tools", "invoke", &["--for-tool", "read_file"]);
    let elsewhere = keys.add_key("elsewhere", "invoke", &["--for-workspace", "other"]);
    let other = tempfile::tempdir().unwrap();
    let table = format!("[[workspaces]]\nname = \"other\"\npath = {:?}", other.path());
    let daemon = start_daemon_with_keys(Setup::new().workspace_table(&table), &keys).await;
    let script = format!("{LISTEN}{GREET}");
    let request = StartRequest {
        on_disconnect: Some(OnDisconnect::Keep.into()),
        ..start_request(argv(&["python3", "-c", &script]))
    };
    let mut server = daemon.start_process(with_key(&owner, request)).await;
    server.read_until("ready\n").await;
    wait_for_port(&client_with_key(&daemon, Some(&owner)).await, &server.id, 8000).await;
    for (key, reason) in
        // Its calls are in its own workspace, if they name none.
        [(&reader, "FORBIDDEN"), (&tools, "FORBIDDEN"), (&elsewhere, "PROCESS_NOT_FOUND")]
    {
        let client = client_with_key(&daemon, Some(key)).await;
        let error = connect(&client, &server.id, 8000).await.unwrap_err();
        assert_eq!(error.name(), reason, "{error}");
    }
}

/// Listens on many ports, accepts nothing, and floods its own loopback: the daemon still serves.
#[tokio::test]
async fn hostile_server_does_not_starve_others() {
    let daemon = Daemon::start().await;
    let body = "
listeners = [socket.create_server(('127.0.0.1', 9000 + n), backlog=1) for n in range(500)]
def flood():
    while True:
        for n in range(500):
            try: socket.create_connection(('127.0.0.1', 9000 + n), timeout=0.01)
            except OSError: pass
for _ in range(4): threading.Thread(target=flood, daemon=True).start()
print('flooding', flush=True)
while True:
    stream = listener.accept()[0]
    try:
        while True: stream.sendall(bytes(1 << 20))
    except OSError: pass
";
    let mut server = start_server(&daemon, body).await;
    server.read_until("flooding\n").await;
    let client = client(&daemon).await;
    let held = connected(&client, &server).await;
    for _ in 0..10 {
        promptly("a run beside it", daemon.run(shell("true"))).await;
    }
    drop(held);
    daemon.send_signal(&server.id, "KILL").await.unwrap();
    server.wait_for_exit().await;
    serve_once(&daemon).await;
}
