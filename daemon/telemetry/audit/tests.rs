//! Tests of the audit log's file and thread.

use std::{
    fs,
    io::Write as _,
    os::unix::fs::{PermissionsExt as _, symlink},
    path::Path,
    time::{Duration, Instant},
};

use serde_json::Value;

use super::{queue::MAX_QUEUED_LINES, *};

fn settings(path: &Path) -> AuditSettings {
    AuditSettings { path: path.to_owned(), max_bytes: 0, max_files: 3, fsync: false }
}

fn named(name: &str) -> CallRecord {
    CallRecord { principal: Some(name.to_owned()), ..CallRecord::default() }
}

/// The lines of a file; each must be whole.
fn lines(path: &Path) -> Vec<Value> {
    let text = fs::read_to_string(path).unwrap();
    assert!(text.is_empty() || text.ends_with('\n'), "{text:?}");
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn wait_until(condition: impl Fn() -> bool) {
    let started = Instant::now();
    while !condition() {
        assert!(started.elapsed() < Duration::from_secs(20), "it takes too long");
        // Another thread writes the file, and there is nothing to wait on.
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn lines_are_numbered_and_complete_at_close() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("audit.jsonl");
    let log = AuditLog::open(settings(&path)).unwrap();
    for number in 0..100 {
        log.record(AuditEvent::Call, || named(&format!("line\n{number}")));
    }
    log.report(AuditEvent::DaemonStopped, [("pid", 7.into())]);
    log.close();

    let lines = lines(&path);
    assert_eq!(lines.len(), 101);
    for (index, line) in lines.iter().enumerate() {
        assert_eq!(line["sequence"], index + 1);
    }
    assert_eq!((&lines[9]["event"], &lines[9]["principal"]), (&"call".into(), &"line\n9".into()));
    assert_eq!(lines[100]["pid"], 7);
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
}

#[test]
fn a_file_of_before_is_continued_after_a_cut_line() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("audit.jsonl");
    fs::write(&path, "{\"sequence\":1}\n{\"seq").unwrap();
    let log = AuditLog::open(settings(&path)).unwrap();
    log.record(AuditEvent::Call, || named("next"));
    log.close();

    let text = fs::read_to_string(&path).unwrap();
    let lines: Vec<_> = text.lines().collect();
    assert_eq!((lines.len(), lines[1]), (3, "{\"seq"));
    assert!(lines[2].contains("next"));
}

#[test]
fn links_and_fifos_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    let [target, link, fifo] = ["target", "link", "fifo"].map(|name| directory.path().join(name));
    fs::write(&target, "").unwrap();
    symlink(&target, &link).unwrap();
    rustix::fs::mkfifoat(rustix::fs::CWD, &fifo, 0o600.into()).unwrap();
    for path in [&link, &fifo, directory.path()] as [&Path; 3] {
        assert!(AuditLog::open(settings(path)).is_err(), "{}", path.display());
    }
}

#[test]
fn a_file_of_another_daemon_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("audit.jsonl");
    let mut file = AuditFile::open(AuditSettings { max_bytes: 40, ..settings(&path) }).unwrap();
    for _ in 0..10 {
        file.append(b"{\"sequence\":1}\n").unwrap();
        let refused = AuditFile::open(settings(&path)).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::ResourceBusy);
    }
}

#[test]
fn files_are_rotated_by_size_and_the_oldest_are_removed() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("audit.jsonl");
    let mut file = AuditFile::open(AuditSettings { max_bytes: 40, ..settings(&path) }).unwrap();
    for number in 10..20 {
        file.append(format!("{{\"sequence\":{number}}}\n").as_bytes()).unwrap();
    }

    let numbers = |name: &str| -> Vec<u64> {
        let lines = lines(&directory.path().join(name));
        lines.iter().map(|line| line["sequence"].as_u64().unwrap()).collect()
    };
    assert_eq!(numbers("audit.jsonl"), [18, 19]);
    assert_eq!(numbers("audit.jsonl.1"), [16, 17]);
    assert_eq!(numbers("audit.jsonl.3"), [12, 13]);
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 4);
}

#[test]
fn a_rotation_that_fails_removes_no_file() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("audit.jsonl");
    let mut file = AuditFile::open(AuditSettings { max_bytes: 40, ..settings(&path) }).unwrap();
    let mut append = |numbers: std::ops::Range<u32>| {
        for number in numbers {
            file.append(format!("{{\"sequence\":{number}}}\n").as_bytes()).unwrap();
        }
    };
    append(10..18);
    let names = || fs::read_dir(directory.path()).unwrap().map(|entry| entry.unwrap().file_name());
    let rotated = ["audit.jsonl.1", "audit.jsonl.2", "audit.jsonl.3"];
    let rotated = || rotated.map(|name| fs::read(directory.path().join(name)).unwrap());
    let before = rotated();

    // As with no free descriptor: the next file cannot be opened.
    let next = directory.path().join("audit.jsonl.next");
    fs::create_dir(&next).unwrap();
    append(18..30);
    assert_eq!(rotated(), before);
    assert_eq!(lines(&path).len(), 14);

    fs::remove_dir(&next).unwrap();
    append(30..31);
    assert_eq!(lines(&path)[0]["sequence"], 30);
    assert_eq!(lines(&directory.path().join("audit.jsonl.1")).len(), 14);
    assert_eq!(names().count(), 4);
}

#[test]
fn a_renamed_or_removed_file_is_replaced() {
    let directory = tempfile::tempdir().unwrap();
    let [path, old] = ["audit.jsonl", "old"].map(|name| directory.path().join(name));
    let log = AuditLog::open(settings(&path)).unwrap();
    log.record(AuditEvent::Call, || named("first"));
    wait_until(|| lines(&path).len() == 1);

    fs::rename(&path, &old).unwrap();
    log.record(AuditEvent::Call, || named("second"));
    wait_until(|| lines(&old).len() == 2);
    log.reopen();
    wait_until(|| path.exists());
    log.record(AuditEvent::Call, || named("third"));
    wait_until(|| lines(&path).len() == 1);

    fs::remove_file(&path).unwrap();
    log.record(AuditEvent::Call, || named("fourth"));
    log.close();
    assert_eq!(lines(&path)[0]["principal"], "fourth");
}

#[test]
fn a_half_written_line_is_whole_in_the_next_file() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("audit.jsonl");
    let mut file = AuditFile::open(settings(&path)).unwrap();
    // As after a write that stored 12 bytes of the two lines.
    let two = b"{\"a\":1}\n{\"b\":2}\n";
    file.file.write_all(&two[..12]).unwrap();
    file.progress = 12;
    fs::rename(&path, directory.path().join("old")).unwrap();
    file.reopen().unwrap();

    file.append(two).unwrap();
    assert_eq!(fs::read(&path).unwrap(), b"{\"b\":2}\n");
}

#[test]
fn a_discarded_half_line_has_an_end() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("audit.jsonl");
    let mut file = AuditFile::open(settings(&path)).unwrap();
    file.file.write_all(b"{\"a\"").unwrap();
    file.progress = 4;
    file.discard();

    file.append(b"{\"b\":2}\n").unwrap();
    assert_eq!(fs::read(&path).unwrap(), b"{\"a\"\n{\"b\":2}\n");
}

#[test]
fn a_full_queue_loses_lines_and_says_how_many() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("audit.jsonl");
    let file = AuditFile::open(settings(&path)).unwrap();
    let shared = Arc::new(Shared::default());
    let log = AuditLog(Some(Arc::clone(&shared)));
    for number in 0..MAX_QUEUED_LINES + 5 {
        log.record(AuditEvent::Call, || named(&number.to_string()));
    }

    let of_writer = Arc::clone(&shared);
    let writer = thread::spawn(move || write_lines(&of_writer, file));
    log.close();
    writer.join().unwrap();

    let lines = lines(&path);
    assert_eq!(lines.len(), MAX_QUEUED_LINES + 1);
    let last = lines.last().unwrap();
    assert_eq!((&last["event"], &last["count"]), (&"lines_lost".into(), &5.into()));
    assert_eq!(shared.lost.load(Ordering::Relaxed), 5);
    assert_eq!(shared.written.load(Ordering::Relaxed), lines.len() as u64);
}
