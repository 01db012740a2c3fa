//! Log of a run's connections: a record and a span for each of the first ones, and totals.

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

/// Connections of one run with a record and a span each. Later ones are only counted.
const MAX_RECORDED_CONNECTIONS: u64 = 100;

/// Writes the fields of a record to the session of the run.
pub(crate) type RecordWriter = Box<dyn Fn(Map<String, Value>) + Send + Sync>;

pub(crate) struct ConnectionLog {
    write: RecordWriter,
    tracer: SdkTracer,
    /// Parent of the spans: the span of the command's process.
    parent: Context,
    totals: Mutex<EgressTotals>,
}

/// Totals of one run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct EgressTotals {
    /// Requested connections; each request for a whole URL counts as one.
    pub(crate) attempts: u64,
    /// Denied by the policy.
    pub(crate) denied: u64,
    /// Allowed and failed.
    pub(crate) failed: u64,
    /// To servers.
    pub(crate) sent_bytes: u64,
    /// From servers.
    pub(crate) received_bytes: u64,
}

/// A requested connection. Recorded when dropped, even if its run ends before it has an outcome.
#[derive(Debug)]
pub(super) struct ConnectionAttempt {
    log: Arc<ConnectionLog>,
    is_recorded: bool,
    started_at: Instant,
    method: String,
    target: ProxyTarget,
    address: Option<SocketAddr>,
    outcome: AttemptOutcome,
    meter: Option<Arc<TrafficMeter>>,
    span: Option<OtelSpan>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum AttemptOutcome {
    Allowed,
    Denied(&'static str),
    Failed(&'static str),
}

impl ConnectionLog {
    /// Creates a log that passes its records to `write`.
    pub(crate) fn new(write: RecordWriter, tracer: SdkTracer, parent: Context) -> Self {
        Self { write, tracer, parent, totals: Mutex::default() }
    }

    /// Starts the record of a connection.
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
            started_at: Instant::now(),
            method: method_name(method).to_owned(),
            target: target.clone(),
            address: None,
            outcome: AttemptOutcome::Failed("run_ended"),
            meter: None,
            span,
        }
    }

    /// Ends the log once all tasks of the run have ended. Writes a summary if connections were not
    /// recorded.
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
        f.debug_struct("ConnectionLog").field("totals", &self.totals).finish_non_exhaustive()
    }
}

/// Returns the method's name if HTTP defines it: a command can send any word.
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

impl ConnectionAttempt {
    /// Sets the address that is being tried, or was denied.
    pub(super) fn set_address(&mut self, address: SocketAddr) {
        self.address = Some(address);
    }

    /// Sets the outcome to connected. `meter` counts the bytes.
    pub(super) fn set_connected(&mut self, meter: Arc<TrafficMeter>) {
        self.outcome = AttemptOutcome::Allowed;
        self.meter = Some(meter);
    }

    /// Sets the outcome to denied by the policy.
    pub(super) fn set_denied(&mut self, reason: &'static str) {
        self.outcome = AttemptOutcome::Denied(reason);
    }

    /// Sets the outcome to allowed and failed.
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
        add("duration_sec", self.started_at.elapsed().as_secs_f64().into());
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
    fn connections_beyond_the_limit_are_summarized() {
        let records = Arc::new(Mutex::new(Vec::new()));
        let sink = Arc::clone(&records);
        let log = Arc::new(ConnectionLog::new(
            Box::new(move |fields| sink.lock().unwrap().push(fields)),
            SdkTracerProvider::builder().build().tracer("test"),
            Context::new(),
        ));
        let target = ProxyTarget { host: Host::parse("a.example").unwrap(), port: 443 };
        for number in 0..MAX_RECORDED_CONNECTIONS + 20 {
            let mut attempt = log.begin(&Method::CONNECT, &target);
            match number % 3 {
                0 => attempt.set_denied("host_not_allowed"),
                1 => attempt.set_failed("connect_failed"),
                _ => attempt.outcome = AttemptOutcome::Allowed,
            }
        }
        let totals = log.finish();
        assert_eq!((totals.attempts, totals.denied, totals.failed), (120, 40, 40));
        let records = records.lock().unwrap();
        assert_eq!(records.len(), 101);
        assert_eq!(records[0]["event"], "egress");
        assert_eq!(records[0]["decision"], "denied");
        assert_eq!(records[0]["reason"], "host_not_allowed");
        assert_eq!(records[0]["host"], "a.example");
        assert_eq!(records[0]["port"], 443);
        assert_eq!(records[2]["decision"], "allowed");
        let last = records.last().unwrap();
        assert_eq!(last["event"], "egress_summary");
        assert_eq!(last["attempts"], 120);
        assert_eq!(last["not_recorded"], 20);
    }
}
