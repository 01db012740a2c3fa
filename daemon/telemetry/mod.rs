//! Spans and logs, and getting them out.
//!
//! Spans are made always, so that logs and children have trace ids; they are exported, by OTLP over
//! gRPC, when an endpoint is set in the environment.

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

/// How long the last spans may take to be delivered when the daemon ends.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(5);

/// The tracing of one daemon.
#[derive(Debug, Clone)]
pub(crate) struct Telemetry {
    provider: SdkTracerProvider,
    tracer: SdkTracer,
    export_stats: ExportStats,
    /// Whether each call has a line in the log.
    logs_calls: bool,
    propagators: Propagators,
}

impl Telemetry {
    /// Sets tracing up from the `OTEL_*` environment. To be called inside the runtime: the
    /// exporter's connection belongs to it.
    pub(crate) fn start(logs_calls: bool) -> Self {
        let environment = environment::from_process();
        environment.warn_unsupported();
        let delivery = ExportStats::default();
        let mut builder = SdkTracerProvider::builder().with_resource(resource());
        if let Some(endpoint) = environment.endpoint() {
            match export::build_exporter(&environment, &endpoint) {
                Ok(exporter) => {
                    builder = builder
                        .with_span_processor(SpanCounter(delivery.clone()))
                        .with_batch_exporter(delivery.wrap(exporter));
                }
                Err(error) => {
                    tracing::error!(
                        %error,
                        endpoint,
                        "spans are not exported: the OTEL_* environment cannot be used"
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
        Self {
            provider,
            tracer,
            export_stats: delivery,
            logs_calls,
            propagators: Propagators::from_environment(),
        }
    }

    /// What spans are made with.
    pub(crate) fn tracer(&self) -> &SdkTracer {
        &self.tracer
    }

    /// Spans that could not be exported so far.
    pub(crate) fn failed_spans(&self) -> u64 {
        self.export_stats.failed()
    }

    /// Whether each call has a line in the log.
    pub(crate) fn logs_calls(&self) -> bool {
        self.logs_calls
    }

    /// What is carried from a caller to a child.
    pub(crate) fn propagators(&self) -> Propagators {
        self.propagators
    }

    /// Delivers what is not delivered yet. On a thread of its own: in a task it would wait for
    /// itself.
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
    // A name given here would win over the environment's.
    let named_in_attributes =
        env::var("OTEL_RESOURCE_ATTRIBUTES").is_ok_and(|list| list.contains("service.name="));
    if env::var_os("OTEL_SERVICE_NAME").is_none() && !named_in_attributes {
        builder = builder.with_service_name("jigd");
    }
    builder.build()
}
