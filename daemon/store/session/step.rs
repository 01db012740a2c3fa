//! Steps of a session, and the paths of what they leave behind.

/// Folder of the output of commands.
pub(super) const LOGS_DIR: &str = "logs";
/// Folder of patches.
const DIFFS_DIR: &str = "diffs";
/// The folders that artifacts lie in, in the order of their paths.
pub(super) const ARTIFACT_DIRS: [&str; 2] = [DIFFS_DIR, LOGS_DIR];

/// A step of a session: one call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct StepId(pub(super) u64);

/// What is kept and removed as a whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum RetentionUnit {
    /// All of the step of this number.
    Step(u64),
    /// The record of this number, which belongs to no step.
    Record(u64),
}

impl RetentionUnit {
    /// What a record is part of.
    pub(super) fn of_record(step: u64, sequence: u64) -> Self {
        match StepId(step) {
            StepId::NONE => Self::Record(sequence),
            StepId(step) => Self::Step(step),
        }
    }
}

/// One of a command's two streams.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StreamName {
    /// Standard output.
    Stdout,
    /// Standard error.
    Stderr,
}

impl StepId {
    /// That of records that belong to none.
    pub(super) const NONE: Self = Self(0);

    /// Its number in its session.
    pub(crate) fn number(self) -> u64 {
        self.0
    }

    /// The paths of the artifacts that the step of this number has, if it is a command's: of its
    /// standard output and error.
    pub(crate) fn stream_paths(number: u64) -> [String; 2] {
        [StreamName::Stdout, StreamName::Stderr].map(|stream| Self(number).artifact_path(stream))
    }

    pub(super) fn artifact_path(self, stream: StreamName) -> String {
        let stream = match stream {
            StreamName::Stdout => "stdout",
            StreamName::Stderr => "stderr",
        };
        format!("{LOGS_DIR}/tool_step_{:04}_{stream}.txt", self.0)
    }

    pub(super) fn patch_path(self) -> String {
        format!("{DIFFS_DIR}/step_{:04}.patch", self.0)
    }

    /// Whether a path leads into a folder that artifacts lie in.
    pub(crate) fn is_beside_artifacts(path: &str) -> bool {
        let mut folders = ARTIFACT_DIRS.iter();
        folders.any(|folder| path.strip_prefix(folder).is_some_and(|rest| rest.starts_with('/')))
    }

    /// The step whose artifact lies at `path`: only paths that this module makes are accepted, so
    /// none can lead elsewhere.
    pub(crate) fn from_artifact_path(path: &str) -> Option<Self> {
        let rest =
            path.strip_prefix("logs/tool_step_").or_else(|| path.strip_prefix("diffs/step_"))?;
        let (number, _) = rest.split_once(['_', '.'])?;
        let step = Self(number.parse().ok()?);
        let is_stream = [StreamName::Stdout, StreamName::Stderr]
            .iter()
            .any(|stream| step.artifact_path(*stream) == path);
        (is_stream || step.patch_path() == path).then_some(step)
    }
}
