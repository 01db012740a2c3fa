//! One upload that has begun, what of it is written down, and how many of them are kept.

use std::{
    cmp::Reverse,
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use tokio_util::sync::CancellationToken;

use crate::daemon::{
    store::uploads::UploadRecord,
    workspace::{Draft, DraftPlace},
};

/// Bytes that resting uploads may have together.
pub(in super::super) const MOST_BYTES: u64 = 64 << 30;
/// How long an upload is kept after something last came.
pub(super) const AGE: Duration = Duration::from_secs(24 * 3600);

/// Workspace and id. One that cannot be resumed has an id that no caller can give.
pub(super) type Key = (String, String);

/// An upload.
#[derive(Debug)]
pub(super) struct Upload {
    /// What is written down of it.
    pub(super) record: UploadRecord,
    /// What becomes of it now.
    pub(super) state: State,
}

/// What becomes of an upload now.
#[derive(Debug)]
pub(super) enum State {
    /// A call receives it.
    Active(Turn),
    /// It can be resumed.
    Resting(Box<Draft>),
    /// It can be resumed; it came with an earlier daemon, and has so many bytes.
    OnDisk(u64),
    /// The file is in its place.
    Complete,
}

/// One call's turn at an upload.
#[derive(Debug, Clone)]
pub(super) struct Turn {
    stop: CancellationToken,
    /// Bytes that are there.
    pub(super) progress: Arc<AtomicU64>,
    taken_over: Arc<AtomicBool>,
    /// Cancelled when it is over.
    pub(super) over: CancellationToken,
}

// === impl Upload ===

impl Upload {
    /// Time until it is dropped; none while a call receives it.
    pub(super) fn time_left(&self) -> Option<Duration> {
        (!self.is_active()).then(|| expiry(&self.record).saturating_sub(since_1970()))
    }

    /// Whether it is to be swept.
    pub(super) fn is_over(&self) -> bool {
        self.time_left() == Some(Duration::ZERO)
    }

    fn is_active(&self) -> bool {
        matches!(self.state, State::Active(_))
    }

    /// Bytes that take room while no call receives it.
    fn resting_bytes(&self) -> u64 {
        match self.state {
            State::Resting(_) | State::OnDisk(_) => self.offset(),
            State::Active(_) | State::Complete => 0,
        }
    }

    /// Bytes that have come.
    pub(super) fn offset(&self) -> u64 {
        match &self.state {
            State::Active(turn) => turn.progress.load(Ordering::Relaxed),
            State::Resting(draft) => draft.length(),
            State::OnDisk(length) => *length,
            State::Complete => self.record.size,
        }
    }
}

// === impl Turn ===

impl Turn {
    /// A turn, which `stop` ends.
    pub(super) fn new(stop: &CancellationToken) -> Self {
        Self {
            stop: stop.clone(),
            progress: Arc::default(),
            taken_over: Arc::default(),
            over: CancellationToken::new(),
        }
    }

    /// Tells it to end, so that another call can go on.
    pub(super) fn take_over(&self) {
        self.taken_over.store(true, Ordering::Relaxed);
        self.stop.cancel();
    }

    /// Whether another call goes on with the upload.
    pub(super) fn was_taken_over(&self) -> bool {
        self.taken_over.load(Ordering::Relaxed)
    }
}

/// When an upload is dropped, as time since 1970.
pub(in super::super) fn expiry(record: &UploadRecord) -> Duration {
    Duration::from_secs(record.touched).saturating_add(AGE)
}

/// Takes out those whose time is over.
pub(super) fn take_expired(uploads: &mut HashMap<Key, Upload>) -> Vec<Upload> {
    let expired = uploads.extract_if(|_, upload| upload.is_over());
    let mut expired: Vec<Upload> = expired.map(|(_, upload)| upload).collect();
    expired.sort_by(|one, other| one.record.name.cmp(&other.record.name));
    expired
}

/// Takes out what is too old, and what is too much of the workspace that has most, so that nobody loses what
/// is kept of his because others begin many: complete ones first, which have nothing to lose but the answer
/// to a repeat, then the oldest. What a call receives stays.
pub(super) fn make_room(uploads: &mut HashMap<Key, Upload>, most: usize) -> Vec<Upload> {
    let mut taken = take_expired(uploads);
    while uploads.len() > most
        && let Some(key) = first_to_go(uploads, |_| 1)
    {
        taken.extend(uploads.remove(&key));
    }
    let bytes = |uploads: &HashMap<Key, Upload>| -> u64 {
        uploads.values().map(Upload::resting_bytes).sum()
    };
    while bytes(uploads) > MOST_BYTES
        && let Some(key) = first_to_go(uploads, Upload::resting_bytes)
    {
        taken.extend(uploads.remove(&key));
    }
    taken
}

/// The one that goes first, of those that have something `of` what there is too much of.
fn first_to_go(uploads: &HashMap<Key, Upload>, of: impl Fn(&Upload) -> u64) -> Option<Key> {
    let mut held: HashMap<&str, u64> = HashMap::new();
    for ((workspace, _), upload) in uploads {
        *held.entry(workspace).or_default() += of(upload);
    }
    let may_go = |upload: &Upload| !upload.is_active() && of(upload) > 0;
    let candidates = uploads.iter().filter(|(_, upload)| may_go(upload));
    let first = candidates.min_by_key(|((workspace, id), upload)| {
        let has = held.get(workspace.as_str()).copied();
        let is_draft = !matches!(upload.state, State::Complete);
        (Reverse(has), is_draft, upload.record.touched, workspace, id)
    });
    first.map(|(key, _)| key.clone())
}

/// Under which an upload is kept.
pub(super) fn key(record: &UploadRecord) -> Key {
    let id = match &record.upload_id {
        Some(id) => id.clone(),
        None => format!(".{}", record.name),
    };
    (record.workspace.clone(), id)
}

/// Where what has come of an upload lies.
pub(super) fn place(record: &UploadRecord) -> DraftPlace {
    DraftPlace {
        path: record.path.clone(),
        name: record.draft_name.clone(),
        identity: record.draft_identity,
        replaces: record.replaces,
    }
}

/// Seconds since 1970.
pub(super) fn now() -> u64 {
    since_1970().as_secs()
}

fn since_1970() -> Duration {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.unwrap_or_default()
}
