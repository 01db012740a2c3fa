//! Getting spans out: a collector that is lost, one behind TLS, and variables that are not supported.

use std::{fs, net::TcpListener, path::Path, process::Command};

use rustix::process::Signal;

use super::run_in_trace;
use crate::support::{Collector, Daemon, Setup, eventually, shell};

const ENDPOINT_VARIABLE: &str = "OTEL_EXPORTER_OTLP_ENDPOINT";

/// A daemon that exports at once.
fn exporting_setup(endpoint: &str) -> Setup {
    Setup::new()
        .environment(ENDPOINT_VARIABLE, endpoint)
        .environment("OTEL_BSP_SCHEDULE_DELAY", "20")
}

/// The lines of a log with a text.
fn log_lines_containing(daemon: &Daemon, text: &str) -> Vec<serde_json::Value> {
    let log = daemon.log();
    let lines = log.lines().filter(|line| line.contains(text));
    lines.map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn unreachable_collector_is_logged_once_with_span_count() {
    // Nothing else gets the port.
    let reserved = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = reserved.local_addr().unwrap();
    drop(reserved);
    let mut daemon = exporting_setup(&format!("http://{address}")).start().await;
    let lost = "the collector does not accept spans";
    for _ in 0..2 {
        daemon.output(shell("true")).await;
        eventually("the loss is told", async || !log_lines_containing(&daemon, lost).is_empty())
            .await;
    }
    // By now both runs' spans were tried, some of them perhaps not yet.
    let counted = daemon.info().await.counts.unwrap();
    assert!(counted.spans_lost >= 1, "{counted:?}");
    let collector = Collector::serve(TcpListener::bind(address).unwrap());
    let again = "the collector accepts spans again";
    let id = "c".repeat(32);
    eventually("the collector is found", async || {
        run_in_trace(&daemon, &id, shell("true")).await.unwrap();
        !log_lines_containing(&daemon, again).is_empty()
            && !collector.spans_of_trace(&id).is_empty()
    })
    .await;
    let found = log_lines_containing(&daemon, again);
    // How many are exported together is up to the exporter.
    let counted = found[0]["lost_spans"].as_u64().unwrap();
    assert!(counted >= 1, "{found:?}");
    let warned = log_lines_containing(&daemon, lost);
    assert_eq!(warned.len(), 1, "{warned:?}");
    assert_eq!(warned[0]["level"], "WARN");
    daemon.signal(Signal::TERM);
    assert!(daemon.wait_for_exit().await.success());
    let end = log_lines_containing(&daemon, "spans were not delivered");
    assert_eq!(end.len(), 1, "{end:?}");
    assert!(end[0]["lost_spans"].as_u64().unwrap() >= counted, "{end:?}");
}

/// Makes a certificate for 127.0.0.1 that is its own authority; the second path is its key's.
fn create_certificate(folder: &Path) -> [String; 2] {
    let [certificate, key] = ["certificate.pem", "key.pem"].map(|name| folder.join(name));
    let output = Command::new("openssl")
        .args(["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"])
        .args(["-subj", "/CN=collector", "-addext", "subjectAltName=IP:127.0.0.1"])
        .args(["-addext", "basicConstraints=critical,CA:FALSE"])
        .args([Path::new("-keyout"), &key, Path::new("-out"), &certificate])
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    [certificate, key].map(|path| path.to_str().unwrap().to_owned())
}

#[tokio::test(flavor = "multi_thread")]
async fn spans_are_exported_over_tls_to_trusted_collectors() {
    let folder = tempfile::tempdir().unwrap();
    let [certificate, key] = create_certificate(folder.path());
    // What lies beside the configuration, the daemon may read.
    let config = folder.path().join("jig.toml");
    fs::write(&config, "").unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let pem = [&certificate, &key].map(|path| fs::read_to_string(path).unwrap());
    let collector = Collector::serve_tls(listener, pem);
    for (digit, is_trusted, variable) in [
        ("d", true, "OTEL_EXPORTER_OTLP_CERTIFICATE"),
        // As the systems' certificates are.
        ("e", true, "SSL_CERT_FILE"),
        ("f", false, "JIG_TEST_NONE"),
    ] {
        let setup = exporting_setup(&format!("https://{address}"))
            .environment(variable, &certificate)
            .environment("OTEL_EXPORTER_OTLP_COMPRESSION", "gzip")
            .arguments(&["--config", config.to_str().unwrap()]);
        let daemon = setup.start().await;
        let id = digit.repeat(32);
        run_in_trace(&daemon, &id, shell("true")).await.unwrap();
        eventually("it is clear whether they come", async || {
            let is_lost =
                !log_lines_containing(&daemon, "the collector does not accept spans").is_empty();
            assert!(!(is_trusted && is_lost), "{}", daemon.log());
            is_lost || !collector.spans_of_trace(&id).is_empty()
        })
        .await;
        assert_eq!(!collector.spans_of_trace(&id).is_empty(), is_trusted, "{variable}");
    }
}

#[tokio::test]
async fn unsupported_environment_variables_are_logged() {
    let setup = Setup::new()
        .environment(ENDPOINT_VARIABLE, "127.0.0.1:1")
        .environment("OTEL_METRICS_EXPORTER", "otlp")
        .environment("OTEL_TRACES_SAMPLER", "xray")
        .environment("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf");
    let daemon = setup.start().await;
    let warned = log_lines_containing(&daemon, "ignored an environment variable");
    let mut variables: Vec<_> =
        warned.iter().map(|line| line["variable"].as_str().unwrap()).collect();
    variables.sort_unstable();
    let expected = [
        ENDPOINT_VARIABLE,
        "OTEL_EXPORTER_OTLP_PROTOCOL",
        "OTEL_METRICS_EXPORTER",
        "OTEL_TRACES_SAMPLER",
    ];
    assert_eq!(variables, expected);
    for line in &warned {
        assert_eq!(line["level"], "WARN");
        assert!(!line["supported"].as_str().unwrap().is_empty(), "{line}");
    }
}
