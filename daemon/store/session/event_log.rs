//! The event log: `events.jsonl`, the records of a session in the order of their sequence numbers.
//!
//! Records are appended and never changed. To remove old records, the log copies the others to a
//! new file and renames it over the old one; open readers read the old file to its end. Before
//! that, the log writes the counters to a file of their own: they continue even if no record
//! remains.
//!
//! A step begins only if the disk has space for its end record, which the log reserves after the
//! records.

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

pub(super) const RECORDS_FILE: &str = "events.jsonl";
/// The new file while old records are removed.
const COMPACTED_RECORDS_FILE: &str = "events.jsonl.new";
/// The counters of the session, under the name that earlier versions gave the file.
const COUNTERS_FILE: &str = "numbers";

/// Space reserved for the end record of each step. A longer end record is shortened if the disk is
/// full.
const END_RECORD_RESERVE_BYTES: u64 = 4096;
/// Longest text in a shortened record. All values of that size together fit in the reserve.
const MAX_SHORT_VALUE_BYTES: usize = 256;
/// Space reserved beyond what is needed, so that not every step has to reserve.
const EXTRA_RESERVE_BYTES: u64 = 16 * 1024;

/// The records of a session, open for appending.
#[derive(Debug)]
pub(super) struct EventLog {
    directory: PathBuf,
    state: Mutex<EventLogState>,
    last_sequence: watch::Sender<u64>,
    /// Held while old records are removed.
    compaction: Mutex<()>,
    usage: Arc<SessionUsage>,
}

#[derive(Debug)]
struct EventLogState {
    file: Arc<File>,
    /// Bytes of complete records.
    length: u64,
    /// Offset up to which disk space is allocated.
    reserved: u64,
    /// Bytes of records that the last trim left; 0 before the first.
    trimmed_length: u64,
    /// Number of times that another file has replaced the first one.
    generation: u64,
    last_sequence: u64,
    last_step: u64,
    /// Steps begun since the log was opened that have not ended.
    running_steps: BTreeSet<u64>,
    last_run: LastRun,
}

/// The last sequence and step numbers of a session.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct SessionCounters {
    pub(crate) sequence: u64,
    pub(crate) step: u64,
    /// The `time` of the last record, as text.
    pub(crate) time: String,
}

impl EventLog {
    /// Opens the records in `directory`, creating the file if it is missing. Removes a record that
    /// a crash cut off.
    pub(super) fn open(directory: &Path, usage: Arc<SessionUsage>) -> io::Result<Self> {
        let file = File::options()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(directory.join(RECORDS_FILE))?;
        let (counters, length) = recover(directory, &file)?;
        file.set_len(length)?;

        Ok(Self {
            directory: directory.to_owned(),
            last_sequence: watch::Sender::new(counters.sequence),
            state: Mutex::new(EventLogState {
                file: Arc::new(file),
                length,
                reserved: length,
                trimmed_length: 0,
                generation: 0,
                last_sequence: counters.sequence,
                last_step: counters.step,
                running_steps: BTreeSet::new(),
                last_run: LastRun::Unknown,
            }),
            compaction: Mutex::default(),
            usage,
        })
    }

    /// Reads the counters of the session in `directory` without opening it.
    pub(super) fn read_counters(directory: &Path) -> io::Result<SessionCounters> {
        match File::open(directory.join(RECORDS_FILE)) {
            Ok(file) => Ok(recover(directory, &file)?.0),
            Err(error) if error.kind() == io::ErrorKind::NotFound => read_counters_file(directory),
            Err(error) => Err(error),
        }
    }

    /// Begins the next step and appends its first record.
    pub(super) fn begin_step(&self, fields: Map<String, Value>) -> io::Result<StepId> {
        let is_run = has_value(&fields, "tool", "run");
        let mut state = self.lock();
        let step = state.last_step + 1;
        // Included when `append` reserves space for end records.
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

    /// Appends another record of a step.
    pub(super) fn append_record(&self, step: StepId, fields: Map<String, Value>) -> io::Result<()> {
        let ends_step = has_value(&fields, "event", "tool_call_finished");
        let mut state = self.lock();
        if ends_step {
            state.running_steps.remove(&step.0);
        }
        let sequence = self.append(&mut state, step.0, fields, ends_step)?;
        if ends_step {
            state.last_run.mark_ended(step.0, sequence);
        }
        Ok(())
    }

    pub(super) fn snapshot(&self) -> RecordsSnapshot {
        let state = self.lock();
        RecordsSnapshot {
            file: Arc::clone(&state.file),
            length: state.length,
            generation: state.generation,
            last_sequence: state.last_sequence,
        }
    }

    /// Returns a receiver of the last record's sequence number.
    pub(super) fn subscribe(&self) -> watch::Receiver<u64> {
        self.last_sequence.subscribe()
    }

    /// Returns the steps that have not ended.
    pub(super) fn running_steps(&self) -> BTreeSet<u64> {
        self.lock().running_steps.clone()
    }

    /// Returns the command that was begun last, as far as it is known without a search.
    pub(super) fn last_run(&self) -> LastRun {
        self.lock().last_run.clone()
    }

    /// Stores the result of a search in `records`, unless records were added or removed since.
    pub(super) fn cache_last_run(&self, found: LastRun, records: &RecordsSnapshot) {
        let mut state = self.lock();
        if matches!(state.last_run, LastRun::Unknown)
            && state.last_sequence == records.last_sequence
            && state.generation == records.generation
        {
            state.last_run = found;
        }
    }

    /// Sets how many bytes of the existing records remained after a trim. Signals at once if the
    /// records added since then exceed the limit: there may be no later record to do so.
    pub(super) fn set_trimmed(&self, remaining_bytes: u64) {
        let mut state = self.lock();
        state.trimmed_length = remaining_bytes;
        self.usage.check_record_bytes(state.length, remaining_bytes);
    }

    /// Removes the records for which `is_removed` returns true. Records can be appended during that.
    pub(super) fn compact(
        &self,
        is_removed: impl Fn(RetentionUnit) -> bool,
        shutdown: &CancellationToken,
    ) -> io::Result<()> {
        let _exclusive = self.compaction.lock().unwrap_or_else(PoisonError::into_inner);
        let before = self.snapshot();
        write_counters_file(&self.directory, &Self::read_counters(&self.directory)?)?;

        let new = self.directory.join(COMPACTED_RECORDS_FILE);
        let result = self.rewrite(&before, &new, is_removed, shutdown);
        if result.is_err() {
            // If this fails too, the next compaction truncates the file.
            let _removed = fs::remove_file(&new);
        }
        result
    }

    fn rewrite(
        &self,
        before: &RecordsSnapshot,
        new: &Path,
        is_removed: impl Fn(RetentionUnit) -> bool,
        shutdown: &CancellationToken,
    ) -> io::Result<()> {
        let file = File::options()
            .read(true)
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(new)?;
        let mut length = copy_records(before, &file, &is_removed, shutdown)?;
        file.sync_data()?;

        let mut state = self.lock();
        // The few records that were appended during the copy.
        let tail = usize::try_from(state.length - before.length).unwrap_or(usize::MAX);
        let mut bytes = vec![0; tail];
        state.file.read_exact_at(&mut bytes, before.length)?;
        file.write_all_at(&bytes, length)?;
        length += tail as u64;

        // The end records of running steps need their space in the new file.
        let reserved = reserve_space(&file, length, length + end_reserve_bytes(&state))?;
        fs::rename(new, self.directory.join(RECORDS_FILE))?;

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

    /// Appends a record and returns its sequence number. A record that `ends_step` may use the
    /// reserved space.
    fn append(
        &self,
        state: &mut EventLogState,
        step: u64,
        mut fields: Map<String, Value>,
        ends_step: bool,
    ) -> io::Result<u64> {
        let sequence = state.last_sequence + 1;
        fields.insert("sequence".to_owned(), sequence.into());
        fields.insert("step".to_owned(), step.into());
        let line = encode_line(&fields)?;

        if !ends_step {
            let needed = state.length + line.len() as u64 + end_reserve_bytes(state);
            if needed > state.reserved {
                state.reserved = reserve_space(&state.file, state.length, needed)?;
            }
        }

        let mut written = write_line(state, &line);
        if written.is_err() && ends_step && line.len() as u64 > END_RECORD_RESERVE_BYTES {
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
            // Frees the unused reserve. If this fails, the next open truncates the file.
            let _freed = state.file.set_len(state.length);
        }
    }
}

/// Returns an error once the daemon shuts down, to interrupt long work.
pub(crate) fn check_not_cancelled(shutdown: &CancellationToken) -> io::Result<()> {
    if shutdown.is_cancelled() {
        Err(io::Error::new(io::ErrorKind::Interrupted, "the daemon is shutting down"))
    } else {
        Ok(())
    }
}

/// Copies the records that stay to `file`. Returns their bytes.
fn copy_records(
    before: &RecordsSnapshot,
    file: &File,
    is_removed: impl Fn(RetentionUnit) -> bool,
    shutdown: &CancellationToken,
) -> io::Result<u64> {
    let mut length = 0;
    let mut writer = BufWriter::new(file);
    let mut reader = RecordReader::new(&before.file, 0, before.length);
    while let Some(line) = reader.next()? {
        check_not_cancelled(shutdown)?;
        let unit = RecordHeader::parse(line)
            .map(|header| RetentionUnit::of_record(header.step, header.sequence));
        if unit.is_some_and(|unit| !is_removed(unit)) {
            writer.write_all(line)?;
            length += line.len() as u64;
        }
    }

    writer.flush()?;
    Ok(length)
}

/// Encodes a record as a line of JSON.
fn encode_line(record: &Map<String, Value>) -> io::Result<Vec<u8>> {
    let mut line = serde_json::to_vec(record)?;
    line.push(b'\n');
    Ok(line)
}

/// Writes a line after the others and returns its bytes. A line that did not fit is overwritten by
/// the next one or cut off; without its newline it is not a record.
fn write_line(state: &EventLogState, line: &[u8]) -> io::Result<u64> {
    state.file.write_all_at(line, state.length)?;
    Ok(line.len() as u64)
}

/// Whether a value stays when its record is shortened.
fn is_short(value: &Value) -> bool {
    match value {
        Value::String(text) => text.len() <= MAX_SHORT_VALUE_BYTES,
        Value::Array(_) | Value::Object(_) => false,
        Value::Null | Value::Bool(_) | Value::Number(_) => true,
    }
}

/// Returns the bytes to reserve for the end records of all running steps.
fn end_reserve_bytes(state: &EventLogState) -> u64 {
    state.running_steps.len() as u64 * END_RECORD_RESERVE_BYTES
}

/// Allocates disk space from `length` to `needed`, and beyond it if the disk has space. Returns
/// the offset up to which space is allocated.
fn reserve_space(file: &File, length: u64, needed: u64) -> io::Result<u64> {
    for target in [needed + EXTRA_RESERVE_BYTES, needed] {
        match fallocate(file, FallocateFlags::KEEP_SIZE, length, target - length) {
            Ok(()) => return Ok(target),
            Err(Errno::NOSPC | Errno::DQUOT) if target > needed => {}
            Err(error @ (Errno::NOSPC | Errno::DQUOT)) => return Err(error.into()),
            // The file system does not support it: a full disk shows at the write.
            Err(_) => return Ok(u64::MAX),
        }
    }
    Ok(needed)
}

fn has_value(fields: &Map<String, Value>, name: &str, value: &str) -> bool {
    fields.get(name).and_then(Value::as_str) == Some(value)
}

/// Finds the counters of a session, and the end of its last complete record.
fn recover(directory: &Path, file: &File) -> io::Result<(SessionCounters, u64)> {
    // Read first: records with higher numbers may be removed at any time.
    let mut counters = read_counters_file(directory)?;
    let length = last_line_end(file, file.metadata()?.len())?;

    let mut is_last = true;
    visit_lines_reverse(file, length, None, |line| {
        let Some(header) = RecordHeader::parse(line) else {
            return ControlFlow::Continue(());
        };
        counters.step = counters.step.max(header.step);
        if mem::take(&mut is_last) {
            counters.sequence = counters.sequence.max(header.sequence);
            counters.time = header.time.clone().into_owned();
        }
        // Steps begin in the order of their numbers, and end in any order.
        if header.begins_step() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    })?;
    Ok((counters, length))
}

fn read_counters_file(directory: &Path) -> io::Result<SessionCounters> {
    match fs::read(directory.join(COUNTERS_FILE)) {
        Ok(text) => serde_json::from_slice(&text).map_err(io::Error::from),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(SessionCounters::default()),
        Err(error) => Err(error),
    }
}

/// Writes the counters of the session in `directory`, atomically.
pub(super) fn write_counters_file(directory: &Path, counters: &SessionCounters) -> io::Result<()> {
    let new = directory.join(format!("{COUNTERS_FILE}.new"));
    let mut file =
        File::options().write(true).create(true).truncate(true).mode(0o600).open(&new)?;
    file.write_all(&serde_json::to_vec(counters)?)?;
    file.sync_data()?;
    fs::rename(new, directory.join(COUNTERS_FILE))
}
