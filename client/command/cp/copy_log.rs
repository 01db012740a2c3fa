//! What a copy did: the files that it copied, and what it left out.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde_json::{Value, json};

use crate::{cli_error::CliError, escape, output, progress::format_bytes, style::Style};

/// What was copied so far, and what was not. Clones share it: whoever waits for the copy can tell
/// what it did also when it was broken off.
#[derive(Debug, Clone, Default)]
pub(super) struct CopyLog(Arc<Mutex<CopyLogEntries>>);

#[derive(Debug, Default)]
struct CopyLogEntries {
    files: Vec<CopiedFile>,
    skipped: Vec<(String, SkipReason)>,
}

/// A file that was copied.
#[derive(Debug)]
pub(super) struct CopiedFile {
    pub(super) source: String,
    pub(super) destination: String,
    pub(super) size_bytes: u64,
    pub(super) sha256: String,
}

/// Why something was left out.
#[derive(Debug)]
pub(super) enum SkipReason {
    /// Its name is, or may be taken for, `.git`.
    GitName,
    /// Its name is, or may be taken for, `.hg` or the like.
    VcsName,
    /// A directory that git takes for a repository.
    GitRepository,
    Symlink,
    /// A FIFO, a socket, a device.
    NotRegularFile,
    NotUtf8,
    TooLong,
    /// A name that the daemon keeps for itself.
    ReservedName,
    /// It could not be copied; the others can.
    Failed(CliError),
}

impl CopyLog {
    /// A file was copied.
    pub(super) fn record_copied(&self, file: CopiedFile) {
        self.entries().files.push(file);
    }

    /// Leaves something out.
    pub(super) fn record_skipped(&self, path: String, why: SkipReason) {
        self.entries().skipped.push((path, why));
    }

    /// Leaves something out that could not be copied, unless the rest would fail as it did.
    pub(super) fn record_failed(&self, path: String, failure: CliError) -> Result<(), CliError> {
        if !failure.is_file_error() {
            return Err(failure);
        }
        self.record_skipped(path, SkipReason::Failed(failure));
        Ok(())
    }

    /// Whether everything was copied that should be. Of a `.git` or the like it is known
    /// that it is not.
    pub(super) fn is_complete(&self) -> bool {
        let lists = self.entries();
        lists
            .skipped
            .iter()
            .all(|(_, why)| matches!(why, SkipReason::GitName | SkipReason::VcsName))
    }

    /// Whether there is nothing to tell.
    pub(super) fn is_empty(&self) -> bool {
        let lists = self.entries();
        lists.files.is_empty() && lists.skipped.is_empty()
    }

    /// Says what was copied, and what not.
    pub(super) fn print(&self) -> Result<(), CliError> {
        let lists = self.entries();
        let style = Style::of_stdout();
        let mut text = String::new();
        for file in &lists.files {
            text.push_str(&format!(
                "{} -> {} ({})\n",
                style.escape_name(&file.source),
                style.escape_name(&file.destination),
                format_bytes(file.size_bytes)
            ));
        }
        for (path, why) in &lists.skipped {
            let path = escape::name(path);
            output::note(&match why.failure() {
                Some(failure) => format!("left out: {path}: {}", failure.summary()),
                None => format!("left out, {}: {path}", why.message()),
            });
        }
        if let count @ 1.. = lists.skipped_vcs_entries() {
            output::note(&format!(
                "left out because a version control tool would act on it: {count}; copy it too with --with-git"
            ));
        }
        output::write_stdout(text.as_bytes())
    }

    /// The same for programs, with what broke the copy off.
    pub(super) fn print_json(&self, end: Option<&CliError>) -> Result<(), CliError> {
        let lists = self.entries();
        let files: Vec<Value> = lists.files.iter().map(CopiedFile::to_json).collect();
        let left_out: Vec<Value> = lists
            .skipped
            .iter()
            .map(|(path, why)| {
                let error = why.failure().map(CliError::to_json);
                json!({ "path": path, "why": why.message(), "reason": why.reason(), "error": error })
            })
            .collect();
        let mut told = json!({
            "files": files,
            "left_out": left_out,
            "left_out_of_vcs": lists.skipped_vcs_entries(),
        });
        if let (Some(end), Some(told)) = (end, told.as_object_mut()) {
            told.insert("error".to_owned(), end.to_json());
        }
        output::write_json(&told)
    }

    fn entries(&self) -> MutexGuard<'_, CopyLogEntries> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl CopyLogEntries {
    /// How much is left out that a version control tool would act on.
    fn skipped_vcs_entries(&self) -> usize {
        let is_of_vcs = |why: &SkipReason| {
            matches!(why, SkipReason::GitName | SkipReason::VcsName | SkipReason::GitRepository)
        };
        let left_out = self.skipped.iter();
        left_out.filter(|(_, why)| is_of_vcs(why)).count()
    }
}

impl CopiedFile {
    fn to_json(&self) -> Value {
        json!({
            "source": self.source,
            "destination": self.destination,
            "size_bytes": self.size_bytes,
            "sha256": self.sha256,
        })
    }
}

impl SkipReason {
    fn failure(&self) -> Option<&CliError> {
        if let Self::Failed(failure) = self { Some(failure) } else { None }
    }

    pub(super) fn message(&self) -> &'static str {
        match self {
            Self::GitName => "a name that git takes for .git",
            Self::VcsName => "a name that a version control tool takes for its repository",
            Self::GitRepository => "a directory that git takes for a repository",
            Self::Symlink => "a symbolic link",
            Self::NotRegularFile => "neither a file nor a directory",
            Self::NotUtf8 => "a name that is not UTF-8",
            Self::TooLong => "a path that is too long",
            Self::ReservedName => "a name that the daemon keeps for its own files",
            Self::Failed(_) => "it cannot be copied",
        }
    }

    fn reason(&self) -> &'static str {
        match self {
            Self::GitName => "GIT_NAME",
            Self::VcsName => "VCS_NAME",
            Self::GitRepository => "GIT_REPOSITORY",
            Self::Symlink => "SYMLINK",
            Self::NotRegularFile => "NOT_A_FILE",
            Self::NotUtf8 => "NOT_UTF8",
            Self::TooLong => "PATH_TOO_LONG",
            Self::ReservedName => "RESERVED_NAME",
            Self::Failed(_) => "FAILED",
        }
    }
}
