//! The file tools, each through a daemon, and beside the tools that they stand in for.

/// Writing, making, moving, deleting.
mod change;
/// The client's commands for files.
mod client;
/// The client's command of each tool.
mod commands;
/// What `jig cp` does not replace, and how it ends before all is copied.
mod copies;
/// A daemon that is killed in the midst of a change.
mod crash;
/// `delete_path`.
mod delete;
/// `edit_file`.
mod edit;
/// Uploads through daemons that live as long as one call.
mod embedded;
/// `jig cp -r`, and what git would act on.
mod git_copies;
/// `list_dir`.
mod list_directory;
/// `read_notebook` and `edit_notebook`.
mod notebook;
/// Files of others.
mod owners;
/// `apply_patch`.
mod patch;
/// The same as `git apply` does, on generated commits.
mod patch_like_git;
/// The same as ripgrep finds.
mod ripgrep;
/// `search`.
mod search;
/// Both sides of `jig cp`.
mod sides;
/// Every tool as a call on one path.
pub(crate) mod tools;
/// Files of any size, in and out.
pub(crate) mod transfer;
/// Downloads of files that change meanwhile.
mod transfer_changes;
/// What there is of an upload before it is complete, whatever becomes of it and of the daemon.
mod transfer_drafts;
/// Uploads that somebody meddles with.
mod transfer_guards;
/// What transfers take of the machine.
mod transfer_size;
