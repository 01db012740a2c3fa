//! `events.jsonl`: the records of a session, in the order of their numbers.
//!
//! Records are appended, and what was written stays as it is. When old ones are to go, what stays is
//! written to another file, which then takes its place: whoever reads the old one reads it to its end.
//! The numbers that the session has got to are written down before that, as they go on also where no
//! record says them any more.
//!
//! A step begins only where the disk has room for its end, too: that is set aside behind the records.

use std::{
    collections::BTreeSet,
    fs::{self, File},
    io::{self, BufWriter, Write as _},
    mem,
    ops::ControlFlow,
    os::unix::fs::{FileExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use rustix::{
    fs::{FallocateFlags, fallocate},
    io::Errno,
};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::{
    last_run::{LastRun, RunRecords},
    record_reader::{RecordHeader, RecordReader, last_line_end, visit_lines_reverse},
    snapshot::RecordsSnapshot,
    step::{RetentionUnit, StepId},
};
use crate::daemon::store::session_usage::SessionUsage;

/// Name of the file.
pub(super) const RECORDS_FILE: &str = "events.jsonl";
/// Name of the one that is to take its place.
const COMPACTED_RECORDS_FILE: &str = "events.jsonl.new";
/// Name of the file that says what numbers the session has got to.
const COUNTERS_FILE: &str = "numbers";

/// Room that is set aside for the end of each step. A record that is longer is shortened where the disk is
/// full.
const END_RECORD_RESERVE_BYTES: u64 = 4096;
/// Longest value in a record that is shortened: with all that it has, it fits.
const MAX_SHORT_VALUE_BYTES: usize = 256;
/// Room that is set aside beyond what is needed, so that not each step has to.
const EXTRA_RESERVE_BYTES: u64 = 16 * 1024;

/// The records of a session.
#[derive(Debug)]
pub(super) struct EventLog {
    folder: PathBuf,
    state: Mutex<EventLogState>,
    /// Number of the last record, for those who wait for more.
    last_sequence: watch::Sender<u64>,
    /// Held while old records are removed.
    compaction: Mutex<()>,
    usage: Arc<SessionUsage>,
}

#[derive(Debug)]
struct EventLogState {
    file: Arc<File>,
    /// Bytes of whole records.
    length: u64,
    /// Up to where there is room in the file.
    reserved: u64,
    /// Bytes of those records that stayed when old ones were last looked for.
    trimmed_length: u64,
    /// How often another file has taken the place of the first one.
    generation: u64,
    last_sequence: u64,
    last_step: u64,
    /// Steps that have not ended, begun since the session was opened.
    running_steps: BTreeSet<u64>,
    last_run: LastRun,
}

/// What numbers a session has got to.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct SessionCounters {
    /// Of the last record.
    pub(crate) sequence: u64,
    /// Of the last step.
    pub(crate) step: u64,
    /// When the last record was written, as that says it.
    pub(crate) time: String,
}

impl EventLog {
    /// Opens the records in `folder`, making the file where there is none. A record that a crash cut
    /// off is removed.
    pub(super) fn open(folder: &Path, fullness: Arc<SessionUsage>) -> io::Result<Self> {
        let file = File::options()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(folder.join(RECORDS_FILE))?;
        let (numbers, length) = recover(folder, &file)?;
        file.set_len(length)?;
        Ok(Self {
            folder: folder.to_owned(),
            last_sequence: watch::Sender::new(numbers.sequence),
            state: Mutex::new(EventLogState {
                file: Arc::new(file),
                length,
                reserved: length,
                trimmed_length: 0,
                generation: 0,
                last_sequence: numbers.sequence,
                last_step: numbers.step,
                running_steps: BTreeSet::new(),
                last_run: LastRun::Unknown,
            }),
            compaction: Mutex::default(),
            usage: fullness,
        })
    }

    /// What numbers the session in `folder` has got to, without opening it.
    pub(super) fn read_counters(folder: &Path) -> io::Result<SessionCounters> {
        match File::open(folder.join(RECORDS_FILE)) {
            Ok(file) => Ok(recover(folder, &file)?.0),
            Err(error) if error.kind() == io::ErrorKind::NotFound => read_counters_file(folder),
            Err(error) => Err(error),
        }
    }

    /// Writes the first record of another step.
    pub(super) fn begin_step(&self, fields: Map<String, Value>) -> io::Result<StepId> {
        let is_run = has_value(&fields, "tool", "run");
        let mut state = self.lock();
        let step = state.last_step + 1;
        // With it, there is to be room for its end.
        state.running_steps.insert(step);
        let sequence = match self.append(&mut state, step, fields, false) {
            Ok(sequence) => sequence,
            Err(error) => {
                state.running_steps.remove(&step);
                return Err(error);
            }
        };
        state.last_step = step;
        if is_run {
            state.last_run = LastRun::Known(RunRecords::new(step, sequence));
        }
        Ok(StepId(step))
    }

    /// Writes another record of a step.
    pub(super) fn append_record(&self, step: StepId, fields: Map<String, Value>) -> io::Result<()> {
        let ends = has_value(&fields, "event", "tool_call_finished");
        let mut state = self.lock();
        if ends {
            state.running_steps.remove(&step.0);
        }
        let sequence = self.append(&mut state, step.0, fields, ends)?;
        if ends {
            state.last_run.mark_ended(step.0, sequence);
        }
        Ok(())
    }

    /// What there is of them now.
    pub(super) fn snapshot(&self) -> RecordsSnapshot {
        let state = self.lock();
        RecordsSnapshot {
            file: Arc::clone(&state.file),
            length: state.length,
            generation: state.generation,
            last_sequence: state.last_sequence,
        }
    }

    /// Tells of the number of the last record.
    pub(super) fn subscribe(&self) -> watch::Receiver<u64> {
        self.last_sequence.subscribe()
    }

    /// Steps that have not ended.
    pub(super) fn running_steps(&self) -> BTreeSet<u64> {
        self.lock().running_steps.clone()
    }

    /// The last command that was begun, if it is known which that was.
    pub(super) fn last_run(&self) -> LastRun {
        self.lock().last_run.clone()
    }

    /// Remembers which command was begun last, as it was found in `records`, unless more has come.
    pub(super) fn cache_last_run(&self, found: LastRun, records: &RecordsSnapshot) {
        let mut state = self.lock();
        if matches!(state.last_run, LastRun::Unknown)
            && state.last_sequence == records.last_sequence
            && state.generation == records.generation
        {
            state.last_run = found;
        }
    }

    /// What is not to be kept has been removed, as far as it could be, of the records that there were when
    /// that was looked for: so many bytes of them `stayed`. What has come since may be too much already, and
    /// nobody may write more.
    pub(super) fn set_trimmed(&self, stayed: u64) {
        let mut state = self.lock();
        state.trimmed_length = stayed;
        self.usage.check_record_bytes(state.length, stayed);
    }

    /// Removes records. Appending goes on meanwhile.
    pub(super) fn compact(
        &self,
        is_removed: impl Fn(RetentionUnit) -> bool,
        end: &CancellationToken,
    ) -> io::Result<()> {
        let _alone = self.compaction.lock().unwrap_or_else(PoisonError::into_inner);
        let before = self.snapshot();
        write_counters_file(&self.folder, &Self::read_counters(&self.folder)?)?;
        let new = self.folder.join(COMPACTED_RECORDS_FILE);
        let replaced = self.rewrite(&before, &new, is_removed, end);
        if replaced.is_err() {
            // Where it cannot be removed either, the next one begins anew.
            let _gone = fs::remove_file(&new);
        }
        replaced
    }

    fn rewrite(
        &self,
        before: &RecordsSnapshot,
        new: &Path,
        is_removed: impl Fn(RetentionUnit) -> bool,
        end: &CancellationToken,
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
        let mut records = RecordReader::new(&before.file, 0, before.length);
        while let Some(line) = records.next()? {
            check_not_cancelled(end)?;
            let piece = RecordHeader::parse(line)
                .map(|head| RetentionUnit::of_record(head.step, head.sequence));
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
        length += tail as u64;
        // Those that go on have room in this one, too.
        let room = length + end_reserve_bytes(&state);
        let reserved = reserve_space(&file, length, room)?;
        fs::rename(new, self.folder.join(RECORDS_FILE))?;
        state.length = length;
        state.reserved = reserved;
        state.file = Arc::new(file);
        state.generation += 1;
        if let LastRun::Known(run) = &state.last_run
            && is_removed(RetentionUnit::Step(run.step))
        {
            state.last_run = LastRun::Unknown;
        }
        Ok(())
    }

    /// Appends a record; answers its number. One that `ends` a step may take the room that was set aside.
    fn append(
        &self,
        state: &mut EventLogState,
        step: u64,
        mut fields: Map<String, Value>,
        ends: bool,
    ) -> io::Result<u64> {
        let sequence = state.last_sequence + 1;
        fields.insert("sequence".to_owned(), sequence.into());
        fields.insert("step".to_owned(), step.into());
        let line = encode_line(&fields)?;
        if !ends {
            let room = state.length + line.len() as u64 + end_reserve_bytes(state);
            if room > state.reserved {
                state.reserved = reserve_space(&state.file, state.length, room)?;
            }
        }
        let mut written = write_line(state, &line);
        if written.is_err() && ends && line.len() as u64 > END_RECORD_RESERVE_BYTES {
            fields.retain(|_, value| is_short(value));
            written = write_line(state, &encode_line(&fields)?);
        }
        let bytes = written?;
        state.length += bytes;
        state.last_sequence = sequence;
        self.last_sequence.send_replace(sequence);
        self.usage.add_written(bytes);
        self.usage.check_record_bytes(state.length, state.trimmed_length);
        Ok(sequence)
    }

    fn lock(&self) -> MutexGuard<'_, EventLogState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for EventLog {
    fn drop(&mut self) {
        let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        if state.reserved != state.length {
            // Room that nobody needs now. Where this fails, it is given back when they are opened again.
            let _given_back = state.file.set_len(state.length);
        }
    }
}

/// Ends what takes long when the daemon does.
pub(crate) fn check_not_cancelled(end: &CancellationToken) -> io::Result<()> {
    match end.is_cancelled() {
        true => Err(io::Error::new(io::ErrorKind::Interrupted, "the daemon ends")),
        false => Ok(()),
    }
}

/// A record as it is written.
fn encode_line(record: &Map<String, Value>) -> io::Result<Vec<u8>> {
    let mut line = serde_json::to_vec(record)?;
    line.push(b'\n');
    Ok(line)
}

/// Writes a line behind the others; answers its bytes. What is left of one that did not fit is written over
/// by the next one, or cut off: until then it has no end, and is no record.
fn write_line(state: &EventLogState, line: &[u8]) -> io::Result<u64> {
    state.file.write_all_at(line, state.length)?;
    Ok(line.len() as u64)
}

/// Whether a value of a record is kept where it is shortened.
fn is_short(value: &Value) -> bool {
    match value {
        Value::String(text) => text.len() <= MAX_SHORT_VALUE_BYTES,
        Value::Array(_) | Value::Object(_) => false,
        Value::Null | Value::Bool(_) | Value::Number(_) => true,
    }
}

/// Bytes for the ends of all steps that go on.
fn end_reserve_bytes(state: &EventLogState) -> u64 {
    state.running_steps.len() as u64 * END_RECORD_RESERVE_BYTES
}

/// Sets room aside from `length` to `room`, and beyond it where there is some. Answers up to where there is.
fn reserve_space(file: &File, length: u64, room: u64) -> io::Result<u64> {
    for until in [room + EXTRA_RESERVE_BYTES, room] {
        match fallocate(file, FallocateFlags::KEEP_SIZE, length, until - length) {
            Ok(()) => return Ok(until),
            Err(Errno::NOSPC | Errno::DQUOT) if until > room => {}
            Err(error @ (Errno::NOSPC | Errno::DQUOT)) => return Err(error.into()),
            // A file system that cannot: then it is seen when it is written.
            Err(_) => return Ok(u64::MAX),
        }
    }
    Ok(room)
}

fn has_value(fields: &Map<String, Value>, name: &str, value: &str) -> bool {
    fields.get(name).and_then(Value::as_str) == Some(value)
}

/// Finds the numbers of the last record and the last step, and the end of the last whole record.
fn recover(folder: &Path, file: &File) -> io::Result<(SessionCounters, u64)> {
    // Before the records: those that say more than it does may be gone by now.
    let mut numbers = read_counters_file(folder)?;
    let length = last_line_end(file, file.metadata()?.len())?;
    let mut is_last = true;
    visit_lines_reverse(file, length, None, |line| {
        let Some(head) = RecordHeader::parse(line) else {
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

fn read_counters_file(folder: &Path) -> io::Result<SessionCounters> {
    match fs::read(folder.join(COUNTERS_FILE)) {
        Ok(text) => serde_json::from_slice(&text).map_err(io::Error::from),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(SessionCounters::default()),
        Err(error) => Err(error),
    }
}

/// Writes the numbers that the session in `folder` has got to, whole or not at all.
pub(super) fn write_counters_file(folder: &Path, numbers: &SessionCounters) -> io::Result<()> {
    let new = folder.join(format!("{COUNTERS_FILE}.new"));
    let mut file =
        File::options().write(true).create(true).truncate(true).mode(0o600).open(&new)?;
    file.write_all(&serde_json::to_vec(numbers)?)?;
    file.sync_data()?;
    fs::rename(new, folder.join(COUNTERS_FILE))
}
