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
    workspace::{PartialFile, PartialFileLocation},
};

/// Bytes that resting uploads may have together.
pub(in super::super) const MAX_PAUSED_BYTES: u64 = 64 << 30;
/// How long an upload is kept after something last came.
pub(super) const UPLOAD_RETENTION: Duration = Duration::from_secs(24 * 3600);

/// Workspace and id. One that cannot be resumed has an id that no caller can give.
pub(super) type UploadKey = (String, String);

/// An upload.
#[derive(Debug)]
pub(super) struct UploadSession {
    /// What is written down of it.
    pub(super) record: UploadRecord,
    /// What becomes of it now.
    pub(super) state: UploadState,
}

/// What becomes of an upload now.
#[derive(Debug)]
pub(super) enum UploadState {
    /// A call receives it.
    Active(UploadAttempt),
    /// It can be resumed.
    Paused(Box<PartialFile>),
    /// It can be resumed; it came with an earlier daemon, and has so many bytes.
    OnDisk(u64),
    /// The file is in its place.
    Complete,
}

/// One call's turn at an upload.
#[derive(Debug, Clone)]
pub(super) struct UploadAttempt {
    stop: CancellationToken,
    /// Bytes that are there.
    pub(super) progress: Arc<AtomicU64>,
    taken_over: Arc<AtomicBool>,
    /// Cancelled when it is over.
    pub(super) finished: CancellationToken,
}

// === impl Upload ===

impl UploadSession {
    /// Time until it is dropped; none while a call receives it.
    pub(super) fn time_left(&self) -> Option<Duration> {
        (!self.is_active()).then(|| expires_at(&self.record).saturating_sub(since_epoch()))
    }

    /// Whether it is to be swept.
    pub(super) fn is_expired(&self) -> bool {
        self.time_left() == Some(Duration::ZERO)
    }

    fn is_active(&self) -> bool {
        matches!(self.state, UploadState::Active(_))
    }

    /// Bytes that take room while no call receives it.
    fn paused_bytes(&self) -> u64 {
        match self.state {
            UploadState::Paused(_) | UploadState::OnDisk(_) => self.offset(),
            UploadState::Active(_) | UploadState::Complete => 0,
        }
    }

    /// Bytes that have come.
    pub(super) fn offset(&self) -> u64 {
        match &self.state {
            UploadState::Active(turn) => turn.progress.load(Ordering::Relaxed),
            UploadState::Paused(draft) => draft.length(),
            UploadState::OnDisk(length) => *length,
            UploadState::Complete => self.record.size,
        }
    }
}

// === impl Turn ===

impl UploadAttempt {
    /// A turn, which `stop` ends.
    pub(super) fn new(stop: &CancellationToken) -> Self {
        Self {
            stop: stop.clone(),
            progress: Arc::default(),
            taken_over: Arc::default(),
            finished: CancellationToken::new(),
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
pub(in super::super) fn expires_at(record: &UploadRecord) -> Duration {
    Duration::from_secs(record.touched).saturating_add(UPLOAD_RETENTION)
}

/// Takes out those whose time is over.
pub(super) fn take_expired(uploads: &mut HashMap<UploadKey, UploadSession>) -> Vec<UploadSession> {
    let expired = uploads.extract_if(|_, upload| upload.is_expired());
    let mut expired: Vec<UploadSession> = expired.map(|(_, upload)| upload).collect();
    expired.sort_by(|one, other| one.record.name.cmp(&other.record.name));
    expired
}

/// Takes out what is too old, and what is too much of the workspace that has most, so that nobody loses what
/// is kept of his because others begin many: complete ones first, which have nothing to lose but the answer
/// to a repeat, then the oldest. What a call receives stays.
pub(super) fn evict(
    uploads: &mut HashMap<UploadKey, UploadSession>,
    most: usize,
) -> Vec<UploadSession> {
    let mut taken = take_expired(uploads);
    while uploads.len() > most
        && let Some(key) = eviction_candidate(uploads, |_| 1)
    {
        taken.extend(uploads.remove(&key));
    }
    let bytes = |uploads: &HashMap<UploadKey, UploadSession>| -> u64 {
        uploads.values().map(UploadSession::paused_bytes).sum()
    };
    while bytes(uploads) > MAX_PAUSED_BYTES
        && let Some(key) = eviction_candidate(uploads, UploadSession::paused_bytes)
    {
        taken.extend(uploads.remove(&key));
    }
    taken
}

/// The one that goes first, of those that have something `of` what there is too much of.
fn eviction_candidate(
    uploads: &HashMap<UploadKey, UploadSession>,
    of: impl Fn(&UploadSession) -> u64,
) -> Option<UploadKey> {
    let mut held: HashMap<&str, u64> = HashMap::new();
    for ((workspace, _), upload) in uploads {
        *held.entry(workspace).or_default() += of(upload);
    }
    let may_go = |upload: &UploadSession| !upload.is_active() && of(upload) > 0;
    let candidates = uploads.iter().filter(|(_, upload)| may_go(upload));
    let first = candidates.min_by_key(|((workspace, id), upload)| {
        let has = held.get(workspace.as_str()).copied();
        let is_draft = !matches!(upload.state, UploadState::Complete);
        (Reverse(has), is_draft, upload.record.touched, workspace, id)
    });
    first.map(|(key, _)| key.clone())
}

/// Under which an upload is kept.
pub(super) fn upload_key(record: &UploadRecord) -> UploadKey {
    let id = match &record.upload_id {
        Some(id) => id.clone(),
        None => format!(".{}", record.name),
    };
    (record.workspace.clone(), id)
}

/// Where what has come of an upload lies.
pub(super) fn draft_place(record: &UploadRecord) -> PartialFileLocation {
    PartialFileLocation {
        path: record.path.clone(),
        name: record.draft_name.clone(),
        identity: record.draft_identity,
        replaces: record.replaces,
    }
}

/// Seconds since 1970.
pub(super) fn now_unix_secs() -> u64 {
    since_epoch().as_secs()
}

fn since_epoch() -> Duration {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.unwrap_or_default()
}
