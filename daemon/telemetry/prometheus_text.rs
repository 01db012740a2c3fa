//! Metrics in the text format of Prometheus.

use opentelemetry_prometheus::PrometheusExporter;
use opentelemetry_sdk::error::OTelSdkError;
use prometheus::{Registry, TextEncoder};

/// Content type of the text.
pub(crate) const CONTENT_TYPE: &str = prometheus::TEXT_FORMAT;

/// Renders the current values of all metrics.
#[derive(Debug, Clone, Default)]
pub(crate) struct PrometheusText(Registry);

impl PrometheusText {
    /// Creates the reader that collects for this text.
    ///
    /// Metrics have no labels for the instrumentation scope: there is one scope.
    pub(super) fn reader(&self) -> Result<PrometheusExporter, OTelSdkError> {
        opentelemetry_prometheus::exporter()
            .with_registry(self.0.clone())
            .scope_info_enabled(false)
            .build()
    }

    /// Collects and renders all metrics. Blocks: it reads files of the daemon's process.
    pub(crate) fn render(&self) -> Result<String, prometheus::Error> {
        TextEncoder::new().encode_to_string(&self.0.gather())
    }
}
