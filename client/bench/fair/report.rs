//! Report of the fairness benchmark, as a table or as JSON, with the targets.

use serde_json::{Value, json};

use super::{
    super::{
        machine::Machine,
        statistics::{BenchTarget, Samples, TargetBound, TargetUnit, ratio},
        table::{self, align_numbers, format_milliseconds},
    },
    case::FairBenchCase,
};

/// Results of the benchmark.
#[derive(Debug)]
pub(super) struct FairReport {
    pub(super) machine: Machine,
    pub(super) streams: usize,
    pub(super) count: usize,
    pub(super) measurements: Vec<FloodMeasurement>,
}

/// Latency of one kind of call beside one kind of flood.
#[derive(Debug)]
pub(super) struct FloodMeasurement {
    pub(super) flood: FairBenchCase,
    pub(super) victim: FairBenchCase,
    pub(super) alone: Samples,
    pub(super) beside_flood: Samples,
    /// Latency of a call of the flood without other load.
    pub(super) flood_alone: Samples,
    /// Throughput of the flood.
    pub(super) flood_calls_per_second: f64,
}

impl FloodMeasurement {
    /// Returns the increase of the p99 beside the flood, in units of the flood's own p99.
    fn slowdown(&self) -> f64 {
        let [beside_flood, alone, flood_alone] =
            [&self.beside_flood, &self.alone, &self.flood_alone]
                .map(|samples| samples.p99().as_secs_f64());
        ratio(beside_flood - alone, flood_alone)
    }
}

impl FairReport {
    /// Formats the report for people.
    pub(super) fn to_text(&self) -> String {
        let Self { machine, streams, count, measurements } = self;
        let mut text = format!(
            "{} cores, {}, Linux {}\n{count} calls of each kind, alone and beside {streams} concurrent calls of another client\n\n",
            machine.cores, machine.cpu, machine.kernel
        );

        let head =
            ["flood", "own p99", "per second", "call", "p50 alone", "p99", "p50 beside", "p99"];
        let mut rows = vec![head.map(String::from)];
        let time = |time: std::time::Duration| format_milliseconds(time.as_secs_f64());
        for measurement in measurements {
            rows.push([
                measurement.flood.tool_name().to_owned(),
                time(measurement.flood_alone.p99()),
                format!("{:.0}", measurement.flood_calls_per_second),
                measurement.victim.tool_name().to_owned(),
                time(measurement.alone.p50()),
                time(measurement.alone.p99()),
                time(measurement.beside_flood.p50()),
                time(measurement.beside_flood.p99()),
            ]);
        }

        text += &align_numbers(&rows);
        text.push('\n');
        text + &table::targets_table(&self.targets())
    }

    /// Converts the report to JSON.
    pub(super) fn to_json(&self) -> Value {
        let ms = |time: std::time::Duration| time.as_secs_f64() * 1e3;
        let measurements = self.measurements.iter().map(|measurement| {
            json!({
                "flood": measurement.flood.tool_name(),
                "flood_own_p99_ms": ms(measurement.flood_alone.p99()),
                "flood_per_sec": measurement.flood_calls_per_second,
                "call": measurement.victim.tool_name(),
                "alone_p50_ms": ms(measurement.alone.p50()),
                "alone_p99_ms": ms(measurement.alone.p99()),
                "beside_p50_ms": ms(measurement.beside_flood.p50()),
                "beside_p99_ms": ms(measurement.beside_flood.p99()),
                "rise": measurement.slowdown(),
            })
        });
        json!({
            "streams": self.streams,
            "measured": measurements.collect::<Vec<_>>(),
            "met": self.targets().iter().all(BenchTarget::is_met),
        })
    }

    fn targets(&self) -> Vec<BenchTarget> {
        let target = |measurement: &FloodMeasurement| BenchTarget {
            label: "rise of p99, in calls of the flood",
            measured: measurement.slowdown(),
            unit: TargetUnit::Ratio,
            bound: TargetBound::AtMost(1.0),
            stretch: None,
        };
        self.measurements.iter().map(target).collect()
    }
}
