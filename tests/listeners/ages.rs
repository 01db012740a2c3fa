//! The maximum age of connections.

use std::{fs, io::Write as _};

use jig::api::v1::{GetInfoRequest, daemon_service_client::DaemonServiceClient};
use tonic::Code;

use super::{
    frames::{GOAWAY, connect, connect_http2, wait_for_frame},
    start_tcp_daemon, tcp_channel,
};
use crate::support::{eventually, promptly, shell, tool_client};

#[tokio::test]
async fn aged_connection_finishes_its_calls_and_takes_no_new_ones() {
    let daemon = start_tcp_daemon(&["--max-connection-age", "500ms"]).await;
    let channel = tcp_channel(&daemon);
    let mut tools = tool_client(channel.clone());
    let script = "touch running; until [ -e end ]; do sleep 0.05; done";
    let call = tokio::spawn(async move { tools.run(shell(script)).await });
    let mark = daemon.file("running");
    eventually("the command runs", async || mark.exists()).await;

    // This connection is younger than that of the call.
    let mut younger = connect_http2(daemon.port());
    let goaway = tokio::task::spawn_blocking(move || wait_for_frame(&mut younger, GOAWAY));
    assert!(promptly("the connection ages", goaway).await.unwrap().is_some());
    // The client connects again. hyper's client notices GOAWAY with its next call, which it cancels
    // unsent while another one runs.
    // On a loaded machine, the next connection ages during the call too.
    let mut client = DaemonServiceClient::new(channel.clone());
    eventually("a new connection serves a call", async || {
        match client.get_info(GetInfoRequest {}).await {
            Ok(_) => true,
            Err(status) => {
                assert_eq!(status.code(), Code::Cancelled, "{status:?}");
                false
            }
        }
    })
    .await;
    fs::write(daemon.file("end"), "").unwrap();
    promptly("the call ends", call).await.unwrap().unwrap();
}

#[tokio::test]
async fn call_that_outlasts_the_grace_is_cut() {
    let flags = ["--max-connection-age", "500ms", "--max-connection-age-grace", "500ms"];
    let daemon = start_tcp_daemon(&flags).await;
    let mut tools = tool_client(tcp_channel(&daemon));
    let cut = promptly("the call is cut", tools.run(shell("sleep 1000"))).await.unwrap_err();
    assert!(matches!(cut.code(), Code::Unavailable | Code::Unknown | Code::Internal), "{cut:?}");
    let text = "cut a connection that outlasted";
    eventually("the log has the cut", async || daemon.log().contains(text)).await;
}

#[tokio::test]
async fn aged_http1_connection_ends_with_its_next_response() {
    let daemon = start_tcp_daemon(&["--max-connection-age", "300ms"]).await;
    let port = daemon.port();
    let responses = tokio::task::spawn_blocking(move || {
        let mut stream = connect(port, b"");
        let mut responses = 0;
        loop {
            stream.write_all(b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n").unwrap();
            let response = read_response(&mut stream);
            responses += 1;
            assert!(response.starts_with("HTTP/1.1 200 "), "{response}");
            if response.contains("connection: close") {
                return responses;
            }
        }
    });
    assert!(promptly("the connection ages", responses).await.unwrap() > 1);
}

/// Reads one response of a health check.
fn read_response(stream: &mut std::net::TcpStream) -> String {
    use std::io::Read as _;
    let mut response = Vec::new();
    while !response.ends_with(b"\r\n\r\nok\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte).unwrap();
        response.extend(byte);
    }
    String::from_utf8(response).unwrap()
}
