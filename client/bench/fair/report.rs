//! What was measured, as a table or as JSON, with what the design promises.

use serde_json::{Value, json};

use super::{
    super::{
        machine::Machine,
        statistics::{Bound, Samples, Target, Unit, ratio},
        table::{self, milliseconds, table},
    },
    kind::Kind,
};

/// All that is reported.
#[derive(Debug)]
pub(super) struct Report {
    pub(super) machine: Machine,
    pub(super) streams: usize,
    pub(super) count: usize,
    pub(super) measured: Vec<Beside>,
}

/// Times of one caller beside one kind of flood.
#[derive(Debug)]
pub(super) struct Beside {
    pub(super) flood: Kind,
    pub(super) victim: Kind,
    pub(super) alone: Samples,
    pub(super) beside: Samples,
    /// How long a call of the flood takes when nobody else calls.
    pub(super) own: Samples,
    /// Calls of the flood that ended in a second.
    pub(super) rate: f64,
}

impl Beside {
    /// How much longer the slowest calls take beside the flood, in calls of the flood.
    fn rise(&self) -> f64 {
        let [beside, alone, own] =
            [&self.beside, &self.alone, &self.own].map(|samples| samples.p99().as_secs_f64());
        ratio(beside - alone, own)
    }
}

impl Report {
    /// For people.
    pub(super) fn to_text(&self) -> String {
        let Self { machine, streams, count, measured } = self;
        let mut text = format!(
            "{} cores, {}, Linux {}\n{count} calls of each kind, alone and beside {streams} at a time of another caller\n\n",
            machine.cores, machine.cpu, machine.kernel
        );
        let head =
            ["flood", "own p99", "per second", "call", "p50 alone", "p99", "p50 beside", "p99"];
        let mut rows = vec![head.map(String::from)];
        let time = |time: std::time::Duration| milliseconds(time.as_secs_f64());
        for beside in measured {
            rows.push([
                beside.flood.name().to_owned(),
                time(beside.own.p99()),
                format!("{:.0}", beside.rate),
                beside.victim.name().to_owned(),
                time(beside.alone.p50()),
                time(beside.alone.p99()),
                time(beside.beside.p50()),
                time(beside.beside.p99()),
            ]);
        }
        text += &table(&rows);
        text.push('\n');
        text + &table::targets(&self.targets())
    }

    /// For programs.
    pub(super) fn to_json(&self) -> Value {
        let ms = |time: std::time::Duration| time.as_secs_f64() * 1e3;
        let measured = self.measured.iter().map(|beside| {
            json!({
                "flood": beside.flood.name(),
                "flood_own_p99_ms": ms(beside.own.p99()),
                "flood_per_sec": beside.rate,
                "call": beside.victim.name(),
                "alone_p50_ms": ms(beside.alone.p50()),
                "alone_p99_ms": ms(beside.alone.p99()),
                "beside_p50_ms": ms(beside.beside.p50()),
                "beside_p99_ms": ms(beside.beside.p99()),
                "rise": beside.rise(),
            })
        });
        json!({
            "streams": self.streams,
            "measured": measured.collect::<Vec<_>>(),
            "met": self.targets().iter().all(Target::is_met),
        })
    }

    fn targets(&self) -> Vec<Target> {
        let target = |beside: &Beside| Target {
            promise: "p99 rises by, in calls of the flood",
            measured: beside.rise(),
            unit: Unit::Times,
            bound: Bound::AtMost(1.0),
            stretch: None,
        };
        self.measured.iter().map(target).collect()
    }
}
