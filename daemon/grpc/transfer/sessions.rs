//! The uploads that have begun, as far as they are kept.
//!
//! ```text
//!            begin            rest (the connection was lost)
//!   (none) ───────▶ active ─────────────────────────────▶ resting ──▶ swept: its time is over,
//!                    ▲ │ │ └▶ complete (for repeats) ─────────────────▲      or there are too many
//!                    │ │ └▶ forgotten (nothing to resume)             │
//!                    │ └── begin of another call: told to rest ───────│
//!                    └────────── begin ◀── resting, or found on disk ─┘
//! ```
//!
//! What an earlier daemon left is found on disk: a draft, or a file that is in its place already.
//! Daemons for one call share their records: each sweeps at its start what is of no use to anybody,
//! and has those uploads only that it is asked for and that no other daemon has.

mod session;

use std::{
    collections::{HashMap, hash_map::Entry},
    io, mem,
    sync::{Arc, Mutex, MutexGuard, PoisonError, atomic::Ordering},
    time::Duration,
};

use tokio::{sync::Notify, time::sleep};
use tokio_util::sync::CancellationToken;

pub(super) use self::session::{MAX_PAUSED_BYTES, expires_at};
use self::session::{
    UploadAttempt, UploadKey, UploadSession, UploadState, draft_place, evict, now_unix_secs,
    take_expired, upload_key,
};
use crate::daemon::{
    error::{Error, Reason},
    fd_exhaustion::{fd_exhausted_error, is_fd_exhaustion},
    store::{
        failure::state_failure,
        uploads::{UploadRecord, UploadRecords},
    },
    task,
    workspace::{PartialFile, PartialFileLocation, PartialFileState, Workspace},
};

/// Uploads that are kept, those that go on included.
const MAX_UPLOAD_SESSIONS: usize = 64;

/// All of them.
#[derive(Debug)]
pub(super) struct UploadSessions {
    records: UploadRecords,
    workspaces: Vec<Arc<Workspace>>,
    uploads: Mutex<HashMap<UploadKey, UploadSession>>,
    /// Told when a call leaves one, which expires from then on.
    released: Notify,
}

/// A call's hold on an upload. Dropping it forgets the upload and deletes what has come of it.
#[derive(Debug)]
pub(super) struct UploadLease {
    sessions: Arc<UploadSessions>,
    key: UploadKey,
    attempt: UploadAttempt,
    released: bool,
}

/// What there is of an upload when a call begins.
#[derive(Debug)]
pub(super) enum LeaseOutcome {
    /// Nothing.
    New(UploadLease),
    /// Some of it.
    Paused(UploadLease, Box<PartialFile>),
    /// Some of it, which must be found first.
    OnDisk(UploadLease, PartialFileLocation),
    /// All of it. Whether nothing was there before.
    Complete(bool),
    /// Another call has it and was told to end: try again after that.
    Busy(CancellationToken),
}

// === impl Kept ===

impl UploadSessions {
    /// What an earlier daemon kept. What cannot be resumed is swept. Blocks.
    pub(super) fn load(records: UploadRecords, workspaces: Vec<Arc<Workspace>>) -> Self {
        let kept = Self { records, workspaces, uploads: Mutex::default(), released: Notify::new() };
        // Another daemon that looks now sweeps as well as this one.
        let Some(_look) = kept.records.try_lock_folder() else {
            return kept;
        };
        let mut uploads = kept.recover(kept.records.load());
        let swept = evict(&mut uploads, MAX_UPLOAD_SESSIONS);
        swept.into_iter().for_each(|upload| kept.sweep(upload));
        if kept.records.are_shared() {
            // Another daemon may be asked to go on with one; who is asked looks again.
            for upload in uploads.values() {
                kept.records.release(&upload.record.name);
            }
        } else {
            *kept.lock() = uploads;
        }
        kept
    }

    /// What is of use of records that an earlier daemon left. The rest is swept.
    fn recover(&self, mut records: Vec<UploadRecord>) -> HashMap<UploadKey, UploadSession> {
        // Of several of one id, the last one counts.
        records.sort_by_key(|record| record.touched);
        let mut uploads = HashMap::new();
        for mut record in records {
            let useless = match self.recover_state(&mut record) {
                Some(state) => uploads.insert(upload_key(&record), UploadSession { record, state }),
                None => Some(UploadSession { record, state: UploadState::OnDisk(0) }),
            };
            useless.into_iter().for_each(|upload| self.sweep(upload));
        }
        uploads
    }

    /// Takes an upload that another daemon left, where several share their records. Blocks.
    fn adopt_orphaned(&self, key: &UploadKey) {
        if !self.records.are_shared() || self.lock().contains_key(key) {
            return;
        }
        let _look = self.records.lock_folder();
        let found = self.records.load();
        let (wanted, others): (Vec<_>, Vec<_>) =
            found.into_iter().partition(|record| session::upload_key(record) == *key);
        for record in others {
            self.records.release(&record.name);
        }
        for (key, upload) in self.recover(wanted) {
            match self.lock().entry(key) {
                Entry::Vacant(place) => {
                    place.insert(upload);
                }
                // Begun at this moment.
                Entry::Occupied(_) => self.records.release(&upload.record.name),
            }
        }
    }

    /// What there is of an upload of an earlier daemon; none where that is of no use.
    fn recover_state(&self, record: &mut UploadRecord) -> Option<UploadState> {
        if record.complete.is_some() {
            return Some(UploadState::Complete);
        }
        let left = self
            .workspace(&record.workspace)
            .map(|workspace| workspace.recover_partial_file(&draft_place(record)));
        let resumable = record.upload_id.is_some();
        match left {
            Some(Ok(PartialFileState::Partial(bytes))) if resumable && bytes <= record.size => {
                Some(UploadState::OnDisk(bytes))
            }
            // The daemon died before it could write that down.
            Some(Ok(PartialFileState::Committed(bytes))) if resumable && bytes == record.size => {
                record.complete = record.replaces.map(|replaces| !replaces);
                self.save(record);
                Some(UploadState::Complete)
            }
            Some(Ok(_)) => None,
            Some(Err(error)) => {
                tracing::warn!(path = record.path, %error, "what is left of an upload cannot be reached");
                Some(UploadState::OnDisk(0))
            }
            // It may be served another time.
            None => Some(UploadState::OnDisk(0)),
        }
    }

    /// An upload that can be resumed, and where it is to go on. Blocks.
    pub(super) fn find(&self, workspace: &str, id: &str) -> Option<(UploadRecord, u64)> {
        let key = (workspace.to_owned(), id.to_owned());
        self.adopt_orphaned(&key);
        let uploads = self.lock();
        let upload = uploads.get(&key)?;
        upload.record.upload_id.as_ref()?;
        if upload.is_expired() {
            return None; // and is being swept
        }
        Some((upload.record.clone(), upload.offset()))
    }

    /// Begins a call's turn at the upload of `record`. `stop` ends the turn. Blocks.
    pub(super) fn acquire(
        self: &Arc<Self>,
        mut record: UploadRecord,
        stop: &CancellationToken,
    ) -> Result<LeaseOutcome, Error> {
        let key = upload_key(&record);
        self.adopt_orphaned(&key);
        self.sweep_expired();
        let turn = UploadAttempt::new(stop);
        let lease = |turn| UploadLease {
            sessions: Arc::clone(self),
            key: key.clone(),
            attempt: turn,
            released: false,
        };
        let mut uploads = self.lock();
        if let Some(upload) = uploads.get_mut(&key) {
            let is = &upload.record;
            if (&is.path, is.size, &is.sha256) != (&record.path, record.size, &record.sha256) {
                return Err(Error::invalid_field(
                    "start.upload_id",
                    format!(
                        "was used for {} with {} bytes: repeat that path, size and sha256, or choose another id",
                        is.path, is.size
                    ),
                ));
            }
            if let (UploadState::Complete, Some(created)) = (&upload.state, is.complete) {
                if is.wishes != record.wishes {
                    let text = "was used for the same file with another mode, expected_sha256 or file_mode, and that is done: choose another id";
                    return Err(Error::invalid_field("start.upload_id", text));
                }
                return Ok(LeaseOutcome::Complete(created));
            }
            if let UploadState::Active(other) = &upload.state {
                other.take_over();
                return Ok(LeaseOutcome::Busy(other.finished.clone()));
            }
            upload.record.touched = now_unix_secs();
            // What a call wants of it may change until it is done.
            upload.record.wishes = record.wishes;
            turn.progress.store(upload.offset(), Ordering::Relaxed);
            return Ok(match mem::replace(&mut upload.state, UploadState::Active(turn.clone())) {
                UploadState::Paused(draft) => LeaseOutcome::Paused(lease(turn), draft),
                UploadState::OnDisk(_) => {
                    LeaseOutcome::OnDisk(lease(turn), draft_place(&upload.record))
                }
                UploadState::Active(_) | UploadState::Complete => LeaseOutcome::New(lease(turn)),
            });
        }
        let swept = evict(&mut uploads, MAX_UPLOAD_SESSIONS - 1);
        let is_room = uploads.len() < MAX_UPLOAD_SESSIONS;
        if is_room {
            record.touched = now_unix_secs();
            let state = UploadState::Active(turn.clone());
            uploads.insert(key.clone(), UploadSession { record, state });
        }
        drop(uploads);
        swept.into_iter().for_each(|upload| self.sweep(upload));
        if is_room {
            return Ok(LeaseOutcome::New(lease(turn)));
        }
        let text = "too many uploads go on: try again after the time given";
        Err(Error::new(Reason::ResourceExhausted, text).retry_after(Duration::from_secs(1)))
    }

    /// Sweeps each upload when its time is over, until `end`.
    pub(super) async fn run_sweeper(self: Arc<Self>, end: CancellationToken) {
        loop {
            let next = {
                let uploads = self.lock();
                uploads.values().filter_map(UploadSession::time_left).min()
            };
            let time = async {
                match next {
                    Some(left) => sleep(left).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = end.cancelled() => return,
                () = self.released.notified() => {}
                () = time => {
                    let kept = Arc::clone(&self);
                    let swept = task::spawn_blocking(move || kept.sweep_expired()).await;
                    if let Err(error) = swept {
                        tracing::error!(%error, "sweeping uploads failed");
                    }
                }
            }
        }
    }

    /// Sweeps the uploads whose time is over. Blocks.
    fn sweep_expired(&self) {
        let expired = take_expired(&mut self.lock());
        expired.into_iter().for_each(|upload| self.sweep(upload));
    }

    /// Deletes what has come of an upload, and its record; not the record of what cannot be deleted,
    /// so that a later daemon can. Blocks.
    fn sweep(&self, UploadSession { record, state }: UploadSession) {
        let is_gone = match state {
            UploadState::Paused(draft) => draft.discard(),
            UploadState::Active(_) | UploadState::OnDisk(_) => self
                .workspace(&record.workspace)
                .is_some_and(|workspace| workspace.delete_partial_file(&draft_place(&record))),
            UploadState::Complete => true,
        };
        if is_gone {
            self.records.remove(&record.name);
        } else {
            self.records.release(&record.name);
        }
    }

    fn try_save(&self, record: &UploadRecord) -> io::Result<()> {
        let workspace = self.workspace(&record.workspace);
        let sync = workspace.is_some_and(Workspace::syncs_changes);
        self.records.save(record, sync)
    }

    fn save(&self, record: &UploadRecord) {
        // Without it, a repeat after a restart finds less than there is, and starts again.
        if let Err(error) = self.try_save(record) {
            tracing::warn!(%error, "the record of an upload cannot be written");
        }
    }

    fn workspace(&self, name: &str) -> Option<&Workspace> {
        let mut workspaces = self.workspaces.iter();
        workspaces.find(|workspace| workspace.name() == name).map(|workspace| &**workspace)
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<UploadKey, UploadSession>> {
        self.uploads.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// === impl Lease ===

impl UploadLease {
    /// Tells how many bytes are there.
    pub(super) fn set_progress(&self, bytes: u64) {
        self.attempt.progress.store(bytes, Ordering::Relaxed);
    }

    /// Whether another call goes on with the upload.
    pub(super) fn was_taken_over(&self) -> bool {
        self.attempt.was_taken_over()
    }

    /// Writes down where the draft lies, so that it is found again if the daemon dies. Blocks.
    pub(super) fn record_draft(&self, place: &PartialFileLocation) -> Result<(), Error> {
        let noted = self.touch(|record| {
            record.draft_name.clone_from(&place.name);
            record.draft_identity = place.identity;
            record.replaces = place.replaces;
        });
        let Some(record) = noted else {
            return Ok(());
        };
        self.sessions.try_save(&record).map_err(|error| {
            if is_fd_exhaustion(&error) {
                return fd_exhausted_error(error, "the record of the upload");
            }
            state_failure(&error).with_cause(error)
        })
    }

    /// Leaves an upload of an earlier daemon as it was found.
    pub(super) fn release_unchanged(mut self) {
        self.released = true;
        if let Some(upload) = self.sessions.lock().get_mut(&self.key) {
            upload.state = UploadState::OnDisk(self.attempt.progress.load(Ordering::Relaxed));
        }
        self.release();
    }

    /// Keeps the upload for later, or drops it where it cannot be resumed. Blocks.
    pub(super) fn pause(mut self, draft: PartialFile) {
        let Some(record) = self.touch(|_| {}) else {
            return;
        };
        if record.upload_id.is_none() || !self.sessions.records.are_persistent() {
            draft.discard();
            return; // which forgets the upload
        }
        // While it is this call's, so that no other's record is overwritten.
        self.sessions.save(&record);
        self.released = true;
        let swept = {
            let mut uploads = self.sessions.lock();
            if let Some(upload) = uploads.get_mut(&self.key) {
                upload.state = UploadState::Paused(Box::new(draft));
            }
            evict(&mut uploads, MAX_UPLOAD_SESSIONS)
        };
        swept.into_iter().for_each(|upload| self.sessions.sweep(upload));
        self.release();
    }

    /// Remembers that the file is in its place. Blocks.
    pub(super) fn complete(mut self, created: bool) {
        let Some(record) = self.touch(|record| record.complete = Some(created)) else {
            return;
        };
        if record.upload_id.is_none() {
            return; // which forgets the upload
        }
        self.sessions.save(&record);
        self.released = true;
        if let Some(upload) = self.sessions.lock().get_mut(&self.key) {
            upload.state = UploadState::Complete;
        }
        self.release();
    }

    /// Ends the turn and leaves the upload to others.
    fn release(&self) {
        self.sessions.released.notify_one();
        self.attempt.finished.cancel();
    }

    /// Notes that something has come, and what else there is to note.
    fn touch(&self, note: impl FnOnce(&mut UploadRecord)) -> Option<UploadRecord> {
        let mut uploads = self.sessions.lock();
        let record = &mut uploads.get_mut(&self.key)?.record;
        record.touched = now_unix_secs();
        note(record);
        Some(record.clone())
    }
}

impl Drop for UploadLease {
    fn drop(&mut self) {
        if !self.released {
            let forgotten = self.sessions.lock().remove(&self.key);
            forgotten.into_iter().for_each(|upload| self.sessions.sweep(upload));
            self.attempt.finished.cancel();
        }
    }
}

#[cfg(test)]
mod tests;
