//! Steps that a daemon had begun and not ended when it died: the next one ends them.

use std::{collections::HashSet, io, ops::ControlFlow, time::SystemTime};

use serde_json::{Map, Value};

use super::{
    record_reader::{RecordHeader, visit_lines_reverse},
    snapshot::RecordsSnapshot,
};
use crate::daemon::telemetry::logs::rfc3339_micros;

/// Bytes of records that are looked back over: some thousands of calls, in some milliseconds. A step that
/// began before is not found.
const LOOK_BACK_BYTES: u64 = 4 << 20;

/// What both records of a step say.
const SHARED_FIELDS: [&str; 6] =
    ["call_id", "request_id", "principal", "workspace", "tool", "job_id"];

/// The steps of `records` that have begun and not ended, the first one first, and the record that ends each.
pub(super) fn find_lost_steps(
    records: &RecordsSnapshot,
) -> io::Result<Vec<(u64, Map<String, Value>)>> {
    let mut ended = HashSet::new();
    let mut lost = Vec::new();
    let mut left = LOOK_BACK_BYTES;
    visit_lines_reverse(&records.file, records.length, None, |line| {
        if let Some(head) = RecordHeader::parse(line) {
            if head.ends_step() {
                ended.insert(head.step);
            } else if head.begins_step()
                && !ended.remove(&head.step)
                && let Ok(started) = serde_json::from_slice(line)
            {
                lost.push((head.step, end_record(started)));
            }
        }
        left = left.saturating_sub(line.len() as u64);
        match left {
            0 => ControlFlow::Break(()),
            _ => ControlFlow::Continue(()),
        }
    })?;
    lost.reverse();
    Ok(lost)
}

/// The record that ends a step which began with this one.
fn end_record(mut started: Map<String, Value>) -> Map<String, Value> {
    let is_run = started.get("tool").and_then(Value::as_str) == Some("run");
    started.retain(|name, _| SHARED_FIELDS.contains(&name.as_str()));
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
        started.insert(name.to_owned(), value.into());
    }
    started
}
