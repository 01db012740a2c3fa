//! Clients that cancel calls keep their connections.

use super::{get_info, start_tcp_daemon, tcp_channel};
use crate::support::{shell, tool_client};

/// More than the limits of HTTP/2 libraries on resets.
const CANCELLED_CALLS: usize = 1500;

#[tokio::test(flavor = "multi_thread")]
async fn connection_outlasts_many_cancelled_calls() {
    let daemon = start_tcp_daemon(&[]).await;
    let channel = tcp_channel(&daemon);
    get_info(&channel).await;
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
        let cancelled = call.await.unwrap_err();
        assert!(cancelled.is_cancelled());
    }
    get_info(&channel).await;
    let log = daemon.log();
    assert!(!log.contains("too_many"), "{log}");
}
