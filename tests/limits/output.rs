//! Limits on output.

use jig::api::v1::{LowerLimits, Outcome, RunRequest};

use super::limited_command;
use crate::support::{Daemon, Mark, shell, start_request};

fn limited_to_1000_bytes(command: &str) -> RunRequest {
    let limits = LowerLimits { output_bytes: Some(1000), ..LowerLimits::default() };
    limited_command(command, limits)
}

#[tokio::test]
async fn output_limit_ends_a_run() {
    let daemon = Daemon::start().await;
    for (command, streams) in [("yes", 1), ("yes >&2", 1), ("yes & yes >&2", 2)] {
        let mark = Mark::new();
        let response = daemon.run(mark.on(limited_to_1000_bytes(command))).await;
        assert_eq!(response.outcome(), Outcome::OutputLimit, "{response:?}");
        assert_eq!((response.limit.as_str(), response.exit_code), ("output", None));
        assert!(response.stdout_bytes + response.stderr_bytes > 1000, "{streams}");
        mark.assert_gone();
    }
}

#[tokio::test]
async fn output_limit_applies_to_short_lived_commands() {
    let daemon = Daemon::start().await;
    for (bytes, outcome) in [(1000, Outcome::Exited), (1001, Outcome::OutputLimit)] {
        // The command ends before the daemon can count.
        for _ in 0..20 {
            let response =
                daemon.run(limited_to_1000_bytes(&format!("head -c {bytes} /dev/zero"))).await;
            assert_eq!(response.outcome(), outcome, "{response:?}");
            assert_eq!(response.stdout_bytes, bytes);
        }
    }
}

#[tokio::test]
async fn unlimited_output_is_counted() {
    let daemon = Daemon::start().await;
    let response = daemon.run(shell("head -c 100000000 /dev/zero")).await;
    assert_eq!(response.outcome(), Outcome::Exited);
    assert_eq!((response.stdout_bytes, response.limit.as_str()), (100_000_000, ""));
}

#[tokio::test]
async fn process_stream_delivers_output_up_to_the_limit() {
    let daemon = Daemon::start().await;
    let request = limited_to_1000_bytes("echo first; yes");
    let request = jig::api::v1::StartRequest { limits: request.limits, ..start_request(request) };
    let mut watch = daemon.start_process(request).await;
    let exited = watch.wait_for_exit().await;
    assert_eq!((exited.outcome(), exited.limit.as_str()), (Outcome::OutputLimit, "output"));
    assert!(watch.stdout_text().starts_with("first\n"));
    assert_eq!(watch.stdout.len() as u64, exited.stdout_bytes);
}
