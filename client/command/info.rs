//! `jig info`: describes the daemon for people.

use std::{fmt::Write as _, process::ExitCode};

use jig::api::v1::{
    Egress, GetInfoResponse, Isolation, RunLimits, SandboxFailure, WorkspacesOnDemand,
};

use super::{columns::align_columns, report_and_exit};
use crate::{connection, global::GlobalArgs, json, output, style::Style};

pub(crate) fn info(global: &GlobalArgs) -> ExitCode {
    let result =
        connection::call(global, async |client: jig::client::Client| Ok(client.get_info().await?))
            .and_then(|response| {
                if global.json {
                    return output::write_json(&json::info(&response));
                }
                let text = info_text(&response);
                output::write_stdout(Style::of_stdout().escape_text(&text).as_bytes())
            });
    report_and_exit(result, global.json)
}

fn info_text(info: &GetInfoResponse) -> String {
    let mut rows = vec![("version".to_owned(), info.version.clone())];
    if !info.commit.is_empty() {
        rows.push(("commit".to_owned(), format!("{} of {}", info.commit, info.commit_date)));
    }
    rows.extend([
        ("kernel".to_owned(), info.kernel.clone()),
        ("process".to_owned(), info.pid.to_string()),
        (
            "started".to_owned(),
            info.start_time.map_or_else(|| "?".to_owned(), |time| time.to_string()),
        ),
        ("uptime".to_owned(), format!("{} s", info.uptime_ms / 1000)),
    ]);
    rows.extend(info.caller.as_ref().map(|caller| {
        let role = caller.role().as_str_name().trim_start_matches("ROLE_");
        let text = format!("{} ({})", caller.name, role.to_lowercase());
        ("you are".to_owned(), text)
    }));

    let mut remedies = Remedies::default();
    if let Some(isolation) = &info.isolation {
        rows.extend(isolation_rows(isolation, &mut remedies));
    }

    rows.extend(info.egress.iter().flat_map(egress_rows));
    rows.extend(info.run_limits.as_ref().map(limits_row));
    for workspace in &info.workspaces {
        rows.push((
            format!("workspace {}", workspace.name),
            format!(
                "at {}, user id {}, {}",
                workspace.mount_path, workspace.uid, workspace.ownership
            ),
        ));
    }

    rows.extend(info.workspaces_on_demand.as_ref().map(on_demand_row));

    if let Some(counts) = info.counts {
        if counts.spans_lost > 0 {
            let text = format!("{} lost: the collector did not accept them", counts.spans_lost);
            rows.push(("spans".to_owned(), text));
        }
        rows.push((
            "calls".to_owned(),
            format!(
                "{} finished, {} running, {} queued",
                counts.calls_finished, counts.calls_running, counts.calls_queued
            ),
        ));
        rows.push((
            "sandboxes".to_owned(),
            format!(
                "{} in use, {} idle, {} quarantined",
                counts.runs_active, counts.sandboxes_idle, counts.sandboxes_quarantined
            ),
        ));
    }
    let rows: Vec<_> = rows.into_iter().map(|(name, value)| vec![name, value]).collect();
    align_columns(&rows) + &remedies.text()
}

fn on_demand_row(created: &WorkspacesOnDemand) -> (String, String) {
    let bound = |bound: Option<u64>, unit: &str| bound.map(|bound| format!("{bound} {unit}"));
    let bounds: Vec<_> = [bound(created.max_bytes, "bytes"), bound(created.max_files, "files")]
        .into_iter()
        .flatten()
        .collect();
    let bounds = if bounds.is_empty() { "no bounds".to_owned() } else { bounds.join(", ") };
    ("on demand".to_owned(), format!("{bounds} each, {}", created.quota))
}

/// Remedies, each once, with the names of the rows that they apply to.
#[derive(Debug, Default)]
struct Remedies(Vec<(String, Vec<String>)>);

impl Remedies {
    fn add(&mut self, row: &str, remedy: &str) {
        if remedy.is_empty() {
            return;
        }
        let row = row.trim().to_owned();
        match self.0.iter_mut().find(|(known, _)| known == remedy) {
            Some((_, rows)) => rows.push(row),
            None => self.0.push((remedy.to_owned(), vec![row])),
        }
    }

    fn text(&self) -> String {
        let mut text = String::new();
        for (remedy, rows) in &self.0 {
            // Writing to a String cannot fail.
            writeln!(text, "\nremedy for {}:\n  {remedy}", rows.join(", ")).ok();
        }
        text
    }
}

fn isolation_rows(isolation: &Isolation, remedies: &mut Remedies) -> Vec<(String, String)> {
    let ready = if isolation.ready { "ready" } else { "NOT READY: commands are not run" };
    let mut rows = vec![
        (
            "isolation".to_owned(),
            format!("{} (minimum {}), {ready}", isolation.level, isolation.minimum_level),
        ),
        ("network".to_owned(), isolation.network.clone()),
    ];

    let failure = isolation.failure.iter();
    let mut failures: Vec<_> = failure.map(|step| ("failure".to_owned(), step)).collect();
    let failed_levels = isolation.failed_levels.iter().filter(|_| isolation.ready);
    failures.extend(failed_levels.map(|step| (format!("not {}", step.level), step)));
    for (name, step) in failures {
        remedies.add(&name, &step.remedy);
        rows.push((name, failed_step(step)));
    }

    for layer in &isolation.layers {
        let mut state = if layer.applied { "yes" } else { "no" }.to_owned();
        if !layer.detail.is_empty() {
            state.push_str("; ");
            state.push_str(&layer.detail);
        }
        remedies.add(&layer.name, &layer.remedy);
        rows.push((format!("  {}", layer.name), state));
    }

    rows
}

fn failed_step(failure: &SandboxFailure) -> String {
    let parts = [&failure.stage, &failure.errno, &failure.message];
    let parts: Vec<&str> =
        parts.into_iter().map(String::as_str).filter(|part| !part.is_empty()).collect();
    parts.join(": ")
}

fn egress_rows(egress: &Egress) -> [(String, String); 2] {
    let listed = |rules: &[String]| match rules {
        [] => "none".to_owned(),
        rules => rules.join(", "),
    };
    [
        (
            "  allowed hosts".to_owned(),
            format!(
                "{}; {} open connections",
                listed(&egress.allow_hosts),
                egress.connections_active
            ),
        ),
        ("  allowed addresses".to_owned(), listed(&egress.allow_addresses)),
    ]
}

/// Formats a size for people.
fn format_bytes(bytes: u64) -> String {
    match bytes >> 20 {
        0 => format!("{bytes} bytes"),
        mebibytes => format!("{mebibytes} MiB"),
    }
}

fn limits_row(limits: &RunLimits) -> (String, String) {
    let mut parts = vec![
        format!("timeout {} s", limits.default_timeout_sec),
        format!("memory {}", format_bytes(limits.memory_bytes)),
        format!("{} processes", limits.processes),
        format!("{} open files ({} in total)", limits.open_files, limits.open_files_total),
        format!("file size {}", format_bytes(limits.file_size_bytes)),
        format!("temporary files {}", format_bytes(limits.tmp_bytes)),
    ];
    parts.extend(limits.cpu_sec.map(|seconds| format!("{seconds} s of CPU time")));
    parts.extend(limits.cpus.map(|cpus| format!("{cpus} CPUs")));
    parts.extend(limits.output_bytes.map(|bytes| format!("output {bytes} bytes")));
    parts.extend(limits.wall_clock_sec.map(|seconds| format!("at most {seconds} s")));
    parts.push(format!("{} concurrent runs", limits.concurrent_runs));
    ("limits".to_owned(), parts.join(", "))
}

#[cfg(test)]
mod tests {
    use jig::api::v1::{IsolationLayer, SandboxFailure};

    use super::*;

    #[test]
    fn commit_is_shown_if_the_daemon_knows_it() {
        let mut info = GetInfoResponse { version: "0.1.0".into(), ..GetInfoResponse::default() };
        assert!(!info_text(&info).contains("commit"));

        info.commit = "5c1d".into();
        info.commit_date = "2026-11-25".into();
        let text = info_text(&info);
        assert!(text.starts_with("version  0.1.0\ncommit   5c1d of 2026-11-25\n"), "{text}");
    }

    #[test]
    fn unready_daemon_shows_reasons_and_each_remedy_once() {
        let remedy = "sysctl kernel.apparmor_restrict_unprivileged_userns=0";
        let layer = |name: &str, remedy: &str| IsolationLayer {
            name: name.into(),
            detail: "no user namespace".into(),
            remedy: remedy.into(),
            ..IsolationLayer::default()
        };
        let info = GetInfoResponse {
            isolation: Some(Isolation {
                level: "L0".into(),
                minimum_level: "L3".into(),
                layers: vec![
                    layer("mounts", remedy),
                    layer("landlock", "boot with lsm=landlock"),
                    layer("network", remedy),
                    layer("seccomp", ""),
                ],
                failure: Some(SandboxFailure {
                    stage: "user_namespace".into(),
                    errno: "EPERM".into(),
                    remedy: remedy.into(),
                    ..SandboxFailure::default()
                }),
                ..Isolation::default()
            }),
            ..GetInfoResponse::default()
        };
        let text = info_text(&info);
        assert!(text.contains("NOT READY"), "{text}");
        assert!(text.contains("user_namespace: EPERM\n"), "{text}");
        assert!(text.contains("  landlock  no; no user namespace\n"), "{text}");
        let below = format!(
            "\n\nremedy for failure, mounts, network:\n  {remedy}\n\nremedy for landlock:\n  boot with lsm=landlock\n"
        );
        assert!(text.ends_with(&below), "{text}");
    }
}
