//! Builds the OTLP exporters that the environment configures.

use std::{error::Error, fs};

use opentelemetry_otlp::{LogExporter, MetricExporter, SpanExporter, WithTonicConfig};
use tonic::transport::{Certificate, ClientTlsConfig, Identity};

use super::environment::{OtelEnvironment, Signal};

type BuildResult<T> = Result<T, Box<dyn Error>>;

/// Builds the exporter of spans.
pub(super) fn span_exporter<F: Fn(&str) -> Option<String>>(
    environment: &OtelEnvironment<F>,
    endpoint: &str,
) -> BuildResult<SpanExporter> {
    let builder = SpanExporter::builder().with_tonic();
    Ok(with_tls(builder, environment, Signal::Traces, endpoint)?.build()?)
}

/// Builds the exporter of metrics.
pub(super) fn metric_exporter<F: Fn(&str) -> Option<String>>(
    environment: &OtelEnvironment<F>,
    endpoint: &str,
) -> BuildResult<MetricExporter> {
    let builder = MetricExporter::builder().with_tonic();
    Ok(with_tls(builder, environment, Signal::Metrics, endpoint)?.build()?)
}

/// Builds the exporter of log records.
pub(super) fn log_exporter<F: Fn(&str) -> Option<String>>(
    environment: &OtelEnvironment<F>,
    endpoint: &str,
) -> BuildResult<LogExporter> {
    let builder = LogExporter::builder().with_tonic();
    Ok(with_tls(builder, environment, Signal::Logs, endpoint)?.build()?)
}

/// Adds the certificates of the environment, unless the endpoint has no TLS.
fn with_tls<B: WithTonicConfig, F: Fn(&str) -> Option<String>>(
    builder: B,
    environment: &OtelEnvironment<F>,
    signal: Signal,
    endpoint: &str,
) -> BuildResult<B> {
    if endpoint.starts_with("http://") {
        return Ok(builder);
    }

    let read = |file: &str| fs::read(file).map_err(|error| format!("{file}: {error}"));
    let tls = match environment.certificate(signal) {
        Some(file) => ClientTlsConfig::new().ca_certificate(Certificate::from_pem(read(&file)?)),
        None => ClientTlsConfig::new().with_native_roots(),
    };
    let tls = match environment.client_certificate(signal)? {
        Some([certificate, key]) => {
            tls.identity(Identity::from_pem(read(&certificate)?, read(&key)?))
        }
        None => tls,
    };
    Ok(builder.with_tls_config(tls))
}
