//! Metrics: the documented ones, and no others; the listener for Prometheus.

use std::{
    collections::{BTreeMap, BTreeSet},
    process::Command,
};

use jig::api::v1::{
    LowerLimits, ReadFileRequest, RunRequest, process_service_client::ProcessServiceClient,
};
use rustix::process::Signal;

use crate::{
    audit::AuditDirectory,
    support::{
        CurlResponse, Daemon, KeyFile, Refusal, Setup, argv, curl, eventually, parse_curl_response,
        promptly, shell, start_request, with_key,
    },
};

const PAGE: &str = include_str!("../../docs/telemetry.md");

/// A row of the table of metrics.
#[derive(Debug)]
pub(super) struct DocumentedMetric {
    kind: String,
    unit: String,
    attributes: BTreeSet<String>,
}

/// The section of the page about metrics.
fn metrics_section() -> &'static str {
    let (_, rest) = PAGE.split_once("\n## Metrics\n").unwrap();
    rest.split_once("\n## ").unwrap().0
}

/// The cells of the rows below a header.
fn rows(header: &str) -> Vec<Vec<&'static str>> {
    let (_, rest) = metrics_section().split_once(header).unwrap();
    let lines = rest.lines().skip(1).take_while(|line| line.starts_with('|'));
    let rows = lines.filter(|line| !line.starts_with("|---"));
    rows.map(|row| row.trim_matches('|').split(" | ").map(str::trim).collect()).collect()
}

/// The names in backquotes.
fn quoted(text: &str) -> BTreeSet<String> {
    text.split('`').skip(1).step_by(2).map(str::to_owned).collect()
}

/// The documented metrics, by name.
pub(super) fn documented_metrics() -> BTreeMap<String, DocumentedMetric> {
    let rows = rows("| metric | kind | unit | attributes | content |").into_iter();
    rows.map(|cells| {
        let [name, unit] = [cells[0], cells[2]].map(|cell| cell.trim_matches('`').to_owned());
        let (kind, attributes) = (cells[1].to_owned(), quoted(cells[3]));
        (name, DocumentedMetric { kind, unit, attributes })
    })
    .collect()
}

/// The name and type of a metric in Prometheus, as the page says.
fn prometheus_name(name: &str, metric: &DocumentedMetric) -> (String, &'static str) {
    let mut text = name.replace('.', "_");
    text += match metric.unit.as_str() {
        "s" => "_seconds",
        "By" => "_bytes",
        _ => "",
    };
    let kind = match metric.kind.as_str() {
        "counter" => {
            text += "_total";
            "counter"
        }
        "histogram" => "histogram",
        _ => "gauge",
    };
    (text, kind)
}

/// The documented metrics, by their name in Prometheus: their type and labels.
fn documented_families() -> BTreeMap<String, (String, BTreeSet<String>)> {
    let metrics = documented_metrics().into_iter();
    metrics
        .map(|(name, metric)| {
            let (text, kind) = prometheus_name(&name, &metric);
            let labels = metric.attributes.iter().map(|name| name.replace('.', "_"));
            (text, (kind.to_owned(), labels.collect()))
        })
        .collect()
}

/// The families of a text in the format of Prometheus: their type and labels.
fn parse_families(text: &str) -> BTreeMap<String, (String, BTreeSet<String>)> {
    let mut families = BTreeMap::new();
    for line in text.lines() {
        if let Some(declared) = line.strip_prefix("# TYPE ") {
            let (name, kind) = declared.split_once(' ').unwrap();
            families.insert(name.to_owned(), (kind.to_owned(), BTreeSet::new()));
        } else if let Some((sample, labels)) = line.split_once('{') {
            let (labels, _) = labels.rsplit_once('}').unwrap();
            let family = ["", "_bucket", "_sum", "_count"]
                .iter()
                .find_map(|suffix| {
                    sample.strip_suffix(suffix).filter(|name| families.contains_key(*name))
                })
                .unwrap_or_else(|| panic!("{line}"))
                .to_owned();
            // No documented value contains a comma or an equals sign.
            let names = labels.split(',').filter_map(|label| Some(label.split_once('=')?.0));
            let names = names.filter(|name| *name != "le").map(str::to_owned);
            families.get_mut(&family).unwrap().1.extend(names);
        }
    }
    // Describes the resource.
    families.remove("target_info").expect("the text describes the daemon");
    families
}

/// The address of the listener for metrics, from the log.
pub(crate) fn metrics_address(daemon: &Daemon) -> Option<String> {
    let log = daemon.log();
    let line = log.lines().find(|line| line.contains("serving metrics"))?;
    let (_, rest) = line.split_once("0.0.0.0:").unwrap();
    let port: String = rest.chars().take_while(char::is_ascii_digit).collect();
    Some(format!("127.0.0.1:{port}"))
}

/// Runs curl for a path of the listener for metrics.
async fn get(address: &str, arguments: &'static [&str], path: &str) -> CurlResponse {
    let url = format!("http://{address}{path}");
    let curl = tokio::task::spawn_blocking(move || {
        let mut command = Command::new("curl");
        command.args(["--silent", "--show-error", "--include"]).args(arguments).arg(&url);
        command.env_clear().output()
    });
    let output = promptly("curl ends", curl).await.unwrap().unwrap();
    assert!(output.status.success(), "{path}: {output:?}");
    parse_curl_response(&String::from_utf8(output.stdout).unwrap())
}

/// Starts a daemon that serves metrics. Returns it with the address.
async fn start_with_metrics(setup: Setup) -> (Daemon, String) {
    let daemon = setup.arguments(&["--metrics-listen", "0.0.0.0:0"]).start().await;
    eventually("the log has the address", async || metrics_address(&daemon).is_some()).await;
    let address = metrics_address(&daemon).unwrap();
    (daemon, address)
}

pub(crate) async fn scrape(address: &str) -> String {
    let response = get(address, &[], "/metrics").await;
    assert_eq!(response.status, 200, "{response:?}");
    response.body
}

/// The value of the samples whose line begins with `prefix`, summed.
fn value(text: &str, prefix: &str) -> f64 {
    let samples = text.lines().filter(|line| line.starts_with(prefix));
    samples.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum()
}

/// Makes calls of each kind: the documented metrics all get a value.
async fn make_calls(daemon: &Daemon, key: &str) {
    daemon.output(with_key(key, shell("echo text"))).await;
    daemon.run(with_key(key, argv(&["sh", "-c", "exit 3"]))).await;
    let limits = Some(LowerLimits { output_bytes: Some(1024), ..LowerLimits::default() });
    let request = RunRequest { limits, ..shell("head -c 100000 /dev/zero") };
    daemon.run(with_key(key, request)).await;
    let missing = with_key(key, argv(&["no-such-program"]));
    daemon.try_run(missing).await.unwrap_err();
    for (path, reason) in [("missing", "FILE_NOT_FOUND"), ("secret", "POLICY_DENIED")] {
        let request = ReadFileRequest { path: path.to_owned(), ..ReadFileRequest::default() };
        let refused = daemon.tools().read_file(with_key(key, request)).await.unwrap_err();
        assert_eq!(Refusal::from_status(&refused).reason, reason);
    }

    let mut processes = ProcessServiceClient::new(daemon.channel());
    let sleep = || start_request(argv(&["sleep", "1000"]));
    let first = processes.start(with_key(key, sleep())).await.unwrap();
    let refused = processes.start(with_key(key, sleep())).await.unwrap_err();
    assert_eq!(Refusal::from_status(&refused).reason, "RESOURCE_EXHAUSTED");
    drop(first);

    daemon.try_run(shell("true")).await.unwrap_err();
    let bearer = format!("authorization: Bearer {key}");
    let grpc = ["--http2-prior-knowledge", "-X", "POST", "-H", "content-type: application/grpc"];
    let arguments = [&grpc[..], &["-H", &bearer]].concat();
    curl(daemon, &arguments, "/jig.v1.ToolService/NoSuchMethod");
}

#[tokio::test(flavor = "multi_thread")]
async fn every_documented_metric_is_emitted_and_no_other() {
    let config = r#"
        [limits]
        concurrent_processes = 1
        [[policy.rules]]
        name = "no-secrets"
        tool = "read_file"
        pattern = '"path":"secret"'
        action = "deny"
        # No server is there.
        [fleet]
        nats = ["nats://127.0.0.1:1"]
        [[fleet.queues]]
        name = "build"
        key = "tester"
        workspaces = ["workspace"]
    "#;
    let keys = KeyFile::new();
    let key = keys.add_key("tester", "admin", &[]);
    let setup = Setup::new().workspace_table(config);
    let setup = setup.arguments(&["--keys", &keys.path().display().to_string()]);
    let audit = AuditDirectory::new();
    let (daemon, address) = start_with_metrics(audit.of(setup)).await;
    // A rate needs a value before the first failure.
    let text = scrape(&address).await;
    for sample in [
        "jig_auth_failures_total{jig_reason=\"UNAUTHENTICATED\"} 0",
        "jig_policy_denials_total{jig_denied_by=\"rule\"} 0",
        "jig_admission_rejected_total{jig_denied_by=\"limit:concurrency\"} 0",
        "jig_process_limits_exceeded_total{jig_limit_exceeded=\"output\"} 0",
    ] {
        assert!(text.lines().any(|line| line == sample), "{sample}\n{text}");
    }
    make_calls(&daemon, &key).await;

    let expected = documented_families();
    eventually("all metrics have values", async || {
        let families = parse_families(&scrape(&address).await);
        families.keys().eq(expected.keys())
            && families.values().flat_map(|(_, labels)| labels).count()
                == expected.values().flat_map(|(_, labels)| labels).count()
    })
    .await;
    let text = scrape(&address).await;
    assert_eq!(parse_families(&text), expected);

    // The table of attributes has each of them once.
    let attributes: BTreeSet<_> =
        documented_metrics().into_values().flat_map(|metric| metric.attributes).collect();
    let described = rows("| attribute | values |");
    let described: Vec<_> = described.iter().flat_map(|cells| quoted(cells[0])).collect();
    assert_eq!(described.len(), attributes.len());
    assert_eq!(described.into_iter().collect::<BTreeSet<_>>(), attributes);

    for (sample, count) in [
        ("rpc_server_call_duration_seconds_count{rpc_method=\"jig.v1.ToolService/ReadFile\"", 2.0),
        ("jig_tool_calls_total{gen_ai_tool_name=\"run\",jig_outcome=\"exited\"}", 2.0),
        ("jig_policy_denials_total{jig_denied_by=\"rule\"}", 1.0),
        ("jig_admission_rejected_total{jig_denied_by=\"limit:concurrency\"}", 1.0),
        ("jig_auth_failures_total{jig_reason=\"UNAUTHENTICATED\"}", 1.0),
        ("jig_process_limits_exceeded_total{jig_limit_exceeded=\"output\"}", 1.0),
    ] {
        assert_eq!(value(&text, sample), count, "{sample}\n{text}");
    }
    assert!(value(&text, "jig_audit_written_total") > 5.0, "{text}");
    assert!(value(&text, "process_memory_usage_bytes") > 1e6, "{text}");
    assert!(value(&text, "process_cpu_time_seconds_total") > 0.0, "{text}");
    // No principals, paths, ids or names of programs.
    for text_of_users in ["tester", "secret", "no-such-program", "NoSuchMethod", "sleep"] {
        assert!(!text.contains(text_of_users), "{text_of_users}: {text}");
    }
}

#[tokio::test]
async fn metrics_listener_serves_nothing_else_and_lasts_through_the_drain() {
    let setup = Setup::new().arguments(&["--drain-timeout", "60s"]);
    let (mut daemon, address) = start_with_metrics(setup).await;
    let response = get(&address, &[], "/metrics").await;
    assert_eq!(response.status, 200);
    assert!(response.headers["content-type"].starts_with("text/plain; version=0.0.4"));
    for path in ["/", "/healthz", "/mcp", "/v1/jobs", "/openapi.json", "/metrics/x"] {
        assert_eq!(get(&address, &[], path).await.status, 404, "{path}");
    }
    assert_eq!(get(&address, &["-X", "POST"], "/metrics").await.status, 405);
    let grpc = get(
        &address,
        &["--http2-prior-knowledge", "-X", "POST", "-H", "content-type: application/grpc"],
        "/jig.v1.DaemonService/GetInfo",
    );
    assert_eq!(grpc.await.status, 404);
    assert_eq!(curl(&daemon, &[], "/metrics").status, 404, "the other listeners have no metrics");

    // Runs in progress show while the daemon drains.
    let mark = daemon.file("running");
    let call = daemon.spawn_run(shell("touch running; until [ -e end ]; do sleep 0.05; done"));
    eventually("the command runs", async || mark.exists()).await;
    daemon.signal(Signal::TERM);
    eventually("the drain begins", async || daemon.log().contains("draining")).await;
    let text = scrape(&address).await;
    assert_eq!(value(&text, "jig_process_active "), 1.0, "{text}");
    assert_eq!(value(&text, "jig_rpc_active "), 1.0, "{text}");
    std::fs::write(daemon.file("end"), "").unwrap();
    call.await.unwrap().unwrap();
    assert!(promptly("the daemon ends", daemon.wait_for_exit()).await.success());
}
