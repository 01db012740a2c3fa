//! Exports spans by OTLP over gRPC, and logs when the collector fails.
//!
//! A failed collector does not affect calls, so the log is the only place that shows it.

use std::{
    fs,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use opentelemetry::Context;
use opentelemetry_otlp::{SpanExporter as Otlp, WithTonicConfig as _};
use opentelemetry_sdk::{
    Resource,
    error::{OTelSdkError, OTelSdkResult},
    trace::{Span, SpanData, SpanExporter, SpanProcessor},
};
use tonic::transport::{Certificate, ClientTlsConfig, Identity};

use super::environment::OtelEnvironment;

/// Counts of ended, delivered and lost spans.
#[derive(Debug, Clone, Default)]
pub(super) struct ExportStats(Arc<SpanCounts>);

#[derive(Debug, Default)]
struct SpanCounts {
    ended: AtomicU64,
    delivered: AtomicU64,
    /// Spans that the exporter tried to deliver without success.
    failed: AtomicU64,
    /// Spans lost since the collector failed; 0 while it works.
    lost_since_outage: AtomicU64,
}

/// Counts all spans that end, including those that the export queue drops.
#[derive(Debug)]
pub(super) struct SpanCounter(pub(super) ExportStats);

/// Exports spans, and counts delivered and failed ones.
#[derive(Debug)]
pub(super) struct CountingExporter<E> {
    inner: E,
    stats: ExportStats,
}

/// Builds the exporter that the environment configures.
pub(super) fn build_exporter<F: Fn(&str) -> Option<String>>(
    environment: &OtelEnvironment<F>,
    endpoint: &str,
) -> Result<Otlp, Box<dyn std::error::Error>> {
    let builder = Otlp::builder().with_tonic();
    if endpoint.starts_with("http://") {
        return Ok(builder.build()?);
    }

    let read = |file: &str| fs::read(file).map_err(|error| format!("{file}: {error}"));
    let tls = match environment.certificate() {
        Some(file) => ClientTlsConfig::new().ca_certificate(Certificate::from_pem(read(&file)?)),
        None => ClientTlsConfig::new().with_native_roots(),
    };
    let tls = match environment.client_certificate()? {
        Some([certificate, key]) => {
            tls.identity(Identity::from_pem(read(&certificate)?, read(&key)?))
        }
        None => tls,
    };
    Ok(builder.with_tls_config(tls).build()?)
}

impl ExportStats {
    /// Wraps `exporter` to count the spans that it delivers.
    pub(super) fn wrap<E>(&self, exporter: E) -> CountingExporter<E> {
        CountingExporter { inner: exporter, stats: self.clone() }
    }

    /// Number of spans that ended and were not delivered.
    pub(super) fn undelivered(&self) -> u64 {
        let delivered = self.0.delivered.load(Ordering::Relaxed);
        self.0.ended.load(Ordering::Relaxed).saturating_sub(delivered)
    }

    /// Number of spans that the collector did not accept.
    pub(super) fn failed(&self) -> u64 {
        self.0.failed.load(Ordering::Relaxed)
    }

    fn record(&self, spans: u64, result: &OTelSdkResult) {
        match result {
            Ok(()) => {
                self.0.delivered.fetch_add(spans, Ordering::Relaxed);
                let lost = self.0.lost_since_outage.swap(0, Ordering::Relaxed);
                if lost > 0 {
                    tracing::info!(lost_spans = lost, "the collector accepts spans again");
                }
            }
            Err(error) => {
                self.0.failed.fetch_add(spans, Ordering::Relaxed);
                if self.0.lost_since_outage.fetch_add(spans, Ordering::Relaxed) == 0 {
                    tracing::warn!(
                        %error,
                        "the collector does not accept spans: spans are lost until it does"
                    );
                }
            }
        }
    }
}

impl SpanProcessor for SpanCounter {
    fn on_start(&self, _span: &mut Span, _context: &Context) {}

    fn on_end(&self, span: SpanData) {
        if span.span_context.is_sampled() {
            self.0.0.ended.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn force_flush(&self) -> OTelSdkResult {
        Ok(())
    }

    fn shutdown_with_timeout(&self, _timeout: Duration) -> OTelSdkResult {
        Ok(())
    }
}

impl<E: SpanExporter> SpanExporter for CountingExporter<E> {
    async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
        let spans = batch.len() as u64;
        let result = self.inner.export(batch).await;
        self.stats.record(spans, &result);
        result
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.inner.shutdown_with_timeout(timeout)
    }

    fn force_flush(&self) -> OTelSdkResult {
        self.inner.force_flush()
    }

    fn set_resource(&mut self, resource: &Resource) {
        self.inner.set_resource(resource);
    }
}

/// Logs the number of undelivered spans at shutdown.
pub(super) fn log_undelivered(stats: &ExportStats, flushed: Result<(), OTelSdkError>) {
    let lost = stats.undelivered();
    if let Err(error) = flushed {
        tracing::warn!(%error, lost_spans = lost, "the last spans were not delivered");
    } else if lost > 0 {
        tracing::warn!(lost_spans = lost, "spans were not delivered");
    }
}
