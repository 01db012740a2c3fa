//! The sessions of all workspaces, without a daemon.

use std::fs;

use super::*;

fn id(text: &str) -> SessionId {
    SessionId::parse(text).unwrap()
}

fn listed(sessions: &SessionStore, after: Option<&str>, at_most: usize) -> Vec<String> {
    let after = after.map(id);
    let listed = sessions.list("w", after.as_ref(), at_most).unwrap();
    let ids = listed.iter().map(|(id, _)| id.as_str().to_owned());
    ids.collect()
}

fn found(sessions: &SessionStore, wanted: &str) -> SessionLocation {
    let mut all = sessions.all_locations().unwrap().into_iter();
    all.find(|found| found.id == id(wanted)).unwrap()
}

#[test]
fn pages_leave_out_what_cannot_be_understood_and_end_where_there_is_no_more() {
    let folder = tempfile::tempdir().unwrap();
    let sessions = SessionStore::new(folder.path().to_owned());
    for name in ["a", "b", "d"] {
        sessions.open_or_create("w", &id(name)).unwrap();
    }
    sessions.open_or_create("other", &id("c")).unwrap();
    let sessions = SessionStore::new(folder.path().to_owned());
    assert!(sessions.open_existing("w", &id("c")).unwrap().is_none());
    sessions.open_or_create("w", &id("e")).unwrap();
    fs::write(folder.path().join("b/numbers"), "nonsense").unwrap();
    fs::write(folder.path().join("stray"), "").unwrap();
    assert_eq!(listed(&sessions, None, 2), ["a", "d"]);
    assert_eq!(listed(&sessions, Some("a"), 9), ["d", "e"]);
    assert_eq!(listed(&sessions, Some("e"), 9), [""; 0]);
    assert_eq!(sessions.all_locations().unwrap().len(), 5);
    assert!(lock(&sessions.slots).len() <= 2);
}

#[test]
fn one_of_the_id_of_a_removed_one_goes_on_counting() {
    let folder = tempfile::tempdir().unwrap();
    let read = || SessionStore::new(folder.path().to_owned());
    let mut sessions = read();
    let end = CancellationToken::new();
    let begin = |sessions: &SessionStore| {
        let session = sessions.open_or_create("w", &id("a")).unwrap();
        session.begin_step(serde_json::Map::new()).unwrap().number()
    };
    for expected in 1..=5 {
        assert_eq!(begin(&sessions), expected);
        let found = found(&sessions, "a");
        assert!(!sessions.remove(&found, |_| false, &end).unwrap());
        let held = sessions.open_or_create("w", &id("a")).unwrap();
        assert!(!sessions.remove(&found, |_| true, &end).unwrap());
        drop(held);
        if expected == 3 {
            // Killed in the middle: it is taken away, and nothing is written down.
            sessions.folders.mark_removed(&found.folder).unwrap();
            sessions = read();
        } else {
            assert!(sessions.remove(&found, |_| true, &end).unwrap());
        }
        assert!(listed(&sessions, None, 9).is_empty());
        assert!(sessions.open_existing("w", &id("a")).unwrap().is_none());
        if expected % 2 == 0 {
            sessions = read();
        }
    }
    sessions.finish_removals(&end).unwrap();
    let names = fs::read_dir(folder.path()).unwrap();
    assert_eq!(names.count(), 1, "but for the file that tells of them");
}

#[test]
fn no_session_waits_for_what_is_done_to_another() {
    let folder = tempfile::tempdir().unwrap();
    let sessions = Arc::new(SessionStore::new(folder.path().to_owned()));
    sessions.with_slot("w", &id("slow"), |_| {
        let other = Arc::clone(&sessions);
        let made = std::thread::spawn(move || {
            other.open_or_create("w", &id("quick")).unwrap();
            assert!(other.get_open("w", &id("slow")).is_none());
            for number in 0..=MAX_IDLE_OPEN_SESSIONS {
                other.open_or_create("w", &id(&format!("{number}"))).unwrap();
            }
        });
        made.join().unwrap();
    });
    assert!(lock(&sessions.slots).len() <= MAX_IDLE_OPEN_SESSIONS);
}
