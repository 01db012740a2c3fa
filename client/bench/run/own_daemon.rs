//! Report on a daemon that the benchmark has started: text, JSON and targets.

use serde_json::{Value, json};

use super::{
    super::{
        statistics::{BenchTarget, TargetBound, TargetUnit, ratio},
        table::{align_numbers, format_milliseconds},
    },
    new_workspaces::NewWorkspaces,
    sequence::SequenceUsage,
    sleeping::SleepingMemory,
    start::DaemonStarts,
    stream::StreamThroughput,
    tree::ProcessTreeUsage,
};

const BYTES_PER_MIB: f64 = 1024.0 * 1024.0;
/// Maximum number of idle slots of a workspace; the benchmark's daemon has one workspace. In each
/// slot, the init process of the last run may remain a zombie until the next sandbox is built.
const MAX_IDLE_SLOTS: f64 = 8.0;

/// Measurements that need access to the daemon's processes.
#[derive(Debug, Default)]
pub(super) struct OwnDaemonReport {
    pub(super) stream: Option<StreamThroughput>,
    pub(super) sleeping: Option<SleepingMemory>,
    pub(super) sequence: Option<SequenceUsage>,
    pub(super) starts: Option<DaemonStarts>,
    pub(super) new_workspaces: Option<NewWorkspaces>,
}

impl OwnDaemonReport {
    pub(super) fn to_text(&self) -> String {
        let mut rows = Vec::new();
        let mut add = |label: &str, measured: String| rows.push([label.to_owned(), measured]);
        let mib = |bytes: u64| format!("{:.2} MiB", bytes as f64 / BYTES_PER_MIB);
        if let Some(stream) = &self.stream {
            let per_second = |rate: f64| format!("{:.0} MiB/s", rate / BYTES_PER_MIB);
            add("cat into a pipe", per_second(stream.pipe_bytes_per_second));
            add("cat, streamed to one client", per_second(stream.jig_bytes_per_second));
            let streamed =
                format!("daemon's peak memory while streaming {} MiB", stream.bytes >> 20);
            add(&streamed, mib(stream.peak_memory_bytes));
        }

        if let Some(sleeping) = &self.sleeping {
            let bare = format!("each of {} sleeping bare processes", sleeping.runs);
            add(&bare, mib(sleeping.bare_bytes));
            let run = format!("each of {} sleeping runs", sleeping.runs);
            add(&run, mib(sleeping.run_bytes));
        }

        if let Some(sequence) = &self.sequence {
            let (before, after) = (sequence.before, sequence.after);
            let runs = sequence.runs;
            for (what, before, after) in [
                ("descriptors", before.descriptors, after.descriptors),
                ("processes", before.processes, after.processes),
                ("zombies", before.zombies, after.zombies),
                ("mounts", before.mounts, after.mounts),
            ] {
                let label = format!("{what} before and after {runs} runs");
                add(&label, format!("{before}, {after}"));
            }
            let memory = format!("memory before and after {runs} runs");
            let measured = format!("{}, {}", mib(before.bytes), mib(after.bytes));
            add(&memory, measured);
        }

        if let Some(starts) = &self.starts {
            let time = |time: std::time::Duration| format_milliseconds(time.as_secs_f64());
            add("start to SERVING, p50", time(starts.times.p50()));
            add("start to SERVING, longest", time(starts.times.percentile(100)));
            add("idle memory, all processes", mib(starts.idle_bytes));
        }

        if let Some(new) = &self.new_workspaces {
            for (label, times) in [
                ("workspace: creation", &new.creations),
                ("workspace: creation to first command's answer", &new.first_answers),
                ("workspace: deletion", &new.deletions),
            ] {
                let [p50, p99] =
                    [times.p50(), times.p99()].map(|time| format_milliseconds(time.as_secs_f64()));
                add(&format!("{label}, p50"), p50);
                add(&format!("{label}, p99"), p99);
            }
        }

        align_numbers(&rows)
    }

    pub(super) fn to_json(&self) -> Value {
        let usage = |usage: ProcessTreeUsage| {
            json!({
                "descriptors": usage.descriptors,
                                "processes": usage.processes,
                                "zombies": usage.zombies,
                                "mounts": usage.mounts,
                                "bytes": usage.bytes,
            })
        };
        json!({
            "stream": self.stream.as_ref().map(|stream| json!({
                "bytes": stream.bytes,
                "pipe_bytes_per_sec": stream.pipe_bytes_per_second,
                "jig_bytes_per_sec": stream.jig_bytes_per_second,
                "peak_memory_bytes": stream.peak_memory_bytes,
            })),
            "sleeping": self.sleeping.as_ref().map(|sleeping| json!({
                "runs": sleeping.runs,
                "bare_bytes": sleeping.bare_bytes,
                "run_bytes": sleeping.run_bytes,
            })),
            "sequence": self.sequence.as_ref().map(|sequence| json!({
                "runs": sequence.runs,
                "before": usage(sequence.before),
                                "after": usage(sequence.after),
            })),
            "starts": self.starts.as_ref().map(|starts| json!({
                "p50_ms": starts.times.p50().as_secs_f64() * 1e3,
                "max_ms": starts.times.percentile(100).as_secs_f64() * 1e3,
                "idle_bytes": starts.idle_bytes,
            })),
            "new_workspaces": self.new_workspaces.as_ref().map(|new| json!({
                "creation_p50_ms": new.creations.p50().as_secs_f64() * 1e3,
                "creation_p99_ms": new.creations.p99().as_secs_f64() * 1e3,
                "first_answer_p50_ms": new.first_answers.p50().as_secs_f64() * 1e3,
                "first_answer_p99_ms": new.first_answers.p99().as_secs_f64() * 1e3,
                "deletion_p50_ms": new.deletions.p50().as_secs_f64() * 1e3,
                "deletion_p99_ms": new.deletions.p99().as_secs_f64() * 1e3,
            })),
        })
    }

    pub(super) fn targets(&self) -> Vec<BenchTarget> {
        let mut targets = Vec::new();
        let mut add = |label, measured: f64, unit, bound| {
            targets.push(BenchTarget { label, measured, unit, bound, stretch: None });
        };

        if let Some(stream) = &self.stream {
            let rate = ratio(stream.jig_bytes_per_second, stream.pipe_bytes_per_second);
            let bound = TargetBound::AtLeast(0.5);
            add("streamed / cat into a pipe", rate, TargetUnit::Ratio, bound);
        }

        if let Some(starts) = &self.starts {
            let idle = starts.idle_bytes as f64 / BYTES_PER_MIB;
            add("memory when idle", idle, TargetUnit::Mebibytes, TargetBound::AtMost(25.0));
        }

        if let Some(sleeping) = &self.sleeping {
            let overhead =
                sleeping.run_bytes.saturating_sub(sleeping.bare_bytes) as f64 / BYTES_PER_MIB;
            let label = "overhead of a sleeping run";
            add(label, overhead, TargetUnit::Mebibytes, TargetBound::AtMost(1.0));
        }

        if let Some(starts) = &self.starts {
            let start = starts.times.p50().as_secs_f64() * 1e3;
            add("start to SERVING", start, TargetUnit::Milliseconds, TargetBound::AtMost(100.0));
        }

        if let Some(sequence) = &self.sequence {
            let (before, after) = (sequence.before, sequence.after);
            for (label, before, after) in [
                ("more descriptors after many runs", before.descriptors, after.descriptors),
                ("more processes after many runs", before.processes, after.processes),
                ("more mounts after many runs", before.mounts, after.mounts),
            ] {
                let growth = after as f64 - before as f64;
                add(label, growth, TargetUnit::Count, TargetBound::AtMost(0.0));
            }
            let zombies = after.zombies as f64;
            let bound = TargetBound::AtMost(MAX_IDLE_SLOTS);
            add("zombies after many runs", zombies, TargetUnit::Count, bound);
            let growth = (after.bytes as f64 - before.bytes as f64) / BYTES_PER_MIB;
            // The allocator may retain some memory.
            let label = "more memory after many runs";
            add(label, growth, TargetUnit::Mebibytes, TargetBound::AtMost(4.0));
        }
        targets
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::bench::statistics::{Samples, target_verdicts};

    fn report() -> OwnDaemonReport {
        let usage = ProcessTreeUsage {
            descriptors: 20,
            processes: 10,
            zombies: 1,
            mounts: 100,
            bytes: 20 << 20,
        };
        OwnDaemonReport {
            stream: Some(StreamThroughput {
                bytes: 1 << 30,
                pipe_bytes_per_second: 2e9,
                jig_bytes_per_second: 1.5e9,
                peak_memory_bytes: 30 << 20,
            }),
            sleeping: Some(SleepingMemory { runs: 1000, bare_bytes: 1 << 18, run_bytes: 3 << 18 }),
            sequence: Some(SequenceUsage {
                runs: 5000,
                before: usage,
                after: ProcessTreeUsage { mounts: 101, ..usage },
            }),
            starts: Some(DaemonStarts {
                times: Samples::new(vec![Duration::from_millis(70)]),
                idle_bytes: 18 << 20,
            }),
            new_workspaces: Some(NewWorkspaces {
                creations: Samples::new(vec![Duration::from_millis(2)]),
                first_answers: Samples::new(vec![Duration::from_millis(20)]),
                deletions: Samples::new(vec![Duration::from_millis(5)]),
            }),
        }
    }

    #[test]
    fn targets_are_judged() {
        assert_eq!(
            target_verdicts(&report().targets()),
            [
                ("0.75".to_owned(), "met"),
                ("18.00".to_owned(), "met"),
                ("0.50".to_owned(), "met"),
                ("70.00".to_owned(), "met"),
                ("0.00".to_owned(), "met"),
                ("0.00".to_owned(), "met"),
                ("1.00".to_owned(), "missed"),
                ("1.00".to_owned(), "met"),
                ("0.00".to_owned(), "met"),
            ]
        );
        assert!(OwnDaemonReport::default().targets().is_empty());
    }

    #[test]
    fn report_has_all_parts() {
        let text = report().to_text();
        assert!(text.contains("mounts before and after 5000 runs"), "{text}");
        assert!(text.contains("workspace: creation to first command's answer, p50"), "{text}");
        let value = report().to_json();
        assert_eq!(value["sequence"]["after"]["mounts"], 101);
        assert_eq!(OwnDaemonReport::default().to_text(), "");
    }
}
