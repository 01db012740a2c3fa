//! What was measured, as a table or as JSON, with what the design promises.

use serde_json::{Value, json};

use super::{
    super::{
        machine::Machine,
        statistics::{BenchTarget, Samples, TargetBound, TargetUnit, ratio},
        table::{self, align_columns, format_milliseconds},
    },
    case::FairBenchCase,
};

/// All that is reported.
#[derive(Debug)]
pub(super) struct FairReport {
    pub(super) machine: Machine,
    pub(super) streams: usize,
    pub(super) count: usize,
    pub(super) measurements: Vec<FloodMeasurement>,
}

/// Times of one caller beside one kind of flood.
#[derive(Debug)]
pub(super) struct FloodMeasurement {
    pub(super) flood: FairBenchCase,
    pub(super) victim: FairBenchCase,
    pub(super) alone: Samples,
    pub(super) beside_flood: Samples,
    /// How long a call of the flood takes when nobody else calls.
    pub(super) flood_alone: Samples,
    /// Calls of the flood that ended in a second.
    pub(super) flood_calls_per_second: f64,
}

impl FloodMeasurement {
    /// How much longer the slowest calls take beside the flood, in calls of the flood.
    fn slowdown(&self) -> f64 {
        let [beside, alone, own] = [&self.beside_flood, &self.alone, &self.flood_alone]
            .map(|samples| samples.p99().as_secs_f64());
        ratio(beside - alone, own)
    }
}

impl FairReport {
    /// For people.
    pub(super) fn to_text(&self) -> String {
        let Self { machine, streams, count, measurements: measured } = self;
        let mut text = format!(
            "{} cores, {}, Linux {}\n{count} calls of each kind, alone and beside {streams} at a time of another caller\n\n",
            machine.cores, machine.cpu, machine.kernel
        );
        let head =
            ["flood", "own p99", "per second", "call", "p50 alone", "p99", "p50 beside", "p99"];
        let mut rows = vec![head.map(String::from)];
        let time = |time: std::time::Duration| format_milliseconds(time.as_secs_f64());
        for beside in measured {
            rows.push([
                beside.flood.tool_name().to_owned(),
                time(beside.flood_alone.p99()),
                format!("{:.0}", beside.flood_calls_per_second),
                beside.victim.tool_name().to_owned(),
                time(beside.alone.p50()),
                time(beside.alone.p99()),
                time(beside.beside_flood.p50()),
                time(beside.beside_flood.p99()),
            ]);
        }
        text += &align_columns(&rows);
        text.push('\n');
        text + &table::targets_table(&self.targets())
    }

    /// For programs.
    pub(super) fn to_json(&self) -> Value {
        let ms = |time: std::time::Duration| time.as_secs_f64() * 1e3;
        let measured = self.measurements.iter().map(|beside| {
            json!({
                "flood": beside.flood.tool_name(),
                "flood_own_p99_ms": ms(beside.flood_alone.p99()),
                "flood_per_sec": beside.flood_calls_per_second,
                "call": beside.victim.tool_name(),
                "alone_p50_ms": ms(beside.alone.p50()),
                "alone_p99_ms": ms(beside.alone.p99()),
                "beside_p50_ms": ms(beside.beside_flood.p50()),
                "beside_p99_ms": ms(beside.beside_flood.p99()),
                "rise": beside.slowdown(),
            })
        });
        json!({
            "streams": self.streams,
            "measured": measured.collect::<Vec<_>>(),
            "met": self.targets().iter().all(BenchTarget::is_met),
        })
    }

    fn targets(&self) -> Vec<BenchTarget> {
        let target = |beside: &FloodMeasurement| BenchTarget {
            promise: "p99 rises by, in calls of the flood",
            measured: beside.slowdown(),
            unit: TargetUnit::Ratio,
            bound: TargetBound::AtMost(1.0),
            stretch: None,
        };
        self.measurements.iter().map(target).collect()
    }
}
