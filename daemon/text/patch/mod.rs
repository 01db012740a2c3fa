//! Unified diffs: understanding them, as git and as language models write them, and applying them.
//!
//! [`fn@parse`] makes [`FilePatch`]es of a text, whose paths the caller may put in order then;
//! [`fn@plan`] says what becomes of the files. Own code, because what it has to say beside the result
//! (which places are equally good, how far away and how inexactly each hunk fitted, when to give
//! up) is what libraries keep to themselves.
//!
//! | file | holds |
//! |---|---|
//! | [`file`](mod@file) | what a patch does to one file |
//! | [`lines`] | the lines of a patch and their numbers |
//! | [`names`] | the names of files in headers |
//! | [`mod@parse`] | the files of a patch |
//! | [`hunk`] | the hunks of a file |
//! | [`apply`] | the hunks on a text |
//! | [`search`] | where a hunk fits |
//! | [`misfit`] | what to say about a hunk that does not |
//! | [`plan`](mod@plan) | all files of a patch, one after the other |

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
