//! What was measured, as a table or as JSON, with the design's targets.

use std::fmt::Write as _;

use serde_json::{Value, json};

use super::{
    machine::Machine,
    measure::{Kind, Measured, Scale},
    statistics::{Bound, Target, ratio},
};

/// All that is reported.
#[derive(Debug)]
pub(super) struct Report {
    pub(super) machine: Machine,
    pub(super) scale: Scale,
    pub(super) measured: Measured,
}

impl Report {
    /// For people.
    pub(super) fn to_text(&self) -> String {
        let Self {
            machine,
            scale,
            measured,
        } = self;
        let mut text = format!(
            "{} cores, {}, Linux {}\n{} runs of /bin/true of each kind; jig's are isolated at {}\n\n",
            machine.cores, machine.cpu, machine.kernel, scale.count, measured.isolation
        );
        let bare = measured.times_of(Kind::Bare);
        let mut rows =
            vec![["1 client", "p50", "p99", "p50 / bare", "p99 / p50"].map(String::from)];
        for (kind, samples) in &measured.times {
            let own = ratio(samples.p99().as_secs_f64(), samples.p50().as_secs_f64());
            rows.push([
                label(*kind).to_owned(),
                milliseconds(samples.p50().as_secs_f64()),
                milliseconds(samples.p99().as_secs_f64()),
                bare.map_or_else(String::new, |bare| times(samples.ratio(bare))),
                times(own),
            ]);
        }
        text.push_str(&table(&rows));
        text.push('\n');
        let bare = measured.rate_of(Kind::Bare).unwrap_or_default();
        let clients = format!("{} clients", scale.clients);
        let mut rows = vec![[clients, "runs/s".to_owned(), "/ bare".to_owned()]];
        for (kind, rate) in &measured.rates {
            rows.push([
                label(*kind).to_owned(),
                format!("{rate:.0}"),
                times(ratio(*rate, bare)),
            ]);
        }
        text.push_str(&table(&rows));
        text.push('\n');
        let mut rows = vec![["target", "bound", "measured", ""].map(String::from)];
        for target in self.targets() {
            rows.push([
                target.promise.to_owned(),
                bound(target.bound),
                times(target.measured),
                target.verdict().to_owned(),
            ]);
        }
        text.push_str(&table(&rows));
        text
    }

    /// For programs.
    pub(super) fn to_json(&self) -> Value {
        let bare = self.measured.times_of(Kind::Bare);
        let times: Vec<Value> = self
            .measured
            .times
            .iter()
            .map(|(kind, samples)| {
                json!({
                    "kind": name(*kind),
                    "p50_ms": samples.p50().as_secs_f64() * 1e3,
                    "p99_ms": samples.p99().as_secs_f64() * 1e3,
                    "p50_to_bare": bare.map(|bare| samples.ratio(bare)),
                })
            })
            .collect();
        let rates: Vec<Value> = self
            .measured
            .rates
            .iter()
            .map(|(kind, rate)| json!({ "kind": name(*kind), "runs_per_sec": rate }))
            .collect();
        let targets: Vec<Value> = self
            .targets()
            .iter()
            .map(|target| {
                json!({
                    "target": target.promise,
                    "bound": bound(target.bound),
                    "measured": target.measured,
                    "met": target.is_met(),
                })
            })
            .collect();
        json!({
            "machine": {
                "cores": self.machine.cores,
                "cpu": self.machine.cpu,
                "kernel": self.machine.kernel,
            },
            "count": self.scale.count,
            "clients": self.scale.clients,
            "isolation": self.measured.isolation,
            "one_client": times,
            "many_clients": rates,
            "targets": targets,
        })
    }

    /// The first three rows of the design's table of targets, as far as there is something to
    /// compare with.
    fn targets(&self) -> Vec<Target> {
        let times = |kind| self.measured.times_of(kind);
        let rate = |kind| self.measured.rate_of(kind);
        let mut targets = Vec::new();
        let mut add = |promise, measured: Option<f64>, bound, stretch| {
            targets.extend(measured.map(|measured| Target {
                promise,
                measured,
                bound,
                stretch,
            }));
        };
        let over = |one: Kind, other: Kind| Some(times(one)?.ratio(times(other)?));
        let rate_over = |one: Kind, other: Kind| Some(ratio(rate(one)?, rate(other)?));
        add(
            "p50 of jig / p50 of a bare process",
            over(Kind::Jig, Kind::Bare),
            Bound::AtMost(1.4),
            Some(Bound::AtMost(1.25)),
        );
        add(
            "p50 of bubblewrap / p50 of jig",
            over(Kind::Bubblewrap, Kind::Jig),
            Bound::AtLeast(3.0),
            None,
        );
        add(
            "p99 of jig / p50 of jig",
            times(Kind::Jig).map(|jig| ratio(jig.p99().as_secs_f64(), jig.p50().as_secs_f64())),
            Bound::AtMost(2.0),
            None,
        );
        add(
            "runs/s of jig / runs/s of bare processes",
            rate_over(Kind::Jig, Kind::Bare),
            Bound::AtLeast(0.5),
            Some(Bound::AtLeast(0.6)),
        );
        add(
            "runs/s of jig / runs/s of bubblewrap",
            rate_over(Kind::Jig, Kind::Bubblewrap),
            Bound::AtLeast(3.0),
            None,
        );
        targets
    }
}

fn label(kind: Kind) -> &'static str {
    match kind {
        Kind::Bare => "bare posix_spawn + wait",
        Kind::Jig => "jig run, sandboxed",
        Kind::Bubblewrap => "bwrap --unshare-all",
        Kind::Check => "health check (runs nothing)",
    }
}

fn name(kind: Kind) -> &'static str {
    match kind {
        Kind::Bare => "bare",
        Kind::Jig => "jig",
        Kind::Bubblewrap => "bwrap",
        Kind::Check => "health_check",
    }
}

pub(super) fn milliseconds(seconds: f64) -> String {
    format!("{:.3} ms", seconds * 1e3)
}

pub(super) fn times(ratio: f64) -> String {
    format!("{ratio:.2} x")
}

pub(super) fn bound(bound: Bound) -> String {
    match bound {
        Bound::AtMost(most) => format!("<= {most} x"),
        Bound::AtLeast(least) => format!(">= {least} x"),
    }
}

/// Columns of equal width, the first flush left, the others flush right.
pub(super) fn table<const N: usize>(rows: &[[String; N]]) -> String {
    let mut widths = [0; N];
    for row in rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let mut text = String::new();
    for row in rows {
        let mut line = String::new();
        for (column, (cell, width)) in row.iter().zip(widths).enumerate() {
            // Writing to a String cannot fail.
            if column == 0 {
                write!(line, "{cell:<width$}").ok();
            } else {
                write!(line, "  {cell:>width$}").ok();
            }
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::bench::statistics::Samples;

    fn report(with_bubblewrap: bool) -> Report {
        let samples = |micros| Samples::new(vec![Duration::from_micros(micros)]);
        let mut times = vec![(Kind::Bare, samples(1000)), (Kind::Jig, samples(1300))];
        let mut rates = vec![(Kind::Bare, 2000.0), (Kind::Jig, 900.0)];
        if with_bubblewrap {
            times.push((Kind::Bubblewrap, samples(5200)));
            rates.push((Kind::Bubblewrap, 200.0));
        }
        times.push((Kind::Check, samples(100)));
        Report {
            machine: Machine {
                cores: 2,
                kernel: "6.18".into(),
                cpu: "X".into(),
            },
            scale: Scale {
                count: 1,
                clients: 8,
            },
            measured: Measured {
                isolation: "L3".into(),
                times,
                rates,
            },
        }
    }

    #[test]
    fn targets_are_judged() {
        let verdicts: Vec<_> = report(true)
            .targets()
            .iter()
            .map(|target| (times(target.measured), target.verdict()))
            .collect();
        assert_eq!(
            verdicts,
            [
                ("1.30 x".to_owned(), "met"),
                ("4.00 x".to_owned(), "met"),
                ("1.00 x".to_owned(), "met"),
                ("0.45 x".to_owned(), "missed"),
                ("4.50 x".to_owned(), "met")
            ]
        );
        assert_eq!(report(false).targets().len(), 3);
    }

    #[test]
    fn tables_are_aligned() {
        let rows = [["a", "1"], ["long", "200"]].map(|row| row.map(String::from));
        assert_eq!(table(&rows), "a       1\nlong  200\n");
        let text = report(true).to_text();
        assert!(text.contains("jig run, sandboxed"), "{text}");
        assert!(text.contains("1.30 x"), "{text}");
    }

    #[test]
    fn json_holds_the_same() {
        let value = report(false).to_json();
        assert_eq!(value["one_client"][1]["kind"], "jig");
        assert_eq!(value["targets"][0]["met"], true);
        assert_eq!(value["many_clients"][0]["runs_per_sec"], 2000.0);
    }
}
