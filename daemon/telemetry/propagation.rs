//! Trace context and baggage across boundaries: in from metadata, out into the environment of a
//! child.

use std::{collections::HashMap, env};

use http::HeaderMap;
use opentelemetry::{
    Context,
    propagation::{Extractor, Injector, TextMapPropagator as _},
};
use opentelemetry_sdk::propagation::{BaggagePropagator, TraceContextPropagator};

/// Where the operator says what is carried; the SDK for Rust does not read it.
const PROPAGATORS_VARIABLE: &str = "OTEL_PROPAGATORS";

/// What is carried across.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Propagators {
    trace_context: bool,
    baggage: bool,
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
        // An empty tracestate is no tracestate.
        if !value.is_empty() {
            self.0.push((key.to_ascii_uppercase(), value));
        }
    }
}

impl Propagators {
    /// Those that the environment names. What it names in vain is told.
    pub(super) fn from_environment() -> Self {
        let list = env::var(PROPAGATORS_VARIABLE).unwrap_or_default();
        let (propagators, unknown) = Self::parse(&list);
        if !unknown.is_empty() {
            tracing::warn!(
                unknown = unknown.join(","),
                supported = "tracecontext,baggage,none",
                "OTEL_PROPAGATORS names what is not supported and is ignored"
            );
        }
        propagators
    }

    /// Reads a list, and answers what of it is unknown. One that names nothing known is as good as
    /// none; `none` wins over what stands beside it.
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
        let nothing = !named.trace_context && !named.baggage;
        let propagators = match (none, nothing) {
            (true, _) => Self { trace_context: false, baggage: false },
            // Not baggage, which the specification has here too: it is data of the caller's own
            // callers, and a command is not to see it unasked.
            (false, true) => Self { trace_context: true, baggage: false },
            (false, false) => named,
        };
        (propagators, unknown)
    }

    /// The context that came with a call (W3C Trace Context, W3C Baggage); empty where none did, or
    /// it is malformed.
    pub(crate) fn extract(self, headers: &HeaderMap) -> Context {
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

    /// Variables that carry `context` to a child: `TRACEPARENT`, and `TRACESTATE` and `BAGGAGE`
    /// where there is something to carry (OpenTelemetry, environment variables as context
    /// propagation carriers).
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

/// Which span a context is about, as text that [`read_parent`] reads; empty, where it is about none.
pub(crate) fn to_traceparent(context: &Context) -> String {
    let mut fields = HashMap::new();
    TraceContextPropagator::new().inject_context(context, &mut fields);
    fields.remove("traceparent").unwrap_or_default()
}

/// The context of a span that may have ended long ago.
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
    fn the_list_is_read_as_the_specification_says() {
        let read = |list: &'static str| {
            let (propagators, unknown) = Propagators::parse(list);
            let Propagators { trace_context, baggage } = propagators;
            (trace_context, baggage, unknown)
        };
        for unset in ["", " , "] {
            assert_eq!(read(unset), (true, false, vec![]), "{unset:?}");
        }
        for both in ["tracecontext,baggage", " Baggage , TRACECONTEXT,baggage"] {
            assert_eq!(read(both), (true, true, vec![]), "{both:?}");
        }
        assert_eq!(read("tracecontext"), (true, false, vec![]));
        assert_eq!(read("baggage"), (false, true, vec![]));
        assert_eq!(read("none"), (false, false, vec![]));
        assert_eq!(read("tracecontext,none"), (false, false, vec![]));
        assert_eq!(read("b3,tracecontext,Jaeger"), (true, false, vec!["b3", "Jaeger"]));
        assert_eq!(read("b3"), (true, false, vec!["b3"]));
    }

    #[test]
    fn only_what_is_named_is_carried_in_and_out() {
        let headers: HeaderMap = [
            ("traceparent", PARENT),
            ("tracestate", "vendor=1"),
            ("baggage", "user=a%20b;kept,tenant=7"),
        ]
        .into_iter()
        .map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap()))
        .collect();
        let carried = |list: &str| {
            let (propagators, _) = Propagators::parse(list);
            let context = propagators.extract(&headers);
            let variables: BTreeMap<_, _> =
                propagators.child_variables(&context).into_iter().collect();
            variables
        };
        let both = carried("tracecontext,baggage");
        let names: Vec<_> = both.keys().map(String::as_str).collect();
        assert_eq!(names, ["BAGGAGE", "TRACEPARENT", "TRACESTATE"]);
        assert_eq!(both["TRACEPARENT"], PARENT);
        assert_eq!(both["TRACESTATE"], "vendor=1");
        let mut members: Vec<_> = both["BAGGAGE"].split(',').collect();
        members.sort_unstable();
        assert_eq!(members, ["tenant=7", "user=a%20b;kept"]);
        let names: Vec<_> = carried("tracecontext").into_keys().collect();
        assert_eq!(names, ["TRACEPARENT", "TRACESTATE"]);
        let names: Vec<_> = carried("baggage").into_keys().collect();
        assert_eq!(names, ["BAGGAGE"]);
        assert!(carried("none").is_empty());
    }

    #[test]
    fn what_cannot_be_read_is_not_carried() {
        let (propagators, _) = Propagators::parse("tracecontext,baggage");
        let headers: HeaderMap = [("traceparent", "00-x"), ("baggage", "no member")]
            .into_iter()
            .map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap()))
            .collect();
        let context = propagators.extract(&headers);
        assert!(propagators.child_variables(&context).is_empty());
    }
}
