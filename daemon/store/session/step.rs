//! Steps of a session, and the paths of their artifacts.

/// Directory of the output of commands.
pub(super) const LOGS_DIR: &str = "logs";
/// Directory of patches.
const DIFFS_DIR: &str = "diffs";
/// The directories of artifacts, in path order.
pub(super) const ARTIFACT_DIRS: [&str; 2] = [DIFFS_DIR, LOGS_DIR];

/// Number of a step in its session. Each call is a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct StepId(pub(super) u64);

/// What retention removes as a whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum RetentionUnit {
    /// All records and artifacts of a step.
    Step(u64),
    /// The record of this sequence number, which belongs to no step.
    Record(u64),
}

impl RetentionUnit {
    /// Returns the unit that a record belongs to.
    pub(super) fn of_record(step: u64, sequence: u64) -> Self {
        match StepId(step) {
            StepId::NONE => Self::Record(sequence),
            StepId(step) => Self::Step(step),
        }
    }
}

/// An output stream of a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StreamName {
    Stdout,
    Stderr,
}

impl StepId {
    /// The number of records that belong to no step.
    pub(super) const NONE: Self = Self(0);

    pub(crate) fn number(self) -> u64 {
        self.0
    }

    /// Returns the artifact paths of a command's standard output and standard error.
    pub(crate) fn stream_paths(number: u64) -> [String; 2] {
        [StreamName::Stdout, StreamName::Stderr].map(|stream| Self(number).artifact_path(stream))
    }

    /// Returns the paths of all artifacts that a step can have.
    #[cfg(feature = "fleet")]
    pub(crate) fn artifact_paths(number: u64) -> [String; 3] {
        let [stdout, stderr] = Self::stream_paths(number);
        [Self(number).patch_path(), stderr, stdout]
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

    /// Whether `path` is inside a directory of artifacts.
    pub(crate) fn is_beside_artifacts(path: &str) -> bool {
        let mut directories = ARTIFACT_DIRS.iter();
        directories
            .any(|directory| path.strip_prefix(directory).is_some_and(|rest| rest.starts_with('/')))
    }

    /// Returns the step whose artifact is at `path`. Accepts only paths that this module creates,
    /// so a path cannot lead anywhere else.
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
