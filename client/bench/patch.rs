//! A patch of many files, applied and reverted alternately, by the daemon or by git.

use std::{
    cell::Cell,
    fs,
    io::Write as _,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use jig::{api::v1::ApplyPatchRequest, client::Client};

use crate::cli_error::CliError;

/// Number of files that the patch changes.
const FILE_COUNT: usize = 100;
/// Lines per file.
const LINES_PER_FILE: usize = 200;
/// Index of the changed line.
const CHANGED_LINE: usize = 90;
/// Lines of context in the patch.
const CONTEXT_LINES: usize = 3;

/// A directory of files that are patched back and forth.
#[derive(Debug)]
pub(super) struct PatchFixture {
    directory: PathBuf,
    /// The patch and its reverse.
    patches: [String; 2],
    applied: Cell<bool>,
}

impl PatchFixture {
    /// Creates the files in the directory `name` below `root`.
    pub(super) fn create(root: &Path, name: &str) -> std::io::Result<Self> {
        let line = |file: usize, line: usize| format!("line {line} of file {file}, some words\n");
        fs::create_dir_all(root.join(name))?;

        let mut patches = [String::new(), String::new()];
        for file in 0..FILE_COUNT {
            let text: String = (0..LINES_PER_FILE).map(|number| line(file, number)).collect();
            fs::write(root.join(name).join(file.to_string()), text)?;

            let (old, new) = (line(file, CHANGED_LINE), format!("changed in {file}\n"));
            for (patch, from, to) in [(0, &old, &new), (1, &new, &old)] {
                let Some(patch) = patches.get_mut(patch) else {
                    continue;
                };
                let path = format!("{name}/{file}");
                let (first, count) = (CHANGED_LINE - CONTEXT_LINES + 1, 2 * CONTEXT_LINES + 1);
                *patch += &format!("diff --git a/{path} b/{path}\n--- a/{path}\n+++ b/{path}\n");
                *patch += &format!("@@ -{first},{count} +{first},{count} @@\n");
                for number in CHANGED_LINE - CONTEXT_LINES..CHANGED_LINE {
                    *patch += &format!(" {}", line(file, number));
                }
                *patch += &format!("-{from}+{to}");
                for number in CHANGED_LINE + 1..=CHANGED_LINE + CONTEXT_LINES {
                    *patch += &format!(" {}", line(file, number));
                }
            }
        }
        Ok(Self { directory: root.to_owned(), patches, applied: Cell::new(false) })
    }

    /// Returns the patch to apply next.
    fn next_patch(&self) -> &str {
        let applied = self.applied.replace(!self.applied.get());
        let [patch, reverse] = &self.patches;
        if applied { reverse } else { patch }
    }

    /// Applies the next patch with the daemon.
    pub(super) async fn apply_by_daemon(&self, client: &Client) -> Result<(), CliError> {
        let request = ApplyPatchRequest {
            unified_diff: self.next_patch().to_owned(),
            ..ApplyPatchRequest::default()
        };
        client.apply_patch(request).await?;
        Ok(())
    }

    /// Applies the next patch with git.
    pub(super) fn apply_by_git(&self) -> Result<(), CliError> {
        #[expect(
            clippy::disallowed_methods,
            reason = "a program to compare with, not a command of a caller"
        )]
        let mut command = Command::new("git");
        command
            .args(["apply", "-"])
            .current_dir(&self.directory)
            // The tree may be inside a repository, whose state must not matter.
            .env("GIT_DIR", "/nonexistent")
            .stdin(Stdio::piped());

        let mut child = command.spawn().map_err(CliError::system)?;
        if let Some(mut stdin) = child.stdin.take() {
            stdin.write_all(self.next_patch().as_bytes()).map_err(CliError::system)?;
        }

        if !child.wait().map_err(CliError::system)?.success() {
            return Err(CliError::System("git apply failed".to_owned()));
        }
        Ok(())
    }
}
