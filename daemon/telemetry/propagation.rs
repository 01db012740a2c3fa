//! Propagates trace context and baggage, from request metadata to the environment of a child
//! process.

use std::{collections::HashMap, env};

use http::HeaderMap;
use opentelemetry::{
    Context,
    propagation::{Extractor, Injector, TextMapPropagator as _},
    trace::{SpanContext, TraceContextExt as _},
};
use opentelemetry_sdk::propagation::{BaggagePropagator, TraceContextPropagator};

/// Selects the propagators. The Rust SDK does not read it.
const PROPAGATORS_VARIABLE: &str = "OTEL_PROPAGATORS";

/// The enabled propagators.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Propagators {
    trace_context: bool,
    baggage: bool,
}

/// What the daemon does with the trace context and the baggage of a caller.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum RemoteContextTrust {
    /// Continues the caller's trace.
    #[default]
    Parent,
    /// Starts a trace of its own, with a link to the caller's span. Baggage is ignored.
    Link,
    /// Starts a trace of its own.
    Ignore,
}

/// The context of a caller, as far as the daemon trusts it.
#[derive(Debug, Default)]
pub(crate) struct CallerContext {
    /// The parent of the call's span, with baggage. Empty for a trace of its own.
    pub(crate) parent: Context,
    /// The span that the call's span links to.
    pub(crate) link: Option<SpanContext>,
}

struct HeaderExtractor<'a>(&'a HeaderMap);

impl Extractor for HeaderExtractor<'_> {
    fn get(&self, key: &str) -> Option<&str> {
        self.0.get(key)?.to_str().ok()
    }

    fn keys(&self) -> Vec<&str> {
        self.0.keys().map(http::HeaderName::as_str).collect()
    }
}

struct EnvInjector(Vec<(String, String)>);

impl Injector for EnvInjector {
    fn set(&mut self, key: &str, value: String) {
        // An empty tracestate means none.
        if !value.is_empty() {
            self.0.push((key.to_ascii_uppercase(), value));
        }
    }
}

impl Propagators {
    /// Reads `OTEL_PROPAGATORS`. Logs a warning for unsupported names.
    pub(super) fn from_environment() -> Self {
        let list = env::var(PROPAGATORS_VARIABLE).unwrap_or_default();
        let (propagators, unknown) = Self::parse(&list);
        if !unknown.is_empty() {
            tracing::warn!(
                unknown = unknown.join(","),
                supported = "tracecontext,baggage,none",
                "ignored unsupported names in OTEL_PROPAGATORS"
            );
        }
        propagators
    }

    /// Parses a list. Returns the propagators and the unsupported names.
    ///
    /// A list without a supported name gives the default. `none` overrides all other names.
    fn parse(list: &str) -> (Self, Vec<&str>) {
        let mut named = Self { trace_context: false, baggage: false };
        let (mut none, mut unknown) = (false, Vec::new());
        let names = list.split(',').map(str::trim);
        for name in names.filter(|name| !name.is_empty()) {
            match name.to_ascii_lowercase().as_str() {
                "tracecontext" => named.trace_context = true,
                "baggage" => named.baggage = true,
                "none" => none = true,
                _ => unknown.push(name),
            }
        }

        let propagators = if none {
            Self { trace_context: false, baggage: false }
        } else if !named.trace_context && !named.baggage {
            // The specification's default includes baggage. But baggage is data of the caller's own
            // callers, so commands must not get it unless the operator enables it.
            Self { trace_context: true, baggage: false }
        } else {
            named
        };
        (propagators, unknown)
    }

    /// Extracts the context of a caller, as far as `trust` allows.
    pub(crate) fn extract_trusted(
        self,
        headers: &HeaderMap,
        trust: RemoteContextTrust,
    ) -> CallerContext {
        match trust {
            RemoteContextTrust::Parent => {
                CallerContext { parent: self.extract(headers), link: None }
            }
            RemoteContextTrust::Link => {
                let span = self.extract(headers).span().span_context().clone();
                let link = Some(span).filter(SpanContext::is_valid);
                CallerContext { parent: Context::new(), link }
            }
            RemoteContextTrust::Ignore => CallerContext::default(),
        }
    }

    /// Extracts the context of a call (W3C Trace Context, W3C Baggage).
    ///
    /// Returns an empty context if the headers are missing or malformed.
    fn extract(self, headers: &HeaderMap) -> Context {
        let mut context = Context::new();
        if self.trace_context {
            context = TraceContextPropagator::new()
                .extract_with_context(&context, &HeaderExtractor(headers));
        }
        if self.baggage {
            context =
                BaggagePropagator::new().extract_with_context(&context, &HeaderExtractor(headers));
        }
        context
    }

    /// Environment variables that pass `context` to a child process.
    ///
    /// `TRACEPARENT`, and `TRACESTATE` and `BAGGAGE` unless they are empty (OpenTelemetry,
    /// environment variables as context propagation carriers).
    pub(crate) fn child_variables(self, context: &Context) -> Vec<(String, String)> {
        let mut variables = EnvInjector(Vec::new());
        if self.trace_context {
            TraceContextPropagator::new().inject_context(context, &mut variables);
        }
        if self.baggage {
            BaggagePropagator::new().inject_context(context, &mut variables);
        }
        variables.0
    }
}

/// Formats the span of a context as a `traceparent`, for [`from_traceparent`]. Empty without a
/// span.
pub(crate) fn to_traceparent(context: &Context) -> String {
    let mut fields = HashMap::new();
    TraceContextPropagator::new().inject_context(context, &mut fields);
    fields.remove("traceparent").unwrap_or_default()
}

/// Parses the context of a span, which may have ended long ago.
pub(crate) fn from_traceparent(text: &str) -> Context {
    let fields = HashMap::from([("traceparent".to_owned(), text.to_owned())]);
    TraceContextPropagator::new().extract_with_context(&Context::new(), &fields)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use http::HeaderMap;

    use super::Propagators;

    const PARENT: &str = "00-0af7651916cd43dd8448eb211c80319c-00f067aa0ba902b7-01";

    #[test]
    fn list_is_parsed_by_the_specification() {
        let parse = |list: &'static str| {
            let (propagators, unknown) = Propagators::parse(list);
            let Propagators { trace_context, baggage } = propagators;
            (trace_context, baggage, unknown)
        };
        for unset in ["", " , "] {
            assert_eq!(parse(unset), (true, false, vec![]), "{unset:?}");
        }
        for both in ["tracecontext,baggage", " Baggage , TRACECONTEXT,baggage"] {
            assert_eq!(parse(both), (true, true, vec![]), "{both:?}");
        }
        assert_eq!(parse("tracecontext"), (true, false, vec![]));
        assert_eq!(parse("baggage"), (false, true, vec![]));
        assert_eq!(parse("none"), (false, false, vec![]));
        assert_eq!(parse("tracecontext,none"), (false, false, vec![]));
        assert_eq!(parse("b3,tracecontext,Jaeger"), (true, false, vec!["b3", "Jaeger"]));
        assert_eq!(parse("b3"), (true, false, vec!["b3"]));
    }

    #[test]
    fn only_enabled_propagators_are_applied() {
        let headers: HeaderMap = [
            ("traceparent", PARENT),
            ("tracestate", "vendor=1"),
            ("baggage", "user=a%20b;kept,tenant=7"),
        ]
        .into_iter()
        .map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap()))
        .collect();
        let propagate = |list: &str| {
            let (propagators, _) = Propagators::parse(list);
            let context = propagators.extract(&headers);
            let variables: BTreeMap<_, _> =
                propagators.child_variables(&context).into_iter().collect();
            variables
        };

        let both = propagate("tracecontext,baggage");
        let names: Vec<_> = both.keys().map(String::as_str).collect();
        assert_eq!(names, ["BAGGAGE", "TRACEPARENT", "TRACESTATE"]);
        assert_eq!(both["TRACEPARENT"], PARENT);
        assert_eq!(both["TRACESTATE"], "vendor=1");
        let mut members: Vec<_> = both["BAGGAGE"].split(',').collect();
        members.sort_unstable();
        assert_eq!(members, ["tenant=7", "user=a%20b;kept"]);

        let names: Vec<_> = propagate("tracecontext").into_keys().collect();
        assert_eq!(names, ["TRACEPARENT", "TRACESTATE"]);
        let names: Vec<_> = propagate("baggage").into_keys().collect();
        assert_eq!(names, ["BAGGAGE"]);
        assert!(propagate("none").is_empty());
    }

    #[test]
    fn malformed_headers_are_not_propagated() {
        let (propagators, _) = Propagators::parse("tracecontext,baggage");
        let headers: HeaderMap = [("traceparent", "00-x"), ("baggage", "no member")]
            .into_iter()
            .map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap()))
            .collect();
        let context = propagators.extract(&headers);
        assert!(propagators.child_variables(&context).is_empty());
    }
}
