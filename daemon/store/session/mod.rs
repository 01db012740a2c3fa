//! A session: an agent's conversation, with numbered steps, their records and their artifacts.
//!
//! Each call is a step. `events.jsonl` holds its records; `logs/` and `diffs/` hold its artifacts.

mod artifacts;
mod event_log;
mod id;
mod last_run;
mod lost_steps;
mod record_reader;
mod shells;
mod snapshot;
mod step;
mod summary;

use std::{
    collections::{BTreeSet, HashMap},
    fs::{File, OpenOptions},
    io,
    os::unix::fs::{FileExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
    sync::Arc,
    time::SystemTime,
};

use memchr::memmem;
use serde_json::{Map, Value};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

pub(crate) use self::{
    artifacts::ArtifactMetadata,
    event_log::{SessionCounters, check_not_cancelled},
    id::SessionId,
    shells::{MAX_SHELLS_PER_CALLER, ShellName, StoredShell},
    snapshot::{RecordsSnapshot, SequencedRecord},
    step::{RetentionUnit, StepId, StreamName},
    summary::SessionSummary,
};
use self::{
    event_log::{EventLog, write_counters_file},
    last_run::LastRun,
    record_reader::{RecordHeader, RecordReader, binary_search},
    summary::parse_record_time,
};
use super::{artifact_writer::ArtifactWriter, directory::create, session_usage::SessionUsage};

/// An open session: its directory and its event log.
#[derive(Debug)]
pub(crate) struct Session {
    directory: PathBuf,
    events: EventLog,
    usage: Arc<SessionUsage>,
}

#[derive(Debug)]
pub(crate) enum OpenedArtifact {
    File(File),
    /// The command wrote nothing to this stream, which therefore has no file.
    Empty,
    Missing,
}

/// The records of a command.
#[derive(Debug)]
pub(crate) struct RecordedCommand {
    pub(crate) step: StepId,
    pub(crate) start_record: Map<String, Value>,
    /// `None` while the command is running, or if the daemon died.
    pub(crate) end_record: Option<Map<String, Value>>,
    pub(crate) is_running: bool,
}

/// Disk usage of a step, or of a record of no step.
#[derive(Debug, Clone)]
pub(crate) struct StepUsage {
    pub(crate) unit: RetentionUnit,
    /// Time of the last record.
    pub(crate) time: SystemTime,
    pub(crate) record_bytes: u64,
    pub(crate) artifact_bytes: u64,
}

impl Session {
    /// Creates the initial content of a new session in `directory`. With `counters`, those of a
    /// removed session of the same id, the new session continues them.
    pub(super) fn create_in(
        directory: &Path,
        counters: Option<&SessionCounters>,
    ) -> io::Result<()> {
        create(&directory.join(step::LOGS_DIR))?;
        counters.map_or(Ok(()), |counters| write_counters_file(directory, counters))
    }

    /// Opens the session in `directory`, creating it if it is new. Removes a record that a crash
    /// cut off.
    pub(super) fn open(directory: PathBuf, usage: Arc<SessionUsage>) -> io::Result<Self> {
        create(&directory)?;
        create(&directory.join(step::LOGS_DIR))?;
        let events = EventLog::open(&directory, Arc::clone(&usage))?;
        Ok(Self { directory, events, usage })
    }

    /// Records the end of steps that were in progress when the previous daemon died. On failure,
    /// the daemon that opens the session next tries again. Blocks.
    pub(super) fn end_lost_steps(&self) {
        let recorded = lost_steps::find_lost_steps(&self.records()).and_then(|ends| {
            let mut ends = ends.into_iter();
            ends.try_for_each(|(step, fields)| self.record(StepId(step), fields))
        });
        if let Err(error) = recorded {
            tracing::warn!(%error, "cannot record the end of calls that were lost in a crash");
        }
    }

    /// Reads the counters of the session in `directory` without opening it. Blocks.
    pub(super) fn read_counters(directory: &Path) -> io::Result<SessionCounters> {
        EventLog::read_counters(directory)
    }

    /// Summarizes the session in `directory` without opening it. Blocks.
    pub(super) fn summarize(
        directory: &Path,
        shutdown: &CancellationToken,
    ) -> io::Result<SessionSummary> {
        SessionSummary::read(directory, shutdown)
    }

    /// Returns when the session in `directory` was last used, without opening it. Blocks.
    pub(super) fn last_used(directory: &Path) -> io::Result<SystemTime> {
        summary::last_used(directory)
    }

    /// Deletes the artifacts of the removed session in `directory`. Blocks.
    pub(super) fn delete_artifacts(
        directory: &Path,
        shutdown: &CancellationToken,
    ) -> io::Result<()> {
        artifacts::remove_all(directory, shutdown)
    }

    // === Records ===

    /// Begins a step and writes its first record, made of `fields`, a sequence number and the step
    /// number. Stores nothing if the disk has no space for this record and the end record.
    pub(crate) fn begin_step(&self, fields: Map<String, Value>) -> io::Result<StepId> {
        self.events.begin_step(fields)
    }

    /// Appends another record of a step.
    pub(crate) fn record(&self, step: StepId, fields: Map<String, Value>) -> io::Result<()> {
        self.events.append_record(step, fields)
    }

    /// Appends a record with step number 0, of a call that has not begun.
    pub(crate) fn record_without_step(&self, fields: Map<String, Value>) -> io::Result<()> {
        self.record(StepId::NONE, fields)
    }

    /// Returns a snapshot of the records.
    pub(crate) fn records(&self) -> RecordsSnapshot {
        self.events.snapshot()
    }

    /// Returns a receiver of the last record's sequence number.
    pub(crate) fn subscribe_last_sequence(&self) -> watch::Receiver<u64> {
        self.events.subscribe()
    }

    /// Returns the command that was begun last, if its records are stored. Blocks.
    pub(crate) fn last_command(&self) -> io::Result<Option<RecordedCommand>> {
        let records = self.events.snapshot();
        let run = match self.events.last_run() {
            LastRun::Unknown => {
                let found = LastRun::search(&records)?;
                self.events.cache_last_run(found.clone(), &records);
                found
            }
            known @ (LastRun::Absent | LastRun::Known(_)) => known,
        };
        let LastRun::Known(run) = run else {
            return Ok(None);
        };

        let is_running = self.events.running_steps().contains(&run.step);
        // Taken afterwards, so that it has all records written while the step was running.
        let records = self.events.snapshot();
        let read = |sequence| -> io::Result<Option<Map<String, Value>>> {
            let line = last_run::read_record(&records, sequence)?;
            line.map(|line| serde_json::from_slice(&line).map_err(io::Error::from)).transpose()
        };
        let Some(start_record) = read(run.start_sequence)? else {
            return Ok(None); // removed since
        };
        let end_record = run.end_sequence.map(read).transpose()?.flatten();

        Ok(Some(RecordedCommand {
            step: StepId(run.step),
            start_record,
            is_running: is_running && end_record.is_none(),
            end_record,
        }))
    }

    // === Artifacts ===

    /// Returns a writer for a stream of the command of `step`, limited to `max_bytes`, and the path
    /// under which it can be read.
    pub(crate) fn artifact_writer(
        &self,
        step: StepId,
        stream: StreamName,
        max_bytes: u64,
    ) -> (ArtifactWriter, String) {
        let path = step.artifact_path(stream);
        let writer = ArtifactWriter::new(self.directory.join(&path), max_bytes);
        (writer.with_usage(Arc::clone(&self.usage)), path)
    }

    /// Stores the patch of `step` and returns the path under which it can be read. Blocks.
    pub(crate) fn save_patch(&self, step: StepId, patch: &[u8]) -> io::Result<String> {
        let path = step.patch_path();
        let file = self.directory.join(&path);
        if let Some(directory) = file.parent() {
            create(directory)?;
        }

        let opened = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&file)?;
        if let Err(error) = opened.write_all_at(patch, 0) {
            self.remove_patch(step); // never leave part of a patch
            return Err(error);
        }
        self.usage.add_written(patch.len() as u64);
        Ok(path)
    }

    /// Removes the patch of `step`, which was not applied. Blocks.
    pub(crate) fn remove_patch(&self, step: StepId) {
        // On failure, the step's record still says that the step failed.
        let _removed = std::fs::remove_file(self.directory.join(step.patch_path()));
    }

    /// Reads the state of a shell of the caller `owner`. Blocks.
    pub(crate) fn read_shell(&self, owner: &str, name: &ShellName) -> io::Result<StoredShell> {
        shells::read(&self.directory, owner, name)
    }

    /// Replaces the state of a shell, completely or not at all. Blocks.
    ///
    /// Like the database, it survives the death of the daemon, but not a power failure at that moment.
    pub(crate) fn save_shell(&self, owner: &str, name: &ShellName, state: &[u8]) -> io::Result<()> {
        shells::save(&self.directory, owner, name, state)?;
        self.usage.add_written(state.len() as u64);
        Ok(())
    }

    /// Removes the state of a shell, if it has one. Blocks.
    pub(crate) fn remove_shell(&self, owner: &str, name: &ShellName) -> io::Result<()> {
        shells::remove(&self.directory, owner, name)
    }

    /// Opens the artifact at `path`. Blocks.
    pub(crate) fn open_artifact(&self, path: &str) -> io::Result<OpenedArtifact> {
        let Some(step) = StepId::from_artifact_path(path) else {
            return Ok(OpenedArtifact::Missing);
        };

        match File::open(self.directory.join(path)) {
            Ok(file) => Ok(OpenedArtifact::File(file)),
            // An empty stream has no file. The records tell whether there was such a command, and
            // whether it wrote anything that has been removed since.
            Err(error)
                if error.kind() == io::ErrorKind::NotFound
                    && path != step.patch_path()
                    && self.is_empty_stream(step, path)? =>
            {
                Ok(OpenedArtifact::Empty)
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(OpenedArtifact::Missing),
            Err(error) => Err(error),
        }
    }

    /// Lists at most `limit` artifacts by path: those after `after`, and those of `step`, where
    /// given. Blocks.
    pub(crate) fn list_artifacts(
        &self,
        after: Option<&str>,
        step: Option<u64>,
        limit: usize,
    ) -> io::Result<Vec<ArtifactMetadata>> {
        artifacts::list(&self.directory, after, step, limit)
    }

    /// Returns the tool that `step` is a call of, if its first record is stored. Blocks.
    pub(crate) fn tool_of_step(&self, step: StepId) -> io::Result<Option<String>> {
        let records = self.events.snapshot();
        let mut reader = records_from_step(&records, step)?;
        while let Some(line) = reader.next()? {
            if let Some(header) = RecordHeader::parse(line).filter(RecordHeader::begins_step) {
                return Ok((header.step == step.0).then(|| header.tool.into_owned()));
            }
        }
        Ok(None)
    }

    /// Whether the records show a command that wrote nothing to the stream at `path`, or
    /// one that is running.
    fn is_empty_stream(&self, step: StepId, path: &str) -> io::Result<bool> {
        let records = self.events.snapshot();
        let step_marker = format!("\"step\":{},", step.0);
        let step_finder = memmem::Finder::new(&step_marker);
        let mut reader = records_from_step(&records, step)?;

        // For tools added by the configuration, only the end record shows that they are commands.
        let mut is_of_run = None;
        while let Some(line) = reader.next()? {
            if is_of_run.is_some() && step_finder.find(line).is_none() {
                continue;
            }
            let Some(header) = RecordHeader::parse(line) else { continue };
            if header.begins_step() && is_of_run.is_none() {
                if header.step != step.0 {
                    return Ok(false);
                }
                is_of_run = Some(header.is_of_run());
            } else if header.ends_step() && header.step == step.0 {
                let record: Map<String, Value> = serde_json::from_slice(line)?;
                let [stdout, _] = StepId::stream_paths(step.0);
                let field = if path == stdout { "stdout_bytes" } else { "stderr_bytes" };
                let bytes = record.get(field).and_then(Value::as_u64);
                return Ok(bytes.map_or(is_of_run == Some(true), |bytes| bytes == 0));
            }
        }
        Ok(is_of_run == Some(true))
    }

    // === Retention ===

    /// Returns the disk usage of each ended step, in the order of their first records. Blocks.
    pub(super) fn step_usage(&self, shutdown: &CancellationToken) -> io::Result<Vec<StepUsage>> {
        let running = self.events.running_steps();
        let records = self.events.snapshot();
        let mut steps: Vec<StepUsage> = Vec::new();
        let mut indices = HashMap::new();

        let mut reader = RecordReader::new(&records.file, 0, records.length);
        while let Some(line) = reader.next()? {
            check_not_cancelled(shutdown)?;
            let bytes = line.len() as u64;
            let Some(header) = RecordHeader::parse(line) else { continue };

            let unit = RetentionUnit::of_record(header.step, header.sequence);
            let index = *indices.entry(unit).or_insert(steps.len());
            if index == steps.len() {
                steps.push(StepUsage {
                    unit,
                    time: SystemTime::UNIX_EPOCH,
                    record_bytes: 0,
                    artifact_bytes: 0,
                });
            }
            if let Some(usage) = steps.get_mut(index) {
                usage.record_bytes += bytes;
                usage.time = parse_record_time(&header.time).unwrap_or(usage.time);
            }
        }

        for artifact in artifacts::list_all(&self.directory, shutdown)? {
            let index = indices.get(&RetentionUnit::Step(artifact.step.0));
            if let Some(usage) = index.and_then(|index| steps.get_mut(*index)) {
                usage.artifact_bytes += artifact.disk_bytes;
            }
        }

        steps.retain(|usage| match usage.unit {
            RetentionUnit::Step(step) => !running.contains(&step),
            RetentionUnit::Record(_) => true,
        });
        Ok(steps)
    }

    /// Sets how many bytes of the records remained after the last trim. See
    /// [`EventLog::set_trimmed`].
    pub(super) fn set_trimmed(&self, remaining_bytes: u64) {
        self.events.set_trimmed(remaining_bytes);
    }

    /// Removes the records and artifacts of steps, which must have ended. Blocks.
    ///
    /// Artifacts go first: that needs no disk space, and frees some for the records that stay. In
    /// between, the records still distinguish a removed output from an empty one. An interrupted
    /// removal is repeated by the next retention pass, which selects these steps again.
    pub(super) fn remove_steps(
        &self,
        steps: &BTreeSet<RetentionUnit>,
        shutdown: &CancellationToken,
    ) -> io::Result<()> {
        for unit in steps {
            check_not_cancelled(shutdown)?;
            if let RetentionUnit::Step(step) = unit {
                artifacts::remove_step(&self.directory, *step)?;
            }
        }
        self.events.compact(|unit| steps.contains(&unit), shutdown)
    }
}

/// Returns a reader that starts at the first record of `step`, if it has one. Steps begin in the
/// order of their numbers, so a binary search finds it in a file of any length.
fn records_from_step(records: &RecordsSnapshot, step: StepId) -> io::Result<RecordReader<'_>> {
    let at = binary_search(&records.file, records.length, |head| {
        head.begins_step().then_some(head.step < step.0)
    })?;
    Ok(RecordReader::new(&records.file, at, records.length))
}

#[cfg(test)]
mod tests;
