//! Clients that cancel calls keep their connections.

use std::time::Duration;

use tokio::time::timeout;
use tonic::Code;
use tonic_health::pb::{HealthCheckRequest, health_client::HealthClient};

use super::{get_info, start_tcp_daemon, tcp_channel};
use crate::support::{promptly, shell, tool_client};

/// More than the limits of HTTP/2 libraries on resets.
const CANCELLED_CALLS: usize = 1500;

#[tokio::test(flavor = "multi_thread")]
async fn connection_outlasts_many_cancelled_calls() {
    let daemon = start_tcp_daemon(&[]).await;
    let channel = tcp_channel(&daemon);
    // The client would connect again unnoticed. The watch ends with its connection.
    let mut health = HealthClient::new(channel.clone());
    let mut watch = health.watch(HealthCheckRequest::default()).await.unwrap().into_inner();
    watch.message().await.unwrap().unwrap();

    for index in 0..CANCELLED_CALLS {
        let mut tools = tool_client(channel.clone());
        let call = tokio::spawn(async move { tools.run(shell("sleep 1000")).await });
        // Cancelled before it is sent, in flight, and often while it runs.
        for _ in 0..index % 8 {
            tokio::task::yield_now().await;
        }
        if index % 64 == 0 {
            get_info(&channel).await;
        }
        call.abort();
        match promptly("the call ends", call).await {
            Err(error) => assert!(error.is_cancelled(), "{error}"),
            // On a loaded machine, cancelled commands end more slowly than calls arrive.
            Ok(Err(status)) => assert_eq!(status.code(), Code::ResourceExhausted, "{status:?}"),
            Ok(Ok(response)) => panic!("{response:?}"),
        }
    }

    get_info(&channel).await;
    let next = timeout(Duration::from_millis(1), watch.message()).await;
    assert!(next.is_err(), "the connection of the watch is still open: {next:?}");
}
