//! The state of one upload session, and the eviction of sessions.

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

/// Maximum size of all paused uploads together.
pub(in super::super) const MAX_PAUSED_BYTES: u64 = 64 << 30;
/// How long an upload session is stored after its last progress.
pub(super) const UPLOAD_RETENTION: Duration = Duration::from_secs(24 * 3600);

/// Workspace and upload id. Uploads that cannot be resumed have an id that no caller can give.
pub(super) type UploadKey = (String, String);

#[derive(Debug)]
pub(super) struct UploadSession {
    /// The record that is stored on disk.
    pub(super) record: UploadRecord,
    pub(super) state: UploadState,
}

#[derive(Debug)]
pub(super) enum UploadState {
    /// A call receives data.
    Active(UploadAttempt),
    /// Interrupted; can be resumed.
    Paused(Box<PartialFile>),
    /// Interrupted under an earlier daemon, with this number of bytes; can be resumed.
    OnDisk(u64),
    /// The file is committed. Stored to answer repeats.
    Complete,
}

/// One call's attempt to receive an upload.
#[derive(Debug, Clone)]
pub(super) struct UploadAttempt {
    stop: CancellationToken,
    /// Number of bytes received so far.
    pub(super) progress: Arc<AtomicU64>,
    taken_over: Arc<AtomicBool>,
    /// Cancelled when the attempt has ended.
    pub(super) finished: CancellationToken,
}

impl UploadSession {
    /// Time until the session expires. `None` while it is active.
    pub(super) fn time_left(&self) -> Option<Duration> {
        (!self.is_active()).then(|| expires_at(&self.record).saturating_sub(since_epoch()))
    }

    pub(super) fn is_expired(&self) -> bool {
        self.time_left() == Some(Duration::ZERO)
    }

    fn is_active(&self) -> bool {
        matches!(self.state, UploadState::Active(_))
    }

    /// Bytes that count against [`MAX_PAUSED_BYTES`].
    fn paused_bytes(&self) -> u64 {
        match self.state {
            UploadState::Paused(_) | UploadState::OnDisk(_) => self.offset(),
            UploadState::Active(_) | UploadState::Complete => 0,
        }
    }

    /// Number of bytes received so far.
    pub(super) fn offset(&self) -> u64 {
        match &self.state {
            UploadState::Active(attempt) => attempt.progress.load(Ordering::Relaxed),
            UploadState::Paused(file) => file.length(),
            UploadState::OnDisk(length) => *length,
            UploadState::Complete => self.record.size,
        }
    }
}

impl UploadAttempt {
    /// Creates an attempt that `stop` ends.
    pub(super) fn new(stop: &CancellationToken) -> Self {
        Self {
            stop: stop.clone(),
            progress: Arc::default(),
            taken_over: Arc::default(),
            finished: CancellationToken::new(),
        }
    }

    /// Ends the attempt, so that another call can continue the upload.
    pub(super) fn take_over(&self) {
        self.taken_over.store(true, Ordering::Relaxed);
        self.stop.cancel();
    }

    /// Whether another call has taken over the upload.
    pub(super) fn was_taken_over(&self) -> bool {
        self.taken_over.load(Ordering::Relaxed)
    }
}

/// When an upload session expires, as time since 1970.
pub(in super::super) fn expires_at(record: &UploadRecord) -> Duration {
    Duration::from_secs(record.touched).saturating_add(UPLOAD_RETENTION)
}

/// Removes and returns expired sessions.
pub(super) fn take_expired(uploads: &mut HashMap<UploadKey, UploadSession>) -> Vec<UploadSession> {
    let expired = uploads.extract_if(|_, upload| upload.is_expired());
    let mut expired: Vec<UploadSession> = expired.map(|(_, upload)| upload).collect();
    expired.sort_by(|one, other| one.record.name.cmp(&other.record.name));
    expired
}

/// Removes and returns sessions that have expired or exceed the limits in number and bytes.
///
/// Evicts from the workspace with the most, so that one workspace cannot evict the sessions of
/// another. Complete sessions go first: they lose only the response to a repeat. Then the oldest.
/// Active sessions are never evicted.
pub(super) fn evict(
    uploads: &mut HashMap<UploadKey, UploadSession>,
    max_sessions: usize,
) -> Vec<UploadSession> {
    let mut evicted = take_expired(uploads);
    while uploads.len() > max_sessions
        && let Some(key) = eviction_candidate(uploads, |_| 1)
    {
        evicted.extend(uploads.remove(&key));
    }

    let bytes = |uploads: &HashMap<UploadKey, UploadSession>| -> u64 {
        uploads.values().map(UploadSession::paused_bytes).sum()
    };
    while bytes(uploads) > MAX_PAUSED_BYTES
        && let Some(key) = eviction_candidate(uploads, UploadSession::paused_bytes)
    {
        evicted.extend(uploads.remove(&key));
    }
    evicted
}

/// The next session to evict, of those that use some of the exceeded resource.
fn eviction_candidate(
    uploads: &HashMap<UploadKey, UploadSession>,
    usage: impl Fn(&UploadSession) -> u64,
) -> Option<UploadKey> {
    let mut usage_by_workspace: HashMap<&str, u64> = HashMap::new();
    for ((workspace, _), upload) in uploads {
        *usage_by_workspace.entry(workspace).or_default() += usage(upload);
    }

    let is_candidate = |upload: &UploadSession| !upload.is_active() && usage(upload) > 0;
    let candidates = uploads.iter().filter(|(_, upload)| is_candidate(upload));
    let first = candidates.min_by_key(|((workspace, id), upload)| {
        let usage = usage_by_workspace.get(workspace.as_str()).copied();
        let is_incomplete = !matches!(upload.state, UploadState::Complete);
        (Reverse(usage), is_incomplete, upload.record.touched, workspace, id)
    });
    first.map(|(key, _)| key.clone())
}

/// The key of an upload session.
pub(super) fn upload_key(record: &UploadRecord) -> UploadKey {
    let id = match &record.upload_id {
        Some(id) => id.clone(),
        None => format!(".{}", record.name),
    };
    (record.workspace.clone(), id)
}

/// Location of the received part of an upload.
pub(super) fn partial_file_location(record: &UploadRecord) -> PartialFileLocation {
    PartialFileLocation {
        path: record.path.clone(),
        name: record.partial_name.clone(),
        identity: record.partial_identity,
        replaces: record.replaces,
    }
}

pub(super) fn now_unix_secs() -> u64 {
    since_epoch().as_secs()
}

fn since_epoch() -> Duration {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.unwrap_or_default()
}
