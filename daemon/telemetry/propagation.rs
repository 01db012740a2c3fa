//! Trace context across boundaries: in from metadata, out into the environment of a child.

use http::HeaderMap;
use opentelemetry::{
    Context,
    propagation::{Extractor, Injector, TextMapPropagator as _},
};
use opentelemetry_sdk::propagation::TraceContextPropagator;

struct Headers<'a>(&'a HeaderMap);

impl Extractor for Headers<'_> {
    fn get(&self, key: &str) -> Option<&str> {
        self.0.get(key)?.to_str().ok()
    }

    fn keys(&self) -> Vec<&str> {
        self.0.keys().map(http::HeaderName::as_str).collect()
    }
}

struct Variables(Vec<(String, String)>);

impl Injector for Variables {
    fn set(&mut self, key: &str, value: String) {
        // An empty tracestate is no tracestate.
        if !value.is_empty() {
            self.0.push((key.to_ascii_uppercase(), value));
        }
    }
}

/// The trace context that came with a call (W3C Trace Context); empty where none did, or it is
/// malformed.
pub(crate) fn extract(headers: &HeaderMap) -> Context {
    TraceContextPropagator::new().extract_with_context(&Context::new(), &Headers(headers))
}

/// Variables that carry `context` to a child: `TRACEPARENT`, and `TRACESTATE` where there is one
/// (OpenTelemetry, environment variables as context propagation carriers). Baggage is the caller's
/// data and goes to no command.
pub(crate) fn variables(context: &Context) -> Vec<(String, String)> {
    let mut variables = Variables(Vec::new());
    TraceContextPropagator::new().inject_context(context, &mut variables);
    variables.0
}
