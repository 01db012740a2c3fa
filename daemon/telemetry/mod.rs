//! Tracing spans, logs, and their export by OpenTelemetry.
//!
//! Spans are always created, so that logs and child processes have trace ids. They are exported by
//! OTLP over gRPC if the environment sets an endpoint.

pub(crate) mod access_log;
mod environment;
mod export;
pub(crate) mod logs;
pub(crate) mod propagation;
pub(crate) mod semconv;
pub(crate) mod spans;

use std::{env, time::Duration};

use opentelemetry::{InstrumentationScope, KeyValue, trace::TracerProvider as _};
use opentelemetry_sdk::{
    Resource,
    trace::{SdkTracer, SdkTracerProvider},
};

use self::{
    export::{ExportStats, SpanCounter},
    propagation::Propagators,
};
use crate::daemon::task;

/// How long the export of the last spans may take at shutdown.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(5);

/// Creates and exports the spans of one daemon.
#[derive(Debug, Clone)]
pub(crate) struct Telemetry {
    provider: SdkTracerProvider,
    tracer: SdkTracer,
    export_stats: ExportStats,
    logs_calls: bool,
    propagators: Propagators,
}

impl Telemetry {
    /// Sets up tracing from the `OTEL_*` environment.
    ///
    /// Must be called inside the runtime, which drives the exporter's connection.
    pub(crate) fn start(logs_calls: bool) -> Self {
        let environment = environment::from_process();
        environment.warn_unsupported();

        let export_stats = ExportStats::default();
        let mut builder = SdkTracerProvider::builder().with_resource(resource());
        if let Some(endpoint) = environment.endpoint() {
            match export::build_exporter(&environment, &endpoint) {
                Ok(exporter) => {
                    builder = builder
                        .with_span_processor(SpanCounter(export_stats.clone()))
                        .with_batch_exporter(export_stats.wrap(exporter));
                }
                Err(error) => {
                    tracing::error!(
                        %error,
                        endpoint,
                        "spans are not exported: the OTEL_* environment is invalid"
                    );
                }
            }
        }

        let provider = builder.build();
        let scope = InstrumentationScope::builder("jig")
            .with_version(env!("CARGO_PKG_VERSION"))
            .with_schema_url(semconv::SCHEMA_URL)
            .build();
        let tracer = provider.tracer_with_scope(scope);
        let propagators = Propagators::from_environment();
        Self { provider, tracer, export_stats, logs_calls, propagators }
    }

    /// The tracer that creates spans.
    pub(crate) fn tracer(&self) -> &SdkTracer {
        &self.tracer
    }

    /// Number of spans that could not be exported so far.
    pub(crate) fn failed_spans(&self) -> u64 {
        self.export_stats.failed()
    }

    /// Whether each call is logged (`--log-calls`).
    pub(crate) fn logs_calls(&self) -> bool {
        self.logs_calls
    }

    /// The propagators of trace context and baggage.
    pub(crate) fn propagators(&self) -> Propagators {
        self.propagators
    }

    /// Exports the remaining spans. Runs on a blocking thread: in a task it would wait for itself.
    pub(crate) async fn flush(self) {
        let provider = self.provider;
        let flushed =
            task::spawn_blocking(move || provider.shutdown_with_timeout(FLUSH_TIMEOUT)).await;
        if let Ok(flushed) = flushed {
            export::log_undelivered(&self.export_stats, flushed);
        }
    }
}

fn resource() -> Resource {
    let mut attributes = vec![
        KeyValue::new("service.version", env!("CARGO_PKG_VERSION")),
        KeyValue::new("service.instance.id", ulid::Ulid::generate().to_string()),
        KeyValue::new("process.pid", i64::from(std::process::id())),
        KeyValue::new("process.executable.name", "jigd"),
        KeyValue::new("process.runtime.name", "rust"),
        KeyValue::new("os.type", "linux"),
    ];
    if let Ok(host) = rustix::system::uname().nodename().to_str() {
        attributes.push(KeyValue::new("host.name", host.to_owned()));
    }

    let mut builder = Resource::builder().with_attributes(attributes);
    // A name set here would override the one in the environment.
    let has_name_attribute =
        env::var("OTEL_RESOURCE_ATTRIBUTES").is_ok_and(|list| list.contains("service.name="));
    if env::var_os("OTEL_SERVICE_NAME").is_none() && !has_name_attribute {
        builder = builder.with_service_name("jigd");
    }
    builder.build()
}
