//! `events.jsonl`: the records of a session, in the order of their numbers.
//!
//! Records are appended, and what was written stays as it is. When old ones are to go, what stays is
//! written to another file, which then takes its place: whoever reads the old one reads it to its end.
//! The numbers that the session has got to are written down before that, as they go on also where no
//! record says them any more.

use std::{
    collections::BTreeSet,
    fs::{self, File},
    io::{self, BufWriter, Write as _},
    mem,
    ops::ControlFlow,
    os::unix::fs::{FileExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use tokio::sync::{Notify, watch};

use super::{
    last_run::{LastRun, Run},
    records::{Head, Records, backwards, end_of_lines},
    snapshot::Snapshot,
    step::{Piece, Step},
};

/// Name of the file.
pub(super) const RECORDS: &str = "events.jsonl";
/// Name of the one that is to take its place.
const RECORDS_LEFT: &str = "events.jsonl.new";
/// Name of the file that says what numbers the session has got to.
const NUMBERS: &str = "numbers";

/// The records of a session.
#[derive(Debug)]
pub(super) struct Events {
    folder: PathBuf,
    state: Mutex<State>,
    /// Number of the last record, for those who wait for more.
    last: watch::Sender<u64>,
    /// Held while old records are removed.
    cutting: Mutex<()>,
    fullness: Arc<Fullness>,
}

#[derive(Debug)]
struct State {
    file: Arc<File>,
    /// Bytes of whole records.
    length: u64,
    /// How often another file has taken the place of the first one.
    generation: u64,
    last_sequence: u64,
    last_step: u64,
    /// Steps that have not ended, begun since the session was opened.
    running: BTreeSet<u64>,
    last_run: LastRun,
}

/// What numbers a session has got to.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct Numbers {
    /// Of the last record.
    pub(crate) sequence: u64,
    /// Of the last step.
    pub(crate) step: u64,
    /// When the last record was written, as that says it.
    pub(crate) time: String,
    /// Whether artifacts may be left of which no record tells any more.
    #[serde(default)]
    pub(super) is_unfinished: bool,
}

/// How large the records of a session may become before somebody is to look after them.
#[derive(Debug)]
pub(crate) struct Fullness {
    most_bytes: AtomicU64,
    /// Told when a session has more.
    pub(crate) exceeded: Notify,
}

impl Default for Fullness {
    fn default() -> Self {
        Self {
            most_bytes: AtomicU64::new(u64::MAX),
            exceeded: Notify::new(),
        }
    }
}

impl Fullness {
    /// Has somebody be told of sessions with more records.
    pub(crate) fn set(&self, most_bytes: u64) {
        self.most_bytes.store(most_bytes, Ordering::Relaxed);
    }
}

impl Events {
    /// Opens the records in `folder`, making the file where there is none. A record that a crash cut
    /// off is removed.
    pub(super) fn open(folder: &Path, fullness: Arc<Fullness>) -> io::Result<Self> {
        let file = File::options()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(folder.join(RECORDS))?;
        let (numbers, length) = recover(folder, &file)?;
        file.set_len(length)?;
        Ok(Self {
            folder: folder.to_owned(),
            last: watch::Sender::new(numbers.sequence),
            state: Mutex::new(State {
                file: Arc::new(file),
                length,
                generation: 0,
                last_sequence: numbers.sequence,
                last_step: numbers.step,
                running: BTreeSet::new(),
                last_run: LastRun::Unknown,
            }),
            cutting: Mutex::default(),
            fullness,
        })
    }

    /// What numbers the session in `folder` has got to, without opening it.
    pub(super) fn numbers(folder: &Path) -> io::Result<Numbers> {
        match File::open(folder.join(RECORDS)) {
            Ok(file) => Ok(recover(folder, &file)?.0),
            Err(error) if error.kind() == io::ErrorKind::NotFound => read_numbers(folder),
            Err(error) => Err(error),
        }
    }

    /// Writes the first record of another step.
    pub(super) fn begin(&self, fields: Map<String, Value>) -> io::Result<Step> {
        let is_run = is(&fields, "tool", "run");
        let mut state = self.lock();
        let step = state.last_step + 1;
        let sequence = self.append(&mut state, step, fields)?;
        state.last_step = step;
        state.running.insert(step);
        if is_run {
            state.last_run = LastRun::Known(Run::new(step, sequence));
        }
        Ok(Step(step))
    }

    /// Writes another record of a step.
    pub(super) fn record(&self, step: Step, fields: Map<String, Value>) -> io::Result<()> {
        let ends = is(&fields, "event", "tool_call_finished");
        let mut state = self.lock();
        if ends {
            state.running.remove(&step.0);
        }
        let sequence = self.append(&mut state, step.0, fields)?;
        if ends {
            state.last_run.ended(step.0, sequence);
        }
        Ok(())
    }

    /// What there is of them now.
    pub(super) fn snapshot(&self) -> Snapshot {
        let state = self.lock();
        Snapshot {
            file: Arc::clone(&state.file),
            length: state.length,
            generation: state.generation,
            last_sequence: state.last_sequence,
        }
    }

    /// Tells of the number of the last record.
    pub(super) fn subscribe(&self) -> watch::Receiver<u64> {
        self.last.subscribe()
    }

    /// Steps that have not ended.
    pub(super) fn running(&self) -> BTreeSet<u64> {
        self.lock().running.clone()
    }

    /// The last command that was begun, if it is known which that was.
    pub(super) fn last_run(&self) -> LastRun {
        self.lock().last_run.clone()
    }

    /// Remembers which command was begun last, as it was found in `records`, unless more has come.
    pub(super) fn found_last_run(&self, found: LastRun, records: &Snapshot) {
        let mut state = self.lock();
        if matches!(state.last_run, LastRun::Unknown)
            && state.last_sequence == records.last_sequence
            && state.generation == records.generation
        {
            state.last_run = found;
        }
    }

    /// Removes records. Appending goes on meanwhile. Answers with the numbers that were written down.
    pub(super) fn cut(&self, is_removed: impl Fn(Piece) -> bool) -> io::Result<Numbers> {
        let _alone = self.cutting.lock().unwrap_or_else(PoisonError::into_inner);
        let before = self.snapshot();
        let mut numbers = Self::numbers(&self.folder)?;
        numbers.is_unfinished = true;
        write_numbers(&self.folder, &numbers)?;
        let new = self.folder.join(RECORDS_LEFT);
        let replaced = self.replace(&before, &new, is_removed);
        if replaced.is_err() {
            // Where it cannot be removed either, the next one begins anew.
            let _gone = fs::remove_file(&new);
        }
        replaced.map(|()| numbers)
    }

    fn replace(
        &self,
        before: &Snapshot,
        new: &Path,
        is_removed: impl Fn(Piece) -> bool,
    ) -> io::Result<()> {
        let file = File::options()
            .read(true)
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(new)?;
        let mut length = 0;
        let mut writer = BufWriter::new(&file);
        let mut records = Records::new(&before.file, 0, before.length);
        while let Some(line) = records.next()? {
            let piece = Head::of(line).map(|head| Piece::of(head.step, head.sequence));
            if piece.is_some_and(|piece| !is_removed(piece)) {
                writer.write_all(line)?;
                length += line.len() as u64;
            }
        }
        writer.flush()?;
        drop(writer);
        file.sync_data()?;
        let mut state = self.lock();
        // What came meanwhile: a few records.
        let tail = usize::try_from(state.length - before.length).unwrap_or(usize::MAX);
        let mut bytes = vec![0; tail];
        state.file.read_exact_at(&mut bytes, before.length)?;
        file.write_all_at(&bytes, length)?;
        fs::rename(new, self.folder.join(RECORDS))?;
        state.length = length + tail as u64;
        state.file = Arc::new(file);
        state.generation += 1;
        if let LastRun::Known(run) = &state.last_run
            && is_removed(Piece::Step(run.step))
        {
            state.last_run = LastRun::Unknown;
        }
        Ok(())
    }

    /// Writes down that no artifacts are left that no record tells of.
    pub(super) fn finish_cut(&self, numbers: Numbers) -> io::Result<()> {
        let _alone = self.cutting.lock().unwrap_or_else(PoisonError::into_inner);
        let numbers = Numbers {
            is_unfinished: false,
            ..numbers
        };
        write_numbers(&self.folder, &numbers)
    }

    /// Appends a record; answers its number.
    fn append(&self, state: &mut State, step: u64, fields: Map<String, Value>) -> io::Result<u64> {
        let mut record = Map::new();
        let sequence = state.last_sequence + 1;
        record.insert("sequence".to_owned(), sequence.into());
        record.insert("step".to_owned(), step.into());
        record.extend(fields);
        let mut line = serde_json::to_vec(&record)?;
        line.push(b'\n');
        // At its place and not at the end: what is left of a record that did not fit is overwritten.
        if let Err(error) = state.file.write_all_at(&line, state.length) {
            state.file.set_len(state.length)?;
            return Err(error);
        }
        state.length += line.len() as u64;
        state.last_sequence = sequence;
        self.last.send_replace(sequence);
        if state.length > self.fullness.most_bytes.load(Ordering::Relaxed) {
            self.fullness.exceeded.notify_one();
        }
        Ok(sequence)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn is(fields: &Map<String, Value>, name: &str, value: &str) -> bool {
    fields.get(name).and_then(Value::as_str) == Some(value)
}

/// Finds the numbers of the last record and the last step, and the end of the last whole record.
fn recover(folder: &Path, file: &File) -> io::Result<(Numbers, u64)> {
    // Before the records: those that say more than it does may be gone by now.
    let mut numbers = read_numbers(folder)?;
    let length = end_of_lines(file, file.metadata()?.len())?;
    let mut is_last = true;
    backwards(file, length, None, |line| {
        let Some(head) = Head::of(line) else {
            return ControlFlow::Continue(());
        };
        numbers.step = numbers.step.max(head.step);
        if mem::take(&mut is_last) {
            numbers.sequence = numbers.sequence.max(head.sequence);
            numbers.time = head.time.clone().into_owned();
        }
        // Steps begin in the order of their numbers, and end in any.
        match head.begins_step() {
            true => ControlFlow::Break(()),
            false => ControlFlow::Continue(()),
        }
    })?;
    Ok((numbers, length))
}

fn read_numbers(folder: &Path) -> io::Result<Numbers> {
    match fs::read(folder.join(NUMBERS)) {
        Ok(text) => serde_json::from_slice(&text).map_err(io::Error::from),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Numbers::default()),
        Err(error) => Err(error),
    }
}

/// Writes the numbers, whole or not at all.
fn write_numbers(folder: &Path, numbers: &Numbers) -> io::Result<()> {
    let new = folder.join(format!("{NUMBERS}.new"));
    let mut file = File::options()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(&new)?;
    file.write_all(&serde_json::to_vec(numbers)?)?;
    file.sync_data()?;
    fs::rename(new, folder.join(NUMBERS))
}
