//! Bounds on the disk space and the number of files of a workspace.
//!
//! Every change by the daemon reserves what it can take before it writes, so that changes stay
//! within the bounds. Commands write without the daemon. Their changes are measured: before the next
//! change or command if one has ended since, and repeatedly while they run.
//!
//! ```text
//! usage = last measurement + changes finished since it began + changes in progress
//! ```
//!
//! The sum may exceed the real usage: a change that replaces or deletes a file is not subtracted.
//! So a change is rejected only if it exceeds the bounds right after a measurement.

use std::{
    mem,
    os::fd::{AsFd as _, OwnedFd},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use super::{
    cancel::CancelToken,
    file_usage::{FileUsage, MAX_MEASURED_DEPTH, MeasureError, measure, project_usage},
    os_error::{ExpectedKind, os_error},
    resolve::Root,
};
use crate::daemon::{
    error::{Error, LIMIT_KIND, Reason},
    sys::Errno,
};

/// How fast commands can fill a workspace, for the time of the next measurement.
const MAX_GROWTH_PER_SEC: FileUsage = FileUsage { bytes: 2 << 30, files: 200_000 };
const MIN_MEASUREMENT_INTERVAL: Duration = Duration::from_millis(50);
const MAX_MEASUREMENT_INTERVAL: Duration = Duration::from_secs(1);
/// Measurements of running commands take at most a tenth of a core.
const IDLE_SHARE_OF_MEASUREMENT: u32 = 9;

/// The bounds of one workspace, and its usage.
#[derive(Debug)]
pub(crate) struct FileQuota {
    workspace: String,
    root: Root,
    /// A directory elsewhere whose files count too.
    beside: Option<OwnedFd>,
    limits: FileUsage,
    enforcement: Enforcement,
    usage: Mutex<KnownUsage>,
    /// Held during a measurement, so that there is one at a time.
    measuring: Mutex<()>,
}

#[derive(Debug, Default)]
struct KnownUsage {
    measured: FileUsage,
    /// Changes of the daemon that have ended since the last measurement began.
    finished: FileUsage,
    in_progress: FileUsage,
    /// Number of commands that have ended.
    ended_commands: u64,
    /// `ended_commands` when the last measurement began. `None` before the first one.
    measured_commands: Option<u64>,
    /// When the last successful measurement began.
    measured_at: Option<Instant>,
    measurement_duration: Duration,
    /// Whether files may have been removed since the last measurement began.
    may_have_shrunk: bool,
    /// Why the last measurement failed.
    failure: Option<String>,
}

/// What a change of the daemon may take. Counts until the next measurement after it is dropped.
#[derive(Debug)]
pub(super) struct FileReservation {
    quota: Arc<FileQuota>,
    growth: FileUsage,
}

/// How the bounds of a workspace are enforced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Enforcement {
    /// The daemon counts its own changes, and measures those of commands.
    Watched,
    /// By a project quota of the kernel, which counts everything at once.
    ProjectQuota,
}

impl Enforcement {
    /// Name in the contract.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Watched => "watched",
            Self::ProjectQuota => "project_quota",
        }
    }
}

/// A bound of a workspace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FileBound {
    Bytes,
    Files,
}

impl FileBound {
    /// Name of the bound in errors, and as the limit that ended a command.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Bytes => "workspace_bytes",
            Self::Files => "workspace_files",
        }
    }
}

impl FileQuota {
    /// Bounds the files below `root`. A part of `limits` that is the maximum of its type has no
    /// bound.
    pub(super) fn new(
        workspace: &str,
        root: Root,
        beside: Option<OwnedFd>,
        limits: FileUsage,
        enforcement: Enforcement,
    ) -> Self {
        Self {
            enforcement,
            workspace: workspace.to_owned(),
            root,
            beside,
            limits,
            usage: Mutex::default(),
            measuring: Mutex::default(),
        }
    }

    pub(crate) fn limits(&self) -> FileUsage {
        self.limits
    }

    /// The bounds, for messages.
    pub(super) fn bounds(&self) -> String {
        let FileUsage { bytes, files } = self.limits;
        let bytes = (bytes < u64::MAX).then(|| format!("{bytes} bytes"));
        let files = (files < u64::MAX).then(|| format!("{files} files and directories"));
        let bounds: Vec<_> = bytes.into_iter().chain(files).collect();
        bounds.join(", ")
    }

    pub(crate) fn enforcement(&self) -> Enforcement {
        self.enforcement
    }

    /// Whether the daemon measures the usage. Otherwise the kernel enforces the bounds.
    pub(crate) fn is_watched(&self) -> bool {
        self.enforcement == Enforcement::Watched
    }

    /// Whether a command may start without a measurement.
    pub(crate) fn is_known_within_bounds(&self) -> bool {
        let usage = self.lock();
        !usage.lacks_commands() && self.exceeded_bound(&usage).is_none()
    }

    /// The usage as far as it is known: at most that of changes of the daemon too high, and without
    /// what commands have written since the last measurement. `None` before the first one.
    pub(crate) fn known_usage(&self) -> Option<FileUsage> {
        let usage = self.lock();
        usage.measured_at.map(|_| usage.total())
    }

    /// The usage, measured unless nothing has changed since the last measurement. Blocks.
    pub(crate) fn current_usage(&self, cancel: &CancelToken) -> Result<FileUsage, Error> {
        if !self.is_watched() || self.lock().may_have_changed() {
            self.measure_after(Instant::now(), cancel)?;
        }
        Ok(self.lock().total())
    }

    /// Notes that a command has ended, which may have written anything.
    pub(crate) fn note_ended_command(&self) {
        self.lock().ended_commands += 1;
    }

    /// Notes that the daemon has removed files.
    pub(super) fn note_removal(&self) {
        self.lock().may_have_shrunk = true;
    }

    /// Reserves what a change of the daemon can take. Blocks. Fails with `NO_SPACE` if that exceeds
    /// a bound.
    pub(super) fn reserve(
        self: &Arc<Self>,
        growth: FileUsage,
        cancel: &CancelToken,
    ) -> Result<FileReservation, Error> {
        let mut usage = self.find_room(growth, cancel)?;
        usage.in_progress += growth;
        Ok(FileReservation { quota: Arc::clone(self), growth })
    }

    /// Fails with `NO_SPACE` if a change would exceed a bound now. Blocks.
    pub(super) fn check_room(&self, growth: FileUsage, cancel: &CancelToken) -> Result<(), Error> {
        self.find_room(growth, cancel).map(drop)
    }

    fn find_room(
        &self,
        growth: FileUsage,
        cancel: &CancelToken,
    ) -> Result<MutexGuard<'_, KnownUsage>, Error> {
        let requested_at = Instant::now();
        let fits = |usage: &KnownUsage| {
            usage.failure.is_none() && (usage.total() + growth).is_within(self.limits)
        };
        let usage = self.lock();
        if self.is_watched() && fits(&usage) && !usage.lacks_commands() {
            return Ok(usage);
        }
        if !self.is_watched() || usage.may_have_changed() {
            drop(usage);
            self.measure_after(requested_at, cancel)?;
        } else {
            return Err(self.full_error(&usage, growth));
        }

        let usage = self.lock();
        if fits(&usage) { Ok(usage) } else { Err(self.full_error(&usage, growth)) }
    }

    /// Fails with `NO_SPACE` if the workspace exceeds a bound, so that no command may start. Blocks.
    pub(crate) fn check_command(&self, cancel: &CancelToken) -> Result<(), Error> {
        if self.is_known_within_bounds() {
            return Ok(());
        }
        self.current_usage(cancel)?;
        let usage = self.lock();
        match self.exceeded_bound(&usage) {
            None => Ok(()),
            Some(bound) => Err(self.error(bound, &usage, "no command is started")),
        }
    }

    /// Measures the workspace while a command runs. Returns the bound that it exceeds, and the time
    /// until the next measurement. Blocks.
    pub(crate) fn watch(&self, cancel: &CancelToken) -> (Option<FileBound>, Duration) {
        // A failure is in the usage.
        let _result = self.measure_after(Instant::now(), cancel);
        let usage = self.lock();
        (self.exceeded_bound(&usage), self.next_interval(&usage))
    }

    /// Time after the start of a command until its first measurement.
    pub(crate) fn first_interval(&self) -> Duration {
        self.next_interval(&self.lock())
    }

    fn next_interval(&self, usage: &KnownUsage) -> Duration {
        let room = self.limits - usage.total();
        let seconds =
            (room.bytes / MAX_GROWTH_PER_SEC.bytes).min(room.files / MAX_GROWTH_PER_SEC.files);
        let fill_time = if seconds > 0 {
            Duration::from_secs(seconds)
        } else {
            let bytes_ms = room.bytes * 1000 / MAX_GROWTH_PER_SEC.bytes;
            let files_ms =
                room.files.min(MAX_GROWTH_PER_SEC.files) * 1000 / MAX_GROWTH_PER_SEC.files;
            Duration::from_millis(bytes_ms.min(files_ms))
        };
        fill_time
            .clamp(MIN_MEASUREMENT_INTERVAL, MAX_MEASUREMENT_INTERVAL)
            .max(usage.measurement_duration * IDLE_SHARE_OF_MEASUREMENT)
    }

    fn exceeded_bound(&self, usage: &KnownUsage) -> Option<FileBound> {
        let total = usage.total();
        if total.bytes > self.limits.bytes {
            Some(FileBound::Bytes)
        } else if total.files > self.limits.files || usage.failure.is_some() {
            Some(FileBound::Files)
        } else {
            None
        }
    }

    /// Measures, unless a measurement has begun since `time`.
    fn measure_after(&self, time: Instant, cancel: &CancelToken) -> Result<(), Error> {
        let _measuring = self.measuring.lock().unwrap_or_else(PoisonError::into_inner);
        let (commands, finished, begun) = {
            let mut usage = self.lock();
            if usage.measured_at.is_some_and(|measured| measured >= time) {
                return Ok(());
            }
            usage.may_have_shrunk = false;
            (usage.ended_commands, usage.finished, Instant::now())
        };

        let measured = match (self.enforcement, &self.beside) {
            (Enforcement::ProjectQuota, _) => project_usage(&self.root, self.limits),
            (Enforcement::Watched, None) => measure(self.root.as_fd(), self.limits, cancel),
            (Enforcement::Watched, Some(beside)) => measure(self.root.as_fd(), self.limits, cancel)
                .and_then(|own| {
                    measure(beside.as_fd(), self.limits - own, cancel).map(|other| own + other)
                }),
        };
        let mut usage = self.lock();
        let failure = match measured {
            Ok(measured) => {
                usage.measured = measured;
                usage.finished = usage.finished - finished;
                usage.measured_commands = Some(commands);
                usage.measured_at = Some(begun);
                usage.measurement_duration = begun.elapsed();
                None
            }
            Err(MeasureError::Cancelled(error)) => {
                usage.may_have_shrunk = true;
                return Err(error);
            }
            Err(MeasureError::Os(errno @ (Errno::MFILE | Errno::NFILE | Errno::NOMEM))) => {
                usage.may_have_shrunk = true;
                return Err(os_error(errno, ".", ExpectedKind::Directory));
            }
            Err(MeasureError::TooDeep(path)) => {
                Some(format!("{path:?} has more than {MAX_MEASURED_DEPTH} levels of directories"))
            }
            Err(MeasureError::Os(errno)) => Some(format!("a directory cannot be read ({errno})")),
        };
        if failure.is_some() {
            usage.measured_commands = Some(commands);
            usage.measured_at = Some(begun);
            // The next call tries again.
            usage.may_have_shrunk = true;
        }
        usage.failure = failure;
        Ok(())
    }

    fn full_error(&self, usage: &KnownUsage, growth: FileUsage) -> Error {
        let total = usage.total() + growth;
        let (bound, needs) = if total.bytes > self.limits.bytes {
            (FileBound::Bytes, format!("the change needs up to {} more", growth.bytes))
        } else {
            (FileBound::Files, format!("the change needs {} more", growth.files))
        };
        self.error(bound, usage, &needs)
    }

    fn error(&self, bound: FileBound, usage: &KnownUsage, problem: &str) -> Error {
        let name = &self.workspace;
        if let Some(failure) = &usage.failure {
            let text = format!(
                "the usage of the workspace {name:?} is unknown, because {failure}: delete it with delete_path, and retry"
            );
            return Error::new(Reason::NoSpace, text)
                .with_metadata("workspace", name.clone())
                .with_metadata(LIMIT_KIND, bound.name());
        }

        let total = usage.total();
        let (used, limit, what) = match bound {
            FileBound::Bytes => (total.bytes, self.limits.bytes, "bytes"),
            FileBound::Files => (total.files, self.limits.files, "files and directories"),
        };
        let text = format!(
            "the workspace {name:?} is full: it has {used} of at most {limit} {what}, and {problem}. Delete files with delete_path, and retry"
        );
        Error::new(Reason::NoSpace, text)
            .with_metadata("workspace", name.clone())
            .with_metadata(LIMIT_KIND, bound.name())
            .with_metadata("used", used.to_string())
            .with_metadata("maximum", limit.to_string())
    }

    fn lock(&self) -> MutexGuard<'_, KnownUsage> {
        self.usage.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl KnownUsage {
    fn total(&self) -> FileUsage {
        self.measured + self.finished + self.in_progress
    }

    /// Whether commands have ended that no measurement has seen.
    fn lacks_commands(&self) -> bool {
        self.measured_commands != Some(self.ended_commands)
    }

    /// Whether a measurement could have another result than the total.
    fn may_have_changed(&self) -> bool {
        self.lacks_commands() || self.may_have_shrunk || self.finished != FileUsage::default()
    }
}

impl FileReservation {
    /// Reserves more for the same change.
    pub(super) fn add(&mut self, growth: FileUsage, cancel: &CancelToken) -> Result<(), Error> {
        let mut more = self.quota.reserve(growth, cancel)?;
        self.growth += mem::take(&mut more.growth);
        Ok(())
    }
}

impl Drop for FileReservation {
    fn drop(&mut self) {
        let mut usage = self.quota.lock();
        usage.in_progress = usage.in_progress - self.growth;
        usage.finished += self.growth;
    }
}

/// Whether an error is that of a change that exceeds the bounds of its workspace.
pub(super) fn is_about_bounds(error: &Error) -> bool {
    error.reason == Reason::NoSpace && error.metadata.iter().any(|(name, _)| name == LIMIT_KIND)
}
