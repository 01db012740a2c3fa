//! Ends the steps that were in progress when the previous daemon died.

use std::{collections::HashSet, io, ops::ControlFlow, time::SystemTime};

use serde_json::{Map, Value};

use super::{
    record_reader::{RecordHeader, visit_lines_reverse},
    snapshot::RecordsSnapshot,
};
use crate::daemon::telemetry::logs::rfc3339_micros;

/// Bytes of records that are searched: thousands of calls, in a few milliseconds. A step that began
/// before is not found.
const MAX_LOOK_BACK_BYTES: u64 = 4 << 20;

/// Fields that the end record copies from the start record.
const SHARED_FIELDS: [&str; 7] =
    ["call_id", "request_id", "principal", "workspace", "tool", "job_id", "by_name"];

/// Returns the steps that have begun and not ended, oldest first, and the record that ends each.
pub(super) fn find_lost_steps(
    records: &RecordsSnapshot,
) -> io::Result<Vec<(u64, Map<String, Value>)>> {
    let mut ended = HashSet::new();
    let mut lost = Vec::new();
    let mut remaining = MAX_LOOK_BACK_BYTES;
    visit_lines_reverse(&records.file, records.length, None, |line| {
        if let Some(header) = RecordHeader::parse(line) {
            if header.ends_step() {
                ended.insert(header.step);
            } else if header.begins_step()
                && !ended.remove(&header.step)
                && let Ok(record) = serde_json::from_slice(line)
            {
                lost.push((header.step, end_record(record)));
            }
        }

        remaining = remaining.saturating_sub(line.len() as u64);
        if remaining == 0 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    })?;
    lost.reverse();
    Ok(lost)
}

/// Turns the start record of a step into its end record.
fn end_record(mut record: Map<String, Value>) -> Map<String, Value> {
    let is_run = record.get("tool").and_then(Value::as_str) == Some("run");
    record.retain(|name, _| SHARED_FIELDS.contains(&name.as_str()));

    let more = [
        ("event", "tool_call_finished".to_owned()),
        ("time", rfc3339_micros(SystemTime::now())),
        ("status", "error".to_owned()),
        ("error_type", "daemon_lost".to_owned()),
        (
            "message",
            "the daemon died before this call had ended: what it had done is not known".to_owned(),
        ),
    ];
    let outcome = is_run.then(|| ("outcome", "DAEMON_LOST".to_owned()));
    for (name, value) in more.into_iter().chain(outcome) {
        record.insert(name.to_owned(), value.into());
    }
    record
}
