//! JSON form of responses.
//!
//! Field names are those of the protos. Enums are printed by name, zero values are printed, absent
//! values are null, and integers are numbers (none comes near 2^53).

use jig::{
    api::v1::{
        Encoding, GetInfoResponse, Isolation, ListFilesResponse, Outcome, ProcessExited,
        ReadFileResponse, Role, RunLimits, RunResponse, SandboxFailure, Workspace,
    },
    client::ServingStatus,
};
use serde_json::{Value, json};

pub(crate) fn run(response: &RunResponse) -> Value {
    let usage = response.usage.unwrap_or_default();
    json!({
        "outcome": enum_name(Outcome::try_from(response.outcome).map(|outcome| outcome.as_str_name()), response.outcome),
        "exit_code": response.exit_code,
        "signal": response.signal,
        "stdout": response.stdout,
        "stderr": response.stderr,
        "stdout_bytes": response.stdout_bytes,
        "stderr_bytes": response.stderr_bytes,
        "stdout_truncated": response.stdout_truncated,
        "stderr_truncated": response.stderr_truncated,
        "stdout_path": response.stdout_path,
        "stderr_path": response.stderr_path,
        "limit": response.limit,
        "kill_pending": response.kill_pending,
        "duration_ms": response.duration_ms,
        "usage": {
            "user_ms": usage.user_ms,
            "system_ms": usage.system_ms,
            "max_rss_bytes": usage.max_rss_bytes,
        },
        "isolation": response.isolation,
        "artifact_error": response.artifact_error,
        "stdout_lines": response.stdout_lines,
        "stderr_lines": response.stderr_lines,
        "shell_state": response.shell_state,
    })
}

pub(crate) fn exited(exited: &ProcessExited) -> Value {
    let usage = exited.usage.unwrap_or_default();
    json!({
        "outcome": enum_name(Outcome::try_from(exited.outcome).map(|outcome| outcome.as_str_name()), exited.outcome),
        "exit_code": exited.exit_code,
        "signal": exited.signal,
        "stdout_bytes": exited.stdout_bytes,
        "stderr_bytes": exited.stderr_bytes,
        "stdout_path": exited.stdout_path,
        "stderr_path": exited.stderr_path,
        "limit": exited.limit,
        "kill_pending": exited.kill_pending,
        "duration_ms": exited.duration_ms,
        "usage": {
            "user_ms": usage.user_ms,
            "system_ms": usage.system_ms,
            "max_rss_bytes": usage.max_rss_bytes,
        },
        "isolation": exited.isolation,
        "artifact_error": exited.artifact_error,
        "last_sequence": exited.last_sequence,
    })
}

pub(crate) fn read_file(response: &ReadFileResponse) -> Value {
    json!({
        "content": response.content,
        "encoding": enum_name(Encoding::try_from(response.encoding).map(|encoding| encoding.as_str_name()), response.encoding),
        "truncated": response.truncated,
        "omitted_lines": response.omitted_lines,
        "total_lines": response.total_lines,
        "start_line": response.start_line,
        "end_line": response.end_line,
        "size_bytes": response.size_bytes,
        "sha256": response.sha256,
        "next_path": response.next_path,
    })
}

pub(crate) fn list_files(response: &ListFilesResponse) -> Value {
    json!({
        "files": response.files,
        "truncated": response.truncated,
        "next_page_token": response.next_page_token,
        "skipped_names": response.skipped_names,
        "truncated_ignore_files": response.truncated_ignore_files,
    })
}

pub(crate) fn info(response: &GetInfoResponse) -> Value {
    let counts = response.counts.unwrap_or_default();
    let caller = response.caller.clone().unwrap_or_default();
    json!({
        "version": response.version,
        "commit": response.commit,
        "commit_date": response.commit_date,
        "workspaces_on_demand": response.workspaces_on_demand.as_ref().map(|created| json!({
            "max_bytes": created.max_bytes,
            "max_files": created.max_files,
            "quota": created.quota,
        })),
        "kernel": response.kernel,
        "pid": response.pid,
        "start_time": response.start_time.map(|time| time.to_string()),
        "uptime_ms": response.uptime_ms,
        "isolation": response.isolation.as_ref().map(isolation),
        "run_limits": response.run_limits.as_ref().map(run_limits),
        "workspaces": response.workspaces.iter().map(workspace).collect::<Vec<_>>(),
        "caller": {
            "name": caller.name,
            "role": enum_name(Role::try_from(caller.role).map(|role| role.as_str_name()), caller.role),
        },
        "counts": {
            "calls_finished": counts.calls_finished,
            "calls_running": counts.calls_running,
            "calls_queued": counts.calls_queued,
            "spans_lost": counts.spans_lost,
            "runs_active": counts.runs_active,
            "sandboxes_idle": counts.sandboxes_idle,
            "sandboxes_quarantined": counts.sandboxes_quarantined,
        },
        "egress": response.egress.as_ref().map(|egress| json!({
            "allow_hosts": egress.allow_hosts,
            "allow_addresses": egress.allow_addresses,
            "connections_active": egress.connections_active,
        })),
    })
}

pub(crate) fn health(status: ServingStatus) -> Value {
    json!({ "status": status.name() })
}

fn isolation(isolation: &Isolation) -> Value {
    let layers: Vec<Value> = isolation
        .layers
        .iter()
        .map(|layer| {
            json!({
                "name": layer.name,
                "applied": layer.applied,
                "detail": layer.detail,
                "remedy": layer.remedy,
            })
        })
        .collect();
    json!({
        "level": isolation.level,
        "minimum_level": isolation.minimum_level,
        "ready": isolation.ready,
        "layers": layers,
        "network": isolation.network,
        "failure": isolation.failure.as_ref().map(sandbox_failure),
        "failed_levels": isolation.failed_levels.iter().map(sandbox_failure).collect::<Vec<_>>(),
        "summary": isolation.summary,
    })
}

fn sandbox_failure(failure: &SandboxFailure) -> Value {
    json!({
        "stage": failure.stage,
        "errno": failure.errno,
        "message": failure.message,
        "remedy": failure.remedy,
        "workspace": failure.workspace,
        "level": failure.level,
    })
}

fn run_limits(limits: &RunLimits) -> Value {
    json!({
        "default_timeout_sec": limits.default_timeout_sec,
        "processes": limits.processes,
        "open_files": limits.open_files,
        "open_files_hard": limits.open_files_hard,
        "open_files_total": limits.open_files_total,
        "epoll_watches": limits.epoll_watches,
        "file_size_bytes": limits.file_size_bytes,
        "tmp_bytes": limits.tmp_bytes,
        "tmp_inodes": limits.tmp_inodes,
        "artifact_bytes": limits.artifact_bytes,
        "concurrent_runs": limits.concurrent_runs,
        "cpu_sec": limits.cpu_sec,
        "cpus": limits.cpus,
        "memory_bytes": limits.memory_bytes,
        "output_bytes": limits.output_bytes,
        "wall_clock_sec": limits.wall_clock_sec,
    })
}

fn workspace(workspace: &Workspace) -> Value {
    json!({
        "name": workspace.name,
        "mount_path": workspace.mount_path,
        "uid": workspace.uid,
        "ownership": workspace.ownership,
        "directory_id": workspace.directory_id,
    })
}

/// Returns the name of an enum's value, or its number if only a newer daemon knows the name.
pub(crate) fn enum_name<E>(known: Result<&'static str, E>, number: i32) -> Value {
    known.map_or_else(|_| number.into(), Value::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zero_values_are_printed_and_absent_ones_are_null() {
        let value =
            run(&RunResponse { outcome: Outcome::TimedOut.into(), ..RunResponse::default() });
        assert_eq!(value["outcome"], "OUTCOME_TIMED_OUT");
        assert_eq!(value["exit_code"], Value::Null);
        assert_eq!(value["stdout"], "");
        assert_eq!(value["usage"]["max_rss_bytes"], 0);
        assert_eq!(value["kill_pending"], false);
    }

    #[test]
    fn unknown_enum_values_are_numbers() {
        let value = run(&RunResponse { outcome: 99, exit_code: Some(0), ..RunResponse::default() });
        assert_eq!(value["outcome"], 99);
        assert_eq!(value["exit_code"], 0);
    }

    /// Compares with the descriptors, so that new fields are noticed.
    #[cfg(feature = "daemon")]
    #[test]
    fn all_fields_are_there() {
        use jig::api::v1;

        use crate::contract::has_all_fields;

        let run = run(&RunResponse::default());
        has_all_fields("jig.v1.RunResponse", &run);
        has_all_fields("jig.v1.ResourceUsage", &run["usage"]);
        has_all_fields("jig.v1.ReadFileResponse", &read_file(&ReadFileResponse::default()));
        has_all_fields("jig.v1.ListFilesResponse", &list_files(&ListFilesResponse::default()));
        let info = info(&GetInfoResponse {
            isolation: Some(Isolation {
                layers: vec![v1::IsolationLayer::default()],
                failure: Some(v1::SandboxFailure::default()),
                ..Isolation::default()
            }),
            run_limits: Some(RunLimits::default()),
            workspaces: vec![Workspace::default()],
            egress: Some(v1::Egress::default()),
            ..GetInfoResponse::default()
        });
        has_all_fields("jig.v1.GetInfoResponse", &info);
        has_all_fields("jig.v1.Isolation", &info["isolation"]);
        has_all_fields("jig.v1.IsolationLayer", &info["isolation"]["layers"][0]);
        has_all_fields("jig.v1.SandboxFailure", &info["isolation"]["failure"]);
        has_all_fields("jig.v1.RunLimits", &info["run_limits"]);
        has_all_fields("jig.v1.Workspace", &info["workspaces"][0]);
        has_all_fields("jig.v1.Counts", &info["counts"]);
        has_all_fields("jig.v1.Egress", &info["egress"]);
    }
}
