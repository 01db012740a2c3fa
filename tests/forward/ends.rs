//! Connections that are refused, reset or cut.

use std::time::Duration;

use bytes::Bytes;
use jig::{api::v1::OnDisconnect, client::Code};

use super::{
    boundaries::one_place, bytes, client, client_with_key, connect, connected, receive_all,
    start_server,
};
use crate::{
    callers::start_daemon_with_keys,
    support::{Daemon, KeyFile, Setup, eventually, promptly, shell, start_request, with_key},
};

const HOLD: &str = "
held = []
while True: held.append(listener.accept()[0])
";

#[tokio::test]
async fn refusals_name_their_reason() {
    let daemon = Daemon::start().await;
    let mut server = start_server(&daemon, HOLD).await;
    let client = client(&daemon).await;

    for (id, port, reason) in [
        (server.id.as_str(), 8001, "PORT_REFUSED"),
        // Within the range of source ports.
        (&server.id, 40_000, "PORT_REFUSED"),
        (&server.id, 0, "INVALID_PARAMS"),
        (&server.id, 65_536, "INVALID_PARAMS"),
        (&server.id, u32::MAX, "INVALID_PARAMS"),
        ("", 8000, "INVALID_PARAMS"),
        ("01ARZ3NDEKTSV4RRFFQ69G5FAV", 8000, "PROCESS_NOT_FOUND"),
    ] {
        let error = connect(&client, id, port).await.unwrap_err();
        assert_eq!(error.name(), reason, "{id} {port}: {error}");
    }

    daemon.send_signal(&server.id, "KILL").await.unwrap();
    server.wait_for_exit().await;
    let error = connect(&client, &server.id, 8000).await.unwrap_err();
    assert_eq!(error.name(), "PROCESS_ENDED", "{error}");
}

#[tokio::test]
async fn process_that_ends_cuts_its_connections() {
    let daemon = Daemon::start().await;
    let mut server = start_server(&daemon, HOLD).await;
    let (mut reader, writer) = connected(&client(&daemon).await, &server).await;
    assert!(writer.send(bytes("unread")).await);

    daemon.send_signal(&server.id, "KILL").await.unwrap();
    server.wait_for_exit().await;
    let ended = match promptly("the end", reader.next()).await {
        Ok(None) => promptly("the end", reader.finish()).await.unwrap_err(),
        Ok(Some(data)) => panic!("{data:?}"),
        Err(error) => error,
    };
    // The kernel resets connections with unread bytes.
    assert!(["PROCESS_ENDED", "CONNECTION_RESET"].contains(&ended.name()), "{ended}");
    promptly("the writer is told", writer.closed()).await;
}

#[tokio::test]
async fn output_before_the_end_of_the_process_arrives() {
    let daemon = Daemon::start().await;
    let size = 300_000;
    let body = format!("stream = listener.accept()[0]; stream.sendall(b'x' * {size})");
    for _ in 0..5 {
        let mut server = start_server(&daemon, &body).await;
        let (mut reader, writer) = connected(&client(&daemon).await, &server).await;
        server.wait_for_exit().await;
        let received = promptly("the output", receive_all(&mut reader)).await.unwrap();
        assert_eq!(received.len(), size);
        writer.finish().await;
    }
}

#[tokio::test]
async fn output_that_the_end_of_the_process_cuts_is_an_error() {
    let daemon = one_place().start().await;
    // Ends while buffers are full, as the client does not read.
    let body = "
stream = listener.accept()[0]
stream.recv(1)
stream.settimeout(1)
try: stream.sendall(bytes(64 << 20))
except TimeoutError: pass
";
    let mut server = start_server(&daemon, body).await;
    let (mut reader, writer) = connected(&client(&daemon).await, &server).await;
    writer.finish().await;
    server.wait_for_exit().await;
    // The sandbox has another run only after the socket was closed.
    start_server(&daemon, HOLD).await;
    let error = promptly("the end", receive_all(&mut reader)).await.unwrap_err();
    assert_eq!(error.name(), "PROCESS_ENDED", "{error}");
}

#[tokio::test]
async fn reset_of_the_server_is_an_error() {
    let daemon = Daemon::start().await;
    let body = "
while True:
    stream = listener.accept()[0]
    stream.recv(1)
    stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack('ii', 1, 0))
    stream.close()
";
    let server = start_server(&daemon, body).await;
    let (mut reader, writer) = connected(&client(&daemon).await, &server).await;
    assert!(writer.send(bytes("x")).await);
    let error = promptly("the reset", reader.next()).await.unwrap_err();
    assert_eq!((error.name(), error.code), ("CONNECTION_RESET", Code::Aborted));
}

#[tokio::test]
async fn cancelled_call_resets_the_connection_and_frees_its_permit() {
    let daemon = Daemon::start().await;
    let body = "
import os
def watch(stream):
    try:
        while stream.recv(65536): pass
        os.write(1, b'end of file\\n')
    except ConnectionResetError:
        os.write(1, b'reset\\n')
while True: threading.Thread(target=watch, args=[listener.accept()[0]], daemon=True).start()
";
    let mut server = start_server(&daemon, body).await;
    let client = client(&daemon).await;
    let mut connections = Vec::new();
    let refused = loop {
        match connect(&client, &server.id, 8000).await {
            Ok(connection) => connections.push(connection),
            Err(error) => break error,
        }
    };
    assert_eq!(connections.len(), 64);
    assert_eq!(refused.name(), "RESOURCE_EXHAUSTED", "{refused}");
    assert!(refused.retry_after.is_some(), "{refused:?}");

    drop(connections);
    server.read_until(&"reset\n".repeat(64)).await;
    eventually("the permits are free", async || connect(&client, &server.id, 8000).await.is_ok())
        .await;
}

#[tokio::test]
async fn deadline_ends_a_connection() {
    let daemon = Daemon::start().await;
    let server = start_server(&daemon, HOLD).await;
    let address = format!("unix:{}", daemon.socket().display());
    let deadline = Some(Duration::from_millis(1500));
    let options = jig::client::Options { deadline, ..jig::client::Options::default() };
    let client = jig::client::Client::connect(&address, options).await.unwrap();
    let (mut reader, _writer) = connected(&client, &server).await;
    let error = promptly("the deadline", reader.next()).await.unwrap_err();
    assert_eq!(error.code, Code::DeadlineExceeded, "{error}");
}

#[tokio::test]
async fn full_backlog_is_refused_after_a_while() {
    let daemon = Daemon::start().await;
    let body = "
small = socket.create_server(('127.0.0.1', 8001), backlog=0)
print('small', flush=True)
time.sleep(1000)
";
    let mut server = start_server(&daemon, body).await;
    server.read_until("small\n").await;
    let client = client(&daemon).await;
    let mut held = Vec::new();
    let error = loop {
        match promptly("a decision", connect(&client, &server.id, 8001)).await {
            Ok(connection) => held.push(connection),
            Err(error) => break error,
        }
        assert!(held.len() < 10);
    };
    assert_eq!(error.name(), "PORT_REFUSED", "{error}");
    assert!(error.message.contains("10 seconds"), "{error}");
    // Others of the slot are served meanwhile.
    drop(connected(&client, &server).await);
}

#[tokio::test]
async fn connection_waits_for_a_process_without_a_sandbox() {
    let setup = Setup::new().workspace_table("[limits]\nconcurrent_runs = 1");
    let daemon = setup.start().await;
    let first = daemon.start_process(start_request(shell("sleep 1000"))).await;
    let client = client(&daemon).await;
    let request = jig::api::v1::StartRequest {
        on_disconnect: Some(OnDisconnect::Keep.into()),
        ..start_request(shell("sleep 1000"))
    };
    let second = daemon.processes().start(request).await.unwrap();
    let waiting = |id: &str| id != first.id;
    let listed = daemon.list_processes().await;
    let waiting = listed.iter().find(|process| waiting(&process.process_id)).unwrap();

    let connecting = connect(&client, &waiting.process_id, 8000);
    let freeing = daemon.send_signal(&first.id, "KILL");
    let (error, freed) = tokio::join!(connecting, freeing);
    freed.unwrap();
    assert_eq!(error.unwrap_err().name(), "PORT_REFUSED");
    drop(second);
}

#[tokio::test]
async fn revoked_key_ends_its_connections() {
    let keys = std::sync::Arc::new(KeyFile::new());
    let key = keys.add_key("one", "invoke", &[]);
    let _other = keys.add_key("other", "invoke", &[]);
    let daemon = start_daemon_with_keys(Setup::new(), &keys).await;
    let script = format!("{}{HOLD}", super::LISTEN);
    let request = start_request(crate::support::argv(&["python3", "-c", &script]));
    let mut server = daemon.start_process(with_key(&key, request)).await;
    server.read_until("ready\n").await;
    let (mut reader, writer) =
        connected(&client_with_key(&daemon, Some(&key)).await, &server).await;
    assert!(writer.send(Bytes::from_static(b"x")).await);

    assert!(keys.run_jig_key(&["revoke", "one"]).status.success());
    daemon.reload_config(Daemon::RELOADED).await;
    let error = promptly("the revocation", reader.next()).await.unwrap_err();
    assert_eq!(error.name(), "UNAUTHENTICATED", "{error}");
}
