//! Exports log lines by OTLP, with the trace ids of their calls.
//!
//! Logging starts before the configuration of the exporter is known, so the layer exists always. It
//! does nothing until [`start`].

use std::{
    fmt,
    sync::{Arc, PoisonError, RwLock},
};

use opentelemetry::{
    Context as TraceContext,
    trace::{SpanContext, SpanId, TraceContextExt as _, TraceFlags, TraceId, TraceState},
};
use opentelemetry_appender_tracing::layer::OpenTelemetryTracingBridge;
use opentelemetry_sdk::logs::{SdkLogger, SdkLoggerProvider};
use tracing::{
    Event, Level, Subscriber,
    field::{Field, Visit},
    span::{Attributes, Id},
};
use tracing_subscriber::{
    Layer,
    filter::{LevelFilter, Targets},
    layer::Context,
    registry::LookupSpan,
};

/// Crates that the exporter uses. Their log lines could cause further exports, without end.
const EXPORTER_CRATES: [&str; 6] = ["h2", "hyper", "hyper_util", "opentelemetry", "tonic", "tower"];

type Bridge = OpenTelemetryTracingBridge<SdkLoggerProvider, SdkLogger>;

/// Turns log lines into log records. `None` unless they are exported.
static BRIDGE: RwLock<Option<Arc<Bridge>>> = RwLock::new(None);

/// The layer that exports log lines.
pub(super) struct ExportLayer;

/// Ids of a span of `tracing` that belongs to a call.
#[derive(Default)]
struct CallIds {
    trace: Option<TraceId>,
    span: Option<SpanId>,
}

/// Exports log lines from now on.
pub(super) fn start(provider: &SdkLoggerProvider) {
    set_bridge(Some(Arc::new(Bridge::new(provider))));
}

/// Exports no more log lines.
pub(super) fn stop() {
    set_bridge(None);
}

fn set_bridge(bridge: Option<Arc<Bridge>>) {
    *BRIDGE.write().unwrap_or_else(PoisonError::into_inner) = bridge;
}

fn bridge() -> Option<Arc<Bridge>> {
    BRIDGE.read().unwrap_or_else(PoisonError::into_inner).clone()
}

/// The lines to export: those of standard error, without the crates of the exporter.
pub(super) fn filter(level: Level) -> Targets {
    let targets = Targets::new()
        .with_default(Level::WARN)
        .with_target("jig", level)
        .with_target("rmcp", Level::ERROR);
    targets.with_targets(EXPORTER_CRATES.map(|name| (name, LevelFilter::OFF)))
}

impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for ExportLayer {
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        if bridge().is_none() {
            return;
        }
        let mut ids = CallIds::default();
        attributes.record(&mut ids);
        if let (Some(ids), Some(span)) = (ids.context(), context.span(id)) {
            span.extensions_mut().insert(ids);
        }
    }

    fn on_event(&self, event: &Event<'_>, context: Context<'_, S>) {
        let Some(bridge) = bridge() else { return };

        // The SDK takes the ids from the current context.
        let spans = context.event_scope(event).into_iter().flatten();
        let call =
            spans.into_iter().find_map(|span| span.extensions().get::<TraceContext>().cloned());
        let _attached = call.map(TraceContext::attach);
        bridge.on_event(event, context);
    }
}

impl CallIds {
    fn context(self) -> Option<TraceContext> {
        let state = TraceState::default();
        let ids = SpanContext::new(self.trace?, self.span?, TraceFlags::SAMPLED, true, state);
        Some(TraceContext::new().with_remote_span_context(ids))
    }
}

impl Visit for CallIds {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        match field.name() {
            "trace_id" => self.trace = TraceId::from_hex(&format!("{value:?}")).ok(),
            "span_id" => self.span = SpanId::from_hex(&format!("{value:?}")).ok(),
            _ => {}
        }
    }
}
