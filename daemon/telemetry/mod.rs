//! Spans, metrics and logs, and their export by OpenTelemetry.
//!
//! Spans are always created, so that logs and child processes have trace ids. They are exported by
//! OTLP over gRPC if the environment sets an endpoint. So are logs and metrics; metrics are also
//! rendered for Prometheus.

pub(crate) mod access_log;
pub(crate) mod audit;
pub(crate) mod content;
mod environment;
mod export;
mod log_export;
pub(crate) mod logs;
pub(crate) mod metrics;
mod otlp;
pub(crate) mod prometheus_text;
pub(crate) mod propagation;
mod resource;
pub(crate) mod semconv;
pub(crate) mod spans;

use std::{
    error::Error,
    thread,
    time::{Duration, Instant},
};

use http::HeaderMap;
use opentelemetry::{
    InstrumentationScope, KeyValue, metrics::MeterProvider as _, trace::TracerProvider as _,
};
use opentelemetry_sdk::{
    Resource,
    error::{OTelSdkError, OTelSdkResult},
    logs::SdkLoggerProvider,
    metrics::SdkMeterProvider,
    trace::{SdkTracer, SdkTracerProvider},
};
use tokio::{sync::oneshot, time::timeout};

use self::{
    audit::{AuditEvent, AuditLog},
    content::ContentCapture,
    environment::{OtelEnvironment, Signal},
    export::{ExportStats, ItemCounter},
    metrics::{Metrics, table},
    prometheus_text::PrometheusText,
    propagation::{CallerContext, Propagators, RemoteContextTrust},
    resource::detect_resource,
};
use crate::daemon::task;

/// How long the export of the last telemetry may take at shutdown.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(5);

/// Creates and exports the telemetry of one daemon.
#[derive(Debug, Clone)]
pub(crate) struct Telemetry {
    traces: SdkTracerProvider,
    tracer: SdkTracer,
    /// `None` if log records are not exported.
    logs: Option<SdkLoggerProvider>,
    /// `None` if there is no reader of metrics.
    meters: Option<SdkMeterProvider>,
    metrics: Metrics,
    /// Set if metrics are served to Prometheus.
    prometheus: Option<PrometheusText>,
    stats: SignalStats,
    audit: AuditLog,
    logs_calls: bool,
    capture: ContentCapture,
    propagators: Propagators,
    remote_context: RemoteContextTrust,
}

/// What the configuration says about telemetry.
#[derive(Debug, Clone)]
pub(crate) struct TelemetrySettings {
    /// The audit log (`--audit-log`), opened.
    pub(crate) audit: AuditLog,
    /// Whether spans have the content of calls (`--capture-content`).
    pub(crate) capture: ContentCapture,
    /// How far the trace context of callers is trusted (`--trust-remote-context`).
    pub(crate) remote_context: RemoteContextTrust,
    /// Whether each call is logged (`--log-calls`).
    pub(crate) logs_calls: bool,
    /// Whether metrics are served to Prometheus (`--metrics-listen`).
    pub(crate) serves_metrics: bool,
    /// When the daemon started.
    pub(crate) started: Instant,
}

/// Counts of the exports of each signal.
#[derive(Debug, Clone)]
struct SignalStats {
    traces: ExportStats,
    metrics: ExportStats,
    logs: ExportStats,
}

impl Telemetry {
    /// Sets up telemetry from the `OTEL_*` environment.
    ///
    /// Must be called inside the runtime, which drives the exporters' connections.
    pub(crate) fn start(settings: TelemetrySettings) -> Self {
        let environment = environment::from_process();
        environment.warn_unsupported();

        let stats = SignalStats {
            traces: ExportStats::new(Signal::Traces),
            metrics: ExportStats::new(Signal::Metrics),
            logs: ExportStats::new(Signal::Logs),
        };
        let resource = detect_resource();
        let scope = InstrumentationScope::builder("jig")
            .with_version(env!("CARGO_PKG_VERSION"))
            .with_schema_url(semconv::SCHEMA_URL)
            .build();
        let traces = tracer_provider(&environment, &resource, &stats.traces);
        let tracer = traces.tracer_with_scope(scope.clone());
        let logs = logger_provider(&environment, &resource, &stats.logs);
        if let Some(logs) = &logs {
            log_export::start(logs);
        }

        let prometheus = settings.serves_metrics.then(PrometheusText::default);
        let meters = meter_provider(&environment, &resource, prometheus.as_ref(), &stats.metrics);
        let metrics = meters.as_ref().map_or_else(Metrics::default, |meters| {
            Metrics::new(meters.meter_with_scope(scope), settings.started)
        });
        stats.observe_lost(&metrics);
        settings.audit.observe(&metrics);

        Self {
            traces,
            tracer,
            logs,
            meters,
            metrics,
            prometheus,
            stats,
            audit: settings.audit,
            logs_calls: settings.logs_calls,
            capture: settings.capture,
            propagators: Propagators::from_environment(),
            remote_context: settings.remote_context,
        }
    }

    /// The tracer that creates spans.
    pub(crate) fn tracer(&self) -> &SdkTracer {
        &self.tracer
    }

    /// The metrics of the daemon.
    pub(crate) fn metrics(&self) -> &Metrics {
        &self.metrics
    }

    /// The metrics as text, if they are served to Prometheus.
    pub(crate) fn prometheus(&self) -> Option<&PrometheusText> {
        self.prometheus.as_ref()
    }

    /// Number of spans that could not be exported so far.
    pub(crate) fn failed_spans(&self) -> u64 {
        self.stats.traces.failed()
    }

    /// Whether each call is logged (`--log-calls`).
    pub(crate) fn logs_calls(&self) -> bool {
        self.logs_calls
    }

    /// The audit log (`--audit-log`).
    pub(crate) fn audit(&self) -> &AuditLog {
        &self.audit
    }

    /// Whether spans have the content of calls (`--capture-content`).
    pub(crate) fn capture(&self) -> ContentCapture {
        self.capture
    }

    /// Extracts the context of a caller from its headers, as far as it is trusted.
    pub(crate) fn caller_context(&self, headers: &HeaderMap) -> CallerContext {
        self.propagators.extract_trusted(headers, self.remote_context)
    }

    /// The propagators of trace context and baggage.
    pub(crate) fn propagators(&self) -> Propagators {
        self.propagators
    }

    /// Ends the audit log, and exports the remaining telemetry.
    pub(crate) async fn flush(self) {
        let Self { traces, logs, meters, stats, audit, .. } = self;
        audit.report(AuditEvent::DaemonStopped, []);
        let closed = task::spawn_blocking(move || audit.close());
        if let Err(error) = closed.await {
            tracing::error!(%error, "the audit log was not closed");
        }
        log_export::stop();
        let (traced, logged, metered) = tokio::join!(
            flush_bounded(move || traces.shutdown_with_timeout(FLUSH_TIMEOUT)),
            flush_bounded(move || {
                logs.map_or(Ok(()), |logs| logs.shutdown_with_timeout(FLUSH_TIMEOUT))
            }),
            flush_bounded(move || {
                meters.map_or(Ok(()), |meters| meters.shutdown_with_timeout(FLUSH_TIMEOUT))
            }),
        );
        stats.traces.log_undelivered(traced);
        stats.logs.log_undelivered(logged);
        stats.metrics.log_undelivered(metered);
    }
}

impl SignalStats {
    fn observe_lost(&self, metrics: &Metrics) {
        let lost = [&self.traces, &self.logs].map(Clone::clone);
        metrics.observe(&table::TELEMETRY_LOST, move |observe| {
            for stats in &lost {
                observe(stats.failed(), &[KeyValue::new(semconv::SIGNAL, stats.signal().name())]);
            }
        });
    }
}

/// Runs `flush` on a thread of its own: in a task it would wait for itself, and the reader of
/// metrics has no timeout, so a blocking task could delay the end of the runtime.
async fn flush_bounded(flush: impl FnOnce() -> OTelSdkResult + Send + 'static) -> OTelSdkResult {
    let (sender, receiver) = oneshot::channel();
    let spawned = thread::Builder::new().name("flush telemetry".to_owned()).spawn(move || {
        let _receiver_gone = sender.send(flush());
    });
    if let Err(error) = spawned {
        return Err(OTelSdkError::InternalFailure(error.to_string()));
    }
    match timeout(FLUSH_TIMEOUT, receiver).await {
        Ok(Ok(flushed)) => flushed,
        Ok(Err(_)) => Err(OTelSdkError::InternalFailure("the flush has panicked".to_owned())),
        Err(_) => Err(OTelSdkError::Timeout(FLUSH_TIMEOUT)),
    }
}

fn tracer_provider<F: Fn(&str) -> Option<String>>(
    environment: &OtelEnvironment<F>,
    resource: &Resource,
    stats: &ExportStats,
) -> SdkTracerProvider {
    let builder = SdkTracerProvider::builder().with_resource(resource.clone());
    let exporter = build_exporter(environment, Signal::Traces, otlp::span_exporter);
    match exporter {
        Some(exporter) => builder
            .with_span_processor(ItemCounter(stats.clone()))
            .with_batch_exporter(stats.wrap(exporter))
            .build(),
        None => builder.build(),
    }
}

fn logger_provider<F: Fn(&str) -> Option<String>>(
    environment: &OtelEnvironment<F>,
    resource: &Resource,
    stats: &ExportStats,
) -> Option<SdkLoggerProvider> {
    let exporter = build_exporter(environment, Signal::Logs, otlp::log_exporter)?;
    let builder = SdkLoggerProvider::builder().with_resource(resource.clone());
    let builder = builder.with_log_processor(ItemCounter(stats.clone()));
    Some(builder.with_batch_exporter(stats.wrap(exporter)).build())
}

/// Returns `None` if metrics are neither exported nor served: then none are recorded.
fn meter_provider<F: Fn(&str) -> Option<String>>(
    environment: &OtelEnvironment<F>,
    resource: &Resource,
    prometheus: Option<&PrometheusText>,
    stats: &ExportStats,
) -> Option<SdkMeterProvider> {
    let exporter = build_exporter(environment, Signal::Metrics, otlp::metric_exporter);
    if exporter.is_none() && prometheus.is_none() {
        return None;
    }

    let mut builder = SdkMeterProvider::builder().with_resource(resource.clone());
    if let Some(exporter) = exporter {
        builder = builder.with_periodic_exporter(stats.wrap(exporter));
    }
    match prometheus.map(PrometheusText::reader) {
        Some(Ok(reader)) => builder = builder.with_reader(reader),
        Some(Err(error)) => tracing::error!(%error, "metrics are not served"),
        None => {}
    }
    Some(builder.build())
}

/// Builds the exporter of a signal. `None` if the signal is not exported, or cannot be.
fn build_exporter<F: Fn(&str) -> Option<String>, E>(
    environment: &OtelEnvironment<F>,
    signal: Signal,
    build: impl FnOnce(&OtelEnvironment<F>, &str) -> Result<E, Box<dyn Error>>,
) -> Option<E> {
    let endpoint = environment.endpoint(signal)?;
    match build(environment, &endpoint) {
        Ok(exporter) => Some(exporter),
        Err(error) => {
            let signal = signal.name();
            tracing::error!(
                %error,
                signal,
                endpoint,
                "telemetry is not exported: the OTEL_* environment is invalid"
            );
            None
        }
    }
}
