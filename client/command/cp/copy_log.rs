//! Log of a copy: copied files, and skipped files with reasons.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde_json::{Value, json};

use crate::{cli_error::CliError, escape, output, progress::format_bytes, style::Style};

/// Log of a copy. Clones share it, so that it can be printed even if the copy is interrupted.
#[derive(Debug, Clone, Default)]
pub(super) struct CopyLog(Arc<Mutex<CopyLogEntries>>);

#[derive(Debug, Default)]
struct CopyLogEntries {
    files: Vec<CopiedFile>,
    skipped: Vec<(String, SkipReason)>,
}

#[derive(Debug)]
pub(super) struct CopiedFile {
    pub(super) source: String,
    pub(super) destination: String,
    pub(super) size_bytes: u64,
    pub(super) sha256: String,
}

/// Reason why a path was skipped.
#[derive(Debug)]
pub(super) enum SkipReason {
    /// The name is `.git`, or a file system may treat it as such.
    GitName,
    /// The name is `.hg` or similar, or a file system may treat it as such.
    VcsName,
    /// A directory that git takes for a repository.
    GitRepository,
    Symlink,
    /// A FIFO, socket or device.
    NotRegularFile,
    NotUtf8,
    TooLong,
    /// The daemon reserves the name for its own files.
    ReservedName,
    /// The copy of this file failed; others may succeed.
    Failed(CliError),
}

impl CopyLog {
    pub(super) fn record_copied(&self, file: CopiedFile) {
        self.entries().files.push(file);
    }

    /// Removes the records of copies to these destinations, which are repeated.
    pub(super) fn forget_copied(&self, is_repeated: impl Fn(&str) -> bool) {
        self.entries().files.retain(|file| !is_repeated(&file.destination));
    }

    pub(super) fn record_skipped(&self, path: String, reason: SkipReason) {
        self.entries().skipped.push((path, reason));
    }

    /// Records a path whose copy failed. Returns the failure if it would affect the other files
    /// too.
    pub(super) fn record_failed(&self, path: String, failure: CliError) -> Result<(), CliError> {
        if !failure.is_file_error() {
            return Err(failure);
        }
        self.record_skipped(path, SkipReason::Failed(failure));
        Ok(())
    }

    /// Returns whether the copy is complete. Skipped names such as `.git` do not count, because the
    /// help announces that they are skipped.
    pub(super) fn is_complete(&self) -> bool {
        let entries = self.entries();
        entries
            .skipped
            .iter()
            .all(|(_, reason)| matches!(reason, SkipReason::GitName | SkipReason::VcsName))
    }

    /// Returns whether the log has no entries.
    pub(super) fn is_empty(&self) -> bool {
        let entries = self.entries();
        entries.files.is_empty() && entries.skipped.is_empty()
    }

    /// Prints the log for people.
    pub(super) fn print(&self) -> Result<(), CliError> {
        let entries = self.entries();
        let style = Style::of_stdout();
        let mut text = String::new();
        for file in &entries.files {
            text.push_str(&format!(
                "{} -> {} ({})\n",
                style.escape_name(&file.source),
                style.escape_name(&file.destination),
                format_bytes(file.size_bytes)
            ));
        }

        for (path, reason) in &entries.skipped {
            let path = escape::name(path);
            output::note(&match reason.failure() {
                Some(failure) => format!("skipped: {path}: {}", failure.summary()),
                None => format!("skipped, {}: {path}", reason.message()),
            });
        }
        if let count @ 1.. = entries.skipped_vcs_entries() {
            output::note(&format!(
                "skipped because a version control tool would act on them: {count}; copy them with --with-git"
            ));
        }

        output::write_stdout(text.as_bytes())
    }

    /// Prints the log as JSON, with the failure that ended the copy.
    pub(super) fn print_json(&self, failure: Option<&CliError>) -> Result<(), CliError> {
        let entries = self.entries();
        let files: Vec<Value> = entries.files.iter().map(CopiedFile::to_json).collect();
        let skipped: Vec<Value> = entries
            .skipped
            .iter()
            .map(|(path, reason)| {
                json!({
                    "path": path,
                    "message": reason.message(),
                    "reason": reason.reason(),
                    "error": reason.failure().map(CliError::to_json),
                })
            })
            .collect();

        let mut json = json!({
            "files": files,
            "skipped": skipped,
            "skipped_vcs_entries": entries.skipped_vcs_entries(),
        });

        if let (Some(failure), Some(json)) = (failure, json.as_object_mut()) {
            json.insert("error".to_owned(), failure.to_json());
        }
        output::write_json(&json)
    }

    fn entries(&self) -> MutexGuard<'_, CopyLogEntries> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl CopyLogEntries {
    /// Counts the skipped paths that a version control tool would act on.
    fn skipped_vcs_entries(&self) -> usize {
        let is_vcs = |reason: &SkipReason| {
            matches!(reason, SkipReason::GitName | SkipReason::VcsName | SkipReason::GitRepository)
        };
        self.skipped.iter().filter(|(_, reason)| is_vcs(reason)).count()
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
            Self::ReservedName => "a name that is reserved for the daemon's own files",
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
