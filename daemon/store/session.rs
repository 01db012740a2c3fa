//! A session: an agent's conversation, with numbered steps, their records and their artifacts.

use std::{
    fs::{DirBuilder, File, OpenOptions},
    io::{self, BufRead as _, BufReader, Read as _, Seek as _, SeekFrom},
    os::unix::fs::{DirBuilderExt as _, FileExt as _, OpenOptionsExt as _},
    path::PathBuf,
    sync::{Mutex, PoisonError},
};

use serde_json::{Map, Value};

use super::artifact::Sink;

/// Bytes at the end of `events.jsonl` in which the last record must lie: records are far smaller.
const LAST_RECORDS_BYTES: u64 = 256 * 1024;

/// Id of a session: 1 to 64 letters, digits, `.`, `_` and `-`, the first of them no dot. It names a
/// folder.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct SessionId(String);

/// A session's folder, and where its records have got to.
#[derive(Debug)]
pub(crate) struct Session {
    folder: PathBuf,
    events: Mutex<Events>,
}

#[derive(Debug)]
struct Events {
    file: File,
    /// Bytes of whole records.
    length: u64,
    last_sequence: u64,
    last_step: u64,
}

/// A step of a session: one call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Step(u64);

/// The first record of a step, as it is found in the file.
#[derive(Debug)]
struct Start {
    step: u64,
    is_run: bool,
    /// Offset of what follows it.
    end: u64,
}

/// One of a command's two streams.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StreamName {
    /// Standard output.
    Stdout,
    /// Standard error.
    Stderr,
}

/// What the artifact of a path is.
#[derive(Debug)]
pub(crate) enum Artifact {
    /// A file.
    File(File),
    /// Nothing was written to it.
    Empty,
    /// There is none.
    Missing,
}

// === impl SessionId ===

impl SessionId {
    /// Checks an id.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
        let valid =
            (1..=64).contains(&text.len()) && !text.starts_with('.') && text.bytes().all(allowed);
        valid.then(|| Self(text.to_owned()))
    }

    /// The id as text.
    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }
}

impl Default for SessionId {
    fn default() -> Self {
        Self("default".to_owned())
    }
}

// === impl Session ===

impl Session {
    /// Opens the session in `folder`, making it where it is new. A record that a crash cut off is
    /// removed.
    pub(super) fn open(folder: PathBuf) -> io::Result<Self> {
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(folder.join("logs"))?;
        let mut options = OpenOptions::new();
        let mut file = options
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(folder.join("events.jsonl"))?;
        let (length, last_sequence, last_step) = recover(&mut file)?;
        file.set_len(length)?;
        Ok(Self {
            folder,
            events: Mutex::new(Events {
                file,
                length,
                last_sequence,
                last_step,
            }),
        })
    }

    /// Begins a step: writes its first record, which `fields` completes. Nothing is kept when the
    /// disk is full.
    pub(crate) fn begin_step(&self, fields: Map<String, Value>) -> io::Result<Step> {
        let mut events = self.events.lock().unwrap_or_else(PoisonError::into_inner);
        let step = events.last_step + 1;
        events.append(step, fields)?;
        events.last_step = step;
        Ok(Step(step))
    }

    /// Writes another record of a step.
    pub(crate) fn record(&self, step: Step, fields: Map<String, Value>) -> io::Result<()> {
        self.events
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .append(step.0, fields)
    }

    /// Writes a record of no step, which has the number 0: of a call that has not begun.
    pub(crate) fn note(&self, fields: Map<String, Value>) -> io::Result<()> {
        self.record(Step(0), fields)
    }

    /// Where a stream of the command of `step` is to be written, and the path under which it can be
    /// read.
    pub(crate) fn sink(&self, step: Step, stream: StreamName, cap: u64) -> (Sink, String) {
        let path = step.artifact_path(stream);
        (Sink::new(self.folder.join(&path), cap), path)
    }

    /// Keeps the patch of `step`, and answers the path under which it can be read. Blocks.
    pub(crate) fn keep_patch(&self, step: Step, patch: &[u8]) -> io::Result<String> {
        let path = step.patch_path();
        let file = self.folder.join(&path);
        if let Some(folder) = file.parent() {
            DirBuilder::new()
                .recursive(true)
                .mode(0o700)
                .create(folder)?;
        }
        let mut options = OpenOptions::new();
        let opened = options
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&file)?;
        if let Err(error) = opened.write_all_at(patch, 0) {
            self.drop_patch(step); // half a patch is none
            return Err(error);
        }
        Ok(path)
    }

    /// Removes the patch of `step`, which was not applied. Blocks.
    pub(crate) fn drop_patch(&self, step: Step) {
        // Where it cannot be removed, the record of the step says that it has failed.
        let _removed = std::fs::remove_file(self.folder.join(step.patch_path()));
    }

    /// Opens the artifact at `path`, if this is the path of one. Blocks.
    pub(crate) fn artifact(&self, path: &str) -> io::Result<Artifact> {
        let Some(step) = Step::of_artifact(path) else {
            return Ok(Artifact::Missing);
        };
        match File::open(self.folder.join(path)) {
            Ok(file) => Ok(Artifact::File(file)),
            // An empty stream has no file: then the records say whether there was such a command.
            Err(error)
                if error.kind() == io::ErrorKind::NotFound
                    && path != step.patch_path()
                    && self.ran_command(step)? =>
            {
                Ok(Artifact::Empty)
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Artifact::Missing),
            Err(error) => Err(error),
        }
    }

    /// Steps begin in the order of their numbers, so halving finds one in a file of any length.
    fn ran_command(&self, step: Step) -> io::Result<bool> {
        let (mut low, mut high) = (0, self.length());
        let mut records = BufReader::new(File::open(self.folder.join("events.jsonl"))?);
        while low < high {
            let middle = low + (high - low) / 2;
            match Start::find(&mut records, middle, high)? {
                Some(start) if start.step == step.0 => return Ok(start.is_run),
                Some(start) if start.step < step.0 => low = start.end,
                Some(_) | None => high = middle,
            }
        }
        Ok(false)
    }

    fn length(&self) -> u64 {
        self.events
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .length
    }
}

// === impl Start ===

impl Start {
    /// Finds the first of the records that begin at `from` or later and before `to`.
    fn find(records: &mut BufReader<File>, from: u64, to: u64) -> io::Result<Option<Self>> {
        let mut line = Vec::new();
        let mut at = from.saturating_sub(1);
        records.seek(SeekFrom::Start(at))?;
        if from > 0 {
            at += records.read_until(b'\n', &mut line)? as u64;
        }
        while at < to {
            line.clear();
            at += records.read_until(b'\n', &mut line)? as u64;
            let Ok(record) = serde_json::from_slice::<Value>(&line) else {
                if line.is_empty() {
                    break;
                }
                continue;
            };
            let is =
                |name: &str, value: &str| record.get(name).and_then(Value::as_str) == Some(value);
            if let Some(step) = record.get("step").and_then(Value::as_u64)
                && is("event", "tool_call_started")
            {
                return Ok(Some(Self {
                    step,
                    is_run: is("tool", "run"),
                    end: at,
                }));
            }
        }
        Ok(None)
    }
}

// === impl Step ===

impl Step {
    /// Its number in its session.
    pub(crate) fn number(self) -> u64 {
        self.0
    }

    /// The paths of the artifacts that the step of this number has, if it is a command's: of its
    /// standard output and error.
    pub(crate) fn paths(number: u64) -> [String; 2] {
        [StreamName::Stdout, StreamName::Stderr].map(|stream| Self(number).artifact_path(stream))
    }

    fn artifact_path(self, stream: StreamName) -> String {
        let stream = match stream {
            StreamName::Stdout => "stdout",
            StreamName::Stderr => "stderr",
        };
        format!("logs/tool_step_{:04}_{stream}.txt", self.0)
    }

    fn patch_path(self) -> String {
        format!("diffs/step_{:04}.patch", self.0)
    }

    /// The step whose artifact lies at `path`: only paths that this module makes are accepted, so
    /// none can lead elsewhere.
    fn of_artifact(path: &str) -> Option<Self> {
        let rest = path
            .strip_prefix("logs/tool_step_")
            .or_else(|| path.strip_prefix("diffs/step_"))?;
        let (number, _) = rest.split_once(['_', '.'])?;
        let step = Self(number.parse().ok()?);
        let is_stream = [StreamName::Stdout, StreamName::Stderr]
            .iter()
            .any(|stream| step.artifact_path(*stream) == path);
        (is_stream || step.patch_path() == path).then_some(step)
    }
}

// === impl Events ===

impl Events {
    fn append(&mut self, step: u64, fields: Map<String, Value>) -> io::Result<()> {
        let mut record = Map::new();
        record.insert("sequence".to_owned(), (self.last_sequence + 1).into());
        record.insert("step".to_owned(), step.into());
        record.extend(fields);
        let mut line = serde_json::to_vec(&record)?;
        line.push(b'\n');
        // At its place and not at the end: what is left of a record that did not fit is overwritten.
        if let Err(error) = self.file.write_all_at(&line, self.length) {
            self.file.set_len(self.length)?;
            return Err(error);
        }
        self.length += line.len() as u64;
        self.last_sequence += 1;
        Ok(())
    }
}

/// Finds the end of the last whole record, and the last sequence and step numbers.
fn recover(file: &mut File) -> io::Result<(u64, u64, u64)> {
    let length = file.metadata()?.len();
    let from = length.saturating_sub(LAST_RECORDS_BYTES);
    file.seek(SeekFrom::Start(from))?;
    let mut end = Vec::new();
    file.read_to_end(&mut end)?;
    let Some(last_newline) = end.iter().rposition(|byte| *byte == b'\n') else {
        return if from == 0 {
            Ok((0, 0, 0))
        } else {
            Err(io::Error::other(
                "events.jsonl holds a record that is too long",
            ))
        };
    };
    let whole = end.get(..=last_newline).unwrap_or_default();
    let number = |record: &Value, name: &str| record.get(name).and_then(Value::as_u64).unwrap_or(0);
    let records = whole
        .split(|byte| *byte == b'\n')
        .filter_map(|line| serde_json::from_slice::<Value>(line).ok());
    let (sequence, step) = records.fold((0, 0), |(sequence, step), record| {
        (
            number(&record, "sequence").max(sequence),
            number(&record, "step").max(step),
        )
    });
    Ok((from + whole.len() as u64, sequence, step))
}

#[cfg(test)]
mod tests {
    use std::{fs, io::Write as _};

    use serde_json::{Map, Value};

    use super::{Artifact, Session, SessionId, Step, StreamName};

    fn fields(tool: &str) -> Map<String, Value> {
        [
            ("event".to_owned(), "tool_call_started".into()),
            ("tool".to_owned(), tool.into()),
        ]
        .into_iter()
        .collect()
    }

    #[test]
    fn an_id_cannot_name_another_folder() {
        for good in ["default", "a", "A-1_b.c", &"x".repeat(64)] {
            assert!(SessionId::parse(good).is_some(), "{good}");
        }
        for bad in [
            "",
            ".",
            "..",
            ".x",
            "a/b",
            "a\0b",
            "ä",
            "a b",
            &"x".repeat(65),
        ] {
            assert!(SessionId::parse(bad).is_none(), "{bad:?}");
        }
    }

    #[test]
    fn steps_go_on_after_a_restart_and_a_torn_record_is_removed() {
        let folder = tempfile::tempdir().unwrap();
        let session = Session::open(folder.path().to_owned()).unwrap();
        assert_eq!(session.begin_step(fields("run")).unwrap(), Step(1));
        assert_eq!(session.begin_step(fields("read_file")).unwrap(), Step(2));
        drop(session);
        let path = folder.path().join("events.jsonl");
        let whole = fs::read(&path).unwrap();
        fs::OpenOptions::new()
            .append(true)
            .open(&path)
            .unwrap()
            .write_all(b"{\"sequence\":3,\"st")
            .unwrap();
        let session = Session::open(folder.path().to_owned()).unwrap();
        assert_eq!(fs::read(&path).unwrap(), whole);
        assert_eq!(session.begin_step(fields("run")).unwrap(), Step(3));
        assert_eq!(fs::read_to_string(&path).unwrap().lines().count(), 3);
    }

    #[test]
    fn artifacts_are_found_by_their_exact_paths_only() {
        let folder = tempfile::tempdir().unwrap();
        let session = Session::open(folder.path().to_owned()).unwrap();
        let step = session.begin_step(fields("run")).unwrap();
        let (mut sink, path) = session.sink(step, StreamName::Stdout, 3);
        sink.write(b"abcdef");
        assert_eq!(path, "logs/tool_step_0001_stdout.txt");
        assert!(matches!(
            session.artifact(&path).unwrap(),
            Artifact::File(_)
        ));
        assert_eq!(fs::read(folder.path().join(&path)).unwrap(), b"abc");
        assert!(matches!(
            session.artifact("logs/tool_step_0001_stderr.txt").unwrap(),
            Artifact::Empty
        ));
        let path = session.keep_patch(step, b"--- a").unwrap();
        assert_eq!(path, "diffs/step_0001.patch");
        assert_eq!(fs::read(folder.path().join(&path)).unwrap(), b"--- a");
        assert!(matches!(
            session.artifact(&path).unwrap(),
            Artifact::File(_)
        ));
        fs::remove_file(folder.path().join(&path)).unwrap();
        for missing in [
            &*path,
            "diffs/step_1.patch",
            "diffs/step_0001.txt",
            "diffs/../events.jsonl",
            "logs/tool_step_1_stdout.txt",
            "logs/tool_step_0002_stdout.txt",
            "events.jsonl",
            "logs/../events.jsonl",
            "/etc/passwd",
            "",
        ] {
            assert!(
                matches!(session.artifact(missing).unwrap(), Artifact::Missing),
                "{missing}"
            );
        }
    }

    #[test]
    fn a_command_is_found_among_many_records() {
        let folder = tempfile::tempdir().unwrap();
        let session = Session::open(folder.path().to_owned()).unwrap();
        let end = |text: String| -> Map<String, Value> {
            [
                ("event".to_owned(), "tool_call_finished".into()),
                // The words of another record inside this one, and records of all lengths.
                (
                    "note".to_owned(),
                    format!("\n{{\"event\":\"tool_call_started\"}}{text}").into(),
                ),
            ]
            .into_iter()
            .collect()
        };
        let is_run = |step: u64| step.is_multiple_of(3);
        let last = 200;
        let mut open = Vec::new();
        for number in 1..=last {
            let tool = if is_run(number) { "run" } else { "read_file" };
            open.push(session.begin_step(fields(tool)).unwrap());
            // Steps end in another order, several at once.
            if number.is_multiple_of(7) {
                for step in open.drain(..).rev() {
                    let text = "x".repeat(usize::try_from(step.0 * 37 % 901).unwrap());
                    session.record(step, end(text)).unwrap();
                }
            }
        }
        for number in 0..=last + 5 {
            let expected = number <= last && is_run(number) && number > 0;
            assert_eq!(
                session.ran_command(Step(number)).unwrap(),
                expected,
                "{number}"
            );
        }
        let empty = tempfile::tempdir().unwrap();
        let session = Session::open(empty.path().to_owned()).unwrap();
        assert!(!session.ran_command(Step(1)).unwrap());
    }
}
