//! Export of spans: an unreachable collector, a collector with TLS, and unsupported variables.

use std::{fs, net::TcpListener, path::Path, process::Command};

use rustix::process::Signal;

use super::run_in_trace;
use crate::support::{Collector, Daemon, Setup, eventually, shell};

const ENDPOINT_VARIABLE: &str = "OTEL_EXPORTER_OTLP_ENDPOINT";

/// A daemon that exports its spans within 20 ms.
fn exporting_setup(endpoint: &str) -> Setup {
    Setup::new()
        .environment(ENDPOINT_VARIABLE, endpoint)
        .environment("OTEL_BSP_SCHEDULE_DELAY", "20")
}

/// The log lines that contain a text.
fn log_lines_containing(daemon: &Daemon, text: &str) -> Vec<serde_json::Value> {
    let log = daemon.log();
    let lines = log.lines().filter(|line| line.contains(text));
    lines.map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn unreachable_collector_is_logged_once_with_span_count() {
    // A port that no other program uses.
    let reserved = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = reserved.local_addr().unwrap();
    drop(reserved);

    let mut daemon = exporting_setup(&format!("http://{address}")).start().await;
    let lost_message = "the collector does not accept spans";
    for _ in 0..2 {
        daemon.output(shell("true")).await;
        eventually("the loss is logged", async || {
            !log_lines_containing(&daemon, lost_message).is_empty()
        })
        .await;
    }

    // The spans of at least one run were tried by now.
    let counts = daemon.info().await.counts.unwrap();
    assert!(counts.spans_lost >= 1, "{counts:?}");

    let collector = Collector::serve(TcpListener::bind(address).unwrap());
    let recovered_message = "the collector accepts spans again";
    let id = "c".repeat(32);
    eventually("the collector receives spans", async || {
        run_in_trace(&daemon, &id, shell("true")).await.unwrap();
        !log_lines_containing(&daemon, recovered_message).is_empty()
            && !collector.spans_of_trace(&id).is_empty()
    })
    .await;

    let lines = log_lines_containing(&daemon, recovered_message);

    // The exporter decides how many spans it sends together.
    let lost_spans = lines[0]["lost_spans"].as_u64().unwrap();
    assert!(lost_spans >= 1, "{lines:?}");

    let warnings = log_lines_containing(&daemon, lost_message);
    assert_eq!(warnings.len(), 1, "{warnings:?}");
    assert_eq!(warnings[0]["level"], "WARN");

    daemon.signal(Signal::TERM);
    assert!(daemon.wait_for_exit().await.success());

    let lines = log_lines_containing(&daemon, "spans were not delivered");
    assert_eq!(lines.len(), 1, "{lines:?}");
    assert!(lines[0]["lost_spans"].as_u64().unwrap() >= lost_spans, "{lines:?}");
}

/// Creates a self-signed certificate for 127.0.0.1. Returns the paths of the certificate and its
/// key.
fn create_certificate(directory: &Path) -> [String; 2] {
    let [certificate, key] = ["certificate.pem", "key.pem"].map(|name| directory.join(name));
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
    let directory = tempfile::tempdir().unwrap();
    let [certificate, key] = create_certificate(directory.path());

    // The daemon may read files beside its configuration.
    let config = directory.path().join("jig.toml");
    fs::write(&config, "").unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let pem = [&certificate, &key].map(|path| fs::read_to_string(path).unwrap());

    let collector = Collector::serve_tls(listener, pem);
    for (digit, is_trusted, variable) in [
        ("d", true, "OTEL_EXPORTER_OTLP_CERTIFICATE"),
        // As for certificates of the system.
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
        eventually("the spans arrive or are lost", async || {
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
        .environment("OTEL_METRICS_EXPORTER", "console")
        .environment("OTEL_TRACES_SAMPLER", "xray")
        .environment("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf");
    let daemon = setup.start().await;
    let warnings = log_lines_containing(&daemon, "ignored an environment variable");
    let mut variables: Vec<_> =
        warnings.iter().map(|line| line["variable"].as_str().unwrap()).collect();
    variables.sort_unstable();

    let expected = [
        ENDPOINT_VARIABLE,
        "OTEL_EXPORTER_OTLP_PROTOCOL",
        "OTEL_METRICS_EXPORTER",
        "OTEL_TRACES_SAMPLER",
    ];
    assert_eq!(variables, expected);

    for line in &warnings {
        assert_eq!(line["level"], "WARN");
        assert!(!line["supported"].as_str().unwrap().is_empty(), "{line}");
    }
}
