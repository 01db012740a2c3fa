//! Output.

use jig::api::v1::{LowerLimits, Outcome, RunRequest};

use super::limited;
use crate::support::{Daemon, Mark, shell, started};

fn thousand(command: &str) -> RunRequest {
    let limits = LowerLimits { output_bytes: Some(1000), ..LowerLimits::default() };
    limited(command, limits)
}

#[tokio::test]
async fn what_writes_too_much_is_ended() {
    let daemon = Daemon::start().await;
    for (command, streams) in [("yes", 1), ("yes >&2", 1), ("yes & yes >&2", 2)] {
        let mark = Mark::new();
        let response = daemon.run(mark.on(thousand(command))).await;
        assert_eq!(response.outcome(), Outcome::OutputLimit, "{response:?}");
        assert_eq!((response.limit.as_str(), response.exit_code), ("output", None));
        assert!(response.stdout_bytes + response.stderr_bytes > 1000, "{streams}");
        mark.assert_gone();
    }
}

#[tokio::test]
async fn a_limit_is_the_same_for_the_fast() {
    let daemon = Daemon::start().await;
    for (bytes, outcome) in [(1000, Outcome::Exited), (1001, Outcome::OutputLimit)] {
        // Gone before anybody can count.
        for _ in 0..20 {
            let response = daemon.run(thousand(&format!("head -c {bytes} /dev/zero"))).await;
            assert_eq!(response.outcome(), outcome, "{response:?}");
            assert_eq!(response.stdout_bytes, bytes);
        }
    }
}

#[tokio::test]
async fn without_a_limit_the_rest_is_counted() {
    let daemon = Daemon::start().await;
    let response = daemon.run(shell("head -c 100000000 /dev/zero")).await;
    assert_eq!(response.outcome(), Outcome::Exited);
    assert_eq!((response.stdout_bytes, response.limit.as_str()), (100_000_000, ""));
}

#[tokio::test]
async fn who_watches_sees_what_was_written_before() {
    let daemon = Daemon::start().await;
    let request = thousand("echo first; yes");
    let request = jig::api::v1::StartRequest { limits: request.limits, ..started(request) };
    let mut watch = daemon.watch(request).await;
    let exited = watch.finish().await;
    assert_eq!((exited.outcome(), exited.limit.as_str()), (Outcome::OutputLimit, "output"));
    assert!(watch.text().starts_with("first\n"));
    assert_eq!(watch.stdout.len() as u64, exited.stdout_bytes);
}
