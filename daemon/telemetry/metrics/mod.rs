//! Metrics of the daemon. Nothing is recorded unless a collector or a scraper reads them.

mod daemon_process;
pub(crate) mod table;

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use opentelemetry::{
    KeyValue,
    metrics::{Counter, Histogram, Meter, UpDownCounter},
};

use self::{
    daemon_process::{ProcessValue, cpu_times},
    table::{MetricKind, MetricSpec},
};
use super::semconv;

/// Records metrics. Without a reader, all methods do nothing.
#[derive(Debug, Clone, Default)]
pub(crate) struct Metrics(Option<Arc<Instruments>>);

#[derive(Debug)]
struct Instruments {
    meter: Meter,
    rpc_duration: Histogram<f64>,
    rpc_active: UpDownCounter<i64>,
    connections: UpDownCounter<i64>,
    tool_duration: Histogram<f64>,
    tool_calls: Counter<u64>,
    process_active: UpDownCounter<i64>,
    process_duration: Histogram<f64>,
    limits_exceeded: Counter<u64>,
    process_cpu_time: Counter<f64>,
    process_memory_peak: Histogram<u64>,
    process_output: Counter<u64>,
    admission_wait: Histogram<f64>,
    admission_rejected: Counter<u64>,
    auth_failures: Counter<u64>,
    policy_denials: Counter<u64>,
}

/// An RPC that ended.
#[derive(Debug)]
pub(crate) struct RpcMeasurement {
    pub(crate) system: &'static str,
    /// The full method, or `_OTHER` for a method that the daemon does not have.
    pub(crate) method: Arc<str>,
    pub(crate) status: &'static str,
    /// Whether the status is an error of the server.
    pub(crate) is_server_error: bool,
    pub(crate) duration: Duration,
}

/// A tool call that ended.
#[derive(Debug)]
pub(crate) struct ToolMeasurement {
    pub(crate) tool: &'static str,
    pub(crate) outcome: String,
    /// Reason of the error that the caller got.
    pub(crate) reason: Option<&'static str>,
    /// The error of the tool's span.
    pub(crate) error_type: Option<&'static str>,
    pub(crate) duration: Duration,
}

/// A run or started process that ran and ended.
#[derive(Debug)]
pub(crate) struct ProcessMeasurement {
    pub(crate) exceeded_limit: Option<&'static str>,
    pub(crate) usage: Option<MeasuredUsage>,
    /// Bytes of each stream, and whether its inline output was truncated. By name of the stream.
    pub(crate) output: [(&'static str, u64, bool); 2],
}

/// Resources that a process used.
#[derive(Debug)]
pub(crate) struct MeasuredUsage {
    pub(crate) user: Duration,
    pub(crate) system: Duration,
    pub(crate) peak_memory_bytes: u64,
}

/// Counts one more until it is dropped.
#[derive(Debug)]
pub(crate) struct ActiveGuard {
    counter: Option<(UpDownCounter<i64>, Option<KeyValue>)>,
}

impl Metrics {
    /// Creates the instruments of all metrics.
    pub(super) fn new(meter: Meter, started: Instant) -> Self {
        let metrics = Self(Some(Arc::new(Instruments {
            rpc_duration: histogram(&meter, &table::RPC_DURATION),
            rpc_active: up_down_counter(&meter, &table::RPC_ACTIVE),
            connections: up_down_counter(&meter, &table::CONNECTIONS),
            tool_duration: histogram(&meter, &table::TOOL_DURATION),
            tool_calls: counter(&meter, &table::TOOL_CALLS),
            process_active: up_down_counter(&meter, &table::PROCESS_ACTIVE),
            process_duration: histogram(&meter, &table::PROCESS_DURATION),
            limits_exceeded: counter(&meter, &table::LIMITS_EXCEEDED),
            process_cpu_time: seconds_counter(&meter, &table::PROCESS_CPU_TIME),
            process_memory_peak: bytes_histogram(&meter, &table::PROCESS_MEMORY_PEAK),
            process_output: counter(&meter, &table::PROCESS_OUTPUT),
            admission_wait: histogram(&meter, &table::ADMISSION_WAIT),
            admission_rejected: counter(&meter, &table::ADMISSION_REJECTED),
            auth_failures: counter(&meter, &table::AUTH_FAILURES),
            policy_denials: counter(&meter, &table::POLICY_DENIALS),
            meter,
        })));
        metrics.start_failures_at_zero();
        metrics.observe_daemon(started);
        metrics
    }

    /// Starts the counters of failures at zero. Scrapers compute a rate from two values, and would
    /// not see the failures before the first scrape that has a value.
    fn start_failures_at_zero(&self) {
        let Some(all) = &self.0 else { return };
        let series: [(_, _, &[&str]); 4] = [
            (&all.auth_failures, semconv::REASON, &["UNAUTHENTICATED", "FORBIDDEN"]),
            (
                &all.policy_denials,
                semconv::DENIED_BY,
                &["policy", "rule", "risk", "approval", "key"],
            ),
            (
                &all.admission_rejected,
                semconv::DENIED_BY,
                &[
                    "limit:concurrency",
                    "limit:queue",
                    "limit:queue_timeout",
                    "limit:pending_bytes",
                    "limit:rate",
                ],
            ),
            (
                &all.limits_exceeded,
                semconv::LIMIT_EXCEEDED,
                &[
                    "cpu",
                    "memory",
                    "pids",
                    "open_files",
                    "epoll",
                    "disk",
                    "output",
                    "workspace_bytes",
                    "workspace_files",
                ],
            ),
        ];
        for (counter, attribute, values) in series {
            for value in values {
                counter.add(0, &[KeyValue::new(attribute, *value)]);
            }
        }
    }

    /// Observes the process of the daemon, which started at `started`.
    fn observe_daemon(&self, started: Instant) {
        for (spec, value) in [
            (&table::DAEMON_MEMORY, ProcessValue::Memory),
            (&table::DAEMON_THREADS, ProcessValue::Threads),
            (&table::DAEMON_DESCRIPTORS, ProcessValue::Descriptors),
        ] {
            self.observe(spec, move |observe| {
                if let Some(value) = value.read() {
                    observe(value, &[]);
                }
            });
        }
        self.observe_durations(&table::DAEMON_CPU_TIME, |observe| {
            for (time, mode) in cpu_times().into_iter().flatten() {
                observe(time, &[mode]);
            }
        });
        self.observe_durations(&table::DAEMON_UPTIME, move |observe| {
            observe(started.elapsed(), &[]);
        });
    }

    /// Whether metrics are recorded.
    pub(crate) fn is_enabled(&self) -> bool {
        self.0.is_some()
    }

    /// Counts an RPC as active.
    pub(crate) fn start_rpc(&self) -> ActiveGuard {
        ActiveGuard::new(self.0.as_ref().map(|all| (&all.rpc_active, None)))
    }

    pub(crate) fn record_rpc(&self, rpc: &RpcMeasurement) {
        let Some(all) = &self.0 else { return };
        let attributes = [
            KeyValue::new(semconv::RPC_SYSTEM_NAME, rpc.system),
            KeyValue::new(semconv::RPC_METHOD, Arc::clone(&rpc.method)),
            KeyValue::new(semconv::RPC_STATUS_CODE, rpc.status),
            KeyValue::new(semconv::ERROR_TYPE, rpc.status),
        ];
        let count = if rpc.is_server_error { attributes.len() } else { attributes.len() - 1 };
        all.rpc_duration.record(rpc.duration.as_secs_f64(), attributes.get(..count).unwrap_or(&[]));
    }

    /// Counts a connection of a listener as open.
    pub(crate) fn open_connection(&self, listener: &'static str) -> ActiveGuard {
        let attribute = || Some(KeyValue::new(semconv::LISTENER, listener));
        ActiveGuard::new(self.0.as_ref().map(|all| (&all.connections, attribute())))
    }

    pub(crate) fn record_tool_call(&self, call: ToolMeasurement) {
        let Some(all) = &self.0 else { return };
        let tool = KeyValue::new(semconv::GEN_AI_TOOL_NAME, call.tool);
        let seconds = call.duration.as_secs_f64();
        let operation = KeyValue::new(semconv::GEN_AI_OPERATION_NAME, "execute_tool");
        match call.error_type {
            Some(kind) => {
                let error = KeyValue::new(semconv::ERROR_TYPE, kind);
                all.tool_duration.record(seconds, &[operation, tool.clone(), error]);
            }
            None => all.tool_duration.record(seconds, &[operation, tool.clone()]),
        }

        let outcome = KeyValue::new(semconv::OUTCOME, call.outcome);
        match call.reason {
            Some(reason) => {
                all.tool_calls.add(1, &[tool, outcome, KeyValue::new(semconv::REASON, reason)]);
            }
            None => all.tool_calls.add(1, &[tool, outcome]),
        }
    }

    /// Counts a process as active.
    pub(crate) fn start_process(&self) -> ActiveGuard {
        ActiveGuard::new(self.0.as_ref().map(|all| (&all.process_active, None)))
    }

    /// Records the end of a process that ran, or that could not be started.
    pub(crate) fn record_process_end(&self, termination_reason: &'static str, duration: Duration) {
        let Some(all) = &self.0 else { return };
        let reason = KeyValue::new(semconv::PROCESS_TERMINATION_REASON, termination_reason);
        all.process_duration.record(duration.as_secs_f64(), &[reason]);
    }

    /// Records what a process that ran used.
    pub(crate) fn record_process(&self, process: &ProcessMeasurement) {
        let Some(all) = &self.0 else { return };
        if let Some(limit) = process.exceeded_limit {
            all.limits_exceeded.add(1, &[KeyValue::new(semconv::LIMIT_EXCEEDED, limit)]);
        }
        if let Some(usage) = &process.usage {
            for (mode, time) in [("user", usage.user), ("system", usage.system)] {
                let mode = KeyValue::new(semconv::CPU_MODE, mode);
                all.process_cpu_time.add(time.as_secs_f64(), &[mode]);
            }
            all.process_memory_peak.record(usage.peak_memory_bytes, &[]);
        }
        for (stream, bytes, is_truncated) in process.output {
            let stream = KeyValue::new(semconv::STREAM, stream);
            let truncated = KeyValue::new(semconv::PROCESS_TRUNCATED, is_truncated);
            all.process_output.add(bytes, &[stream, truncated]);
        }
    }

    /// Records how long an admitted call was queued.
    pub(crate) fn record_admission(&self, queued: Duration) {
        let Some(all) = &self.0 else { return };
        all.admission_wait.record(queued.as_secs_f64(), &[]);
    }

    /// Counts a call that admission control rejected. `denied_by` is a limit or a reason.
    pub(crate) fn count_admission_rejection(&self, denied_by: &str) {
        let Some(all) = &self.0 else { return };
        all.admission_rejected.add(1, &[KeyValue::new(semconv::DENIED_BY, denied_by.to_owned())]);
    }

    pub(crate) fn count_auth_failure(&self, reason: &'static str) {
        let Some(all) = &self.0 else { return };
        all.auth_failures.add(1, &[KeyValue::new(semconv::REASON, reason)]);
    }

    /// Counts a denied tool call. Of `denied_by`, only the kind is recorded: the rest can be text
    /// of users.
    pub(crate) fn count_policy_denial(&self, denied_by: &str) {
        let Some(all) = &self.0 else { return };
        let kind = denied_by.split(':').next().unwrap_or_default();
        all.policy_denials.add(1, &[KeyValue::new(semconv::DENIED_BY, kind.to_owned())]);
    }

    /// Observes integers at each collection. `read` passes each value with its attributes.
    pub(crate) fn observe(
        &self,
        spec: &'static MetricSpec,
        read: impl Fn(&mut dyn FnMut(u64, &[KeyValue])) + Send + Sync + 'static,
    ) {
        let Some(all) = &self.0 else { return };
        if spec.kind == MetricKind::Counter {
            let builder = all.meter.u64_observable_counter(spec.name);
            let builder = builder.with_unit(spec.unit).with_description(spec.description);
            let _registered = builder
                .with_callback(move |observer| {
                    read(&mut |value, attributes| observer.observe(value, attributes));
                })
                .build();
            return;
        }

        let builder = all.meter.i64_observable_up_down_counter(spec.name);
        let builder = builder.with_unit(spec.unit).with_description(spec.description);
        let _registered = builder
            .with_callback(move |observer| {
                read(&mut |value, attributes| {
                    observer.observe(i64::try_from(value).unwrap_or(i64::MAX), attributes);
                });
            })
            .build();
    }

    /// Observes durations at each collection. `read` passes each value with its attributes.
    pub(crate) fn observe_durations(
        &self,
        spec: &'static MetricSpec,
        read: impl Fn(&mut dyn FnMut(Duration, &[KeyValue])) + Send + Sync + 'static,
    ) {
        let Some(all) = &self.0 else { return };
        if spec.kind == MetricKind::Counter {
            let builder = all.meter.f64_observable_counter(spec.name);
            let builder = builder.with_unit(spec.unit).with_description(spec.description);
            let _registered = builder
                .with_callback(move |observer| {
                    read(&mut |time, attributes| observer.observe(time.as_secs_f64(), attributes));
                })
                .build();
            return;
        }

        let builder = all.meter.f64_observable_gauge(spec.name);
        let builder = builder.with_unit(spec.unit).with_description(spec.description);
        let _registered = builder
            .with_callback(move |observer| {
                read(&mut |time, attributes| observer.observe(time.as_secs_f64(), attributes));
            })
            .build();
    }
}

impl ActiveGuard {
    fn new(counter: Option<(&UpDownCounter<i64>, Option<KeyValue>)>) -> Self {
        let counter = counter.map(|(counter, attribute)| (counter.clone(), attribute));
        let guard = Self { counter };
        guard.add(1);
        guard
    }

    fn add(&self, change: i64) {
        if let Some((counter, attribute)) = &self.counter {
            counter.add(change, attribute.as_slice());
        }
    }
}

impl Drop for ActiveGuard {
    fn drop(&mut self) {
        self.add(-1);
    }
}

fn histogram(meter: &Meter, spec: &MetricSpec) -> Histogram<f64> {
    let builder = meter.f64_histogram(spec.name).with_boundaries(spec.boundaries());
    builder.with_unit(spec.unit).with_description(spec.description).build()
}

fn bytes_histogram(meter: &Meter, spec: &MetricSpec) -> Histogram<u64> {
    let builder = meter.u64_histogram(spec.name).with_boundaries(spec.boundaries());
    builder.with_unit(spec.unit).with_description(spec.description).build()
}

fn counter(meter: &Meter, spec: &MetricSpec) -> Counter<u64> {
    let builder = meter.u64_counter(spec.name).with_unit(spec.unit);
    builder.with_description(spec.description).build()
}

fn seconds_counter(meter: &Meter, spec: &MetricSpec) -> Counter<f64> {
    let builder = meter.f64_counter(spec.name).with_unit(spec.unit);
    builder.with_description(spec.description).build()
}

fn up_down_counter(meter: &Meter, spec: &MetricSpec) -> UpDownCounter<i64> {
    let builder = meter.i64_up_down_counter(spec.name).with_unit(spec.unit);
    builder.with_description(spec.description).build()
}
