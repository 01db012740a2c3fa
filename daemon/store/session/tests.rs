//! Sessions, their records and artifacts, without a daemon.

use std::{collections::BTreeSet, fs, io::Write as _, sync::Arc, time::Duration};

use serde_json::{Map, Value};
use tempfile::TempDir;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::{OpenedArtifact, RetentionUnit, Session, SessionUsage, StepId, StepUsage, StreamName};

fn open(directory: &TempDir) -> Session {
    Session::open(directory.path().to_owned(), Arc::default()).unwrap()
}

fn fields(tool: &str) -> Map<String, Value> {
    [("event".to_owned(), "tool_call_started".into()), ("tool".to_owned(), tool.into())]
        .into_iter()
        .collect()
}

#[test]
fn step_numbers_continue_after_a_restart_and_a_torn_record_is_removed() {
    let directory = tempfile::tempdir().unwrap();
    let session = open(&directory);
    assert_eq!(session.begin_step(fields("run")).unwrap(), StepId(1));
    assert_eq!(session.begin_step(fields("read_file")).unwrap(), StepId(2));
    drop(session);
    let path = directory.path().join("events.jsonl");
    let whole = fs::read(&path).unwrap();
    fs::OpenOptions::new()
        .append(true)
        .open(&path)
        .unwrap()
        .write_all(b"{\"sequence\":3,\"st")
        .unwrap();
    let session = open(&directory);
    assert_eq!(fs::read(&path).unwrap(), whole);
    assert_eq!(session.begin_step(fields("run")).unwrap(), StepId(3));
    assert_eq!(fs::read_to_string(&path).unwrap().lines().count(), 3);
}

#[test]
fn artifacts_open_by_their_exact_paths_only() {
    let directory = tempfile::tempdir().unwrap();
    let session = open(&directory);
    let step = session.begin_step(fields("run")).unwrap();
    let (mut sink, path) = session.artifact_writer(step, StreamName::Stdout, 3);
    sink.write(b"abcdef");
    assert_eq!(path, "logs/tool_step_0001_stdout.txt");
    assert!(matches!(session.open_artifact(&path).unwrap(), OpenedArtifact::File(_)));
    assert_eq!(fs::read(directory.path().join(&path)).unwrap(), b"abc");
    assert!(matches!(
        session.open_artifact("logs/tool_step_0001_stderr.txt").unwrap(),
        OpenedArtifact::Empty
    ));
    let path = session.save_patch(step, b"--- a").unwrap();
    assert_eq!(path, "diffs/step_0001.patch");
    assert_eq!(fs::read(directory.path().join(&path)).unwrap(), b"--- a");
    assert!(matches!(session.open_artifact(&path).unwrap(), OpenedArtifact::File(_)));
    fs::remove_file(directory.path().join(&path)).unwrap();
    for missing in [
        &*path,
        "diffs/step_1.patch",
        "diffs/step_0001.txt",
        "diffs/../events.jsonl",
        "logs/tool_step_1_stdout.txt",
        "logs/tool_step_0002_stdout.txt",
        "events.jsonl",
        "logs/../events.jsonl",
        "/etc/passwd",
        "",
    ] {
        assert!(
            matches!(session.open_artifact(missing).unwrap(), OpenedArtifact::Missing),
            "{missing}"
        );
    }
}

/// Whether the standard output of a step is known to be empty.
fn wrote_nothing(session: &Session, step: u64) -> bool {
    let [stdout, _] = StepId::stream_paths(step);
    session.is_empty_stream(StepId(step), &stdout).unwrap()
}

#[test]
fn empty_stream_of_a_command_is_detected_among_many_records() {
    let directory = tempfile::tempdir().unwrap();
    let session = open(&directory);
    let end = |text: String| -> Map<String, Value> {
        [
            ("event".to_owned(), "tool_call_finished".into()),
            // Text of another record inside this one, and records of all lengths.
            ("note".to_owned(), format!("\n{{\"event\":\"tool_call_started\"}}{text}").into()),
        ]
        .into_iter()
        .collect()
    };
    let is_run = |step: u64| step.is_multiple_of(3);
    let last = 200;
    let mut begun = Vec::new();
    for number in 1..=last {
        let tool = if is_run(number) { "run" } else { "read_file" };
        begun.push(session.begin_step(fields(tool)).unwrap());
        // Steps end in another order, several at once.
        if number.is_multiple_of(7) {
            for step in begun.drain(..).rev() {
                let text = "x".repeat(usize::try_from(step.0 * 37 % 901).unwrap());
                session.record(step, end(text)).unwrap();
            }
        }
    }
    for number in 0..=last + 5 {
        let expected = number <= last && is_run(number) && number > 0;
        assert_eq!(wrote_nothing(&session, number), expected, "{number}");
    }
    let empty = tempfile::tempdir().unwrap();
    let session = open(&empty);
    assert!(!wrote_nothing(&session, 1));
}

/// The record of a step's end.
fn end() -> Map<String, Value> {
    let mut fields = fields("run");
    fields.insert("event".to_owned(), "tool_call_finished".into());
    fields
}

/// Records a command that wrote a line.
fn run(session: &Session) -> StepId {
    let step = session.begin_step(fields("run")).unwrap();
    session.artifact_writer(step, StreamName::Stdout, 100).0.write(b"text\n");
    session.record(step, end()).unwrap();
    step
}

fn usage(session: &Session) -> Vec<StepUsage> {
    session.step_usage(&CancellationToken::new()).unwrap()
}

fn remove(session: &Session, units: &BTreeSet<RetentionUnit>) {
    session.remove_steps(units, &CancellationToken::new()).unwrap();
}

fn steps_of(numbers: &[u64]) -> BTreeSet<RetentionUnit> {
    numbers.iter().copied().map(RetentionUnit::Step).collect()
}

fn sequences(session: &Session) -> Vec<u64> {
    let (records, _) = session.records().read_from(0, u64::MAX).unwrap();
    records.iter().map(|record| record.sequence).collect()
}

#[test]
fn numbers_continue_after_their_records_are_removed() {
    let directory = tempfile::tempdir().unwrap();
    let session = open(&directory);
    let running = session.begin_step(fields("run")).unwrap();
    let steps: Vec<_> = (0..3).map(|_| run(&session)).collect();
    assert_eq!(usage(&session).len(), 3, "one is running");
    let before = session.records();
    remove(&session, &steps_of(&[2, 3]));
    assert_eq!(sequences(&session), [1, 6, 7]);
    assert_eq!(before.read_from(0, u64::MAX).unwrap().0.len(), 7);
    for step in steps {
        let [path, _] = StepId::stream_paths(step.number());
        let is_stored = matches!(session.open_artifact(&path).unwrap(), OpenedArtifact::File(_));
        assert_eq!(is_stored, step.number() == 4, "{path}");
    }
    session.record(running, end()).unwrap();
    remove(&session, &steps_of(&[1, 4]));
    assert!(sequences(&session).is_empty());
    assert!(session.last_command().unwrap().is_none());
    drop(session);
    for expected in [5, 6] {
        let session = open(&directory);
        assert_eq!(run(&session), StepId(expected));
    }
    assert_eq!(sequences(&open(&directory)), [9, 10, 11, 12]);
}

/// The end record of a command that wrote `stdout_bytes`.
fn end_with(stdout_bytes: u64) -> Map<String, Value> {
    let mut fields = end();
    fields.insert("stdout_bytes".to_owned(), stdout_bytes.into());
    fields.insert("stderr_bytes".to_owned(), 0.into());
    fields
}

#[test]
fn removed_output_is_not_reported_as_empty() {
    let directory = tempfile::tempdir().unwrap();
    let session = open(&directory);
    let step = session.begin_step(fields("run")).unwrap();
    let (mut sink, path) = session.artifact_writer(step, StreamName::Stdout, 100);
    sink.write(b"text\n");
    session.record(step, end_with(5)).unwrap();
    let [_, stderr] = StepId::stream_paths(step.0);
    // The daemon died, or the disk was full, after the artifacts and before the records went.
    super::artifacts::remove_step(directory.path(), step.0).unwrap();
    for _ in 0..2 {
        let session = open(&directory);
        let artifact = |path: &str| session.open_artifact(path).unwrap();
        assert!(matches!(artifact(&path), OpenedArtifact::Missing));
        assert!(matches!(artifact(&stderr), OpenedArtifact::Empty));
        fs::write(directory.path().join("events.jsonl.new"), "{\"half").unwrap();
    }
    remove(&session, &steps_of(&[1]));
    assert!(sequences(&session).is_empty());
    assert!(matches!(session.open_artifact(&stderr).unwrap(), OpenedArtifact::Missing));
}

#[tokio::test]
async fn records_added_during_a_trim_are_signalled() {
    let directory = tempfile::tempdir().unwrap();
    let usage = Arc::new(SessionUsage::default());
    let session = Session::open(directory.path().to_owned(), Arc::clone(&usage)).unwrap();
    while session.records().length() <= 1000 {
        run(&session);
    }
    usage.set_limits(1000, u64::MAX);
    // The last call has ended, so no later record signals it.
    session.set_trimmed(999);
    let signal = timeout(Duration::ZERO, usage.records_exceeded.notified()).await;
    assert!(signal.is_ok());
    // Everything removable is gone.
    session.set_trimmed(session.records().length());
    let signal = timeout(Duration::ZERO, usage.records_exceeded.notified()).await;
    assert!(signal.is_err());
}

#[test]
fn removal_stops_when_the_daemon_shuts_down() {
    let directory = tempfile::tempdir().unwrap();
    let session = open(&directory);
    run(&session);
    let end = CancellationToken::new();
    end.cancel();
    assert!(session.remove_steps(&steps_of(&[1]), &end).is_err());
    assert!(session.step_usage(&end).is_err());
    assert!(Session::summarize(directory.path(), &end).is_err());
    assert_eq!(sequences(&session), [1, 2]);
    assert_eq!(session.list_artifacts(None, None, 10).unwrap().len(), 1);
}

#[test]
fn steps_in_progress_at_a_crash_are_ended_by_the_next_daemon() {
    let directory = tempfile::tempdir().unwrap();
    let session = open(&directory);
    run(&session);
    let mut started = fields("run");
    for name in ["call_id", "params"] {
        started.insert(name.to_owned(), name.into());
    }
    let command = session.begin_step(started).unwrap();
    run(&session);
    session.begin_step(fields("read_file")).unwrap();
    session.record_without_step(end()).unwrap();
    drop(session);
    for _ in 0..2 {
        let session = open(&directory);
        session.end_lost_steps();
        let (records, _) = session.records().read_from(0, u64::MAX).unwrap();
        let ends = &records[7..];
        assert_eq!(ends.len(), 2, "each once");
        let steps = ends.iter().map(|it| {
            let text = |name: &str| it.record.get(name).and_then(Value::as_str);
            let step = it.record["step"].as_u64().unwrap();
            (step, text("error_type"), text("call_id"), text("outcome"))
        });
        let lost = Some("daemon_lost");
        let expected =
            [(command.0, lost, Some("call_id"), Some("DAEMON_LOST")), (4, lost, None, None)];
        assert_eq!(steps.collect::<Vec<_>>(), expected);
        assert!(!ends[0].record.contains_key("params"));
    }
}

#[test]
fn last_command_is_found_after_a_restart() {
    let directory = tempfile::tempdir().unwrap();
    let session = open(&directory);
    assert!(session.last_command().unwrap().is_none());
    let first = run(&session);
    let second = session.begin_step(fields("run")).unwrap();
    session.begin_step(fields("read_file")).unwrap();
    let check = |session: &Session, step, is_running, has_ended| {
        let command = session.last_command().unwrap().unwrap();
        assert_eq!(command.step, step);
        assert_eq!(command.is_running, is_running);
        assert_eq!(command.end_record.is_some(), has_ended);
    };
    check(&session, second, true, false);
    check(&open(&directory), second, false, false);
    session.record(second, end()).unwrap();
    check(&session, second, false, true);
    let session = open(&directory);
    check(&session, second, false, true);
    remove(&session, &steps_of(&[second.number()]));
    check(&session, first, false, true);
}

#[test]
fn artifacts_are_listed_in_path_order() {
    let directory = tempfile::tempdir().unwrap();
    let session = open(&directory);
    let steps: Vec<_> = (0..3).map(|_| run(&session)).collect();
    session.save_patch(steps[1], b"---").unwrap();
    fs::write(directory.path().join("logs/other"), "").unwrap();
    let list = |after: Option<&str>, step, limit| {
        let listed = session.list_artifacts(after, step, limit).unwrap();
        let paths = listed.into_iter().map(|artifact| artifact.path);
        paths.collect::<Vec<_>>()
    };
    let all = list(None, None, 10);
    assert_eq!(
        all,
        [
            "diffs/step_0002.patch",
            "logs/tool_step_0001_stdout.txt",
            "logs/tool_step_0002_stdout.txt",
            "logs/tool_step_0003_stdout.txt"
        ]
    );
    assert_eq!(list(None, None, 3), all[..3]);
    assert_eq!(list(Some(&all[1]), None, 3), all[2..]);
    assert_eq!(list(None, Some(2), 9), [all[0].clone(), all[2].clone()]);
}

#[test]
fn records_without_step_are_retained_individually() {
    let directory = tempfile::tempdir().unwrap();
    let session = open(&directory);
    session.record_without_step(end()).unwrap();
    run(&session);
    session.record_without_step(end()).unwrap();
    let units = usage(&session);
    let units: Vec<_> = units.iter().map(|usage| usage.unit).collect();
    assert_eq!(units, [RetentionUnit::Record(1), RetentionUnit::Step(1), RetentionUnit::Record(4)]);
    remove(&session, &units[..2].iter().copied().collect());
    assert_eq!(sequences(&session), [4]);
    assert_eq!(run(&session), StepId(2));
}
