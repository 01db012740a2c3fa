//! Metrics and logs by OTLP, and collectors that are lost or silent.

use std::{
    collections::BTreeSet,
    net::TcpListener,
    time::{Duration, Instant},
};

use opentelemetry_proto::tonic::{common::v1::any_value::Value, logs::v1::LogRecord};
use rustix::process::Signal;

use super::{metrics::documented_metrics, run_in_trace};
use crate::support::{Collector, Daemon, Setup, attribute_text, eventually, hex, promptly, shell};

const ENDPOINT_VARIABLE: &str = "OTEL_EXPORTER_OTLP_ENDPOINT";

/// A daemon that exports within 20 ms.
fn exporting_setup(endpoint: &str) -> Setup {
    Setup::new()
        .environment(ENDPOINT_VARIABLE, endpoint)
        .environment("OTEL_BSP_SCHEDULE_DELAY", "20")
        .environment("OTEL_BLRP_SCHEDULE_DELAY", "20")
        .environment("OTEL_METRIC_EXPORT_INTERVAL", "20")
}

fn body(record: &LogRecord) -> String {
    match record.body.clone().and_then(|body| body.value) {
        Some(Value::StringValue(text)) => text,
        other => panic!("{other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn collector_receives_traces_metrics_and_logs_of_a_call() {
    let (collector, endpoint) = Collector::start();
    let arguments = ["--log-calls", "--log-level", "debug"];
    let setup = exporting_setup(&endpoint)
        .environment("OTEL_RESOURCE_ATTRIBUTES", "host.name=named-by-operator")
        .arguments(&arguments);
    let mut daemon = setup.start().await;
    let id = "d".repeat(32);
    run_in_trace(&daemon, &id, shell("true")).await.unwrap();

    let records = || {
        let records = collector.log_records();
        records.into_iter().filter(|record| hex(&record.trace_id) == id).collect::<Vec<_>>()
    };
    let is_complete = || {
        let messages: BTreeSet<_> = records().iter().map(body).collect();
        collector.spans_of_trace(&id).len() == 3
            && messages.contains("call")
            && messages.contains("call finished")
            && collector.metrics().iter().any(|metric| metric.name == "jig.tool.calls")
    };
    eventually("the collector receives all signals", async || is_complete()).await;

    let spans = collector.spans_of_trace(&id);
    let span_ids: BTreeSet<_> = spans.iter().map(|span| span.span_id.clone()).collect();
    for record in records() {
        assert!(span_ids.contains(&record.span_id), "{record:?}");
    }
    let records = records();
    let access_line = records.iter().find(|record| body(record) == "call").unwrap();
    assert_eq!(attribute_text(&access_line.attributes, "tool").as_deref(), Some("run"));
    assert_eq!(attribute_text(&access_line.attributes, "status").as_deref(), Some("OK"));

    let documented = documented_metrics();
    for metric in collector.metrics() {
        assert!(documented.contains_key(&metric.name), "{} is not documented", metric.name);
    }
    for resource in collector.other_resources() {
        for (name, value) in [("service.name", "jigd"), ("host.name", "named-by-operator")] {
            assert_eq!(attribute_text(&resource.attributes, name).as_deref(), Some(value));
        }
    }

    daemon.signal(Signal::TERM);
    assert!(daemon.wait_for_exit().await.success());
    let log = daemon.log();
    assert!(!log.contains("not delivered"), "{log}");
}

#[tokio::test(flavor = "multi_thread")]
async fn signals_can_be_disabled_one_by_one() {
    let (collector, endpoint) = Collector::start();
    let setup = exporting_setup(&endpoint)
        .environment("OTEL_METRICS_EXPORTER", "none")
        .environment("OTEL_LOGS_EXPORTER", "none");
    let mut daemon = setup.arguments(&["--log-calls"]).start().await;
    let id = "e".repeat(32);
    run_in_trace(&daemon, &id, shell("true")).await.unwrap();
    daemon.signal(Signal::TERM);
    assert!(daemon.wait_for_exit().await.success());

    assert_eq!(collector.spans_of_trace(&id).len(), 3);
    assert!(collector.metrics().is_empty());
    assert!(collector.log_records().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn idle_daemon_exports_no_log_records_about_the_export() {
    let (collector, endpoint) = Collector::start();
    let daemon = exporting_setup(&endpoint).arguments(&["--log-level", "trace"]).start().await;
    eventually("metrics arrive", async || !collector.metrics().is_empty()).await;
    daemon.output(shell("true")).await;
    let resources = || collector.other_resources().len();
    let first = resources();
    eventually("20 more exports arrive", async || resources() >= first + 20).await;
    // Only the lines of the start and of the call: exports cause none.
    let count = collector.log_records().len();
    let before = resources();
    eventually("20 more exports arrive", async || resources() >= before + 20).await;
    assert_eq!(collector.log_records().len(), count);
}

/// Time of the slowest of some calls.
async fn slowest_call(daemon: &Daemon, calls: usize) -> Duration {
    let mut slowest = Duration::ZERO;
    for _ in 0..calls {
        let started = Instant::now();
        daemon.list_files().await;
        slowest = slowest.max(started.elapsed());
    }
    slowest
}

#[tokio::test(flavor = "multi_thread")]
async fn silent_collector_costs_neither_latency_nor_memory() {
    /// Longer than any call, and much shorter than the exporter's timeout of 10 seconds.
    const MAX_LATENCY: Duration = Duration::from_secs(2);
    const CALLS: usize = 200;
    /// The queues of spans and log records, full, and noise of the allocator.
    const MAX_GROWTH_BYTES: u64 = 16 << 20;

    // Connections are established by the kernel, and never answered.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = format!("http://{}", silent.local_addr().unwrap());
    let setup = exporting_setup(&endpoint)
        .environment("OTEL_BSP_MAX_QUEUE_SIZE", "256")
        .environment("OTEL_BLRP_MAX_QUEUE_SIZE", "256")
        .arguments(&["--log-calls"]);
    let mut daemon = setup.start().await;
    assert!(slowest_call(&daemon, CALLS).await < MAX_LATENCY);

    let before = daemon.resident_bytes();
    assert!(slowest_call(&daemon, CALLS * 5).await < MAX_LATENCY);
    let growth = daemon.resident_bytes().saturating_sub(before);
    assert!(growth < MAX_GROWTH_BYTES, "{growth} bytes");

    daemon.signal(Signal::TERM);
    let status = promptly("the daemon ends", daemon.wait_for_exit()).await;
    assert!(status.success());
    let log = daemon.log();
    for message in ["lost_spans", "lost_records", "the last metrics were not delivered"] {
        assert!(log.contains(message), "{message}: {log}");
    }
}
