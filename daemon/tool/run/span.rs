//! The span of a command's process.

use std::{
    path::Path,
    time::{Duration, Instant},
};

use opentelemetry::{KeyValue, trace::SpanKind};

use crate::daemon::{
    error::Error,
    process::{
        outcome::{CommandOutcome, ResourceLimit, signal_name},
        result::CommandResult,
        run_observer::RunObserver,
    },
    sandbox::limits::RunLimits,
    telemetry::{
        Telemetry,
        metrics::{ActiveGuard, MeasuredUsage, Metrics, ProcessMeasurement},
        semconv::{self, process_error},
        spans::OtelSpan,
    },
    tool::WorkspaceContext,
};

pub(super) struct ProcessSpan {
    span: OtelSpan,
    metrics: Metrics,
    started: Instant,
    _active: ActiveGuard,
}

impl ProcessSpan {
    /// Starts the span as a child of the tool's span.
    pub(super) fn start(
        telemetry: &Telemetry,
        tool_span: &OtelSpan,
        name: &str,
        cwd: &Path,
        timeout: Option<Duration>,
        limits: &RunLimits,
        workspace_context: &WorkspaceContext,
    ) -> Self {
        let mut attributes = vec![
            KeyValue::new(semconv::PROCESS_EXECUTABLE_NAME, name.to_owned()),
            KeyValue::new(semconv::PROCESS_WORKING_DIRECTORY, cwd.display().to_string()),
            KeyValue::new(semconv::SANDBOX_LEVEL, workspace_context.isolation.level.to_string()),
            KeyValue::new(semconv::SANDBOX_NETWORK, workspace_context.run_settings.network.name()),
            KeyValue::new(semconv::LIMIT_PIDS, i64::from(limits.processes)),
            KeyValue::new(semconv::LIMIT_MEMORY, saturating_i64(limits.memory_bytes)),
        ];
        attributes.extend(
            limits.cpu_sec.map(|seconds| KeyValue::new(semconv::LIMIT_CPU, i64::from(seconds))),
        );
        attributes.extend(
            limits
                .output_bytes
                .map(|bytes| KeyValue::new(semconv::LIMIT_OUTPUT, saturating_i64(bytes))),
        );
        attributes.extend(
            timeout.map(|timeout| KeyValue::new(semconv::LIMIT_WALL, timeout.as_secs_f64())),
        );

        Self {
            span: OtelSpan::start(
                telemetry.tracer(),
                name.to_owned(),
                SpanKind::Client,
                attributes,
                tool_span.context(),
            ),
            metrics: telemetry.metrics().clone(),
            started: Instant::now(),
            _active: telemetry.metrics().start_process(),
        }
    }

    /// Sets the command line, if content is captured.
    pub(super) fn set_command_args(&self, args: opentelemetry::Value) {
        self.span.set(semconv::PROCESS_COMMAND_ARGS, args);
    }

    /// The trace context that the command's environment carries.
    pub(super) fn context(&self) -> &opentelemetry::Context {
        self.span.context()
    }

    /// Ends the span of a command that ran. A failure of the command marks only this span: the call
    /// succeeded.
    pub(super) fn finish(self, result: &CommandResult) {
        let span = &self.span;

        let termination = &result.termination;
        let error_type = match termination.outcome {
            CommandOutcome::Exited(0) => None,
            CommandOutcome::Exited(_) => Some(process_error::EXIT_NONZERO),
            CommandOutcome::Signaled(_) => Some(process_error::SIGNAL),
            CommandOutcome::TimedOut(_) => Some(process_error::TIMEOUT),
            CommandOutcome::Cancelled(_) => Some(process_error::CANCELLED),
            CommandOutcome::OomKilled => Some(process_error::OOM_KILLED),
            CommandOutcome::OutputLimit(_) => Some(process_error::OUTPUT_LIMIT),
        };

        if let Some(code) = termination.outcome.exit_code() {
            span.set(semconv::PROCESS_EXIT_CODE, i64::from(code));
        }
        if let Some(signal) = termination.outcome.signal() {
            span.set(semconv::PROCESS_SIGNAL, signal_name(signal));
        }
        if let Some(limit) = termination.exceeded_limit {
            span.set(semconv::LIMIT_EXCEEDED, limit.name());
        }

        let termination_reason = error_type.unwrap_or("exit_zero");
        span.set(semconv::PROCESS_TERMINATION_REASON, termination_reason);
        if let Some(usage) = &termination.usage {
            let seconds = |micros| Duration::from_micros(micros).as_secs_f64();
            span.set(semconv::PROCESS_CPU_USER, seconds(usage.user_us));
            span.set(semconv::PROCESS_CPU_SYSTEM, seconds(usage.system_us));
            let resident = usage.max_rss_kib.saturating_mul(1024);
            span.set(semconv::PROCESS_MAX_RSS, saturating_i64(resident));
        }

        span.set(semconv::PROCESS_STDOUT_BYTES, saturating_i64(result.stdout.total_bytes));
        span.set(semconv::PROCESS_STDERR_BYTES, saturating_i64(result.stderr.total_bytes));
        span.set(semconv::PROCESS_TRUNCATED, result.stdout.truncated || result.stderr.truncated);

        if let Some(error_type) = error_type {
            span.fail(error_type);
        }
        self.record_end(termination_reason, result);
        self.span.end();
    }

    /// Records the metrics of a command that ran.
    fn record_end(&self, termination_reason: &'static str, result: &CommandResult) {
        if !self.metrics.is_enabled() {
            return;
        }
        let termination = &result.termination;
        let usage = termination.usage.as_ref().map(|usage| MeasuredUsage {
            user: Duration::from_micros(usage.user_us),
            system: Duration::from_micros(usage.system_us),
            peak_memory_bytes: usage.max_rss_kib.saturating_mul(1024),
        });
        let (stdout, stderr) = (&result.stdout, &result.stderr);
        self.metrics.record_process_end(termination_reason, self.started.elapsed());
        self.metrics.record_process(&ProcessMeasurement {
            exceeded_limit: termination.exceeded_limit.map(ResourceLimit::name),
            usage,
            output: [
                ("stdout", stdout.total_bytes, stdout.truncated),
                ("stderr", stderr.total_bytes, stderr.truncated),
            ],
        });
    }

    /// Ends the span of a command that was not run, or whose sandbox was lost.
    pub(super) fn fail(self, error: Error, error_type: &'static str) -> Error {
        self.metrics.record_process_end(error_type, self.started.elapsed());
        self.span.fail(error_type);
        self.span.end();
        error
    }
}

fn saturating_i64(bytes: u64) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}

impl RunObserver for ProcessSpan {
    fn started(&mut self, pid: Option<i32>, vpid: i32) {
        if let Some(pid) = pid {
            self.span.set(semconv::PROCESS_PID, i64::from(pid));
        }
        self.span.set(semconv::PROCESS_VPID, i64::from(vpid));
    }
}
