//! Where a stream of events continues: the ids of its server-sent events.
//!
//! The result of a call follows its records, and other records may come between. So an id has the
//! last record that the client received, and the calls whose results it still misses: `7`, or
//! `7-4,6` if the results of the calls that ended with records 4 and 6 are missing.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    str::FromStr,
};

use prost_types::value::Kind;

use crate::api::v1::{CallResult, Event, ResultAbsence};

/// Most results that a position misses. Without more, of the newest calls.
const MAX_MISSING_RESULTS: usize = 16;
/// Most records between the end of a call and the position that misses its result.
const MAX_MISSING_DISTANCE: u64 = 1000;

/// How far a client has read.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct EventPosition {
    last_sequence: u64,
    /// Number of a call's last record, and the id of the call.
    missing: BTreeMap<u64, String>,
    /// Calls whose results were missing when the client reconnected.
    lost: BTreeSet<u64>,
    /// Whether the stream has results.
    with_results: bool,
}

/// What a client that reconnects gets of a record.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Replay {
    /// The record is new to the client.
    Record,
    /// The client has the record, and misses the result of its call.
    ResultOnly,
    /// The client has the record.
    Skip,
}

impl EventPosition {
    pub(super) fn new(after_sequence: u64) -> Self {
        Self { last_sequence: after_sequence, ..Self::default() }
    }

    pub(super) fn with_results(self, with_results: bool) -> Self {
        Self { with_results, ..self }
    }

    /// The last record before the stream.
    pub(super) fn after_sequence(&self) -> u64 {
        let first_lost = self.lost.first().map(|first| first.saturating_sub(1));
        first_lost.unwrap_or(self.last_sequence)
    }

    /// Takes a record into account.
    pub(super) fn record(&mut self, event: &Event) -> Replay {
        if event.sequence <= self.last_sequence {
            let is_lost = self.lost.remove(&event.sequence);
            return if is_lost { Replay::ResultOnly } else { Replay::Skip };
        }

        self.last_sequence = event.sequence;
        let awaits_result = self.with_results
            && event.r#type == "tool_call_finished"
            && event.result_absence() == ResultAbsence::Unspecified;
        if awaits_result {
            self.missing.insert(event.sequence, call_key(event));
        }
        let oldest = self.last_sequence.saturating_sub(MAX_MISSING_DISTANCE);
        self.missing.retain(|sequence, _| *sequence >= oldest);
        while self.missing.len() > MAX_MISSING_RESULTS {
            self.missing.pop_first();
        }
        Replay::Record
    }

    /// Takes a result into account.
    pub(super) fn result(&mut self, result: &CallResult) {
        let key = if result.job_id.is_empty() { &result.call_id } else { &result.job_id };
        self.missing.retain(|_, call| call != key);
    }

    /// Takes into account that all records up to `sequence` are sent or filtered.
    pub(super) fn advance(&mut self, sequence: u64) {
        self.last_sequence = self.last_sequence.max(sequence);
    }

    /// Takes removed records into account. Returns the number of removed calls whose results the
    /// client misses, and whether it misses records.
    pub(super) fn gap(&mut self, first_sequence: u64) -> (usize, bool) {
        let kept = self.lost.split_off(&first_sequence);
        let removed = std::mem::replace(&mut self.lost, kept);
        (removed.len(), first_sequence > self.last_sequence + 1)
    }

    /// The id of an event that brought the client here; `None` before all records.
    pub(super) fn to_id(&self) -> Option<String> {
        (self.last_sequence > 0).then(|| self.to_string())
    }
}

/// The call of a record as results name it: a job's calls have the id of the job.
fn call_key(event: &Event) -> String {
    let job_id = event.record.as_ref().and_then(|record| record.fields.get("job_id"));
    match job_id.and_then(|job_id| job_id.kind.as_ref()) {
        Some(Kind::StringValue(job_id)) => job_id.clone(),
        _ => event.call_id.clone(),
    }
}

impl fmt::Display for EventPosition {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}", self.last_sequence)?;
        let missing = self.missing.keys().chain(&self.lost);
        for (index, sequence) in missing.enumerate() {
            write!(formatter, "{}{sequence}", if index == 0 { '-' } else { ',' })?;
        }
        Ok(())
    }
}

impl FromStr for EventPosition {
    type Err = ();

    fn from_str(id: &str) -> Result<Self, ()> {
        let number = |text: &str| text.parse::<u64>().map_err(|_| ());
        let (last, lost) = match id.split_once('-') {
            Some((last, lost)) => {
                (last, lost.split(',').map(number).collect::<Result<BTreeSet<_>, ()>>()?)
            }
            None => (id, BTreeSet::new()),
        };
        let last_sequence = number(last)?;
        let is_valid = lost.len() <= 2 * MAX_MISSING_RESULTS
            && lost.iter().all(|sequence| (1..=last_sequence).contains(sequence));
        is_valid.then(|| Self { lost, ..Self::new(last_sequence) }).ok_or(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn finished(sequence: u64) -> Event {
        Event {
            sequence,
            r#type: "tool_call_finished".to_owned(),
            call_id: format!("c{sequence}"),
            ..Event::default()
        }
    }

    fn result(sequence: u64) -> CallResult {
        CallResult { call_id: format!("c{sequence}"), ..CallResult::default() }
    }

    #[test]
    fn id_names_the_missing_results() {
        let mut position = EventPosition::default().with_results(true);
        assert_eq!(position.to_id(), None);
        position.advance(3);
        assert_eq!(position.record(&finished(4)), Replay::Record);
        assert_eq!(position.record(&finished(6)), Replay::Record);
        assert_eq!(position.to_id().unwrap(), "6-4,6");
        position.result(&result(4));
        assert_eq!(position.to_id().unwrap(), "6-6");
        position.result(&result(6));
        assert_eq!(position.to_id().unwrap(), "6");

        for sequence in 7..7 + 2 * MAX_MISSING_RESULTS as u64 {
            position.record(&finished(sequence));
        }
        assert_eq!(position.missing.len(), MAX_MISSING_RESULTS);
        position.record(&Event { sequence: 5000, ..Event::default() });
        assert_eq!(position.to_id().unwrap(), "5000");
    }

    #[test]
    fn missing_results_are_replayed_alone() {
        let position: EventPosition = "7-4,6".parse().unwrap();
        let mut position = position.with_results(true);
        assert_eq!(position.after_sequence(), 3);
        assert_eq!(position.record(&finished(4)), Replay::ResultOnly);
        assert_eq!(position.to_id().unwrap(), "7-6");
        assert_eq!(position.record(&finished(5)), Replay::Skip);
        assert_eq!(position.record(&finished(6)), Replay::ResultOnly);
        assert_eq!(position.record(&finished(7)), Replay::Skip);
        assert_eq!(position.record(&finished(8)), Replay::Record);
        assert_eq!(position.to_id().unwrap(), "8-8");

        let mut removed: EventPosition = "7-4,6".parse().unwrap();
        assert_eq!(removed.gap(6), (1, false));
        assert_eq!(removed.gap(9), (1, true));
        for id in ["", "x", "7-", "7-8", "7-0", "7-4,", "-4"] {
            assert!(id.parse::<EventPosition>().is_err(), "{id}");
        }
    }
}
