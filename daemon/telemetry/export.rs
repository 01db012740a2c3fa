//! Counts what is exported by OTLP, and logs when the collector fails.
//!
//! A failed collector does not affect calls, so the log is the only place that shows it.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use opentelemetry::{Context, InstrumentationScope};
use opentelemetry_sdk::{
    Resource,
    error::{OTelSdkError, OTelSdkResult},
    logs::{LogBatch, LogExporter, LogProcessor, SdkLogRecord},
    metrics::{Temporality, data::ResourceMetrics, exporter::PushMetricExporter},
    trace::{Span, SpanData, SpanExporter, SpanProcessor},
};

use super::environment::Signal;

/// Counts of ended, delivered and lost items of one signal: spans, log records or exports.
#[derive(Debug, Clone)]
pub(super) struct ExportStats {
    signal: Signal,
    counts: Arc<ItemCounts>,
}

#[derive(Debug, Default)]
struct ItemCounts {
    ended: AtomicU64,
    delivered: AtomicU64,
    /// Items that the exporter tried to deliver without success.
    failed: AtomicU64,
    /// Items lost since the collector failed; 0 while it works.
    lost_since_outage: AtomicU64,
}

/// Counts all items that end, including those that the export queue drops.
#[derive(Debug)]
pub(super) struct ItemCounter(pub(super) ExportStats);

/// Exports items, and counts delivered and failed ones.
#[derive(Debug)]
pub(super) struct CountingExporter<E> {
    inner: E,
    stats: ExportStats,
}

impl ExportStats {
    pub(super) fn new(signal: Signal) -> Self {
        Self { signal, counts: Arc::default() }
    }

    pub(super) fn signal(&self) -> Signal {
        self.signal
    }

    /// Wraps `exporter` to count the items that it delivers.
    pub(super) fn wrap<E>(&self, exporter: E) -> CountingExporter<E> {
        CountingExporter { inner: exporter, stats: self.clone() }
    }

    /// Number of items that ended and were not delivered.
    fn undelivered(&self) -> u64 {
        let delivered = self.counts.delivered.load(Ordering::Relaxed);
        self.counts.ended.load(Ordering::Relaxed).saturating_sub(delivered)
    }

    /// Number of items that the collector did not accept.
    pub(super) fn failed(&self) -> u64 {
        self.counts.failed.load(Ordering::Relaxed)
    }

    fn count_ended(&self) {
        self.counts.ended.fetch_add(1, Ordering::Relaxed);
    }

    fn record(&self, items: u64, result: &OTelSdkResult) {
        match result {
            Ok(()) => {
                self.counts.delivered.fetch_add(items, Ordering::Relaxed);
                let lost = self.counts.lost_since_outage.swap(0, Ordering::Relaxed);
                if lost > 0 {
                    self.log_recovery(lost);
                }
            }
            Err(error) => {
                self.counts.failed.fetch_add(items, Ordering::Relaxed);
                if self.counts.lost_since_outage.fetch_add(items, Ordering::Relaxed) == 0 {
                    self.log_outage(error);
                }
            }
        }
    }

    fn log_outage(&self, error: &OTelSdkError) {
        match self.signal {
            Signal::Traces => tracing::warn!(
                %error,
                "the collector does not accept spans: spans are lost until it does"
            ),
            Signal::Logs => tracing::warn!(
                %error,
                "the collector does not accept log records: they are lost until it does"
            ),
            Signal::Metrics => {
                tracing::warn!(%error, "the collector does not accept metrics");
            }
        }
    }

    fn log_recovery(&self, lost: u64) {
        match self.signal {
            Signal::Traces => {
                tracing::info!(lost_spans = lost, "the collector accepts spans again");
            }
            Signal::Logs => {
                tracing::info!(lost_records = lost, "the collector accepts log records again");
            }
            Signal::Metrics => {
                tracing::info!(failed_exports = lost, "the collector accepts metrics again");
            }
        }
    }

    /// Logs the number of undelivered items at shutdown.
    pub(super) fn log_undelivered(&self, flushed: Result<(), OTelSdkError>) {
        let lost = self.undelivered();
        match (self.signal, flushed) {
            (Signal::Traces, Err(error)) => {
                tracing::warn!(%error, lost_spans = lost, "the last spans were not delivered");
            }
            (Signal::Traces, Ok(())) if lost > 0 => {
                tracing::warn!(lost_spans = lost, "spans were not delivered");
            }
            (Signal::Logs, Err(error)) => {
                tracing::warn!(%error, lost_records = lost, "the last log records were not delivered");
            }
            (Signal::Logs, Ok(())) if lost > 0 => {
                tracing::warn!(lost_records = lost, "log records were not delivered");
            }
            (Signal::Metrics, Err(error)) => {
                tracing::warn!(%error, "the last metrics were not delivered");
            }
            (Signal::Traces | Signal::Logs | Signal::Metrics, Ok(())) => {}
        }
    }
}

impl SpanProcessor for ItemCounter {
    fn on_start(&self, _span: &mut Span, _context: &Context) {}

    fn on_end(&self, span: SpanData) {
        if span.span_context.is_sampled() {
            self.0.count_ended();
        }
    }

    fn force_flush(&self) -> OTelSdkResult {
        Ok(())
    }

    fn shutdown_with_timeout(&self, _timeout: Duration) -> OTelSdkResult {
        Ok(())
    }
}

impl LogProcessor for ItemCounter {
    fn emit(&self, _record: &mut SdkLogRecord, _scope: &InstrumentationScope) {
        self.0.count_ended();
    }

    fn force_flush(&self) -> OTelSdkResult {
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

impl<E: LogExporter> LogExporter for CountingExporter<E> {
    async fn export(&self, batch: LogBatch<'_>) -> OTelSdkResult {
        let records = batch.iter().count() as u64;
        let result = self.inner.export(batch).await;
        self.stats.record(records, &result);
        result
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.inner.shutdown_with_timeout(timeout)
    }

    fn set_resource(&mut self, resource: &Resource) {
        self.inner.set_resource(resource);
    }
}

impl<E: PushMetricExporter> PushMetricExporter for CountingExporter<E> {
    async fn export(&self, metrics: &ResourceMetrics) -> OTelSdkResult {
        let result = self.inner.export(metrics).await;
        self.stats.record(1, &result);
        result
    }

    fn force_flush(&self) -> OTelSdkResult {
        self.inner.force_flush()
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.inner.shutdown_with_timeout(timeout)
    }

    fn temporality(&self) -> Temporality {
        self.inner.temporality()
    }
}
