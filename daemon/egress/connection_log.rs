//! What is recorded of a run's connections: a record and a span each, up to a number, and totals.

use std::{
    fmt,
    net::SocketAddr,
    sync::{Arc, Mutex, PoisonError},
    time::{Instant, SystemTime},
};

use http::Method;
use opentelemetry::{Context, KeyValue, trace::SpanKind};
use opentelemetry_sdk::trace::SdkTracer;
use serde_json::{Map, Value};

use super::{meter::TrafficMeter, request::ProxyTarget};
use crate::daemon::telemetry::{logs::rfc3339_micros, semconv, spans::OtelSpan};

/// Connections of one run that have a record and a span each. Those beyond are counted.
const MAX_RECORDED_CONNECTIONS: u64 = 100;

/// Writes a record's fields where the run's records are.
pub(crate) type RecordWriter = Box<dyn Fn(Map<String, Value>) + Send + Sync>;

/// What is recorded of one run.
pub(crate) struct ConnectionLog {
    write: RecordWriter,
    tracer: SdkTracer,
    /// Of the command's process: the spans' parent.
    parent: Context,
    totals: Mutex<EgressTotals>,
}

/// What a run has done through the proxy.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct EgressTotals {
    /// Connections that were asked for; each request for a whole URL is one.
    pub(crate) attempts: u64,
    /// Those that policy refused.
    pub(crate) denied: u64,
    /// Those that were allowed and failed.
    pub(crate) failed: u64,
    /// Bytes to servers.
    pub(crate) sent_bytes: u64,
    /// Bytes from servers.
    pub(crate) received_bytes: u64,
}

/// A connection that was asked for. It is recorded when it is dropped: also when its run is over
/// before anything has come of it.
#[derive(Debug)]
pub(super) struct ConnectionAttempt {
    log: Arc<ConnectionLog>,
    is_recorded: bool,
    began: Instant,
    method: String,
    target: ProxyTarget,
    address: Option<SocketAddr>,
    outcome: AttemptOutcome,
    meter: Option<Arc<TrafficMeter>>,
    span: Option<OtelSpan>,
}

/// What became of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum AttemptOutcome {
    Allowed,
    Denied(&'static str),
    Failed(&'static str),
}

// === impl Journal ===

impl ConnectionLog {
    /// A journal whose records `write` keeps, and whose spans are below `parent`.
    pub(crate) fn new(write: RecordWriter, tracer: SdkTracer, parent: Context) -> Self {
        Self { write, tracer, parent, totals: Mutex::default() }
    }

    /// Begins the record of a connection.
    pub(super) fn begin(
        self: &Arc<Self>,
        method: &Method,
        target: &ProxyTarget,
    ) -> ConnectionAttempt {
        let is_recorded = self.update_totals(|totals| {
            totals.attempts += 1;
            totals.attempts <= MAX_RECORDED_CONNECTIONS
        });
        let span = is_recorded.then(|| {
            let attributes = vec![
                KeyValue::new(semconv::SERVER_ADDRESS, target.host.to_string()),
                KeyValue::new(semconv::SERVER_PORT, i64::from(target.port)),
                KeyValue::new(semconv::HTTP_REQUEST_METHOD, method_name(method)),
            ];
            let (name, kind) = ("egress", SpanKind::Client);
            OtelSpan::start(&self.tracer, name, kind, attributes, &self.parent)
        });
        ConnectionAttempt {
            log: Arc::clone(self),
            is_recorded,
            began: Instant::now(),
            method: method_name(method).to_owned(),
            target: target.clone(),
            address: None,
            outcome: AttemptOutcome::Failed("run_ended"),
            meter: None,
            span,
        }
    }

    /// Ends it, once nothing of the run is left: says what was left out, if anything was.
    pub(super) fn finish(&self) -> EgressTotals {
        let totals = self.update_totals(|totals| *totals);
        if totals.attempts > MAX_RECORDED_CONNECTIONS {
            let mut fields = record_fields("egress_summary");
            let mut add = |name: &str, value: u64| fields.insert(name.to_owned(), value.into());
            add("attempts", totals.attempts);
            add("not_recorded", totals.attempts - MAX_RECORDED_CONNECTIONS);
            add("denied", totals.denied);
            add("failed", totals.failed);
            add("sent_bytes", totals.sent_bytes);
            add("received_bytes", totals.received_bytes);
            (self.write)(fields);
        }
        totals
    }

    fn update_totals<T>(&self, change: impl FnOnce(&mut EgressTotals) -> T) -> T {
        change(&mut self.totals.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl fmt::Debug for ConnectionLog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Journal").field("totals", &self.totals).finish_non_exhaustive()
    }
}

/// The method's name, where HTTP knows it: a command can send any word.
fn method_name(method: &Method) -> &'static str {
    match method.as_str() {
        "CONNECT" => "CONNECT",
        "DELETE" => "DELETE",
        "GET" => "GET",
        "HEAD" => "HEAD",
        "OPTIONS" => "OPTIONS",
        "PATCH" => "PATCH",
        "POST" => "POST",
        "PUT" => "PUT",
        _ => "_OTHER",
    }
}

fn record_fields(event: &str) -> Map<String, Value> {
    [("event", event.to_owned()), ("time", rfc3339_micros(SystemTime::now()))]
        .into_iter()
        .map(|(name, value)| (name.to_owned(), value.into()))
        .collect()
}

// === impl Attempt ===

impl ConnectionAttempt {
    /// The address that is being tried, or was refused.
    pub(super) fn set_address(&mut self, address: SocketAddr) {
        self.address = Some(address);
    }

    /// There is a connection; its bytes are counted by `meter`.
    pub(super) fn set_connected(&mut self, meter: Arc<TrafficMeter>) {
        self.outcome = AttemptOutcome::Allowed;
        self.meter = Some(meter);
    }

    /// Policy refuses it, for this reason.
    pub(super) fn set_denied(&mut self, reason: &'static str) {
        self.outcome = AttemptOutcome::Denied(reason);
    }

    /// It is allowed and has failed, for this reason.
    pub(super) fn set_failed(&mut self, reason: &'static str) {
        self.outcome = AttemptOutcome::Failed(reason);
    }

    fn byte_counts(&self) -> (u64, u64) {
        self.meter.as_ref().map_or((0, 0), |meter| (meter.sent_bytes(), meter.received_bytes()))
    }

    fn to_record(&self) -> Map<String, Value> {
        let (decision, reason) = self.outcome.decision_and_reason();
        let (sent, received) = self.byte_counts();
        let mut fields = record_fields("egress");
        let mut add = |name: &str, value: Value| fields.insert(name.to_owned(), value);
        add("method", self.method.as_str().into());
        add("host", self.target.host.to_string().into());
        add("port", self.target.port.into());
        if let Some(address) = self.address {
            add("address", address.ip().to_string().into());
        }
        add("decision", decision.into());
        if let Some(reason) = reason {
            add("reason", reason.into());
        }
        add("sent_bytes", sent.into());
        add("received_bytes", received.into());
        add("duration_sec", self.began.elapsed().as_secs_f64().into());
        fields
    }

    fn end_span(&self, span: OtelSpan) {
        let (decision, reason) = self.outcome.decision_and_reason();
        let (sent, received) = self.byte_counts();
        let signed = |bytes: u64| i64::try_from(bytes).unwrap_or(i64::MAX);
        if let Some(address) = self.address {
            span.set(semconv::NETWORK_PEER_ADDRESS, address.ip().to_string());
            span.set(semconv::NETWORK_PEER_PORT, i64::from(address.port()));
        }
        span.set(semconv::EGRESS_DECISION, decision);
        span.set(semconv::EGRESS_SENT_BYTES, signed(sent));
        span.set(semconv::EGRESS_RECEIVED_BYTES, signed(received));
        if let Some(reason) = reason {
            span.fail(reason);
        }
        span.end();
    }
}

impl Drop for ConnectionAttempt {
    fn drop(&mut self) {
        let (sent, received) = self.byte_counts();
        let outcome = self.outcome;
        self.log.update_totals(|totals| {
            totals.sent_bytes = totals.sent_bytes.saturating_add(sent);
            totals.received_bytes = totals.received_bytes.saturating_add(received);
            match outcome {
                AttemptOutcome::Allowed => {}
                AttemptOutcome::Denied(_) => totals.denied += 1,
                AttemptOutcome::Failed(_) => totals.failed += 1,
            }
        });
        if let Some(span) = self.span.take() {
            self.end_span(span);
        }
        if self.is_recorded {
            if let AttemptOutcome::Denied(reason) = outcome {
                let ProxyTarget { host, port } = &self.target;
                tracing::info!(%host, port, reason, "a command's connection was refused");
            }
            (self.log.write)(self.to_record());
        }
    }
}

impl AttemptOutcome {
    /// The decision, and the reason where there is one to give.
    fn decision_and_reason(self) -> (&'static str, Option<&'static str>) {
        match self {
            Self::Allowed => ("allowed", None),
            Self::Denied(reason) => ("denied", Some(reason)),
            Self::Failed(reason) => ("failed", Some(reason)),
        }
    }
}

#[cfg(test)]
mod tests {
    use opentelemetry::trace::TracerProvider as _;
    use opentelemetry_sdk::trace::SdkTracerProvider;

    use super::*;
    use crate::daemon::netpolicy::rules::host::Host;

    #[test]
    fn a_run_has_so_many_records_and_then_a_sum() {
        let kept = Arc::new(Mutex::new(Vec::new()));
        let keep = Arc::clone(&kept);
        let journal = Arc::new(ConnectionLog::new(
            Box::new(move |fields| keep.lock().unwrap().push(fields)),
            SdkTracerProvider::builder().build().tracer("test"),
            Context::new(),
        ));
        let target = ProxyTarget { host: Host::parse("a.example").unwrap(), port: 443 };
        for number in 0..MAX_RECORDED_CONNECTIONS + 20 {
            let mut attempt = journal.begin(&Method::CONNECT, &target);
            match number % 3 {
                0 => attempt.set_denied("host_not_allowed"),
                1 => attempt.set_failed("connect_failed"),
                _ => attempt.outcome = AttemptOutcome::Allowed,
            }
        }
        let totals = journal.finish();
        assert_eq!((totals.attempts, totals.denied, totals.failed), (120, 40, 40));
        let kept = kept.lock().unwrap();
        assert_eq!(kept.len(), 101);
        assert_eq!(kept[0]["event"], "egress");
        assert_eq!(kept[0]["decision"], "denied");
        assert_eq!(kept[0]["reason"], "host_not_allowed");
        assert_eq!(kept[0]["host"], "a.example");
        assert_eq!(kept[0]["port"], 443);
        assert_eq!(kept[2]["decision"], "allowed");
        let last = kept.last().unwrap();
        assert_eq!(last["event"], "egress_summary");
        assert_eq!(last["attempts"], 120);
        assert_eq!(last["not_recorded"], 20);
    }
}
