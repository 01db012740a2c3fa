//! The time between SIGTERM and the drain.

use rustix::process::Signal;
use tonic_health::pb::{
    HealthCheckRequest, health_check_response::ServingStatus, health_client::HealthClient,
};

use super::{get_info, start_tcp_daemon, tcp_channel};
use crate::support::{curl, eventually, promptly, shell};

#[tokio::test]
async fn calls_are_accepted_during_the_shutdown_delay() {
    let mut daemon = start_tcp_daemon(&["--shutdown-delay", "1h"]).await;
    daemon.signal(Signal::TERM);
    let mut health = HealthClient::new(daemon.channel());
    eventually("readiness fails", async || {
        let check = health.check(HealthCheckRequest { service: "readiness".to_owned() });
        check.await.unwrap().into_inner().status() == ServingStatus::NotServing
    })
    .await;

    // New connections and new calls, also those that run commands.
    get_info(&tcp_channel(&daemon)).await;
    assert_eq!(curl(&daemon, &[], "/readyz").status, 503);
    assert_eq!(curl(&daemon, &[], "/healthz").status, 200);
    assert_eq!(daemon.output(shell("echo served")).await, "served\n");

    // A second signal ends the delay.
    let mark = daemon.file("running");
    let call = daemon.spawn_run(shell("touch running; sleep 1000"));
    eventually("the command runs", async || mark.exists()).await;
    daemon.signal(Signal::TERM);
    assert!(promptly("the daemon ends", daemon.wait_for_exit()).await.success());
    // The call has ended too: with an answer, or with its connection.
    let _answer = promptly("the call ends", call).await.unwrap();
}

#[tokio::test]
async fn shutdown_delay_ends_by_itself() {
    let mut daemon = start_tcp_daemon(&["--shutdown-delay", "500ms"]).await;
    daemon.signal(Signal::TERM);
    assert!(promptly("the daemon ends", daemon.wait_for_exit()).await.success());
    assert!(daemon.log().contains("not ready any more"), "{}", daemon.log());
}
