//! Spans and logs, and getting them out.
//!
//! Spans are made always, so that logs and children have trace ids; they are exported, by OTLP over
//! gRPC, when an endpoint is set in the environment.

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

use self::propagation::Propagators;
use crate::daemon::task;

/// How long the last spans may take to be delivered when the daemon ends.
const FLUSH_PATIENCE: Duration = Duration::from_secs(5);

/// The tracing of one daemon.
#[derive(Debug, Clone)]
pub(crate) struct Telemetry {
    provider: SdkTracerProvider,
    tracer: SdkTracer,
    propagators: Propagators,
}

impl Telemetry {
    /// Sets tracing up from the `OTEL_*` environment. To be called inside the runtime: the
    /// exporter's connection belongs to it.
    pub(crate) fn start() -> Self {
        let mut builder = SdkTracerProvider::builder().with_resource(resource());
        if exports() {
            match opentelemetry_otlp::SpanExporter::builder()
                .with_tonic()
                .build()
            {
                Ok(exporter) => builder = builder.with_batch_exporter(exporter),
                Err(error) => {
                    tracing::error!(%error, "spans are not exported: the OTEL_* environment cannot be used")
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
            propagators: Propagators::from_environment(),
        }
    }

    /// What spans are made with.
    pub(crate) fn tracer(&self) -> &SdkTracer {
        &self.tracer
    }

    /// What is carried from a caller to a child.
    pub(crate) fn propagators(&self) -> Propagators {
        self.propagators
    }

    /// Delivers what is not delivered yet. On a thread of its own: in a task it would wait for
    /// itself.
    pub(crate) async fn flush(self) {
        let flushed =
            task::blocking(move || self.provider.shutdown_with_timeout(FLUSH_PATIENCE)).await;
        if let Ok(Err(error)) = flushed {
            tracing::warn!(%error, "the last spans were not delivered");
        }
    }
}

/// Whether the environment asks for spans to be exported. The SDK for Rust does not read all of
/// these variables itself.
fn exports() -> bool {
    let set = |name: &str| env::var(name).ok().filter(|value| !value.is_empty());
    let endpoint =
        set("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT").or_else(|| set("OTEL_EXPORTER_OTLP_ENDPOINT"));
    let disabled = set("OTEL_SDK_DISABLED").is_some_and(|value| value.eq_ignore_ascii_case("true"));
    let exporter = set("OTEL_TRACES_EXPORTER").unwrap_or_else(|| "otlp".to_owned());
    if endpoint.is_none() || disabled || exporter == "none" {
        return false;
    }
    let protocol =
        set("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL").or_else(|| set("OTEL_EXPORTER_OTLP_PROTOCOL"));
    if exporter != "otlp"
        || protocol
            .as_deref()
            .is_some_and(|protocol| protocol != "grpc")
    {
        tracing::warn!(
            exporter,
            protocol,
            "spans are exported by OTLP over gRPC whatever OTEL_TRACES_EXPORTER and OTEL_EXPORTER_OTLP_PROTOCOL say"
        );
    }
    true
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
