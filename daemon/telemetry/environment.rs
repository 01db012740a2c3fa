//! The variables of OpenTelemetry (`OTEL_*`), as far as spans are exported by them. What the SDK for
//! Rust, or this daemon, does not support is named once at start: the SDK ignores it silently.

use std::env;

const SAMPLERS: &[&str] = &[
    "always_on",
    "always_off",
    "traceidratio",
    "parentbased_always_on",
    "parentbased_always_off",
    "parentbased_traceidratio",
];
const BOOLEANS: &[&str] = &["true", "false"];

/// Variables with a list of supported values.
const CHOICE_VARIABLES: &[(&str, &[&str])] = &[
    ("OTEL_SDK_DISABLED", BOOLEANS),
    ("OTEL_TRACES_SAMPLER", SAMPLERS),
    ("OTEL_METRICS_EXPORTER", &["none"]),
    ("OTEL_LOGS_EXPORTER", &["none"]),
    ("OTEL_EXPORTER_OTLP_PROTOCOL", &["grpc"]),
    ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", &["grpc"]),
    ("OTEL_EXPORTER_OTLP_COMPRESSION", &["none", "gzip"]),
    ("OTEL_EXPORTER_OTLP_TRACES_COMPRESSION", &["none", "gzip"]),
    ("OTEL_EXPORTER_OTLP_INSECURE", BOOLEANS),
    ("OTEL_EXPORTER_OTLP_TRACES_INSECURE", BOOLEANS),
];
/// Variables with a number.
const NUMBER_VARIABLES: &[&str] = &[
    "OTEL_EXPORTER_OTLP_TIMEOUT",
    "OTEL_EXPORTER_OTLP_TRACES_TIMEOUT",
    "OTEL_BSP_SCHEDULE_DELAY",
    "OTEL_BSP_EXPORT_TIMEOUT",
    "OTEL_BSP_MAX_QUEUE_SIZE",
    "OTEL_BSP_MAX_EXPORT_BATCH_SIZE",
    "OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT",
    "OTEL_SPAN_EVENT_COUNT_LIMIT",
    "OTEL_SPAN_LINK_COUNT_LIMIT",
];
/// Variables with a list of pairs, and whether their values may be secret.
const PAIRS: &[(&str, bool)] = &[
    ("OTEL_RESOURCE_ATTRIBUTES", false),
    ("OTEL_EXPORTER_OTLP_HEADERS", true),
    ("OTEL_EXPORTER_OTLP_TRACES_HEADERS", true),
];
const ENDPOINT_VARIABLES: [&str; 2] =
    ["OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT"];

/// Looks variables up. An empty one counts as not set.
pub(super) struct OtelEnvironment<F>(F);

/// A value that is not supported.
#[derive(Debug, PartialEq, Eq)]
struct UnsupportedVariable {
    variable: &'static str,
    value: String,
    supported: String,
}

/// That of the process.
pub(super) fn from_process() -> OtelEnvironment<impl Fn(&str) -> Option<String>> {
    OtelEnvironment(|name: &str| env::var(name).ok())
}

impl<F: Fn(&str) -> Option<String>> OtelEnvironment<F> {
    fn get(&self, name: &str) -> Option<String> {
        (self.0)(name).filter(|value| !value.trim().is_empty())
    }

    /// Where spans are exported to: the endpoint as it is written; none where they are not.
    pub(super) fn endpoint(&self) -> Option<String> {
        let is_disabled = self.get("OTEL_SDK_DISABLED");
        if is_disabled.is_some_and(|value| value.eq_ignore_ascii_case("true"))
            || self.get("OTEL_TRACES_EXPORTER").as_deref() == Some("none")
        {
            return None;
        }
        ENDPOINT_VARIABLES.iter().find_map(|name| self.get(name))
    }

    /// The file with the certificates of authorities that the collector's is looked up in, in place of
    /// those of the system.
    pub(super) fn certificate(&self) -> Option<String> {
        self.get("OTEL_EXPORTER_OTLP_TRACES_CERTIFICATE")
            .or_else(|| self.get("OTEL_EXPORTER_OTLP_CERTIFICATE"))
    }

    /// Logs a warning for each value that is not supported.
    pub(super) fn warn_unsupported(&self) {
        for UnsupportedVariable { variable, value, supported } in self.unsupported() {
            tracing::warn!(
                variable,
                value,
                supported,
                "the environment asks for what is not supported: it is ignored"
            );
        }
    }

    fn unsupported(&self) -> Vec<UnsupportedVariable> {
        let mut problems = Vec::new();
        let mut report = |variable, value, supported: &str| {
            problems.push(UnsupportedVariable { variable, value, supported: supported.to_owned() });
        };
        for (variable, choices) in CHOICE_VARIABLES {
            if let Some(value) = self.get(variable)
                && !choices.contains(&value.to_ascii_lowercase().as_str())
            {
                report(variable, value, &choices.join(", "));
            }
        }
        if let Some(value) = self.get("OTEL_TRACES_EXPORTER")
            && !["otlp", "none"].contains(&value.to_ascii_lowercase().as_str())
        {
            let supported = "otlp or none, alone; spans are exported by otlp if an endpoint is set";
            report("OTEL_TRACES_EXPORTER", value, supported);
        }
        for (variable, is_secret) in PAIRS {
            let value = self.get(variable).unwrap_or_default();
            let entries = value.split_terminator(',').enumerate();
            let wrong = entries.filter(|(_, entry)| !is_pair(entry));
            for (number, entry) in wrong {
                let entry = match is_secret {
                    true => format!("entry {}", number + 1),
                    false => format!("entry {}: {entry:?}", number + 1),
                };
                report(variable, entry, "KEY=VALUE,KEY=VALUE; the other entries are used");
            }
        }
        for variable in NUMBER_VARIABLES {
            if let Some(value) = self.get(variable)
                && value.parse::<u64>().is_err()
            {
                report(variable, value, "a number without a unit");
            }
        }
        let samples_ratio = self
            .get("OTEL_TRACES_SAMPLER")
            .is_some_and(|sampler| sampler.ends_with("traceidratio"));
        let ratio = self.get("OTEL_TRACES_SAMPLER_ARG").unwrap_or_default();
        let is_ratio = ratio.parse::<f64>().is_ok_and(|ratio| (0.0..=1.0).contains(&ratio));
        if samples_ratio && !is_ratio {
            report("OTEL_TRACES_SAMPLER_ARG", ratio, "a number from 0 to 1");
        }
        for variable in ENDPOINT_VARIABLES {
            if let Some(value) = self.get(variable)
                && !["http://", "https://"].iter().any(|scheme| value.starts_with(scheme))
            {
                report(
                    variable,
                    value,
                    "http://HOST:PORT or https://HOST:PORT; without a scheme it is taken for https, or with OTEL_EXPORTER_OTLP_INSECURE=true for http",
                );
            }
        }
        problems
    }
}

/// Whether an entry of a list is `KEY=VALUE`.
fn is_pair(entry: &str) -> bool {
    let key = entry.split_once('=').map_or("", |(key, _)| key.trim());
    !key.is_empty() && !key.contains(char::is_whitespace)
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    fn with(variables: &[(&str, &str)]) -> OtelEnvironment<impl Fn(&str) -> Option<String>> {
        let variables =
            variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        let variables: HashMap<String, String> = variables.collect();
        OtelEnvironment(move |name: &str| variables.get(name).cloned())
    }

    #[test]
    fn what_is_not_supported_is_named_and_nothing_else() {
        for (variable, value) in [
            ("OTEL_SDK_DISABLED", "yes"),
            ("OTEL_TRACES_SAMPLER", "jaeger_remote"),
            ("OTEL_TRACES_EXPORTER", "console"),
            ("OTEL_TRACES_EXPORTER", "otlp,console"),
            ("OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT", "abc"),
            ("OTEL_METRICS_EXPORTER", "otlp"),
            ("OTEL_LOGS_EXPORTER", "otlp"),
            ("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf"),
            ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "http/json"),
            ("OTEL_EXPORTER_OTLP_COMPRESSION", "zstd"),
            ("OTEL_EXPORTER_OTLP_TIMEOUT", "10s"),
            ("OTEL_BSP_MAX_QUEUE_SIZE", "many"),
            ("OTEL_EXPORTER_OTLP_ENDPOINT", "127.0.0.1:4317"),
            ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "ftp://collector"),
        ] {
            let problems = with(&[(variable, value)]).unsupported();
            let found: Vec<_> =
                problems.iter().map(|problem| (problem.variable, problem.value.as_str())).collect();
            assert_eq!(found, [(variable, value)]);
        }
        for (variable, value, entries) in [
            ("OTEL_EXPORTER_OTLP_HEADERS", "xx", &["entry 1"][..]),
            ("OTEL_EXPORTER_OTLP_TRACES_HEADERS", "a=b,=secret", &["entry 2"]),
            ("OTEL_RESOURCE_ATTRIBUTES", "a=b,,c", &["entry 2: \"\"", "entry 3: \"c\""]),
        ] {
            let problems = with(&[(variable, value)]).unsupported();
            let found: Vec<_> = problems.iter().map(|problem| &problem.value).collect();
            assert_eq!(found, entries, "{variable}");
        }
        for ratio in ["", "2", "half"] {
            let variables =
                [("OTEL_TRACES_SAMPLER", "traceidratio"), ("OTEL_TRACES_SAMPLER_ARG", ratio)];
            let problems = with(&variables).unsupported();
            assert_eq!(problems[0].variable, "OTEL_TRACES_SAMPLER_ARG", "{ratio}");
        }
        let usual = [
            ("OTEL_SDK_DISABLED", "FALSE"),
            ("OTEL_TRACES_SAMPLER", "parentbased_traceidratio"),
            ("OTEL_TRACES_SAMPLER_ARG", "0.25"),
            ("OTEL_TRACES_EXPORTER", "otlp"),
            ("OTEL_METRICS_EXPORTER", "none"),
            ("OTEL_RESOURCE_ATTRIBUTES", "a=b, c = d%20e,f="),
            ("OTEL_EXPORTER_OTLP_HEADERS", "authorization=Basic%20eA=="),
            ("OTEL_SPAN_LINK_COUNT_LIMIT", "8"),
            ("OTEL_LOGS_EXPORTER", ""),
            ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc"),
            ("OTEL_EXPORTER_OTLP_COMPRESSION", "gzip"),
            ("OTEL_EXPORTER_OTLP_TIMEOUT", "10000"),
            ("OTEL_EXPORTER_OTLP_ENDPOINT", "https://collector:4317"),
        ];
        assert_eq!(with(&usual).unsupported(), []);
    }

    #[test]
    fn spans_are_exported_where_there_is_an_endpoint() {
        let endpoint = ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://c:4317");
        assert_eq!(with(&[]).endpoint(), None);
        assert_eq!(with(&[endpoint]).endpoint().as_deref(), Some("http://c:4317"));
        let traces = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://t:4317");
        assert_eq!(with(&[endpoint, traces]).endpoint().as_deref(), Some("http://t:4317"));
        for off in [("OTEL_SDK_DISABLED", "True"), ("OTEL_TRACES_EXPORTER", "none")] {
            assert_eq!(with(&[endpoint, off]).endpoint(), None);
        }
    }
}
