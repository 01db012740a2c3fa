//! Uploads in several calls: kept, resumed, taken over, forgotten.

use super::{session::UPLOAD_RETENTION, *};

fn upload(name: &str, touched: u64, state: UploadState) -> (UploadKey, UploadSession) {
    let record = UploadRecord {
        name: name.to_owned(),
        upload_id: Some(name.to_owned()),
        workspace: "w".into(),
        path: "p".into(),
        size: u64::MAX,
        sha256: String::new(),
        wishes: Default::default(),
        draft_name: String::new(),
        draft_identity: None,
        replaces: None,
        complete: None,
        touched,
    };
    (("w".into(), name.into()), UploadSession { record, state })
}

fn active() -> UploadState {
    UploadState::Active(UploadAttempt::new(&CancellationToken::new()))
}

fn swept(uploads: Vec<(UploadKey, UploadSession)>, most: usize) -> Vec<String> {
    let mut uploads = uploads.into_iter().collect();
    let swept = evict(&mut uploads, most);
    swept.into_iter().map(|upload| upload.record.name).collect()
}

#[test]
fn what_is_kept_is_bounded_in_number_bytes_and_age() {
    let now = now_unix_secs();
    let old = now - UPLOAD_RETENTION.as_secs() - 1;
    let on_disk = |name, touched, bytes| upload(name, touched, UploadState::OnDisk(bytes));
    let none: [&str; 0] = [];
    assert_eq!(swept(vec![on_disk("a", now - 9, 1)], 1), none);
    // Age, but for what a call receives.
    let uploads = vec![
        on_disk("a", old, 0),
        upload("b", old, UploadState::Complete),
        upload("c", old, active()),
        on_disk("d", now, 0),
    ];
    assert_eq!(swept(uploads, 64), ["a", "b"]);
    // Number, the oldest first.
    let uploads = vec![
        on_disk("a", now - 1, 0),
        on_disk("b", now - 3, 0),
        upload("c", now - 9, active()),
        on_disk("d", now - 2, 0),
    ];
    assert_eq!(swept(uploads, 2), ["b", "d"]);
    // Bytes, the oldest first; those of what a call receives are the disk's to bound.
    let uploads = vec![
        on_disk("a", now - 1, MAX_PAUSED_BYTES),
        on_disk("b", now - 2, 1),
        upload("c", now - 9, active()),
    ];
    assert_eq!(swept(uploads, 64), ["b"]);
    let uploads = vec![on_disk("a", now, MAX_PAUSED_BYTES + 1)];
    assert_eq!(swept(uploads, 64), ["a"]);
    // What is complete makes room for the others in number, however young, and in bytes it has none
    // to give.
    let complete = |name, touched| upload(name, touched, UploadState::Complete);
    let uploads = || {
        vec![
            complete("a", now),
            on_disk("b", now - 9, 1),
            complete("c", now - 1),
            on_disk("d", now - 8, 1),
        ]
    };
    assert_eq!(swept(uploads(), 3), ["c"]);
    assert_eq!(swept(uploads(), 2), ["c", "a"]);
    assert_eq!(swept(uploads(), 1), ["c", "a", "b"]);
    let uploads =
        vec![complete("a", now - 9), on_disk("b", now - 8, MAX_PAUSED_BYTES), on_disk("c", now, 1)];
    assert_eq!(swept(uploads, 64), ["b"]);
}

#[test]
fn what_is_too_much_is_taken_from_the_workspace_that_has_most() {
    let now = now_unix_secs();
    let of = |workspace: &str, name: &str, touched, state| {
        let ((_, id), mut upload) = upload(name, touched, state);
        upload.record.workspace = workspace.to_owned();
        ((workspace.to_owned(), id), upload)
    };
    let on_disk = |bytes| UploadState::OnDisk(bytes);
    let uploads = vec![
        of("few", "a", now - 99, on_disk(1)),
        of("few", "b", now - 98, UploadState::Complete),
        of("many", "c", now - 9, active()),
        of("many", "d", now - 8, on_disk(1)),
        of("many", "e", now - 7, on_disk(1)),
        of("many", "f", now - 6, UploadState::Complete),
    ];
    assert_eq!(swept(uploads, 4), ["f", "d"]);
    // Where nothing else is left to be taken.
    let uploads = vec![
        of("few", "a", now, on_disk(1)),
        of("many", "b", now, active()),
        of("many", "c", now, active()),
    ];
    assert_eq!(swept(uploads, 2), ["a"]);
    // In bytes, however many that are.
    let uploads = vec![
        of("large", "a", now - 1, on_disk(MAX_PAUSED_BYTES / 2)),
        of("large", "b", now - 2, on_disk(1)),
        of("large", "c", now - 3, on_disk(MAX_PAUSED_BYTES / 2)),
        of("small", "d", now - 99, on_disk(9)),
        of("small", "e", now - 98, on_disk(9)),
        of("small", "f", now - 97, on_disk(9)),
        of("small", "g", now - 96, on_disk(9)),
    ];
    assert_eq!(swept(uploads, 64), ["c"]);
}

fn kept(folder: &std::path::Path) -> Arc<UploadSessions> {
    let store = crate::daemon::store::state_dir::StateDir::open(folder).unwrap();
    Arc::new(UploadSessions::load(store.uploads(), Vec::new()))
}

#[test]
fn one_call_at_a_time_has_an_upload() {
    let folder = tempfile::tempdir().unwrap();
    let kept = kept(folder.path());
    let record = upload("a", 0, UploadState::Complete).1.record;
    let stop = CancellationToken::new();
    let LeaseOutcome::New(lease) = kept.acquire(record.clone(), &stop).unwrap() else {
        panic!("it is new");
    };
    let second = CancellationToken::new();
    let LeaseOutcome::Busy(over) = kept.acquire(record.clone(), &second).unwrap() else {
        panic!("the first call has it");
    };
    assert!(stop.is_cancelled() && lease.was_taken_over());
    assert!(!over.is_cancelled());
    drop(lease);
    assert!(over.is_cancelled());
    assert!(kept.find("w", "a").is_none(), "nothing had come");
    let LeaseOutcome::New(lease) = kept.acquire(record.clone(), &second).unwrap() else {
        panic!("it is new again");
    };
    lease.complete(true);
    let again = kept.acquire(record.clone(), &second).unwrap();
    assert!(matches!(again, LeaseOutcome::Complete(true)));
    let other = UploadRecord { size: 1, ..record };
    let error = kept.acquire(other, &second).unwrap_err();
    assert_eq!(error.reason, Reason::InvalidParams);
}

#[test]
fn uploads_that_go_on_are_not_swept_for_others() {
    let folder = tempfile::tempdir().unwrap();
    let kept = kept(folder.path());
    let stop = CancellationToken::new();
    let mut leases = Vec::new();
    for number in 0..MAX_UPLOAD_SESSIONS {
        let record = upload(&number.to_string(), 0, UploadState::Complete).1.record;
        leases.push(kept.acquire(record, &stop).unwrap());
    }
    let record = upload("more", 0, UploadState::Complete).1.record;
    let error = kept.acquire(record.clone(), &stop).unwrap_err();
    assert_eq!(error.reason, Reason::ResourceExhausted);
    leases.pop();
    assert!(kept.acquire(record, &stop).is_ok());
}

#[test]
fn what_is_too_old_is_told_to_nobody_and_begun_anew() {
    let folder = tempfile::tempdir().unwrap();
    let kept = kept(folder.path());
    let stop = CancellationToken::new();
    for (age, is_kept) in
        [(UPLOAD_RETENTION.as_secs() - 60, true), (UPLOAD_RETENTION.as_secs(), false)]
    {
        let (key, upload) = upload("a", now_unix_secs() - age, UploadState::OnDisk(7));
        let record = upload.record.clone();
        kept.lock().insert(key, upload);
        assert_eq!(kept.find("w", "a").is_some(), is_kept, "{age}");
        let begun = kept.acquire(record, &stop).unwrap();
        assert_eq!(matches!(begun, LeaseOutcome::OnDisk(..)), is_kept, "{begun:?}");
        assert_eq!(matches!(begun, LeaseOutcome::New(_)), !is_kept, "{begun:?}");
        // However old, while a call receives it.
        kept.lock().values_mut().for_each(|upload| upload.record.touched = 0);
        assert!(kept.find("w", "a").is_some());
    }
}
