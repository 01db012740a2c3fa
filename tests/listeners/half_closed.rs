//! Clients that close their half of a connection while a call runs.

use jig::api::v1::RunRequest;
use prost::Message as _;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use super::{
    frames::{call, greeting},
    slow_clients::Daemons,
};
use crate::support::{Mark, promptly, shell};

const RUN: &str = "/jig.v1.ToolService/Run";

/// The same call by HTTP/1.1.
fn http1_call(command: &RunRequest) -> Vec<u8> {
    let body = command.encode_to_vec();
    let head = format!(
        "POST {RUN} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/proto\r\n\
         connect-protocol-version: 1\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    [head.as_bytes(), &body].concat()
}

#[tokio::test(flavor = "multi_thread")]
async fn half_closed_connections_end_their_calls() {
    let daemons = Daemons::start().await;
    for (is_tls, is_http2) in [(false, false), (false, true), (true, false), (true, true)] {
        let name = format!("TLS {is_tls}, HTTP/2 {is_http2}");
        let mark = Mark::new();
        let command = mark.on(shell("sleep 1000"));
        let request = if is_http2 {
            [greeting(), call(1, RUN, &command.encode_to_vec())].concat()
        } else {
            http1_call(&command)
        };

        let mut connection = daemons.connect(is_tls).await;
        connection.write_all(&request).await.unwrap();
        connection.flush().await.unwrap();
        mark.wait_for_processes(1).await;
        connection.shutdown().await.unwrap();
        // TLS may end without a close_notify.
        let _end = promptly(&name, connection.read_to_end(&mut Vec::new())).await;
        mark.wait_until_gone().await;
    }
}
