//! Environment variables of OpenTelemetry (`OTEL_*`) that control the export of telemetry.
//!
//! The Rust SDK silently ignores values that it does not support. The daemon logs a warning for
//! each at start.

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
const PROTOCOLS: &[&str] = &["grpc"];
const COMPRESSIONS: &[&str] = &["none", "gzip"];

/// Variables with a list of supported values.
const CHOICE_VARIABLES: &[(&str, &[&str])] = &[
    ("OTEL_SDK_DISABLED", BOOLEANS),
    ("OTEL_TRACES_SAMPLER", SAMPLERS),
    ("OTEL_EXPORTER_OTLP_PROTOCOL", PROTOCOLS),
    ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", PROTOCOLS),
    ("OTEL_EXPORTER_OTLP_METRICS_PROTOCOL", PROTOCOLS),
    ("OTEL_EXPORTER_OTLP_LOGS_PROTOCOL", PROTOCOLS),
    ("OTEL_EXPORTER_OTLP_COMPRESSION", COMPRESSIONS),
    ("OTEL_EXPORTER_OTLP_TRACES_COMPRESSION", COMPRESSIONS),
    ("OTEL_EXPORTER_OTLP_METRICS_COMPRESSION", COMPRESSIONS),
    ("OTEL_EXPORTER_OTLP_LOGS_COMPRESSION", COMPRESSIONS),
    ("OTEL_EXPORTER_OTLP_INSECURE", BOOLEANS),
    ("OTEL_EXPORTER_OTLP_TRACES_INSECURE", BOOLEANS),
    ("OTEL_EXPORTER_OTLP_METRICS_INSECURE", BOOLEANS),
    ("OTEL_EXPORTER_OTLP_LOGS_INSECURE", BOOLEANS),
    ("OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE", &["cumulative", "delta", "lowmemory"]),
];
/// Variables that select the exporter of a signal.
const EXPORTER_VARIABLES: [&str; 3] =
    ["OTEL_TRACES_EXPORTER", "OTEL_METRICS_EXPORTER", "OTEL_LOGS_EXPORTER"];
/// Variables whose value is a number.
const NUMBER_VARIABLES: &[&str] = &[
    "OTEL_EXPORTER_OTLP_TIMEOUT",
    "OTEL_EXPORTER_OTLP_TRACES_TIMEOUT",
    "OTEL_EXPORTER_OTLP_METRICS_TIMEOUT",
    "OTEL_EXPORTER_OTLP_LOGS_TIMEOUT",
    "OTEL_BSP_SCHEDULE_DELAY",
    "OTEL_BSP_EXPORT_TIMEOUT",
    "OTEL_BSP_MAX_QUEUE_SIZE",
    "OTEL_BSP_MAX_EXPORT_BATCH_SIZE",
    "OTEL_BLRP_SCHEDULE_DELAY",
    "OTEL_BLRP_EXPORT_TIMEOUT",
    "OTEL_BLRP_MAX_QUEUE_SIZE",
    "OTEL_BLRP_MAX_EXPORT_BATCH_SIZE",
    "OTEL_METRIC_EXPORT_INTERVAL",
    "OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT",
    "OTEL_SPAN_EVENT_COUNT_LIMIT",
    "OTEL_SPAN_LINK_COUNT_LIMIT",
];
/// Variables whose value is a list of pairs, and whether the list may contain secrets.
const PAIR_LIST_VARIABLES: &[(&str, bool)] = &[
    ("OTEL_RESOURCE_ATTRIBUTES", false),
    ("OTEL_EXPORTER_OTLP_HEADERS", true),
    ("OTEL_EXPORTER_OTLP_TRACES_HEADERS", true),
    ("OTEL_EXPORTER_OTLP_METRICS_HEADERS", true),
    ("OTEL_EXPORTER_OTLP_LOGS_HEADERS", true),
];
const ENDPOINT_VARIABLES: [&str; 4] = [
    "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT",
    "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT",
    "OTEL_EXPORTER_OTLP_LOGS_ENDPOINT",
    "OTEL_EXPORTER_OTLP_ENDPOINT",
];

/// A kind of telemetry, with variables of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Signal {
    Traces,
    Metrics,
    Logs,
}

impl Signal {
    /// The name in lower case, as in logs and attributes.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Traces => "traces",
            Self::Metrics => "metrics",
            Self::Logs => "logs",
        }
    }

    /// The name in variables.
    fn variable_part(self) -> &'static str {
        match self {
            Self::Traces => "TRACES",
            Self::Metrics => "METRICS",
            Self::Logs => "LOGS",
        }
    }
}

/// Looks up variables. Treats an empty value as unset.
pub(super) struct OtelEnvironment<F>(F);

/// A variable with an unsupported value.
#[derive(Debug, PartialEq, Eq)]
struct UnsupportedVariable {
    variable: &'static str,
    value: String,
    supported: String,
}

/// The environment of this process.
pub(super) fn from_process() -> OtelEnvironment<impl Fn(&str) -> Option<String>> {
    OtelEnvironment(|name: &str| env::var(name).ok())
}

impl<F: Fn(&str) -> Option<String>> OtelEnvironment<F> {
    fn get(&self, name: &str) -> Option<String> {
        (self.0)(name).filter(|value| !value.trim().is_empty())
    }

    /// The endpoint that a signal is exported to, as written. `None` if it is not exported.
    pub(super) fn endpoint(&self, signal: Signal) -> Option<String> {
        let is_disabled = self.get("OTEL_SDK_DISABLED");
        let exporter = self.get(&format!("OTEL_{}_EXPORTER", signal.variable_part()));
        if is_disabled.is_some_and(|value| value.eq_ignore_ascii_case("true"))
            || exporter.is_some_and(|value| value.eq_ignore_ascii_case("none"))
        {
            return None;
        }
        self.otlp(signal, "ENDPOINT")
    }

    /// File with the CA certificates that verify the collector, instead of the system's.
    pub(super) fn certificate(&self, signal: Signal) -> Option<String> {
        self.otlp(signal, "CERTIFICATE")
    }

    /// A setting of OTLP: that of the signal, otherwise that of all signals.
    fn otlp(&self, signal: Signal, setting: &str) -> Option<String> {
        let part = signal.variable_part();
        self.get(&format!("OTEL_EXPORTER_OTLP_{part}_{setting}"))
            .or_else(|| self.get(&format!("OTEL_EXPORTER_OTLP_{setting}")))
    }

    /// Files with the certificate and the key that authenticate the daemon to the collector.
    ///
    /// # Errors
    ///
    /// Names the variable that is missing if only one of both is set.
    pub(super) fn client_certificate(&self, signal: Signal) -> Result<Option<[String; 2]>, String> {
        let either = |kind: &str| self.otlp(signal, &format!("CLIENT_{kind}"));
        let needs = |given: &str, missing: &str| {
            Err(format!(
                "OTEL_EXPORTER_OTLP_CLIENT_{given} needs OTEL_EXPORTER_OTLP_CLIENT_{missing}: set both"
            ))
        };
        match (either("CERTIFICATE"), either("KEY")) {
            (Some(certificate), Some(key)) => Ok(Some([certificate, key])),
            (None, None) => Ok(None),
            (Some(_), None) => needs("CERTIFICATE", "KEY"),
            (None, Some(_)) => needs("KEY", "CERTIFICATE"),
        }
    }

    /// Logs a warning for each unsupported value.
    pub(super) fn warn_unsupported(&self) {
        for UnsupportedVariable { variable, value, supported } in self.unsupported() {
            tracing::warn!(
                variable,
                value,
                supported,
                "ignored an environment variable: its value is not supported"
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

        for variable in EXPORTER_VARIABLES {
            if let Some(value) = self.get(variable)
                && !["otlp", "none"].contains(&value.to_ascii_lowercase().as_str())
            {
                let supported = "otlp or none, alone; otlp is used if an endpoint is set";
                report(variable, value, supported);
            }
        }
        for (variable, is_secret) in PAIR_LIST_VARIABLES {
            for entry in self.malformed_entries(variable, *is_secret) {
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
                    "http://HOST:PORT or https://HOST:PORT; without a scheme it means https, or http with OTEL_EXPORTER_OTLP_INSECURE=true",
                );
            }
        }
        problems
    }

    /// Describes the entries of a list that are no pairs, without the text of secrets.
    fn malformed_entries(&self, variable: &str, is_secret: bool) -> Vec<String> {
        let value = self.get(variable).unwrap_or_default();
        let entries = (1..).zip(value.split_terminator(','));
        entries
            .filter(|(_, entry)| !is_pair(entry))
            .map(|(number, entry): (usize, _)| {
                if is_secret {
                    format!("entry {number}")
                } else {
                    format!("entry {number}: {entry:?}")
                }
            })
            .collect()
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
    fn only_unsupported_values_are_reported() {
        for (variable, value) in [
            ("OTEL_SDK_DISABLED", "yes"),
            ("OTEL_TRACES_SAMPLER", "jaeger_remote"),
            ("OTEL_TRACES_EXPORTER", "console"),
            ("OTEL_TRACES_EXPORTER", "otlp,console"),
            ("OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT", "abc"),
            ("OTEL_METRICS_EXPORTER", "prometheus"),
            ("OTEL_LOGS_EXPORTER", "console"),
            ("OTEL_METRIC_EXPORT_INTERVAL", "10s"),
            ("OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE", "both"),
            ("OTEL_EXPORTER_OTLP_LOGS_ENDPOINT", "collector:4317"),
            ("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf"),
            ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "http/json"),
            ("OTEL_EXPORTER_OTLP_COMPRESSION", "zstd"),
            ("OTEL_EXPORTER_OTLP_TIMEOUT", "10s"),
            ("OTEL_BSP_MAX_QUEUE_SIZE", "many"),
            ("OTEL_EXPORTER_OTLP_ENDPOINT", "127.0.0.1:4317"),
            ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "ftp://collector"),
        ] {
            let problems = with(&[(variable, value)]).unsupported();
            let reported: Vec<_> =
                problems.iter().map(|problem| (problem.variable, problem.value.as_str())).collect();
            assert_eq!(reported, [(variable, value)]);
        }

        for (variable, value, entries) in [
            ("OTEL_EXPORTER_OTLP_HEADERS", "xx", &["entry 1"][..]),
            ("OTEL_EXPORTER_OTLP_TRACES_HEADERS", "a=b,=secret", &["entry 2"]),
            ("OTEL_RESOURCE_ATTRIBUTES", "a=b,,c", &["entry 2: \"\"", "entry 3: \"c\""]),
        ] {
            let problems = with(&[(variable, value)]).unsupported();
            let reported: Vec<_> = problems.iter().map(|problem| &problem.value).collect();
            assert_eq!(reported, entries, "{variable}");
        }

        for ratio in ["", "2", "half"] {
            let variables =
                [("OTEL_TRACES_SAMPLER", "traceidratio"), ("OTEL_TRACES_SAMPLER_ARG", ratio)];
            let problems = with(&variables).unsupported();
            assert_eq!(problems[0].variable, "OTEL_TRACES_SAMPLER_ARG", "{ratio}");
        }

        let supported = [
            ("OTEL_SDK_DISABLED", "FALSE"),
            ("OTEL_TRACES_SAMPLER", "parentbased_traceidratio"),
            ("OTEL_TRACES_SAMPLER_ARG", "0.25"),
            ("OTEL_TRACES_EXPORTER", "otlp"),
            ("OTEL_METRICS_EXPORTER", "none"),
            ("OTEL_LOGS_EXPORTER", "otlp"),
            ("OTEL_METRIC_EXPORT_INTERVAL", "10000"),
            ("OTEL_RESOURCE_ATTRIBUTES", "a=b, c = d%20e,f="),
            ("OTEL_EXPORTER_OTLP_HEADERS", "authorization=Basic%20eA=="),
            ("OTEL_SPAN_LINK_COUNT_LIMIT", "8"),
            ("OTEL_EXPORTER_OTLP_LOGS_PROTOCOL", ""),
            ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc"),
            ("OTEL_EXPORTER_OTLP_COMPRESSION", "gzip"),
            ("OTEL_EXPORTER_OTLP_TIMEOUT", "10000"),
            ("OTEL_EXPORTER_OTLP_ENDPOINT", "https://collector:4317"),
        ];
        assert_eq!(with(&supported).unsupported(), []);
    }

    #[test]
    fn signals_are_exported_if_an_endpoint_is_set() {
        let endpoint = ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://c:4317");
        let own = ("OTEL_EXPORTER_OTLP_LOGS_ENDPOINT", "http://l:4317");
        for signal in [Signal::Traces, Signal::Metrics, Signal::Logs] {
            assert_eq!(with(&[]).endpoint(signal), None);
            assert_eq!(with(&[endpoint]).endpoint(signal).as_deref(), Some("http://c:4317"));
            let expected = if signal == Signal::Logs { "http://l:4317" } else { "http://c:4317" };
            assert_eq!(with(&[endpoint, own]).endpoint(signal).as_deref(), Some(expected));
            let disabled = ("OTEL_SDK_DISABLED", "True");
            assert_eq!(with(&[endpoint, disabled]).endpoint(signal), None);
        }

        let variables = [endpoint, ("OTEL_METRICS_EXPORTER", "none")];
        let without_metrics = with(&variables);
        assert_eq!(without_metrics.endpoint(Signal::Metrics), None);
        assert!(without_metrics.endpoint(Signal::Traces).is_some());
    }
}
