//! The file tools through a daemon, compared with ripgrep and git where these do the same work.

/// `write_file`, `create_directory`, `move_path` and `delete_path`.
mod change;
/// The client's command for each file tool.
mod cli;
/// A daemon and a local directory, for tests of the client.
mod client_fixture;
/// `jig cp`: files and directories in both directions.
mod cp;
/// Files that `jig cp` does not replace, and copies that fail or are interrupted.
mod cp_failures;
/// `jig cp -r` and directories that git would act on.
mod cp_vcs;
/// Daemons that are killed during a change.
mod crash;
/// `delete_path`.
mod delete;
/// Downloads of files that change during the download.
mod download_changes;
/// `edit_file`.
mod edit;
/// Uploads through daemons that live for one call.
mod embedded_uploads;
/// Files that belong to other users.
mod foreign_files;
/// `list_directory` and `stat_path`.
mod list_directory;
/// `read_notebook` and `edit_notebook`.
mod notebook;
/// Partial files of uploads that are not complete.
mod partial_uploads;
/// `apply_patch`.
mod patch;
/// `apply_patch` and `git apply` on generated commits.
mod patch_like_git;
/// `search` and `list_files` compared with ripgrep.
mod ripgrep;
/// `search`.
mod search;
/// Each file tool as a call on one path.
pub(crate) mod tools;
/// Uploads and downloads.
pub(crate) mod transfer;
/// Memory and time that transfers use.
mod transfer_limits;
/// Directories as archives, in both directions.
pub(crate) mod trees;
/// Uploads that commands tamper with.
mod upload_guards;

/// A name that the daemon reserves for its own files.
const RESERVED_NAME: &str = ".jig-01ARZ3NDEKTSV4RRFFQ69G5FAV.tmp";
