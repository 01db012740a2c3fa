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
    /// It always is.
    Git,
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

    /// Whether everything was copied that should be.
    pub(super) fn is_all(&self) -> bool {
        let lists = self.lists();
        lists
            .left_out
            .iter()
            .all(|(_, why)| matches!(why, Why::Git))
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
                json!({ "path": path, "why": why.text(), "error": error })
            })
            .collect();
        let mut told = json!({ "files": files, "left_out": left_out });
        if let (Some(end), Some(told)) = (end, told.as_object_mut()) {
            told.insert("error".to_owned(), end.json());
        }
        output::json(&told)
    }

    fn lists(&self) -> MutexGuard<'_, Lists> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
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
        if let Self::Failed(failure) = self {
            Some(failure)
        } else {
            None
        }
    }

    fn text(&self) -> &'static str {
        match self {
            Self::Git => "as always",
            Self::Symlink => "a symbolic link",
            Self::NoFile => "neither a file nor a directory",
            Self::NoUtf8 => "a name that is not UTF-8",
            Self::TooLong => "a path that is too long",
            Self::Temporary => "a name that the daemon keeps for its own files",
            Self::Failed(_) => "it cannot be copied",
        }
    }
}
