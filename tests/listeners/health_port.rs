//! The listener for health checks alone.

use std::{fs, process::Command};

use jig::api::v1::{GetInfoRequest, daemon_service_client::DaemonServiceClient};
use rustix::process::Signal;
use tonic::Code;
use tonic_health::pb::{
    HealthCheckRequest, health_check_response::ServingStatus, health_client::HealthClient,
};

use crate::support::{Daemon, Setup, eventually, lazy_channel, promptly, shell};

/// The address of the listener, from the log.
fn health_address(daemon: &Daemon) -> String {
    let log = daemon.log();
    let (_, rest) = log.split_once("0.0.0.0:").expect("the log has the address");
    let port: String = rest.chars().take_while(char::is_ascii_digit).collect();
    format!("127.0.0.1:{port}")
}

async fn status_of(address: &str, path: &str) -> u16 {
    let url = format!("http://{address}{path}");
    let curl = tokio::task::spawn_blocking(move || {
        Command::new("curl")
            .args(["--silent", "--output", "/dev/null", "--write-out", "%{http_code}", &url])
            .env_clear()
            .output()
    });
    let output = promptly("curl ends", curl).await.unwrap().unwrap();
    String::from_utf8(output.stdout).unwrap().parse().unwrap()
}

#[tokio::test]
async fn health_listener_serves_nothing_else_and_lasts_through_the_drain() {
    let flags = ["--health-listen", "0.0.0.0:0", "--drain-timeout", "60s"];
    let mut daemon = Setup::new().arguments(&flags).start().await;
    eventually("the log has the address", async || daemon.log().contains("0.0.0.0:")).await;
    let address = health_address(&daemon);
    let channel = lazy_channel(&format!("http://{address}"));

    let check = async |service: &str| {
        let request = HealthCheckRequest { service: service.to_owned() };
        let mut client = HealthClient::new(lazy_channel(&format!("http://{address}")));
        client.check(request).await.unwrap().into_inner().status()
    };
    assert_eq!(check("readiness").await, ServingStatus::Serving);
    for (path, expected) in
        [("/healthz", 200), ("/readyz", 200), ("/mcp", 404), ("/v1/jobs", 404), ("/", 404)]
    {
        assert_eq!(status_of(&address, path).await, expected, "{path}");
    }
    let mut other = DaemonServiceClient::new(channel);
    let rejected = other.get_info(GetInfoRequest {}).await.unwrap_err();
    assert_eq!(rejected.code(), Code::Unimplemented, "{rejected:?}");

    // Probes get answers while the daemon drains and its other listeners are closed.
    let mark = daemon.file("running");
    let script = "touch running; until [ -e end ]; do sleep 0.05; done";
    let call = daemon.spawn_run(shell(script));
    eventually("the command runs", async || mark.exists()).await;
    daemon.signal(Signal::TERM);
    eventually("the drain begins", async || status_of(&address, "/readyz").await == 503).await;
    assert_eq!(status_of(&address, "/healthz").await, 200);
    fs::write(daemon.file("end"), "").unwrap();
    call.await.unwrap().unwrap();
    assert!(promptly("the daemon ends", daemon.wait_for_exit()).await.success());
}
