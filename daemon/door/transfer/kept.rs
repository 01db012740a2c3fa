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

mod upload;

use std::{
    collections::{HashMap, hash_map::Entry},
    io, mem,
    sync::{Arc, Mutex, MutexGuard, PoisonError, atomic::Ordering},
    time::Duration,
};

use tokio::{sync::Notify, time::sleep};
use tokio_util::sync::CancellationToken;

use self::upload::{Key, State, Turn, Upload, key, make_room, now, place, take_expired};
pub(super) use self::upload::{MOST_BYTES, expiry};
use crate::daemon::{
    descriptors::{are_missing, exhausted},
    error::{Error, Reason},
    store::{
        failure::state_failure,
        uploads::{UploadRecord, UploadRecords},
    },
    task,
    workspace::{Draft, DraftPlace, Left, Workspace},
};

/// Uploads that are kept, those that go on included.
const MOST_UPLOADS: usize = 64;

/// All of them.
#[derive(Debug)]
pub(super) struct Kept {
    records: UploadRecords,
    workspaces: Vec<Arc<Workspace>>,
    uploads: Mutex<HashMap<Key, Upload>>,
    /// Told when a call leaves one, which expires from then on.
    left: Notify,
}

/// A call's hold on an upload. Dropping it forgets the upload and deletes what has come of it.
#[derive(Debug)]
pub(super) struct Lease {
    kept: Arc<Kept>,
    key: Key,
    turn: Turn,
    settled: bool,
}

/// What there is of an upload when a call begins.
#[derive(Debug)]
pub(super) enum Begun {
    /// Nothing.
    New(Lease),
    /// Some of it.
    Resting(Lease, Box<Draft>),
    /// Some of it, which must be found first.
    OnDisk(Lease, DraftPlace),
    /// All of it. Whether nothing was there before.
    Complete(bool),
    /// Another call has it and was told to end: try again after that.
    Busy(CancellationToken),
}

// === impl Kept ===

impl Kept {
    /// What an earlier daemon kept. What cannot be resumed is swept. Blocks.
    pub(super) fn load(records: UploadRecords, workspaces: Vec<Arc<Workspace>>) -> Self {
        let kept = Self { records, workspaces, uploads: Mutex::default(), left: Notify::new() };
        // Another daemon that looks now sweeps as well as this one.
        let Some(_look) = kept.records.try_look() else {
            return kept;
        };
        let mut uploads = kept.sort_out(kept.records.load());
        let swept = make_room(&mut uploads, MOST_UPLOADS);
        swept.into_iter().for_each(|upload| kept.sweep(upload));
        if kept.records.are_shared() {
            // Another daemon may be asked to go on with one; who is asked looks again.
            for upload in uploads.values() {
                kept.records.let_go(&upload.record.name);
            }
        } else {
            *kept.lock() = uploads;
        }
        kept
    }

    /// What is of use of records that an earlier daemon left. The rest is swept.
    fn sort_out(&self, mut records: Vec<UploadRecord>) -> HashMap<Key, Upload> {
        // Of several of one id, the last one counts.
        records.sort_by_key(|record| record.touched);
        let mut uploads = HashMap::new();
        for mut record in records {
            let useless = match self.state_of(&mut record) {
                Some(state) => uploads.insert(key(&record), Upload { record, state }),
                None => Some(Upload { record, state: State::OnDisk(0) }),
            };
            useless.into_iter().for_each(|upload| self.sweep(upload));
        }
        uploads
    }

    /// Takes an upload that another daemon left, where several share their records. Blocks.
    fn adopt(&self, key: &Key) {
        if !self.records.are_shared() || self.lock().contains_key(key) {
            return;
        }
        let _look = self.records.look();
        let found = self.records.load();
        let (wanted, others): (Vec<_>, Vec<_>) =
            found.into_iter().partition(|record| upload::key(record) == *key);
        for record in others {
            self.records.let_go(&record.name);
        }
        for (key, upload) in self.sort_out(wanted) {
            match self.lock().entry(key) {
                Entry::Vacant(place) => {
                    place.insert(upload);
                }
                // Begun at this moment.
                Entry::Occupied(_) => self.records.let_go(&upload.record.name),
            }
        }
    }

    /// What there is of an upload of an earlier daemon; none where that is of no use.
    fn state_of(&self, record: &mut UploadRecord) -> Option<State> {
        if record.complete.is_some() {
            return Some(State::Complete);
        }
        let left =
            self.workspace(&record.workspace).map(|workspace| workspace.mend_draft(&place(record)));
        let resumable = record.upload_id.is_some();
        match left {
            Some(Ok(Left::Draft(bytes))) if resumable && bytes <= record.size => {
                Some(State::OnDisk(bytes))
            }
            // The daemon died before it could write that down.
            Some(Ok(Left::InPlace(bytes))) if resumable && bytes == record.size => {
                record.complete = record.replaces.map(|replaces| !replaces);
                self.save(record);
                Some(State::Complete)
            }
            Some(Ok(_)) => None,
            Some(Err(error)) => {
                tracing::warn!(path = record.path, %error, "what is left of an upload cannot be reached");
                Some(State::OnDisk(0))
            }
            // It may be served another time.
            None => Some(State::OnDisk(0)),
        }
    }

    /// An upload that can be resumed, and where it is to go on. Blocks.
    pub(super) fn find(&self, workspace: &str, id: &str) -> Option<(UploadRecord, u64)> {
        let key = (workspace.to_owned(), id.to_owned());
        self.adopt(&key);
        let uploads = self.lock();
        let upload = uploads.get(&key)?;
        upload.record.upload_id.as_ref()?;
        if upload.is_over() {
            return None; // and is being swept
        }
        Some((upload.record.clone(), upload.offset()))
    }

    /// Begins a call's turn at the upload of `record`. `stop` ends the turn. Blocks.
    pub(super) fn begin(
        self: &Arc<Self>,
        mut record: UploadRecord,
        stop: &CancellationToken,
    ) -> Result<Begun, Error> {
        let key = key(&record);
        self.adopt(&key);
        self.sweep_expired();
        let turn = Turn::new(stop);
        let lease = |turn| Lease { kept: Arc::clone(self), key: key.clone(), turn, settled: false };
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
            if let (State::Complete, Some(created)) = (&upload.state, is.complete) {
                if is.wishes != record.wishes {
                    let text = "was used for the same file with another mode, expected_sha256 or file_mode, and that is done: choose another id";
                    return Err(Error::invalid_field("start.upload_id", text));
                }
                return Ok(Begun::Complete(created));
            }
            if let State::Active(other) = &upload.state {
                other.take_over();
                return Ok(Begun::Busy(other.over.clone()));
            }
            upload.record.touched = now();
            // What a call wants of it may change until it is done.
            upload.record.wishes = record.wishes;
            turn.progress.store(upload.offset(), Ordering::Relaxed);
            return Ok(match mem::replace(&mut upload.state, State::Active(turn.clone())) {
                State::Resting(draft) => Begun::Resting(lease(turn), draft),
                State::OnDisk(_) => Begun::OnDisk(lease(turn), place(&upload.record)),
                State::Active(_) | State::Complete => Begun::New(lease(turn)),
            });
        }
        let swept = make_room(&mut uploads, MOST_UPLOADS - 1);
        let is_room = uploads.len() < MOST_UPLOADS;
        if is_room {
            record.touched = now();
            let state = State::Active(turn.clone());
            uploads.insert(key.clone(), Upload { record, state });
        }
        drop(uploads);
        swept.into_iter().for_each(|upload| self.sweep(upload));
        if is_room {
            return Ok(Begun::New(lease(turn)));
        }
        let text = "too many uploads go on: try again after the time given";
        Err(Error::new(Reason::ResourceExhausted, text).retry_after(Duration::from_secs(1)))
    }

    /// Sweeps each upload when its time is over, until `end`.
    pub(super) async fn sweep_in_time(self: Arc<Self>, end: CancellationToken) {
        loop {
            let next = {
                let uploads = self.lock();
                uploads.values().filter_map(Upload::time_left).min()
            };
            let time = async {
                match next {
                    Some(left) => sleep(left).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = end.cancelled() => return,
                () = self.left.notified() => {}
                () = time => {
                    let kept = Arc::clone(&self);
                    let swept = task::blocking(move || kept.sweep_expired()).await;
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
    fn sweep(&self, Upload { record, state }: Upload) {
        let is_gone = match state {
            State::Resting(draft) => draft.discard(),
            State::Active(_) | State::OnDisk(_) => self
                .workspace(&record.workspace)
                .is_some_and(|workspace| workspace.delete_draft(&place(&record))),
            State::Complete => true,
        };
        if is_gone {
            self.records.remove(&record.name);
        } else {
            self.records.let_go(&record.name);
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

    fn lock(&self) -> MutexGuard<'_, HashMap<Key, Upload>> {
        self.uploads.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// === impl Lease ===

impl Lease {
    /// Tells how many bytes are there.
    pub(super) fn came_to(&self, bytes: u64) {
        self.turn.progress.store(bytes, Ordering::Relaxed);
    }

    /// Whether another call goes on with the upload.
    pub(super) fn was_taken_over(&self) -> bool {
        self.turn.was_taken_over()
    }

    /// Writes down where the draft lies, so that it is found again if the daemon dies. Blocks.
    pub(super) fn note(&self, place: &DraftPlace) -> Result<(), Error> {
        let noted = self.touch(|record| {
            record.draft_name.clone_from(&place.name);
            record.draft_identity = place.identity;
            record.replaces = place.replaces;
        });
        let Some(record) = noted else {
            return Ok(());
        };
        self.kept.try_save(&record).map_err(|error| {
            if are_missing(&error) {
                return exhausted(error, "the record of the upload");
            }
            state_failure(&error).caused_by(error)
        })
    }

    /// Leaves an upload of an earlier daemon as it was found.
    pub(super) fn put_back(mut self) {
        self.settled = true;
        if let Some(upload) = self.kept.lock().get_mut(&self.key) {
            upload.state = State::OnDisk(self.turn.progress.load(Ordering::Relaxed));
        }
        self.settle();
    }

    /// Keeps the upload for later, or drops it where it cannot be resumed. Blocks.
    pub(super) fn rest(mut self, draft: Draft) {
        let Some(record) = self.touch(|_| {}) else {
            return;
        };
        if record.upload_id.is_none() || !self.kept.records.outlast_the_daemon() {
            draft.discard();
            return; // which forgets the upload
        }
        // While it is this call's, so that no other's record is overwritten.
        self.kept.save(&record);
        self.settled = true;
        let swept = {
            let mut uploads = self.kept.lock();
            if let Some(upload) = uploads.get_mut(&self.key) {
                upload.state = State::Resting(Box::new(draft));
            }
            make_room(&mut uploads, MOST_UPLOADS)
        };
        swept.into_iter().for_each(|upload| self.kept.sweep(upload));
        self.settle();
    }

    /// Remembers that the file is in its place. Blocks.
    pub(super) fn complete(mut self, created: bool) {
        let Some(record) = self.touch(|record| record.complete = Some(created)) else {
            return;
        };
        if record.upload_id.is_none() {
            return; // which forgets the upload
        }
        self.kept.save(&record);
        self.settled = true;
        if let Some(upload) = self.kept.lock().get_mut(&self.key) {
            upload.state = State::Complete;
        }
        self.settle();
    }

    /// Ends the turn and leaves the upload to others.
    fn settle(&self) {
        self.kept.left.notify_one();
        self.turn.over.cancel();
    }

    /// Notes that something has come, and what else there is to note.
    fn touch(&self, note: impl FnOnce(&mut UploadRecord)) -> Option<UploadRecord> {
        let mut uploads = self.kept.lock();
        let record = &mut uploads.get_mut(&self.key)?.record;
        record.touched = now();
        note(record);
        Some(record.clone())
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        if !self.settled {
            let forgotten = self.kept.lock().remove(&self.key);
            forgotten.into_iter().for_each(|upload| self.kept.sweep(upload));
            self.turn.over.cancel();
        }
    }
}

#[cfg(test)]
mod tests;
