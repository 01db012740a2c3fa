//! The span of a command's process.

use std::{path::Path, time::Duration};

use opentelemetry::{KeyValue, trace::SpanKind};

use crate::daemon::{
    error::Error,
    process::{
        finished::Finished,
        outcome::{Outcome, signal_name},
        supervise::Observer,
    },
    sandbox::limits::Limits,
    telemetry::{
        Telemetry,
        semconv::{self, process_error},
        spans::Span,
    },
    tool::Scene,
};

/// The span of the command's process.
pub(super) struct ProcessSpan {
    span: Span,
}

impl ProcessSpan {
    /// Starts the span below that of the tool.
    pub(super) fn start(
        telemetry: &Telemetry,
        tool: &Span,
        name: &str,
        cwd: &Path,
        timeout: Option<Duration>,
        limits: &Limits,
        scene: &Scene,
    ) -> Self {
        let mut attributes = vec![
            KeyValue::new(semconv::PROCESS_EXECUTABLE_NAME, name.to_owned()),
            KeyValue::new(semconv::PROCESS_WORKING_DIRECTORY, cwd.display().to_string()),
            KeyValue::new(semconv::SANDBOX_LEVEL, scene.isolation.level.to_string()),
            KeyValue::new(semconv::SANDBOX_NETWORK, scene.settings.network.name()),
            KeyValue::new(semconv::LIMIT_PIDS, i64::from(limits.processes)),
            KeyValue::new(semconv::LIMIT_MEMORY, signed(limits.memory_bytes)),
        ];
        attributes.extend(
            limits.cpu_sec.map(|seconds| KeyValue::new(semconv::LIMIT_CPU, i64::from(seconds))),
        );
        attributes.extend(
            limits.output_bytes.map(|bytes| KeyValue::new(semconv::LIMIT_OUTPUT, signed(bytes))),
        );
        let timeout = timeout.map(|timeout| timeout.as_secs_f64());
        attributes.extend(timeout.map(|seconds| KeyValue::new(semconv::LIMIT_WALL, seconds)));
        Self {
            span: Span::start(
                telemetry.tracer(),
                name.to_owned(),
                SpanKind::Client,
                attributes,
                tool.context(),
            ),
        }
    }

    /// What the command's environment tells of the trace.
    pub(super) fn context(&self) -> &opentelemetry::Context {
        self.span.context()
    }

    /// Ends the span of a command that ran. What it exited with is the command's affair and marks
    /// this span only.
    pub(super) fn finished(self, finished: &Finished) {
        let span = self.span;
        let ended = &finished.ended;
        let error_type = match ended.outcome {
            Outcome::Exited(0) => None,
            Outcome::Exited(_) => Some(process_error::EXIT_NONZERO),
            Outcome::Signaled(_) => Some(process_error::SIGNAL),
            Outcome::TimedOut(_) => Some(process_error::TIMEOUT),
            Outcome::Cancelled(_) => Some(process_error::CANCELLED),
            Outcome::OomKilled => Some(process_error::OOM_KILLED),
            Outcome::OutputLimit(_) => Some(process_error::OUTPUT_LIMIT),
        };
        if let Some(code) = ended.outcome.exit_code() {
            span.set(semconv::PROCESS_EXIT_CODE, i64::from(code));
        }
        if let Some(signal) = ended.outcome.signal() {
            span.set(semconv::PROCESS_SIGNAL, signal_name(signal));
        }
        if let Some(limit) = ended.limit {
            span.set(semconv::LIMIT_EXCEEDED, limit.name());
        }
        span.set(semconv::PROCESS_TERMINATION_REASON, error_type.unwrap_or("exit_zero"));
        if let Some(usage) = &ended.usage {
            let seconds = |micros| Duration::from_micros(micros).as_secs_f64();
            span.set(semconv::PROCESS_CPU_USER, seconds(usage.user_us));
            span.set(semconv::PROCESS_CPU_SYSTEM, seconds(usage.system_us));
            let resident = usage.max_rss_kib.saturating_mul(1024);
            span.set(semconv::PROCESS_MAX_RSS, signed(resident));
        }
        span.set(semconv::PROCESS_STDOUT_BYTES, signed(finished.stdout.bytes));
        span.set(semconv::PROCESS_STDERR_BYTES, signed(finished.stderr.bytes));
        span.set(
            semconv::PROCESS_TRUNCATED,
            finished.stdout.truncated || finished.stderr.truncated,
        );
        if let Some(error_type) = error_type {
            span.fail(error_type);
        }
        span.end();
    }

    /// Ends the span of a command that did not run, or was lost.
    pub(super) fn failed(self, error: Error, error_type: &'static str) -> Error {
        self.span.fail(error_type);
        self.span.end();
        error
    }
}

fn signed(bytes: u64) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}

impl Observer for ProcessSpan {
    fn started(&mut self, pid: Option<i32>) {
        if let Some(pid) = pid {
            self.span.set(semconv::PROCESS_PID, i64::from(pid));
        }
        self.span.set(semconv::PROCESS_VPID, 2);
    }
}
