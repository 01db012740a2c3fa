//! Report of the benchmark of runs, as a table or as JSON, with the targets.

use serde_json::{Value, json};

use super::{
    super::{
        machine::Machine,
        statistics::{BenchTarget, TargetBound, TargetUnit, ratio},
        table::{self, align_numbers, format_milliseconds, format_ratio},
    },
    calls::{RunBenchCase, RunMeasurements, RunScale},
    own_daemon::OwnDaemonReport,
    peers::{PEERS, min_p50_to_bare},
};

/// Results of the benchmark.
#[derive(Debug)]
pub(super) struct RunReport {
    pub(super) machine: Machine,
    pub(super) scale: RunScale,
    pub(super) calls: RunMeasurements,
    pub(super) own_daemon: OwnDaemonReport,
}

impl RunReport {
    /// Formats the report for people.
    pub(super) fn to_text(&self) -> String {
        let Self { machine, scale, calls, own_daemon } = self;
        let head = format!(
            "{} cores, {}, Linux {}\n{} runs of /bin/true of each kind; isolation level of jig: {}\n",
            machine.cores, machine.cpu, machine.kernel, scale.count, calls.isolation
        );

        let parts = [
            head,
            self.one_client(),
            self.many_clients(),
            self.peers(),
            own_daemon.to_text(),
            table::targets_table(&self.targets()),
        ];

        let parts: Vec<_> = parts.into_iter().filter(|part| !part.is_empty()).collect();
        parts.join("\n")
    }

    fn one_client(&self) -> String {
        let head = ["1 client", "p50", "p99", "p50 / bare", "p99 / p50", "per s"];
        let mut rows = vec![head.map(String::from)];
        for (kind, samples) in &self.calls.times {
            let tail_ratio = ratio(samples.p99().as_secs_f64(), samples.p50().as_secs_f64());
            rows.push([
                label(*kind).to_owned(),
                format_milliseconds(samples.p50().as_secs_f64()),
                format_milliseconds(samples.p99().as_secs_f64()),
                self.p50_ratio(*kind, reference(*kind)).map_or_else(String::new, format_ratio),
                format_ratio(tail_ratio),
                format!("{:.0}", samples.per_second()),
            ]);
        }
        align_numbers(&rows)
    }

    fn many_clients(&self) -> String {
        let clients = format!("{} clients", self.scale.clients);
        let mut rows = vec![[clients, "per s".to_owned(), "/ bare".to_owned()]];
        for (kind, rate) in &self.calls.rates {
            rows.push([
                label(*kind).to_owned(),
                format!("{rate:.0}"),
                self.rate_ratio(*kind, reference(*kind)).map_or_else(String::new, format_ratio),
            ]);
        }
        align_numbers(&rows)
    }

    /// Formats the measurements of peers, beside those of jig.
    fn peers(&self) -> String {
        let head = ["measured elsewhere", "isolation", "p50 / bare", "per s, 8 clients / bare"];
        let mut rows = vec![head.map(String::from)];
        let rate = |rate: Option<f64>| rate.map_or_else(|| "-".to_owned(), format_ratio);
        for peer in &PEERS {
            rows.push([
                peer.name.to_owned(),
                peer.isolation.to_owned(),
                format_ratio(peer.p50_to_bare()),
                rate(peer.rate_to_bare()),
            ]);
        }
        let p50_to_bare = self.p50_ratio(RunBenchCase::Jig, RunBenchCase::Bare);
        rows.push([
            "jig run, here".to_owned(),
            self.calls.isolation.clone(),
            format_ratio(p50_to_bare.unwrap_or(f64::NAN)),
            rate(self.rate_ratio(RunBenchCase::Jig, RunBenchCase::Bare)),
        ]);
        align_numbers(&rows)
    }

    /// The median of one kind divided by that of another.
    fn p50_ratio(&self, kind: RunBenchCase, reference: RunBenchCase) -> Option<f64> {
        let times = |kind| self.calls.times_of(kind);
        Some(times(kind)?.ratio(times(reference)?))
    }

    /// The throughput of one kind divided by that of another.
    fn rate_ratio(&self, kind: RunBenchCase, reference: RunBenchCase) -> Option<f64> {
        let rate = |kind| self.calls.rate_of(kind);
        Some(ratio(rate(kind)?, rate(reference)?))
    }

    /// Converts the report to JSON.
    pub(super) fn to_json(&self) -> Value {
        let times = self.calls.times.iter().map(|(kind, samples)| {
            json!({
                "kind": name(*kind),
                "p50_ms": samples.p50().as_secs_f64() * 1e3,
                "p99_ms": samples.p99().as_secs_f64() * 1e3,
                "p50_to_bare": self.p50_ratio(*kind, reference(*kind)),
                "runs_per_sec": samples.per_second(),
            })
        });

        let rates = self
            .calls
            .rates
            .iter()
            .map(|(kind, rate)| json!({ "kind": name(*kind), "runs_per_sec": rate }));

        let peers = PEERS.iter().map(|peer| {
            json!({
                "name": peer.name,
                "isolation": peer.isolation,
                "p50_to_bare": peer.p50_to_bare(),
                "rate_to_bare": peer.rate_to_bare(),
            })
        });

        let targets = self.targets().into_iter().map(|target| {
            json!({
                "target": target.label,
                "bound": table::format_bound(&target),
                "measured": target.measured,
                "met": target.is_met(),
            })
        });

        json!({
            "machine": {
                "cores": self.machine.cores,
                "cpu": self.machine.cpu,
                "kernel": self.machine.kernel,
            },
            "count": self.scale.count,
            "clients": self.scale.clients,
            "isolation": self.calls.isolation,
            "one_client": times.collect::<Vec<_>>(),
            "many_clients": rates.collect::<Vec<_>>(),
            "measured_elsewhere": peers.collect::<Vec<_>>(),
            "daemon": self.own_daemon.to_json(),
            "targets": targets.collect::<Vec<_>>(),
        })
    }

    /// Returns the targets for runs, as far as their references were measured.
    fn targets(&self) -> Vec<BenchTarget> {
        let runs = self.time_targets().into_iter().chain(self.rate_targets()).flatten();
        runs.chain(self.own_daemon.targets()).collect()
    }

    fn time_targets(&self) -> [Option<BenchTarget>; 5] {
        let jig = self.calls.times_of(RunBenchCase::Jig);
        let p50_to_bare = self.p50_ratio(RunBenchCase::Jig, RunBenchCase::Bare);
        let p99_to_p50 = jig.map(|jig| ratio(jig.p99().as_secs_f64(), jig.p50().as_secs_f64()));

        [
            ratio_target(
                "p50 of jig / p50 of a bare process",
                p50_to_bare,
                TargetBound::AtMost(1.65),
                Some(TargetBound::AtMost(1.45)),
            ),
            ratio_target(
                "p50 of a shell in jig / p50 of a bare shell",
                self.p50_ratio(RunBenchCase::JigShell, RunBenchCase::BareShell),
                TargetBound::AtMost(1.0),
                Some(TargetBound::AtMost(0.8)),
            ),
            ratio_target(
                "p50 of jig / fastest peer, each / bare",
                p50_to_bare.map(|jig| jig / min_p50_to_bare()),
                TargetBound::AtMost(1.0),
                None,
            ),
            ratio_target(
                "p50 of bubblewrap / p50 of jig",
                self.p50_ratio(RunBenchCase::Bubblewrap, RunBenchCase::Jig),
                TargetBound::AtLeast(3.0),
                None,
            ),
            ratio_target("p99 of jig / p50 of jig", p99_to_p50, TargetBound::AtMost(2.0), None),
        ]
    }

    fn rate_targets(&self) -> [Option<BenchTarget>; 3] {
        [
            ratio_target(
                "runs/s of jig / runs/s of bare processes",
                self.rate_ratio(RunBenchCase::Jig, RunBenchCase::Bare),
                TargetBound::AtLeast(0.62),
                Some(TargetBound::AtLeast(0.7)),
            ),
            ratio_target(
                "shells/s of jig / bare shells/s",
                self.rate_ratio(RunBenchCase::JigShell, RunBenchCase::BareShell),
                TargetBound::AtLeast(0.8),
                Some(TargetBound::AtLeast(1.0)),
            ),
            ratio_target(
                "runs/s of jig / runs/s of bubblewrap",
                self.rate_ratio(RunBenchCase::Jig, RunBenchCase::Bubblewrap),
                TargetBound::AtLeast(3.0),
                None,
            ),
        ]
    }
}

/// Returns the target for a ratio; `None` if its reference was not measured.
fn ratio_target(
    label: &'static str,
    measured: Option<f64>,
    bound: TargetBound,
    stretch: Option<TargetBound>,
) -> Option<BenchTarget> {
    Some(BenchTarget { label, measured: measured?, unit: TargetUnit::Ratio, bound, stretch })
}

/// The kind without isolation that a kind is compared with.
fn reference(kind: RunBenchCase) -> RunBenchCase {
    match kind {
        RunBenchCase::BareShell | RunBenchCase::JigShell => RunBenchCase::BareShell,
        RunBenchCase::Bare
        | RunBenchCase::Jig
        | RunBenchCase::Bubblewrap
        | RunBenchCase::HealthCheck => RunBenchCase::Bare,
    }
}

fn label(kind: RunBenchCase) -> &'static str {
    match kind {
        RunBenchCase::Bare => "bare posix_spawn + wait",
        RunBenchCase::Jig => "jig run, sandboxed",
        RunBenchCase::BareShell => "bare sh -c true",
        RunBenchCase::JigShell => "jig run of sh -c true",
        RunBenchCase::Bubblewrap => "bwrap --unshare-all",
        RunBenchCase::HealthCheck => "health check (runs nothing)",
    }
}

fn name(kind: RunBenchCase) -> &'static str {
    match kind {
        RunBenchCase::Bare => "bare",
        RunBenchCase::Jig => "jig",
        RunBenchCase::BareShell => "bare_shell",
        RunBenchCase::JigShell => "jig_shell",
        RunBenchCase::Bubblewrap => "bwrap",
        RunBenchCase::HealthCheck => "health_check",
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::bench::statistics::{Samples, target_verdicts};

    fn samples(micros: u64) -> Samples {
        Samples::new(vec![Duration::from_micros(micros)])
    }

    fn report(with_bubblewrap: bool) -> RunReport {
        let mut times =
            vec![(RunBenchCase::Bare, samples(1000)), (RunBenchCase::Jig, samples(1300))];
        times.push((RunBenchCase::BareShell, samples(2000)));
        times.push((RunBenchCase::JigShell, samples(1800)));
        let mut rates = vec![(RunBenchCase::Bare, 2000.0), (RunBenchCase::Jig, 900.0)];
        if with_bubblewrap {
            times.push((RunBenchCase::Bubblewrap, samples(5200)));
            rates.push((RunBenchCase::Bubblewrap, 200.0));
        }
        times.push((RunBenchCase::HealthCheck, samples(100)));
        RunReport {
            machine: Machine { cores: 2, kernel: "6.18".into(), cpu: "X".into() },
            scale: RunScale { count: 1, clients: 8 },
            calls: RunMeasurements { isolation: "L3".into(), times, rates },
            own_daemon: OwnDaemonReport::default(),
        }
    }

    #[test]
    fn targets_are_judged() {
        assert_eq!(
            target_verdicts(&report(true).targets()),
            [
                ("1.30".to_owned(), "met, stretch too"),
                ("0.90".to_owned(), "met"),
                ("0.71".to_owned(), "met"),
                ("4.00".to_owned(), "met"),
                ("1.00".to_owned(), "met"),
                ("0.45".to_owned(), "missed"),
                ("4.50".to_owned(), "met"),
            ]
        );
        assert_eq!(report(false).targets().len(), 5);
    }

    #[test]
    fn text_has_all_parts() {
        let text = report(true).to_text();
        assert!(text.contains("jig run, sandboxed"), "{text}");
        assert!(text.contains("1.30 x"), "{text}");
        assert!(text.contains("go-judge"), "{text}");
        assert!(!text.contains("SERVING"), "{text}");
    }

    #[test]
    fn json_has_all_parts() {
        let value = report(false).to_json();
        assert_eq!(value["one_client"][1]["kind"], "jig");
        assert_eq!(value["targets"][0]["met"], true);
        assert_eq!(value["many_clients"][0]["runs_per_sec"], 2000.0);
        assert_eq!(value["daemon"]["starts"], Value::Null);
    }
}
