//! The uploads that have begun, as far as they are kept.
//!
//! ```text
//!            begin            rest (the connection was lost)
//!   (none) ───────▶ active ─────────────────────────────▶ resting ──▶ swept: too old, too many
//!                    ▲ │ │ └▶ complete (for repeats) ─────────────────▲
//!                    │ │ └▶ forgotten (nothing to resume)             │
//!                    │ └── begin of another call: told to rest ───────│
//!                    └────────── begin ◀── resting, or found on disk ─┘
//! ```

use std::{
    collections::HashMap,
    mem,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use tokio_util::sync::CancellationToken;

use crate::daemon::{
    error::{Error, Reason},
    store::uploads::{UploadRecord, UploadRecords},
    workspace::{Draft, DraftPlace, Left, Workspace},
};

/// Uploads that are kept, those that go on included.
const MOST_UPLOADS: usize = 64;
/// Bytes that resting uploads may have together.
const MOST_BYTES: u64 = 64 << 30;
/// How long an upload is kept after something last came.
const AGE: Duration = Duration::from_secs(24 * 3600);

/// All of them.
#[derive(Debug)]
pub(super) struct Kept {
    records: UploadRecords,
    workspaces: Vec<Arc<Workspace>>,
    uploads: Mutex<HashMap<Key, Upload>>,
}

/// Workspace and id. One that cannot be resumed has an id that no caller can give.
type Key = (String, String);

#[derive(Debug)]
struct Upload {
    record: UploadRecord,
    state: State,
}

#[derive(Debug)]
enum State {
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
    /// Cancelled when the call is to end.
    pub(super) stop: CancellationToken,
    /// Bytes that are there.
    pub(super) progress: Arc<AtomicU64>,
    taken_over: Arc<AtomicBool>,
    over: CancellationToken,
}

/// A call's hold on an upload. Dropping it forgets the upload and deletes what has come of it.
#[derive(Debug)]
pub(super) struct Lease {
    kept: Arc<Kept>,
    key: Key,
    /// The turn.
    pub(super) turn: Turn,
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

/// When an upload is dropped, as time since 1970.
pub(super) fn expiry(record: &UploadRecord) -> Duration {
    Duration::from_secs(record.touched).saturating_add(AGE)
}

// === impl Kept ===

impl Kept {
    /// What an earlier daemon kept. What cannot be resumed is swept. Blocks.
    pub(super) fn load(records: UploadRecords, workspaces: Vec<Arc<Workspace>>) -> Self {
        let kept = Self {
            records,
            workspaces,
            uploads: Mutex::default(),
        };
        let mut records = kept.records.load();
        // Of several of one id, the last one counts.
        records.sort_by_key(|record| record.touched);
        let mut uploads = HashMap::new();
        for mut record in records {
            let useless = match kept.state_of(&mut record) {
                Some(state) => uploads.insert(key(&record), Upload { record, state }),
                None => Some(Upload {
                    record,
                    state: State::OnDisk(0),
                }),
            };
            useless.into_iter().for_each(|upload| kept.sweep(upload));
        }
        let swept = make_room(&mut uploads, MOST_UPLOADS);
        *kept.lock() = uploads;
        swept.into_iter().for_each(|upload| kept.sweep(upload));
        kept
    }

    /// What there is of an upload of an earlier daemon; none where that is of no use.
    fn state_of(&self, record: &mut UploadRecord) -> Option<State> {
        if record.complete.is_some() {
            return Some(State::Complete);
        }
        let left = self
            .workspace(&record.workspace)
            .map(|workspace| workspace.mend_draft(&place(record)));
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

    /// An upload that can be resumed, and where it is to go on.
    pub(super) fn find(&self, workspace: &str, id: &str) -> Option<(UploadRecord, u64)> {
        let uploads = self.lock();
        let upload = uploads.get(&(workspace.to_owned(), id.to_owned()))?;
        upload.record.upload_id.as_ref()?;
        let offset = match &upload.state {
            State::Active(turn) => turn.progress.load(Ordering::Relaxed),
            State::Resting(draft) => draft.length(),
            State::OnDisk(length) => *length,
            State::Complete => upload.record.size,
        };
        Some((upload.record.clone(), offset))
    }

    /// Begins a call's turn at the upload of `record`. `stop` ends the turn. Blocks.
    pub(super) fn begin(
        self: &Arc<Self>,
        mut record: UploadRecord,
        stop: &CancellationToken,
    ) -> Result<Begun, Error> {
        let key = key(&record);
        let turn = Turn {
            stop: stop.clone(),
            progress: Arc::default(),
            taken_over: Arc::default(),
            over: CancellationToken::new(),
        };
        let lease = |turn| Lease {
            kept: Arc::clone(self),
            key: key.clone(),
            turn,
            settled: false,
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
            if let (State::Complete, Some(created)) = (&upload.state, is.complete) {
                return Ok(Begun::Complete(created));
            }
            if let State::Active(other) = &upload.state {
                other.taken_over.store(true, Ordering::Relaxed);
                other.stop.cancel();
                return Ok(Begun::Busy(other.over.clone()));
            }
            upload.record.touched = now();
            return Ok(
                match mem::replace(&mut upload.state, State::Active(turn.clone())) {
                    State::Resting(draft) => {
                        turn.progress.store(draft.length(), Ordering::Relaxed);
                        Begun::Resting(lease(turn), draft)
                    }
                    State::OnDisk(length) => {
                        turn.progress.store(length, Ordering::Relaxed);
                        Begun::OnDisk(lease(turn), place(&upload.record))
                    }
                    State::Active(_) | State::Complete => Begun::New(lease(turn)),
                },
            );
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
        }
    }

    fn save(&self, record: &UploadRecord) {
        // Without it, a repeat after a restart finds less than there is, and starts again.
        if let Err(error) = self.records.save(record) {
            tracing::warn!(%error, "the record of an upload cannot be written");
        }
    }

    fn workspace(&self, name: &str) -> Option<&Workspace> {
        let mut workspaces = self.workspaces.iter();
        workspaces
            .find(|workspace| workspace.name() == name)
            .map(|workspace| &**workspace)
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Key, Upload>> {
        self.uploads.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// === impl Turn ===

impl Turn {
    /// Whether another call goes on with the upload.
    pub(super) fn was_taken_over(&self) -> bool {
        self.taken_over.load(Ordering::Relaxed)
    }
}

// === impl Lease ===

impl Lease {
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
        let saved = self.kept.records.save(&record);
        saved.map_err(|error| match error.raw_os_error() {
            Some(libc::ENOSPC | libc::EDQUOT) => {
                let text = "the disk that holds the daemon's state directory is full: make room there, and try again";
                Error::new(Reason::NoSpace, text).caused_by(error)
            }
            _ => Error::internal(error),
        })
    }

    /// Leaves an upload of an earlier daemon as it was found.
    pub(super) fn put_back(mut self) {
        self.settled = true;
        if let Some(upload) = self.kept.lock().get_mut(&self.key) {
            upload.state = State::OnDisk(self.turn.progress.load(Ordering::Relaxed));
        }
        self.turn.over.cancel();
    }

    /// Keeps the upload for later, or drops it where it cannot be resumed. Blocks.
    pub(super) fn rest(mut self, draft: Draft) {
        let Some(record) = self.touch(|_| {}) else {
            return;
        };
        if record.upload_id.is_none() {
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
        self.turn.over.cancel();
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
            forgotten
                .into_iter()
                .for_each(|upload| self.kept.sweep(upload));
            self.turn.over.cancel();
        }
    }
}

/// Takes out what is too old and, oldest first, what is too much. What a call receives stays.
fn make_room(uploads: &mut HashMap<Key, Upload>, most: usize) -> Vec<Upload> {
    let mut idle: Vec<(u64, Key, u64)> = uploads
        .iter()
        .filter_map(|(key, upload)| {
            let bytes = match &upload.state {
                State::Active(_) => return None,
                State::Resting(draft) => draft.length(),
                State::OnDisk(length) => *length,
                State::Complete => 0,
            };
            Some((upload.record.touched, key.clone(), bytes))
        })
        .collect();
    idle.sort_unstable();
    let oldest = now().saturating_sub(AGE.as_secs());
    let mut bytes: u64 = idle.iter().map(|(_, _, bytes)| bytes).sum();
    let mut taken = Vec::new();
    for (touched, key, size) in idle {
        if touched >= oldest && uploads.len() <= most && bytes <= MOST_BYTES {
            break;
        }
        bytes -= size;
        taken.extend(uploads.remove(&key));
    }
    taken
}

fn key(record: &UploadRecord) -> Key {
    let id = match &record.upload_id {
        Some(id) => id.clone(),
        None => format!(".{}", record.name),
    };
    (record.workspace.clone(), id)
}

fn place(record: &UploadRecord) -> DraftPlace {
    DraftPlace {
        path: record.path.clone(),
        name: record.draft_name.clone(),
        identity: record.draft_identity,
        replaces: record.replaces,
    }
}

fn now() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.map_or(0, |time| time.as_secs())
}

#[cfg(test)]
mod tests;
