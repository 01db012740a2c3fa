//! The sessions of all workspaces, without a daemon.

use std::fs;

use super::*;

fn id(text: &str) -> SessionId {
    SessionId::parse(text).unwrap()
}

fn listed(sessions: &SessionStore, after: Option<&str>, limit: usize) -> Vec<String> {
    let after = after.map(id);
    let listed = sessions.list("w", after.as_ref(), limit).unwrap();
    listed.iter().map(|(id, _)| id.as_str().to_owned()).collect()
}

fn location(sessions: &SessionStore, session: &str) -> SessionLocation {
    let mut all = sessions.all_locations().unwrap().into_iter();
    all.find(|location| location.id == id(session)).unwrap()
}

#[test]
fn pages_skip_unreadable_sessions_and_end_after_the_last() {
    let directory = tempfile::tempdir().unwrap();
    let sessions = SessionStore::new(directory.path().to_owned());
    for name in ["a", "b", "d"] {
        sessions.open_or_create("w", &id(name)).unwrap();
    }
    sessions.open_or_create("other", &id("c")).unwrap();
    let sessions = SessionStore::new(directory.path().to_owned());
    assert!(sessions.open_existing("w", &id("c")).unwrap().is_none());
    sessions.open_or_create("w", &id("e")).unwrap();
    fs::write(directory.path().join("b/numbers"), "nonsense").unwrap();
    fs::write(directory.path().join("stray"), "").unwrap();
    assert_eq!(listed(&sessions, None, 2), ["a", "d"]);
    assert_eq!(listed(&sessions, Some("a"), 9), ["d", "e"]);
    assert_eq!(listed(&sessions, Some("e"), 9), [""; 0]);
    assert_eq!(sessions.all_locations().unwrap().len(), 5);
    assert!(lock(&sessions.entries).len() <= 2);
}

#[test]
fn session_with_the_id_of_a_removed_one_continues_its_counters() {
    let directory = tempfile::tempdir().unwrap();
    let read = || SessionStore::new(directory.path().to_owned());
    let mut sessions = read();
    let shutdown = CancellationToken::new();
    let begin = |sessions: &SessionStore| {
        let session = sessions.open_or_create("w", &id("a")).unwrap();
        session.begin_step(serde_json::Map::new()).unwrap().number()
    };
    for expected in 1..=5 {
        assert_eq!(begin(&sessions), expected);
        let location = location(&sessions, "a");
        assert!(!sessions.remove(&location, |_| false, &shutdown).unwrap());
        let in_use = sessions.open_or_create("w", &id("a")).unwrap();
        assert!(!sessions.remove(&location, |_| true, &shutdown).unwrap());
        drop(in_use);
        if expected == 3 {
            // Killed midway: marked as removed, and no tombstone is written.
            sessions.directories.mark_removed(&location.directory).unwrap();
            sessions = read();
        } else {
            assert!(sessions.remove(&location, |_| true, &shutdown).unwrap());
        }
        assert!(listed(&sessions, None, 9).is_empty());
        assert!(sessions.open_existing("w", &id("a")).unwrap().is_none());
        if expected % 2 == 0 {
            sessions = read();
        }
    }
    sessions.finish_removals(&shutdown).unwrap();
    let names = fs::read_dir(directory.path()).unwrap();
    assert_eq!(names.count(), 1, "only the tombstones remain");
}

#[test]
fn sessions_do_not_wait_for_each_other() {
    let directory = tempfile::tempdir().unwrap();
    let sessions = Arc::new(SessionStore::new(directory.path().to_owned()));
    sessions.with_entry("w", &id("slow"), |_| {
        let other = Arc::clone(&sessions);
        let thread = std::thread::spawn(move || {
            other.open_or_create("w", &id("quick")).unwrap();
            assert!(other.get_open("w", &id("slow")).is_none());
            for number in 0..=MAX_IDLE_OPEN_SESSIONS {
                other.open_or_create("w", &id(&format!("{number}"))).unwrap();
            }
        });
        thread.join().unwrap();
    });
    assert!(lock(&sessions.entries).len() <= MAX_IDLE_OPEN_SESSIONS);
}
