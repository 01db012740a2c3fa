//! Upload sessions: the state of uploads that can be resumed by a later call.
//!
//! ```text
//!           acquire           pause (the connection was lost)
//!   (none) ───────▶ active ─────────────────────────────▶ paused ───▶ deleted: it has expired,
//!                    ▲ │ │ └▶ complete (for repeats) ────────────────▲      or there are too many
//!                    │ │ └▶ removed (nothing to resume)              │
//!                    │ └── acquire by another call: takes over ──────│
//!                    └───────── acquire ◀── paused, or found on disk ┘
//! ```
//!
//! Sessions of an earlier daemon are found on disk: a partial file, or a file that is committed
//! already. Embedded daemons share their records. Each deletes useless ones when it starts, and
//! adopts an upload only on request and if no other daemon has it.

mod session;

use std::{
    collections::{HashMap, hash_map::Entry},
    io, mem,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak, atomic::Ordering},
    time::Duration,
};

use tokio::{sync::Notify, time::sleep};
use tokio_util::sync::CancellationToken;

pub(super) use self::session::{MAX_PAUSED_BYTES, expires_at};
use self::session::{
    UploadAttempt, UploadKey, UploadSession, UploadState, evict, now_unix_secs,
    partial_file_location, take_expired, upload_key,
};
use crate::daemon::{
    error::{Error, Reason},
    fd_exhaustion::{fd_exhausted_error, is_fd_exhaustion},
    pipeline::{Pipeline, workspace_records::WorkspaceRecords},
    store::{
        failure::state_failure,
        uploads::{UploadRecord, UploadRecords},
    },
    task,
    workspace::{PartialFile, PartialFileLocation, PartialFileState, Workspace},
};

/// Maximum number of sessions, active ones included.
const MAX_UPLOAD_SESSIONS: usize = 64;

/// All upload sessions of the daemon.
#[derive(Debug)]
pub(super) struct UploadSessions {
    records: UploadRecords,
    /// Has the workspaces. Does not keep it alive: it ends the daemon.
    pipeline: Weak<Pipeline>,
    uploads: Mutex<HashMap<UploadKey, UploadSession>>,
    /// Notified when a call releases a session, which can expire from then on.
    released: Notify,
}

/// A call's exclusive access to a session. Dropping it removes the session and its partial file.
#[derive(Debug)]
pub(super) struct UploadLease {
    sessions: Arc<UploadSessions>,
    key: UploadKey,
    attempt: UploadAttempt,
    released: bool,
}

/// The state of an upload when a call acquires it.
#[derive(Debug)]
pub(super) enum LeaseOutcome {
    /// No data.
    New(UploadLease),
    /// Some data, in an open partial file.
    Paused(UploadLease, Box<PartialFile>),
    /// Some data, in a partial file that must be opened first.
    OnDisk(UploadLease, PartialFileLocation),
    /// Committed. The value says whether the file is new.
    Complete(bool),
    /// Active in another call, which is being cancelled. Retry when the token is cancelled.
    Busy(CancellationToken),
}

impl LeaseOutcome {
    /// Releases the session as it was found. Blocks.
    pub(super) fn release(self) {
        match self {
            Self::Paused(lease, file) => lease.pause(*file),
            Self::OnDisk(lease, _) => lease.release_unchanged(),
            // Dropping a lease without data removes the session.
            Self::New(_) | Self::Complete(_) | Self::Busy(_) => {}
        }
    }
}

impl UploadSessions {
    /// Loads the sessions of earlier daemons. Deletes those that cannot be resumed. Blocks.
    pub(super) fn load(records: UploadRecords, pipeline: Weak<Pipeline>) -> Self {
        let sessions =
            Self { records, pipeline, uploads: Mutex::default(), released: Notify::new() };
        // If another daemon holds the lock, it deletes useless records as well.
        let Some(_lock) = sessions.records.try_lock_directory() else {
            return sessions;
        };

        let mut uploads = sessions.recover(sessions.records.load());
        sessions.delete_all(evict(&mut uploads, MAX_UPLOAD_SESSIONS));
        if sessions.records.are_shared() {
            // Any daemon may be asked to resume them. That daemon loads the record again.
            for upload in uploads.values() {
                sessions.records.release(&upload.record.name);
            }
        } else {
            *sessions.lock() = uploads;
        }
        sessions
    }

    /// Recovers the usable sessions from records of earlier daemons, and deletes the others.
    fn recover(&self, mut records: Vec<UploadRecord>) -> HashMap<UploadKey, UploadSession> {
        // Of several records with the same id, the latest wins.
        records.sort_by_key(|record| record.touched);
        let mut uploads = HashMap::new();
        for mut record in records {
            let unusable = match self.recover_state(&mut record) {
                Some(state) => uploads.insert(upload_key(&record), UploadSession { record, state }),
                None => Some(UploadSession { record, state: UploadState::OnDisk(0) }),
            };
            self.delete_all(unusable);
        }
        uploads
    }

    /// Adopts the session of a dead daemon, if daemons share their records. Blocks.
    fn adopt_orphaned(&self, key: &UploadKey) {
        if !self.records.are_shared() || self.lock().contains_key(key) {
            return;
        }

        let _lock = self.records.lock_directory();
        let records = self.records.load();
        let (matching, others): (Vec<_>, Vec<_>) =
            records.into_iter().partition(|record| upload_key(record) == *key);
        for record in others {
            self.records.release(&record.name);
        }
        for (key, upload) in self.recover(matching) {
            match self.lock().entry(key) {
                Entry::Vacant(entry) => {
                    entry.insert(upload);
                }
                // Another call has started it just now.
                Entry::Occupied(_) => self.records.release(&upload.record.name),
            }
        }
    }

    /// Recovers the state of a session of an earlier daemon. Returns `None` if it is unusable.
    fn recover_state(&self, record: &mut UploadRecord) -> Option<UploadState> {
        if record.complete.is_some() {
            return Some(UploadState::Complete);
        }

        let file = self
            .workspace(&record.workspace)
            .map(|workspace| workspace.recover_partial_file(&partial_file_location(record)));
        let is_resumable = record.upload_id.is_some();
        match file {
            Some(Ok(PartialFileState::Partial(bytes))) if is_resumable && bytes <= record.size => {
                Some(UploadState::OnDisk(bytes))
            }
            // The daemon died before it could record the commit.
            Some(Ok(PartialFileState::Committed(bytes)))
                if is_resumable && bytes == record.size =>
            {
                record.complete = record.replaces.map(|replaces| !replaces);
                self.save(record);
                Some(UploadState::Complete)
            }
            Some(Ok(_)) => None,
            Some(Err(error)) => {
                tracing::warn!(path = record.path, %error, "cannot read the partial file of an upload");
                Some(UploadState::OnDisk(0))
            }
            // This daemon does not serve the workspace. A later one may.
            None => Some(UploadState::OnDisk(0)),
        }
    }

    /// Finds a session that can be resumed. Returns its record and offset. Blocks.
    pub(super) fn find(&self, workspace: &str, id: &str) -> Option<(UploadRecord, u64)> {
        let key = (workspace.to_owned(), id.to_owned());
        self.adopt_orphaned(&key);
        let uploads = self.lock();
        let upload = uploads.get(&key)?;
        upload.record.upload_id.as_ref()?;
        if upload.is_expired() {
            return None; // the sweeper deletes it
        }
        Some((upload.record.clone(), upload.offset()))
    }

    /// Acquires the session of `record`, or creates it. `stop` ends the attempt. Blocks.
    ///
    /// # Errors
    ///
    /// Rejects an upload id of another file, and a new upload when all sessions are active.
    pub(super) fn acquire(
        self: &Arc<Self>,
        mut record: UploadRecord,
        stop: &CancellationToken,
    ) -> Result<LeaseOutcome, Error> {
        let key = upload_key(&record);
        self.adopt_orphaned(&key);
        self.delete_expired();

        let attempt = UploadAttempt::new(stop);
        let mut uploads = self.lock();
        if let Some(upload) = uploads.get_mut(&key) {
            return self.acquire_existing(key, upload, record, attempt);
        }

        let evicted = evict(&mut uploads, MAX_UPLOAD_SESSIONS - 1);
        let has_slot = uploads.len() < MAX_UPLOAD_SESSIONS;
        if has_slot {
            record.touched = now_unix_secs();
            let state = UploadState::Active(attempt.clone());
            uploads.insert(key.clone(), UploadSession { record, state });
        }
        drop(uploads);
        self.delete_all(evicted);
        if has_slot {
            return Ok(LeaseOutcome::New(self.lease(key, attempt)));
        }
        let text = "too many uploads are in progress: retry after the delay in RetryInfo";
        Err(Error::new(Reason::ResourceExhausted, text).with_retry_after(Duration::from_secs(1)))
    }

    fn acquire_existing(
        self: &Arc<Self>,
        key: UploadKey,
        upload: &mut UploadSession,
        record: UploadRecord,
        attempt: UploadAttempt,
    ) -> Result<LeaseOutcome, Error> {
        let stored = &upload.record;
        if (&stored.path, stored.size, &stored.sha256)
            != (&record.path, record.size, &record.sha256)
        {
            let text = format!(
                "was used for {} with {} bytes: repeat that path, size and sha256, or choose another id",
                stored.path, stored.size
            );
            return Err(Error::invalid_field("start.upload_id", text));
        }
        if let (UploadState::Complete, Some(created)) = (&upload.state, stored.complete) {
            if stored.options != record.options {
                let text = "was used for the same file with another mode, expected_sha256 or file_mode, and that upload is complete: choose another id";
                return Err(Error::invalid_field("start.upload_id", text));
            }
            return Ok(LeaseOutcome::Complete(created));
        }
        if let UploadState::Active(other) = &upload.state {
            other.take_over();
            return Ok(LeaseOutcome::Busy(other.finished.clone()));
        }

        // The options may change until the upload is complete.
        upload.record.options = record.options;
        upload.record.touched = now_unix_secs();
        attempt.progress.store(upload.offset(), Ordering::Relaxed);
        let active = UploadState::Active(attempt.clone());
        let lease = self.lease(key, attempt);
        Ok(match mem::replace(&mut upload.state, active) {
            UploadState::Paused(file) => LeaseOutcome::Paused(lease, file),
            UploadState::OnDisk(_) => {
                LeaseOutcome::OnDisk(lease, partial_file_location(&upload.record))
            }
            UploadState::Active(_) | UploadState::Complete => LeaseOutcome::New(lease),
        })
    }

    fn lease(self: &Arc<Self>, key: UploadKey, attempt: UploadAttempt) -> UploadLease {
        UploadLease { sessions: Arc::clone(self), key, attempt, released: false }
    }

    /// Deletes each session when it expires, until `end`.
    pub(super) async fn run_sweeper(self: Arc<Self>, end: CancellationToken) {
        loop {
            let next_expiry = {
                let uploads = self.lock();
                uploads.values().filter_map(UploadSession::time_left).min()
            };
            let expiry = async {
                match next_expiry {
                    Some(left) => sleep(left).await,
                    None => std::future::pending().await,
                }
            };

            tokio::select! {
                () = end.cancelled() => return,
                () = self.released.notified() => {}
                () = expiry => {
                    let sessions = Arc::clone(&self);
                    let deleted = task::spawn_blocking(move || sessions.delete_expired()).await;
                    if let Err(error) = deleted {
                        tracing::error!(%error, "cannot delete expired uploads");
                    }
                }
            }
        }
    }

    /// Deletes expired sessions. Blocks.
    fn delete_expired(&self) {
        let expired = take_expired(&mut self.lock());
        self.delete_all(expired);
    }

    fn delete_all(&self, uploads: impl IntoIterator<Item = UploadSession>) {
        uploads.into_iter().for_each(|upload| self.delete(upload));
    }

    /// Deletes the partial file of an upload, then its record. Blocks.
    ///
    /// Keeps the record if the file cannot be deleted, so that a later daemon can delete it.
    fn delete(&self, UploadSession { record, state }: UploadSession) {
        let is_deleted = match state {
            UploadState::Paused(file) => file.discard(),
            UploadState::Active(_) | UploadState::OnDisk(_) => {
                self.workspace(&record.workspace).is_some_and(|workspace| {
                    workspace.delete_partial_file(&partial_file_location(&record))
                })
            }
            UploadState::Complete => true,
        };
        if is_deleted {
            self.records.remove(&record.name);
        } else {
            self.records.release(&record.name);
        }
    }

    fn try_save(&self, record: &UploadRecord) -> io::Result<()> {
        let workspace = self.workspace(&record.workspace);
        let sync = workspace.is_some_and(|workspace| workspace.syncs_changes());
        self.records.save(record, sync)
    }

    fn save(&self, record: &UploadRecord) {
        // Without the record, a repeat after a restart finds less data and starts again.
        if let Err(error) = self.try_save(record) {
            tracing::warn!(%error, "cannot write the record of an upload");
        }
    }

    fn workspace(&self, name: &str) -> Option<Arc<Workspace>> {
        let found = self.pipeline.upgrade()?.workspaces.named(name)?;
        Some(Arc::clone(&found.workspace))
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<UploadKey, UploadSession>> {
        self.uploads.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl WorkspaceRecords for UploadSessions {
    fn remove_all_in(&self, workspace: &str) {
        let removed: Vec<_> = {
            let mut uploads = self.lock();
            uploads.extract_if(|(of, _), _| of == workspace).collect()
        };
        // Partial files are removed with the workspace.
        for (_, upload) in removed {
            self.records.remove(&upload.record.name);
        }
    }
}

impl UploadLease {
    /// Records the number of bytes received so far.
    pub(super) fn set_progress(&self, bytes: u64) {
        self.attempt.progress.store(bytes, Ordering::Relaxed);
    }

    /// Whether another call has taken over the upload.
    pub(super) fn was_taken_over(&self) -> bool {
        self.attempt.was_taken_over()
    }

    /// Stores the location of the partial file, so that a later daemon finds it. Blocks.
    pub(super) fn record_partial_file(&self, location: &PartialFileLocation) -> Result<(), Error> {
        let updated = self.touch(|record| {
            record.partial_name.clone_from(&location.name);
            record.partial_identity = location.identity;
            record.replaces = location.replaces;
        });
        let Some(record) = updated else {
            return Ok(());
        };

        self.sessions.try_save(&record).map_err(|error| {
            if is_fd_exhaustion(&error) {
                return fd_exhausted_error(error, "the record of the upload");
            }
            state_failure(&error).with_cause(error)
        })
    }

    /// Releases a session of an earlier daemon as it was found.
    pub(super) fn release_unchanged(mut self) {
        self.released = true;
        if let Some(upload) = self.sessions.lock().get_mut(&self.key) {
            upload.state = UploadState::OnDisk(self.attempt.progress.load(Ordering::Relaxed));
        }
        self.release();
    }

    /// Pauses the upload, or removes it if it cannot be resumed. Blocks.
    pub(super) fn pause(mut self, file: PartialFile) {
        let Some(record) = self.touch(|_| {}) else {
            return;
        };
        if record.upload_id.is_none() || !self.sessions.records.are_persistent() {
            file.discard();
            return; // dropping the lease removes the session
        }

        // Save while the session is active: later, another call may have written its record.
        self.sessions.save(&record);
        self.released = true;
        let evicted = {
            let mut uploads = self.sessions.lock();
            if let Some(upload) = uploads.get_mut(&self.key) {
                upload.state = UploadState::Paused(Box::new(file));
            }
            evict(&mut uploads, MAX_UPLOAD_SESSIONS)
        };
        self.sessions.delete_all(evicted);
        self.release();
    }

    /// Records that the file is committed. Blocks.
    pub(super) fn complete(mut self, created: bool) {
        let Some(record) = self.touch(|record| record.complete = Some(created)) else {
            return;
        };
        if record.upload_id.is_none() {
            return; // dropping the lease removes the session
        }

        self.sessions.save(&record);
        self.released = true;
        if let Some(upload) = self.sessions.lock().get_mut(&self.key) {
            upload.state = UploadState::Complete;
        }
        self.release();
    }

    /// Ends the attempt, so that other calls can acquire the session.
    fn release(&self) {
        self.sessions.released.notify_one();
        self.attempt.finished.cancel();
    }

    /// Updates the record and its time. Returns a copy.
    fn touch(&self, update: impl FnOnce(&mut UploadRecord)) -> Option<UploadRecord> {
        let mut uploads = self.sessions.lock();
        let record = &mut uploads.get_mut(&self.key)?.record;
        record.touched = now_unix_secs();
        update(record);
        Some(record.clone())
    }
}

impl Drop for UploadLease {
    fn drop(&mut self) {
        if !self.released {
            let removed = self.sessions.lock().remove(&self.key);
            self.sessions.delete_all(removed);
            self.attempt.finished.cancel();
        }
    }
}

#[cfg(test)]
mod tests;
