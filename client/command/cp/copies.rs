//! What a copy did: the files that it copied, and what it left out.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde_json::{Value, json};

use crate::{escape, failure::Failure, output, progress::amount, style::Style};

/// What was copied so far, and what was not. Clones share it: whoever waits for the copy can tell
/// what it did also when it was broken off.
#[derive(Debug, Clone, Default)]
pub(super) struct Copies(Arc<Mutex<Lists>>);

#[derive(Debug, Default)]
struct Lists {
    files: Vec<Copied>,
    left_out: Vec<(String, Why)>,
}

/// A file that was copied.
#[derive(Debug)]
pub(super) struct Copied {
    pub(super) source: String,
    pub(super) destination: String,
    pub(super) size_bytes: u64,
    pub(super) sha256: String,
}

/// Why something was left out.
#[derive(Debug)]
pub(super) enum Why {
    /// Its name is, or may be taken for, `.git`.
    GitName,
    /// Its name is, or may be taken for, `.hg` or the like.
    VcsName,
    /// A directory that git takes for a repository.
    GitRepository,
    Symlink,
    /// A FIFO, a socket, a device.
    NoFile,
    NoUtf8,
    TooLong,
    /// A name that the daemon keeps for itself.
    Temporary,
    /// It could not be copied; the others can.
    Failed(Failure),
}

impl Copies {
    /// A file was copied.
    pub(super) fn copied(&self, file: Copied) {
        self.lists().files.push(file);
    }

    /// Leaves something out.
    pub(super) fn leave_out(&self, path: String, why: Why) {
        self.lists().left_out.push((path, why));
    }

    /// Leaves something out that could not be copied, unless the rest would fail as it did.
    pub(super) fn failed(&self, path: String, failure: Failure) -> Result<(), Failure> {
        if !failure.is_of_one_file() {
            return Err(failure);
        }
        self.leave_out(path, Why::Failed(failure));
        Ok(())
    }

    /// Whether everything was copied that should be. Of a `.git` or the like it is known
    /// that it is not.
    pub(super) fn is_all(&self) -> bool {
        let lists = self.lists();
        lists.left_out.iter().all(|(_, why)| matches!(why, Why::GitName | Why::VcsName))
    }

    /// Whether there is nothing to tell.
    pub(super) fn is_nothing(&self) -> bool {
        let lists = self.lists();
        lists.files.is_empty() && lists.left_out.is_empty()
    }

    /// Says what was copied, and what not.
    pub(super) fn print(&self) -> Result<(), Failure> {
        let lists = self.lists();
        let style = Style::of_stdout();
        let mut text = String::new();
        for file in &lists.files {
            text.push_str(&format!(
                "{} -> {} ({})\n",
                style.name(&file.source),
                style.name(&file.destination),
                amount(file.size_bytes)
            ));
        }
        for (path, why) in &lists.left_out {
            let path = escape::name(path);
            output::note(&match why.failure() {
                Some(failure) => format!("left out: {path}: {}", failure.summary()),
                None => format!("left out, {}: {path}", why.text()),
            });
        }
        if let count @ 1.. = lists.left_out_of_vcs() {
            output::note(&format!(
                "left out because a version control tool would act on it: {count}; copy it too with --with-git"
            ));
        }
        output::stdout(text.as_bytes())
    }

    /// The same for programs, with what broke the copy off.
    pub(super) fn print_json(&self, end: Option<&Failure>) -> Result<(), Failure> {
        let lists = self.lists();
        let files: Vec<Value> = lists.files.iter().map(Copied::json).collect();
        let left_out: Vec<Value> = lists
            .left_out
            .iter()
            .map(|(path, why)| {
                let error = why.failure().map(Failure::json);
                json!({ "path": path, "why": why.text(), "reason": why.reason(), "error": error })
            })
            .collect();
        let mut told = json!({
            "files": files,
            "left_out": left_out,
            "left_out_of_vcs": lists.left_out_of_vcs(),
        });
        if let (Some(end), Some(told)) = (end, told.as_object_mut()) {
            told.insert("error".to_owned(), end.json());
        }
        output::json(&told)
    }

    fn lists(&self) -> MutexGuard<'_, Lists> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Lists {
    /// How much is left out that a version control tool would act on.
    fn left_out_of_vcs(&self) -> usize {
        let is_of_vcs = |why: &Why| matches!(why, Why::GitName | Why::VcsName | Why::GitRepository);
        let left_out = self.left_out.iter();
        left_out.filter(|(_, why)| is_of_vcs(why)).count()
    }
}

impl Copied {
    fn json(&self) -> Value {
        json!({
            "source": self.source,
            "destination": self.destination,
            "size_bytes": self.size_bytes,
            "sha256": self.sha256,
        })
    }
}

impl Why {
    fn failure(&self) -> Option<&Failure> {
        if let Self::Failed(failure) = self { Some(failure) } else { None }
    }

    pub(super) fn text(&self) -> &'static str {
        match self {
            Self::GitName => "a name that git takes for .git",
            Self::VcsName => "a name that a version control tool takes for its repository",
            Self::GitRepository => "a directory that git takes for a repository",
            Self::Symlink => "a symbolic link",
            Self::NoFile => "neither a file nor a directory",
            Self::NoUtf8 => "a name that is not UTF-8",
            Self::TooLong => "a path that is too long",
            Self::Temporary => "a name that the daemon keeps for its own files",
            Self::Failed(_) => "it cannot be copied",
        }
    }

    fn reason(&self) -> &'static str {
        match self {
            Self::GitName => "GIT_NAME",
            Self::VcsName => "VCS_NAME",
            Self::GitRepository => "GIT_REPOSITORY",
            Self::Symlink => "SYMLINK",
            Self::NoFile => "NOT_A_FILE",
            Self::NoUtf8 => "NOT_UTF8",
            Self::TooLong => "PATH_TOO_LONG",
            Self::Temporary => "RESERVED_NAME",
            Self::Failed(_) => "FAILED",
        }
    }
}
