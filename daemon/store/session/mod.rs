//! A session: an agent's conversation, with numbered steps, their records and their artifacts.

mod artifacts;
mod event_log;
mod id;
mod last_run;
mod lost_steps;
mod record_reader;
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
use super::{artifact_writer::ArtifactWriter, folder::make, session_usage::SessionUsage};

/// A session's folder, and where its records have got to.
#[derive(Debug)]
pub(crate) struct Session {
    folder: PathBuf,
    events: EventLog,
    usage: Arc<SessionUsage>,
}

/// What the artifact of a path is.
#[derive(Debug)]
pub(crate) enum OpenedArtifact {
    /// A file.
    File(File),
    /// Nothing was written to it.
    Empty,
    /// There is none.
    Missing,
}

/// What the records say of a command.
#[derive(Debug)]
pub(crate) struct RecordedCommand {
    /// Its step.
    pub(crate) step: StepId,
    /// The record of its beginning.
    pub(crate) start_record: Map<String, Value>,
    /// The record of its end, if there is one.
    pub(crate) end_record: Option<Map<String, Value>>,
    /// Whether it goes on.
    pub(crate) is_running: bool,
}

/// What is kept of one step, or a record of none.
#[derive(Debug, Clone)]
pub(crate) struct StepUsage {
    /// Which.
    pub(crate) unit: RetentionUnit,
    /// When its last record was written.
    pub(crate) time: SystemTime,
    /// Bytes of its records.
    pub(crate) record_bytes: u64,
    /// Bytes of its artifacts.
    pub(crate) artifact_bytes: u64,
}

impl Session {
    /// Puts into `folder` what a session begins with, behind the numbers of a `past` one.
    pub(super) fn create_in(folder: &Path, past: Option<&SessionCounters>) -> io::Result<()> {
        make(&folder.join(step::LOGS_DIR))?;
        past.map_or(Ok(()), |past| write_counters_file(folder, past))
    }

    /// Opens the session in `folder`, making it where it is new. A record that a crash cut off is
    /// removed.
    pub(super) fn open(folder: PathBuf, fullness: Arc<SessionUsage>) -> io::Result<Self> {
        make(&folder)?;
        make(&folder.join(step::LOGS_DIR))?;
        Ok(Self {
            events: EventLog::open(&folder, Arc::clone(&fullness))?,
            folder,
            usage: fullness,
        })
    }

    /// Ends the steps that a daemon had begun and not ended when it died. Where that cannot be written
    /// down now, it is when the next one opens the session. Blocks.
    pub(super) fn end_lost_steps(&self) {
        let ends = lost_steps::find_lost_steps(&self.records()).and_then(|ends| {
            let mut ends = ends.into_iter();
            ends.try_for_each(|(step, fields)| self.record(StepId(step), fields))
        });
        if let Err(error) = ends {
            tracing::warn!(%error, "the ends of calls that were lost could not be recorded");
        }
    }

    /// What numbers the session in `folder` has got to, without opening it. Blocks.
    pub(super) fn read_counters(folder: &Path) -> io::Result<SessionCounters> {
        EventLog::read_counters(folder)
    }

    /// A glance at the session in `folder`, without opening it. Blocks.
    pub(super) fn summarize(folder: &Path, end: &CancellationToken) -> io::Result<SessionSummary> {
        SessionSummary::read(folder, end)
    }

    /// When the session in `folder` was last used, without opening it. Blocks.
    pub(super) fn last_used(folder: &Path) -> io::Result<SystemTime> {
        summary::last_used(folder)
    }

    /// Deletes the artifacts of the session that is no more in `folder`. Blocks.
    pub(super) fn delete_artifacts(folder: &Path, end: &CancellationToken) -> io::Result<()> {
        artifacts::remove_all(folder, end)
    }

    // === Records ===

    /// Begins a step: writes its first record, which `fields` completes. Nothing is kept when the
    /// disk is full.
    pub(crate) fn begin_step(&self, fields: Map<String, Value>) -> io::Result<StepId> {
        self.events.begin_step(fields)
    }

    /// Writes another record of a step.
    pub(crate) fn record(&self, step: StepId, fields: Map<String, Value>) -> io::Result<()> {
        self.events.append_record(step, fields)
    }

    /// Writes a record of no step, which has the number 0: of a call that has not begun.
    pub(crate) fn record_without_step(&self, fields: Map<String, Value>) -> io::Result<()> {
        self.record(StepId::NONE, fields)
    }

    /// Its records as they are now.
    pub(crate) fn records(&self) -> RecordsSnapshot {
        self.events.snapshot()
    }

    /// Tells of the number of the last record.
    pub(crate) fn subscribe_last_sequence(&self) -> watch::Receiver<u64> {
        self.events.subscribe()
    }

    /// The last command that was begun, if one is kept. Blocks.
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
        // Whatever was written of it before that was looked at.
        let records = self.events.snapshot();
        let record = |sequence| -> io::Result<Option<Map<String, Value>>> {
            let line = last_run::read_record(&records, sequence)?;
            line.map(|line| serde_json::from_slice(&line).map_err(io::Error::from)).transpose()
        };
        let Some(started) = record(run.start_sequence)? else {
            return Ok(None); // removed at this moment
        };
        let ended = run.end_sequence.map(record).transpose()?.flatten();
        Ok(Some(RecordedCommand {
            step: StepId(run.step),
            start_record: started,
            is_running: is_running && ended.is_none(),
            end_record: ended,
        }))
    }

    // === Artifacts ===

    /// Where a stream of the command of `step` is to be written, and the path under which it can be
    /// read.
    pub(crate) fn artifact_writer(
        &self,
        step: StepId,
        stream: StreamName,
        cap: u64,
    ) -> (ArtifactWriter, String) {
        let path = step.artifact_path(stream);
        let sink = ArtifactWriter::new(self.folder.join(&path), cap);
        (sink.with_usage(Arc::clone(&self.usage)), path)
    }

    /// Keeps the patch of `step`, and answers the path under which it can be read. Blocks.
    pub(crate) fn save_patch(&self, step: StepId, patch: &[u8]) -> io::Result<String> {
        let path = step.patch_path();
        let file = self.folder.join(&path);
        if let Some(folder) = file.parent() {
            make(folder)?;
        }
        let mut options = OpenOptions::new();
        let opened = options.write(true).create_new(true).mode(0o600).open(&file)?;
        if let Err(error) = opened.write_all_at(patch, 0) {
            self.remove_patch(step); // half a patch is none
            return Err(error);
        }
        self.usage.add_written(patch.len() as u64);
        Ok(path)
    }

    /// Removes the patch of `step`, which was not applied. Blocks.
    pub(crate) fn remove_patch(&self, step: StepId) {
        // Where it cannot be removed, the record of the step says that it has failed.
        let _removed = std::fs::remove_file(self.folder.join(step.patch_path()));
    }

    /// Opens the artifact at `path`, if this is the path of one. Blocks.
    pub(crate) fn open_artifact(&self, path: &str) -> io::Result<OpenedArtifact> {
        let Some(step) = StepId::from_artifact_path(path) else {
            return Ok(OpenedArtifact::Missing);
        };
        match File::open(self.folder.join(path)) {
            Ok(file) => Ok(OpenedArtifact::File(file)),
            // An empty stream has no file: then the records say whether there was such a command, and
            // that nothing was written that is not kept any more.
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

    /// Lists artifacts by their paths, those behind `after` and of `step` where these are given, and at
    /// most so many. Blocks.
    pub(crate) fn list_artifacts(
        &self,
        after: Option<&str>,
        step: Option<u64>,
        at_most: usize,
    ) -> io::Result<Vec<ArtifactMetadata>> {
        artifacts::list(&self.folder, after, step, at_most)
    }

    /// The tool that `step` is a call of, where its first record is kept. Blocks.
    pub(crate) fn tool_of_step(&self, step: StepId) -> io::Result<Option<String>> {
        let records = self.events.snapshot();
        let mut from = records_from_step(&records, step)?;
        while let Some(line) = from.next()? {
            if let Some(head) = RecordHeader::parse(line).filter(RecordHeader::begins_step) {
                return Ok((head.step == step.0).then(|| head.tool.into_owned()));
            }
        }
        Ok(None)
    }

    /// Whether the records tell of a command that has written nothing to this stream, or goes on.
    fn is_empty_stream(&self, step: StepId, path: &str) -> io::Result<bool> {
        let records = self.events.snapshot();
        let of_step = format!("\"step\":{},", step.0);
        let of_step = memmem::Finder::new(&of_step);
        let mut from = records_from_step(&records, step)?;
        // Of tools that the configuration adds, only the end tells that they are commands.
        let mut is_of_run = None;
        while let Some(line) = from.next()? {
            if is_of_run.is_some() && of_step.find(line).is_none() {
                continue;
            }
            let Some(head) = RecordHeader::parse(line) else { continue };
            if head.begins_step() && is_of_run.is_none() {
                if head.step != step.0 {
                    return Ok(false);
                }
                is_of_run = Some(head.is_of_run());
            } else if head.ends_step() && head.step == step.0 {
                let record: Map<String, Value> = serde_json::from_slice(line)?;
                let [stdout, _] = StepId::stream_paths(step.0);
                let bytes = match path == stdout {
                    true => record.get("stdout_bytes"),
                    false => record.get("stderr_bytes"),
                };
                let bytes = bytes.and_then(Value::as_u64);
                return Ok(bytes.map_or(is_of_run == Some(true), |bytes| bytes == 0));
            }
        }
        Ok(is_of_run == Some(true))
    }

    // === What is to be kept ===

    /// What is kept of each step, the oldest one first, but for those that have not ended. Blocks.
    pub(super) fn step_usage(&self, end: &CancellationToken) -> io::Result<Vec<StepUsage>> {
        let running = self.events.running_steps();
        let records = self.events.snapshot();
        // In the order of their first records.
        let mut steps: Vec<StepUsage> = Vec::new();
        let mut places = HashMap::new();
        let mut from = RecordReader::new(&records.file, 0, records.length);
        while let Some(line) = from.next()? {
            check_not_cancelled(end)?;
            let bytes = line.len() as u64;
            let Some(head) = RecordHeader::parse(line) else { continue };
            let piece = RetentionUnit::of_record(head.step, head.sequence);
            let place = *places.entry(piece).or_insert(steps.len());
            if place == steps.len() {
                steps.push(StepUsage {
                    unit: piece,
                    time: SystemTime::UNIX_EPOCH,
                    record_bytes: 0,
                    artifact_bytes: 0,
                });
            }
            if let Some(kept) = steps.get_mut(place) {
                kept.record_bytes += bytes;
                kept.time = parse_record_time(&head.time).unwrap_or(kept.time);
            }
        }
        for artifact in artifacts::list_all(&self.folder, end)? {
            let place = places.get(&RetentionUnit::Step(artifact.step.0));
            if let Some(kept) = place.and_then(|place| steps.get_mut(*place)) {
                kept.artifact_bytes += artifact.disk_bytes;
            }
        }
        steps.retain(|kept| match kept.unit {
            RetentionUnit::Step(step) => !running.contains(&step),
            RetentionUnit::Record(_) => true,
        });
        Ok(steps)
    }

    /// What is not to be kept of the records has been removed, as far as it could be: so many bytes of those
    /// that were looked through `stayed`.
    pub(super) fn set_trimmed(&self, stayed: u64) {
        self.events.set_trimmed(stayed);
    }

    /// Removes all that is kept of steps, which must have ended. Blocks.
    ///
    /// Artifacts go first: that needs no room on a disk that is full, and makes some for the records that
    /// stay. What the records say of a step tells a removed output from an empty one meanwhile; a removal
    /// that is cut off is done again by the next one, as these steps are to be removed still.
    pub(super) fn remove_steps(
        &self,
        steps: &BTreeSet<RetentionUnit>,
        end: &CancellationToken,
    ) -> io::Result<()> {
        for piece in steps {
            check_not_cancelled(end)?;
            if let RetentionUnit::Step(step) = piece {
                artifacts::remove_step(&self.folder, *step)?;
            }
        }
        self.events.compact(|piece| steps.contains(&piece), end)
    }
}

/// The records from the first one of `step` on, if it has one. Steps begin in the order of their numbers, so
/// halving finds one in a file of any length.
fn records_from_step(records: &RecordsSnapshot, step: StepId) -> io::Result<RecordReader<'_>> {
    let at = binary_search(&records.file, records.length, |head| {
        head.begins_step().then_some(head.step < step.0)
    })?;
    Ok(RecordReader::new(&records.file, at, records.length))
}

#[cfg(test)]
mod tests;
