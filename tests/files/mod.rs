//! The file tools, each through a daemon, and beside the tools that they stand in for.

/// Writing, making, moving, deleting.
mod change;
/// The client's command of each tool.
mod cli;
/// The client's commands for files.
mod cp;
/// What `jig cp` does not replace, and how it ends before all is copied.
mod cp_failures;
/// Both sides of `jig cp`.
mod cp_fixture;
/// `jig cp -r`, and what git would act on.
mod cp_vcs;
/// A daemon that is killed in the midst of a change.
mod crash;
/// `delete_path`.
mod delete;
/// Downloads of files that change meanwhile.
mod download_changes;
/// `edit_file`.
mod edit;
/// Uploads through daemons that live as long as one call.
mod embedded_uploads;
/// Files of others.
mod foreign_files;
/// `list_dir`.
mod list_directory;
/// `read_notebook` and `edit_notebook`.
mod notebook;
/// What there is of an upload before it is complete, whatever becomes of it and of the daemon.
mod partial_uploads;
/// `apply_patch`.
mod patch;
/// The same as `git apply` does, on generated commits.
mod patch_like_git;
/// The same as ripgrep finds.
mod ripgrep;
/// `search`.
mod search;
/// Every tool as a call on one path.
pub(crate) mod tools;
/// Files of any size, in and out.
pub(crate) mod transfer;
/// What transfers take of the machine.
mod transfer_limits;
/// Uploads that somebody meddles with.
mod upload_guards;
