//! Export of spans to a collector that requires a client certificate.

use std::net::TcpListener;

use crate::support::{
    CertificateAuthority, Collector, Setup, Validity, eventually, shell, with_metadata,
};

const TRACE_ID: &str = "0af7651916cd43dd8448eb211c80319c";

#[tokio::test(flavor = "multi_thread")]
async fn spans_are_exported_with_a_client_certificate() {
    let ca = CertificateAuthority::new();
    let server = ca.issue_server();
    let client = ca.issue("client", &["jigd.example"], Validity::Now);
    let [cert, key] = [&client.cert, &client.key].map(|path| path.to_str().unwrap());
    // The daemon may read files beside its configuration.
    let config = ca.path("jig.toml");
    std::fs::write(&config, "").unwrap();

    for (variables, is_accepted) in [
        (vec![], false),
        (vec![("OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE", cert)], false),
        (
            vec![
                ("OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE", cert),
                ("OTEL_EXPORTER_OTLP_CLIENT_KEY", key),
            ],
            true,
        ),
        (
            vec![
                ("OTEL_EXPORTER_OTLP_TRACES_CLIENT_CERTIFICATE", cert),
                ("OTEL_EXPORTER_OTLP_TRACES_CLIENT_KEY", key),
            ],
            true,
        ),
    ] {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let ca_pem = std::fs::read_to_string(ca.ca()).unwrap();
        let collector = Collector::serve_mutual_tls(listener, server.pem(), ca_pem);
        let mut setup = Setup::new()
            .environment("OTEL_EXPORTER_OTLP_ENDPOINT", &format!("https://{address}"))
            .environment("OTEL_EXPORTER_OTLP_CERTIFICATE", &ca.ca())
            .environment("OTEL_BSP_SCHEDULE_DELAY", "50")
            .arguments(&["--config", config.to_str().unwrap()]);
        for (name, value) in &variables {
            setup = setup.environment(name, value);
        }
        let daemon = setup.start().await;
        let traceparent = format!("00-{TRACE_ID}-b7ad6b7169203331-01");
        daemon.run(with_metadata("traceparent", &traceparent, shell("true"))).await;
        eventually("the spans arrive or are lost", async || {
            let log = daemon.log();
            let is_lost = log.contains("the collector does not accept spans")
                || log.contains("telemetry is not exported");
            is_lost || !collector.spans_of_trace(TRACE_ID).is_empty()
        })
        .await;
        let has_arrived = !collector.spans_of_trace(TRACE_ID).is_empty();
        assert_eq!(has_arrived, is_accepted, "{variables:?}: {}", daemon.log());
        if variables.len() == 1 {
            assert!(daemon.log().contains("OTEL_EXPORTER_OTLP_CLIENT_KEY"), "{}", daemon.log());
        }
    }
}
