//! Report of a load, as tables or as JSON, and what must not have happened.

use std::{collections::BTreeMap, fmt::Write as _, time::Duration};

use serde_json::{Value, json};

use super::{
    super::{
        machine::Machine,
        table::{align_numbers, format_milliseconds},
    },
    faults::Fault,
    observed::Observed,
    tally::Counts,
    watch::{MAX_REQUEST_BYTES, MAX_SESSION_BYTES, Sample},
};

/// Growth of a median that counts as flat: a part of it, and a constant.
const FLAT_RATIO: f64 = 1.25;
const FLAT_BYTES: u64 = 8 << 20;
const FLAT_DESCRIPTORS: u64 = 16;
/// Space of the state directory beyond these: jobs, approvals, the database's log, uploads.
const OTHER_STATE_BYTES: u64 = 64 << 20;
/// Samples that the last daemon needs before its medians mean something.
const MIN_SAMPLES: usize = 16;

/// Results of a load.
#[derive(Debug)]
pub(super) struct LoadReport {
    pub(super) machine: Machine,
    pub(super) agents: usize,
    pub(super) seed: u64,
    pub(super) time_scale: f64,
    pub(super) elapsed: Duration,
    pub(super) has_approvals: bool,
    pub(super) counts: Counts,
    pub(super) observed: Observed,
}

/// Medians of a measurement of one daemon, early and late.
#[derive(Debug, Clone, Copy)]
struct Growth {
    early: u64,
    late: u64,
}

impl LoadReport {
    /// Returns what must not have happened.
    pub(super) fn problems(&self) -> Vec<String> {
        let mut problems = Vec::new();
        for (what, failures) in
            [("wrong answers", &self.counts.wrong), ("lost results", &self.counts.lost)]
        {
            if failures.count > 0 {
                let first = failures.descriptions.first().map_or("", String::as_str);
                problems.push(format!("{} {what}, such as: {first}", failures.count));
            }
        }

        for ((kind, reason), count) in &self.counts.interrupted {
            if !self.has_fault(|fault| fault.reasons().contains(&reason.as_str())) {
                problems.push(format!("{count} calls of {kind} have no result: {reason}"));
            }
        }
        for (line, count) in self.error_lines() {
            let explains = |begin: &&str| line.starts_with(*begin);
            if !self.has_fault(|fault| fault.error_lines().iter().any(explains)) {
                problems.push(format!("{count} unexpected log lines: {line}"));
            }
        }
        for (what, left) in [
            ("processes without a call", &self.observed.busy),
            ("processes without a daemon", &self.observed.leaked),
            ("left by the daemon", &self.observed.leftovers),
        ] {
            if !left.is_empty() {
                problems.push(format!("{what}: {}", left.join(", ")));
            }
        }
        let state_bytes = self.observed.samples.last().map_or(0, |sample| sample.state_bytes);
        if state_bytes > MAX_SESSION_BYTES + MAX_REQUEST_BYTES + OTHER_STATE_BYTES {
            problems.push(format!("the state directory has {state_bytes} bytes"));
        }
        for (what, growth, slack) in self.growths() {
            if growth.late as f64 > growth.early as f64 * FLAT_RATIO + slack as f64 {
                problems.push(format!("{what} grew from {} to {}", growth.early, growth.late));
            }
        }
        problems
    }

    /// Returns whether a fault happened for which `condition` holds.
    fn has_fault(&self, condition: impl Fn(Fault) -> bool) -> bool {
        self.observed.faults.iter().any(|past| condition(past.fault))
    }

    /// Samples of the daemon that served last.
    fn last_daemon(&self) -> Vec<Sample> {
        let samples = &self.observed.samples;
        let last = samples.last().map(|sample| sample.daemon);
        samples.iter().filter(|sample| Some(sample.daemon) == last).copied().collect()
    }

    /// Early and late medians of the last daemon, with the allowed growth.
    fn growths(&self) -> Vec<(&'static str, Growth, u64)> {
        let samples = self.last_daemon();
        if samples.len() < MIN_SAMPLES {
            return Vec::new();
        }
        let quarter = samples.len() / 4;
        let growth = |value: fn(&Sample) -> u64| Growth {
            early: median(&samples[quarter..2 * quarter], value),
            late: median(&samples[samples.len() - quarter..], value),
        };
        vec![
            ("memory of the daemon", growth(|sample| sample.daemon_bytes), FLAT_BYTES),
            ("memory of the helpers", growth(|sample| sample.helper_bytes), FLAT_BYTES),
            ("open descriptors", growth(|sample| sample.descriptors), FLAT_DESCRIPTORS),
        ]
    }

    fn error_lines(&self) -> BTreeMap<String, u64> {
        let mut lines = BTreeMap::new();
        let entries = self.observed.log.lines().filter_map(|line| serde_json::from_str(line).ok());
        for entry in entries.filter(|entry: &Value| entry["level"] == "ERROR") {
            let message = entry["message"].as_str().unwrap_or_default();
            *lines.entry(message.to_owned()).or_default() += 1;
        }
        lines
    }

    fn fault_counts(&self) -> BTreeMap<&'static str, u64> {
        let mut counts = BTreeMap::new();
        for past in &self.observed.faults {
            *counts.entry(past.fault.label()).or_default() += 1;
        }
        counts
    }

    /// Formats the report for people.
    pub(super) fn to_text(&self) -> String {
        let Self { machine, counts, .. } = self;
        let seconds = self.elapsed.as_secs_f64();
        let calls = counts.call_count();
        let mut text = format!(
            "{} cores, {}, Linux {}\n{} agents, {seconds:.0} s, time scale {}, seed {}\n\
             {calls} calls, {:.1} per second, {} answers checked\n\n",
            machine.cores,
            machine.cpu,
            machine.kernel,
            self.agents,
            self.time_scale,
            self.seed,
            calls as f64 / seconds,
            counts.checks,
        );

        let mut rows = vec![["call", "number", "p50", "p99"].map(String::from)];
        for (kind, count, samples) in counts.samples() {
            rows.push([
                kind.to_owned(),
                count.to_string(),
                format_milliseconds(samples.p50().as_secs_f64()),
                format_milliseconds(samples.p99().as_secs_f64()),
            ]);
        }
        text += &align_numbers(&rows);

        for (title, counted) in
            [("failed attempts", &counts.errors), ("without a result", &counts.interrupted)]
        {
            let mut rows = vec![["", "number"].map(String::from)];
            rows[0][0] = title.to_owned();
            for ((kind, reason), count) in counted {
                rows.push([format!("{kind}: {reason}"), count.to_string()]);
            }
            text.push('\n');
            text += &align_numbers(&rows);
        }

        self.write_observed(&mut text);
        // Writing to a String cannot fail.
        write!(
            text,
            "\nwrong answers: {}\nlost results: {}\nprocesses without a call: {}\nleaked processes: {}\n\
             mounts, cgroups and sockets left: {}\n",
            counts.wrong.count,
            counts.lost.count,
            self.observed.busy.len(),
            self.observed.leaked.len(),
            self.observed.leftovers.len(),
        )
        .ok();
        for description in counts.wrong.descriptions.iter().chain(&counts.lost.descriptions) {
            writeln!(text, "  {description}").ok();
        }
        text
    }

    fn write_observed(&self, text: &mut String) {
        if self.observed.samples.is_empty() {
            return;
        }
        let mut rows = vec![["fault", "number"].map(String::from)];
        let faults = self.fault_counts();
        rows.extend(faults.iter().map(|(fault, count)| [(*fault).to_owned(), count.to_string()]));
        text.push('\n');
        *text += &align_numbers(&rows);

        let mut rows = vec![["last daemon", "early", "late"].map(String::from)];
        for (what, growth, _) in self.growths() {
            rows.push([what.to_owned(), growth.early.to_string(), growth.late.to_string()]);
        }
        text.push('\n');
        *text += &align_numbers(&rows);

        let mut rows = vec![["all samples", "min", "median", "max"].map(String::from)];
        for (what, value) in VALUES {
            let mut values: Vec<u64> = self.observed.samples.iter().map(value).collect();
            values.sort_unstable();
            let at = |index: usize| values.get(index).copied().unwrap_or_default().to_string();
            rows.push([what.to_owned(), at(0), at(values.len() / 2), at(values.len() - 1)]);
        }
        text.push('\n');
        *text += &align_numbers(&rows);

        for (line, count) in self.error_lines() {
            // Writing to a String cannot fail.
            write!(text, "\n{count} log lines: {line}").ok();
        }
        text.push('\n');
    }

    /// Converts the report to JSON.
    pub(super) fn to_json(&self) -> Value {
        let Self { machine, counts, observed, .. } = self;
        let reasons = |counted: &BTreeMap<(&'static str, String), u64>| -> Vec<Value> {
            let entries = counted.iter();
            entries
                .map(|((kind, reason), count)| {
                    json!({ "call": kind, "reason": reason, "count": count })
                })
                .collect()
        };
        let calls = counts.samples().map(|(kind, count, samples)| {
            json!({
                "call": kind,
                "count": count,
                "p50_ms": samples.p50().as_secs_f64() * 1e3,
                "p99_ms": samples.p99().as_secs_f64() * 1e3,
            })
        });
        let faults = observed.faults.iter().map(|past| {
            json!({
                "time_sec": past.time.as_secs_f64(),
                "fault": past.fault.label(),
                "detail": past.detail,
            })
        });
        let samples = observed.samples.iter().map(|sample| {
            json!({
                "time_sec": sample.time.as_secs_f64(),
                "daemon": sample.daemon,
                "daemon_bytes": sample.daemon_bytes,
                "helper_bytes": sample.helper_bytes,
                "descriptors": sample.descriptors,
                "helpers": sample.helpers,
                "commands": sample.commands,
                "state_bytes": sample.state_bytes,
            })
        });
        json!({
            "machine": {
                "cores": machine.cores, "kernel": machine.kernel, "cpu": machine.cpu,
            },
            "agents": self.agents,
            "seed": self.seed,
            "time_scale": self.time_scale,
            "elapsed_sec": self.elapsed.as_secs_f64(),
            "has_approvals": self.has_approvals,
            "calls": calls.collect::<Vec<_>>(),
            "failed_attempts": reasons(&counts.errors),
            "without_result": reasons(&counts.interrupted),
            "checks": counts.checks,
            "wrong": { "count": counts.wrong.count, "first": counts.wrong.descriptions },
            "lost": { "count": counts.lost.count, "first": counts.lost.descriptions },
            "faults": faults.collect::<Vec<_>>(),
            "samples": samples.collect::<Vec<_>>(),
            "busy": observed.busy,
            "leaked": observed.leaked,
            "leftovers": observed.leftovers,
            "error_log_lines": self.error_lines(),
            "problems": self.problems(),
        })
    }
}

/// A measurement of a sample, with its name.
type NamedValue = (&'static str, fn(&Sample) -> u64);

const VALUES: [NamedValue; 6] = [
    ("memory of the daemon", |sample| sample.daemon_bytes),
    ("memory of the helpers", |sample| sample.helper_bytes),
    ("open descriptors", |sample| sample.descriptors),
    ("helpers", |sample| sample.helpers),
    ("processes of commands", |sample| sample.commands),
    ("bytes of the state directory", |sample| sample.state_bytes),
];

fn median(samples: &[Sample], value: fn(&Sample) -> u64) -> u64 {
    let mut values: Vec<u64> = samples.iter().map(value).collect();
    values.sort_unstable();
    values.get(values.len() / 2).copied().unwrap_or_default()
}
