//! What a copy did: the files that it copied, and what it left out.

use serde_json::{Value, json};

use crate::{escape, failure::Failure, output, progress::amount, style::Style};

/// What was copied, and what was not.
#[derive(Debug, Default)]
pub(super) struct Copies {
    pub(super) files: Vec<Copied>,
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
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
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
}

impl Copies {
    /// That of one file.
    pub(super) fn of(file: Copied) -> Self {
        Self {
            files: vec![file],
            left_out: Vec::new(),
        }
    }

    /// Leaves something out.
    pub(super) fn leave_out(&mut self, path: String, why: Why) {
        self.left_out.push((path, why));
    }

    /// Whether everything was copied that should be.
    pub(super) fn is_all(&self) -> bool {
        self.left_out.iter().all(|(_, why)| *why == Why::Git)
    }

    /// Says what was copied, and what not.
    pub(super) fn print(&self, as_json: bool) -> Result<(), Failure> {
        if as_json {
            return output::json(&self.json());
        }
        let style = Style::of_stdout();
        let mut text = String::new();
        for file in &self.files {
            text.push_str(&format!(
                "{} -> {} ({})\n",
                style.name(&file.source),
                style.name(&file.destination),
                amount(file.size_bytes)
            ));
        }
        for (path, why) in &self.left_out {
            let path = escape::name(path);
            output::note(&format!("left out, {}: {path}", why.text()));
        }
        output::stdout(text.as_bytes())
    }

    fn json(&self) -> Value {
        let files: Vec<Value> = self.files.iter().map(Copied::json).collect();
        let left_out = self
            .left_out
            .iter()
            .map(|(path, why)| json!({ "path": path, "why": why.text() }));
        json!({ "files": files, "left_out": left_out.collect::<Vec<_>>() })
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
    fn text(self) -> &'static str {
        match self {
            Self::Git => "as always",
            Self::Symlink => "a symbolic link",
            Self::NoFile => "neither a file nor a directory",
            Self::NoUtf8 => "a name that is not UTF-8",
            Self::TooLong => "a path that is too long",
            Self::Temporary => "a name that the daemon keeps for its own files",
        }
    }
}
