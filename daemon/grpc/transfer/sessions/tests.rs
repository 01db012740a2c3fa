//! Upload sessions: limits, resuming, taking over, expiry.

use super::{session::UPLOAD_RETENTION, *};

fn upload(name: &str, touched: u64, state: UploadState) -> (UploadKey, UploadSession) {
    let record = UploadRecord {
        name: name.to_owned(),
        upload_id: Some(name.to_owned()),
        workspace: "w".into(),
        path: "p".into(),
        size: u64::MAX,
        sha256: String::new(),
        options: Default::default(),
        partial_name: String::new(),
        partial_identity: None,
        replaces: None,
        complete: None,
        touched,
    };
    (("w".into(), name.into()), UploadSession { record, state })
}

fn active() -> UploadState {
    UploadState::Active(UploadAttempt::new(&CancellationToken::new()))
}

fn evicted(uploads: Vec<(UploadKey, UploadSession)>, max_sessions: usize) -> Vec<String> {
    let mut uploads = uploads.into_iter().collect();
    let evicted = evict(&mut uploads, max_sessions);
    evicted.into_iter().map(|upload| upload.record.name).collect()
}

#[test]
fn sessions_are_limited_by_number_bytes_and_age() {
    let now = now_unix_secs();
    let old = now - UPLOAD_RETENTION.as_secs() - 1;
    let on_disk = |name, touched, bytes| upload(name, touched, UploadState::OnDisk(bytes));
    let none: [&str; 0] = [];
    assert_eq!(evicted(vec![on_disk("a", now - 9, 1)], 1), none);

    // By age, except active ones.
    let uploads = vec![
        on_disk("a", old, 0),
        upload("b", old, UploadState::Complete),
        upload("c", old, active()),
        on_disk("d", now, 0),
    ];
    assert_eq!(evicted(uploads, 64), ["a", "b"]);

    // By number, oldest first.
    let uploads = vec![
        on_disk("a", now - 1, 0),
        on_disk("b", now - 3, 0),
        upload("c", now - 9, active()),
        on_disk("d", now - 2, 0),
    ];
    assert_eq!(evicted(uploads, 2), ["b", "d"]);

    // By bytes, oldest first. Only the disk limits the bytes of active ones.
    let uploads = vec![
        on_disk("a", now - 1, MAX_PAUSED_BYTES),
        on_disk("b", now - 2, 1),
        upload("c", now - 9, active()),
    ];
    assert_eq!(evicted(uploads, 64), ["b"]);
    let uploads = vec![on_disk("a", now, MAX_PAUSED_BYTES + 1)];
    assert_eq!(evicted(uploads, 64), ["a"]);

    // Complete ones are evicted first by number, however new. They do not count by bytes.
    let complete = |name, touched| upload(name, touched, UploadState::Complete);
    let uploads = || {
        vec![
            complete("a", now),
            on_disk("b", now - 9, 1),
            complete("c", now - 1),
            on_disk("d", now - 8, 1),
        ]
    };
    assert_eq!(evicted(uploads(), 3), ["c"]);
    assert_eq!(evicted(uploads(), 2), ["c", "a"]);
    assert_eq!(evicted(uploads(), 1), ["c", "a", "b"]);
    let uploads =
        vec![complete("a", now - 9), on_disk("b", now - 8, MAX_PAUSED_BYTES), on_disk("c", now, 1)];
    assert_eq!(evicted(uploads, 64), ["b"]);
}

#[test]
fn eviction_starts_with_the_workspace_that_has_most() {
    let now = now_unix_secs();
    let in_workspace = |workspace: &str, name: &str, touched, state| {
        let ((_, id), mut upload) = upload(name, touched, state);
        upload.record.workspace = workspace.to_owned();
        ((workspace.to_owned(), id), upload)
    };
    let on_disk = |bytes| UploadState::OnDisk(bytes);
    let uploads = vec![
        in_workspace("few", "a", now - 99, on_disk(1)),
        in_workspace("few", "b", now - 98, UploadState::Complete),
        in_workspace("many", "c", now - 9, active()),
        in_workspace("many", "d", now - 8, on_disk(1)),
        in_workspace("many", "e", now - 7, on_disk(1)),
        in_workspace("many", "f", now - 6, UploadState::Complete),
    ];
    assert_eq!(evicted(uploads, 4), ["f", "d"]);

    // Active ones stay, so another workspace loses one.
    let uploads = vec![
        in_workspace("few", "a", now, on_disk(1)),
        in_workspace("many", "b", now, active()),
        in_workspace("many", "c", now, active()),
    ];
    assert_eq!(evicted(uploads, 2), ["a"]);

    // By bytes, however many sessions that are.
    let uploads = vec![
        in_workspace("large", "a", now - 1, on_disk(MAX_PAUSED_BYTES / 2)),
        in_workspace("large", "b", now - 2, on_disk(1)),
        in_workspace("large", "c", now - 3, on_disk(MAX_PAUSED_BYTES / 2)),
        in_workspace("small", "d", now - 99, on_disk(9)),
        in_workspace("small", "e", now - 98, on_disk(9)),
        in_workspace("small", "f", now - 97, on_disk(9)),
        in_workspace("small", "g", now - 96, on_disk(9)),
    ];
    assert_eq!(evicted(uploads, 64), ["c"]);
}

fn open_sessions(directory: &std::path::Path) -> Arc<UploadSessions> {
    let store = crate::daemon::store::state_dir::StateDir::open(directory).unwrap();
    Arc::new(UploadSessions::load(store.uploads(), std::sync::Weak::new()))
}

#[test]
fn later_call_takes_over_an_active_upload() {
    let directory = tempfile::tempdir().unwrap();
    let sessions = open_sessions(directory.path());
    let record = upload("a", 0, UploadState::Complete).1.record;
    let stop = CancellationToken::new();
    let LeaseOutcome::New(lease) = sessions.acquire(record.clone(), &stop).unwrap() else {
        panic!("the upload is new");
    };
    let second = CancellationToken::new();
    let LeaseOutcome::Busy(finished) = sessions.acquire(record.clone(), &second).unwrap() else {
        panic!("the first call has the upload");
    };
    assert!(stop.is_cancelled() && lease.was_taken_over());
    assert!(!finished.is_cancelled());

    drop(lease);
    assert!(finished.is_cancelled());
    assert!(sessions.find("w", "a").is_none(), "no data was received");
    let LeaseOutcome::New(lease) = sessions.acquire(record.clone(), &second).unwrap() else {
        panic!("the upload is new again");
    };

    lease.complete(true);
    let repeat = sessions.acquire(record.clone(), &second).unwrap();
    assert!(matches!(repeat, LeaseOutcome::Complete(true)));
    let other = UploadRecord { size: 1, ..record };
    let error = sessions.acquire(other, &second).unwrap_err();
    assert_eq!(error.reason, Reason::InvalidParams);
}

#[test]
fn active_uploads_are_not_evicted() {
    let directory = tempfile::tempdir().unwrap();
    let sessions = open_sessions(directory.path());
    let stop = CancellationToken::new();
    let mut leases = Vec::new();
    for number in 0..MAX_UPLOAD_SESSIONS {
        let record = upload(&number.to_string(), 0, UploadState::Complete).1.record;
        leases.push(sessions.acquire(record, &stop).unwrap());
    }
    let record = upload("more", 0, UploadState::Complete).1.record;
    let error = sessions.acquire(record.clone(), &stop).unwrap_err();
    assert_eq!(error.reason, Reason::ResourceExhausted);
    leases.pop();
    assert!(sessions.acquire(record, &stop).is_ok());
}

#[test]
fn expired_upload_starts_again() {
    let directory = tempfile::tempdir().unwrap();
    let sessions = open_sessions(directory.path());
    let stop = CancellationToken::new();
    for (age, is_found) in
        [(UPLOAD_RETENTION.as_secs() - 60, true), (UPLOAD_RETENTION.as_secs(), false)]
    {
        let (key, upload) = upload("a", now_unix_secs() - age, UploadState::OnDisk(7));
        let record = upload.record.clone();
        sessions.lock().insert(key, upload);
        assert_eq!(sessions.find("w", "a").is_some(), is_found, "{age}");
        let outcome = sessions.acquire(record, &stop).unwrap();
        assert_eq!(matches!(outcome, LeaseOutcome::OnDisk(..)), is_found, "{outcome:?}");
        assert_eq!(matches!(outcome, LeaseOutcome::New(_)), !is_found, "{outcome:?}");
        // An active upload does not expire.
        sessions.lock().values_mut().for_each(|upload| upload.record.touched = 0);
        assert!(sessions.find("w", "a").is_some());
    }
}

#[test]
fn call_that_ends_before_it_resumes_keeps_the_received_bytes() {
    let directory = tempfile::tempdir().unwrap();
    let sessions = open_sessions(directory.path());
    let (key, upload) = upload("a", now_unix_secs(), UploadState::OnDisk(7));
    let record = upload.record.clone();
    sessions.lock().insert(key, upload);
    for _ in 0..2 {
        let outcome = sessions.acquire(record.clone(), &CancellationToken::new()).unwrap();
        assert!(matches!(outcome, LeaseOutcome::OnDisk(..)), "{outcome:?}");
        outcome.release();
        assert_eq!(sessions.find("w", "a").map(|(_, offset)| offset), Some(7));
    }
}
