//! The result of a command: the response to the caller and the fields of the record.

use serde_json::{Map, Value};

use crate::{
    api::v1::{self, Outcome as WireOutcome},
    daemon::{
        process::{
            handle::ProcessExit,
            outcome::{CommandOutcome, ResourceLimit, signal_name},
            result::CommandResult,
        },
        store::session::StepId,
        sys::process::ResourceUsage,
    },
};

/// The response of `run`.
pub(super) fn response(
    exit: ProcessExit,
    isolation: String,
    shell_state: &'static str,
) -> v1::RunResponse {
    let artifact_error = exit.artifact_error();
    let ProcessExit { result, stdout_path, stderr_path } = exit;
    let CommandResult { termination, stdout, stderr, duration, .. } = result;
    v1::RunResponse {
        outcome: wire_outcome(termination.outcome).into(),
        exit_code: termination.outcome.exit_code(),
        signal: termination.outcome.signal().map(signal_name).unwrap_or_default(),
        stdout: stdout.text,
        stderr: stderr.text,
        stdout_bytes: stdout.total_bytes,
        stderr_bytes: stderr.total_bytes,
        stdout_truncated: stdout.truncated,
        stderr_truncated: stderr.truncated,
        stdout_path,
        stderr_path,
        limit: limit_name(termination.exceeded_limit),
        kill_pending: termination.kill_pending,
        duration_ms: u32::try_from(duration.as_millis()).unwrap_or(u32::MAX),
        usage: termination.usage.as_ref().map(wire_usage),
        isolation,
        artifact_error,
        stdout_lines: stdout.total_lines,
        stderr_lines: stderr.total_lines,
        shell_state: shell_state.to_owned(),
    }
}

/// The response to a repeated `run` if the daemon died during the first attempt.
pub(super) fn daemon_lost_response(step: Option<u64>) -> v1::RunResponse {
    let [stdout_path, stderr_path] = step.map(StepId::stream_paths).unwrap_or_default();
    v1::RunResponse {
        outcome: WireOutcome::DaemonLost.into(),
        stdout_path,
        stderr_path,
        ..v1::RunResponse::default()
    }
}

/// The outcome of a command as a contract value.
pub(crate) fn wire_outcome(outcome: CommandOutcome) -> WireOutcome {
    match outcome {
        CommandOutcome::Exited(_) => WireOutcome::Exited,
        CommandOutcome::Signaled(_) => WireOutcome::Signaled,
        CommandOutcome::TimedOut(_) => WireOutcome::TimedOut,
        CommandOutcome::Cancelled(_) => WireOutcome::Cancelled,
        CommandOutcome::OomKilled => WireOutcome::OomKilled,
        CommandOutcome::OutputLimit(_) => WireOutcome::OutputLimit,
    }
}

/// Name of the limit that ended a command; empty if none did.
pub(crate) fn limit_name(limit: Option<ResourceLimit>) -> String {
    limit.map(ResourceLimit::name).unwrap_or_default().to_owned()
}

/// Resource usage in the contract's units.
pub(crate) fn wire_usage(usage: &ResourceUsage) -> v1::ResourceUsage {
    let millis = |micros: u64| u32::try_from(micros / 1000).unwrap_or(u32::MAX);
    v1::ResourceUsage {
        user_ms: millis(usage.user_us),
        system_ms: millis(usage.system_us),
        max_rss_bytes: usage.max_rss_kib.saturating_mul(1024),
    }
}

/// The fields of the call's record.
pub(super) fn record_fields(exit: &ProcessExit) -> Map<String, Value> {
    let CommandResult { termination, stdout, stderr, .. } = &exit.result;
    let outcome = wire_outcome(termination.outcome).as_str_name();
    let mut fields = Map::new();
    let mut add = |name: &str, value: Value| fields.insert(name.to_owned(), value);
    add("outcome", outcome.trim_start_matches("OUTCOME_").into());
    add("exit_code", termination.outcome.exit_code().into());
    if let Some(signal) = termination.outcome.signal() {
        add("signal", signal_name(signal).into());
    }
    if let Some(limit) = termination.exceeded_limit {
        add("limit", limit.name().into());
    }

    add("stdout_bytes", stdout.total_bytes.into());
    add("stderr_bytes", stderr.total_bytes.into());
    add("stdout_path", exit.stdout_path.as_str().into());
    add("stderr_path", exit.stderr_path.as_str().into());
    fields
}
