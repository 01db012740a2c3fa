//! Unified diffs: parses them as git and language models write them, and applies them.
//!
//! [`fn@parse`] splits a text into [`FilePatch`]es, whose paths the caller then normalizes.
//! [`fn@plan`] computes the outcome for each path. No library is used, because callers need more
//! than the result: ambiguous positions, offset and fuzz of each hunk, and cancellation.
//!
//! | module | contents |
//! |---|---|
//! | [`file_patch`] | the patch of one file |
//! | [`patch_lines`] | the lines of a patch and their numbers |
//! | [`file_names`] | file names in headers |
//! | [`mod@parse`] | splits a patch into files |
//! | [`hunk`] | parses the hunks of a file |
//! | [`apply`] | applies hunks to a text |
//! | [`locate`] | finds the position of a hunk |
//! | [`mismatch`] | errors about a hunk that does not fit |
//! | [`plan`](mod@plan) | all files of a patch, in order |

mod apply;
mod file_names;
mod file_patch;
mod hunk;
mod locate;
mod mismatch;
mod parse;
mod patch_lines;
mod plan;

pub(crate) use file_patch::FilePatch;
pub(crate) use parse::parse;
pub(crate) use plan::{FileChangeKind, PatchedFile, PathOutcome, SourceFile, plan};

#[cfg(test)]
mod tests;
