//! `jig cp`: copies files between this machine and the workspace.
//!
//! | file | content |
//! |---|---|
//! | [`copy_log`] | copied and skipped files |
//! | [`destination`] | local path that a copy replaces |
//! | [`git`] | files that git and other version control tools act on |
//! | [`options`] | options, and names of copies |
//! | [`receive`] | copies out of the workspace |
//! | [`receive_file`] | copies one file out of the workspace |
//! | [`receive_tree`] | copies directories out of the workspace |
//! | [`send`] | copies into the workspace |
//! | [`send_file`] | copies one file into the workspace |
//! | [`send_tree`] | copies directories into the workspace |

mod copy_log;
mod destination;
mod git;
mod options;
mod receive;
mod receive_file;
mod receive_tree;
mod send;
mod send_file;
mod send_tree;

use std::process::ExitCode;

use clap::Args;

use self::{copy_log::CopyLog, options::CopyOptions};
use super::{exit_code, report_failure};
use crate::{cli_error::CliError, connection, exit, global::GlobalArgs};

/// Copy files of any size into the workspace or out of it.
///
/// Examples: `jig cp notes.md :docs/` and `jig cp -r :out ./out`.
///
/// A path that starts with `:` (or `jig:`) is in the workspace; exactly one of SRC and DST must be.
/// Write `./:name` for a local file with such a name. If DST ends with `/`, or is a local
/// directory, the copy keeps its name in it.
///
/// Each file is copied atomically. Copies keep the permission bits of the source; local copies are
/// subject to the umask. After a lost connection, a copy resumes. An interrupted copy into the
/// workspace also resumes if it is repeated within a day, up to 64 GiB. If a workspace file changes
/// while it is copied, the copy restarts, and fails after a few attempts.
///
/// A local copy replaces a regular file or creates one. If DST is a symbolic link, its target is
/// replaced. For devices and pipes, use `jig read`.
///
/// Do not trust copies from the workspace: commands and models may have written them. Read them
/// before a build tool, an editor or a shell uses them.
#[derive(Debug, Args)]
pub(crate) struct CpArgs {
    /// Source: `FILE`, or `:FILE` in the workspace.
    #[arg(value_name = "SRC")]
    source: String,
    /// Destination: `:FILE` in the workspace, or `FILE`.
    #[arg(value_name = "DST")]
    destination: String,
    /// Copy a directory recursively; for `.`, its content. Skips names of repositories: `.git`,
    /// `.hg`, `.jj`, `.bzr`, `.sl`, `.pijul`, `_darcs`, `.fslckout` and `_FOSSIL_`. Also skips
    /// other directories that git takes for a repository, and anything that cannot be copied, such
    /// as symbolic links, or where a local link is in the way. Reports each skipped path with the
    /// reason. The exit code is 1 if it skips more than names of repositories.
    #[arg(short, long)]
    recursive: bool,
    /// Fail if the destination exists.
    #[arg(short, long)]
    no_clobber: bool,
    /// Also copy `.git`, `.hg` and similar names, and repositories. In such a copy, git, Mercurial
    /// and other tools run programs that its configuration names, even if only a shell prompt or an
    /// editor calls them.
    #[arg(long)]
    with_git: bool,
    /// Replace the workspace file only if it has this SHA-256.
    #[arg(long, value_name = "SHA256", conflicts_with = "recursive")]
    expect: Option<String>,
}

/// Source or destination of a copy.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Endpoint {
    Local(String),
    Workspace(String),
}

pub(crate) fn cp(global: &GlobalArgs, args: CpArgs) -> ExitCode {
    let as_json = global.json;
    let options = CopyOptions {
        recursive: args.recursive,
        no_clobber: args.no_clobber,
        with_git: args.with_git,
        expected_sha256: args.expect,
        quiet: as_json,
    };

    let log = CopyLog::default();
    let task_log = log.clone();
    if args.recursive
        && let Err(failure) =
            global.reject_request_id("each file of a directory is a call of its own")
    {
        return report_failure(&failure, as_json).into();
    }
    let result = match (parse_endpoint(&args.source), parse_endpoint(&args.destination)) {
        (Endpoint::Local(from), Endpoint::Workspace(to)) => {
            connection::call(global, move |client| send::send(client, from, to, options, task_log))
        }
        (Endpoint::Workspace(from), Endpoint::Local(to)) => {
            connection::call(global, move |client| {
                receive::receive(client, from, to.into(), options, task_log)
            })
        }
        _ => Err(CliError::Usage(
            "exactly one of SRC and DST must start with `:`, which marks paths in the workspace"
                .to_owned(),
        )),
    };

    ExitCode::from(match result {
        Ok(()) => match print_outcome(&log, None, as_json) {
            Ok(()) if log.is_complete() => exit::SUCCESS,
            Ok(()) => exit::FAILURE,
            Err(failure) => report_failure(&failure, as_json),
        },
        Err(failure) if log.is_empty() => report_failure(&failure, as_json),
        Err(failure) => {
            // The failure matters more than a log that cannot be printed.
            let _unprinted = print_outcome(&log, Some(&failure), as_json);
            exit_code(&failure)
        }
    })
}

/// Prints the log, and the failure that ended the copy.
fn print_outcome(log: &CopyLog, failure: Option<&CliError>, as_json: bool) -> Result<(), CliError> {
    if as_json {
        return log.print_json(failure);
    }
    let printed = log.print();
    if let Some(failure) = failure {
        failure.report(false);
    }
    printed
}

fn parse_endpoint(text: &str) -> Endpoint {
    match text.strip_prefix("jig:").or_else(|| text.strip_prefix(':')) {
        Some(path) => Endpoint::Workspace(path.to_owned()),
        None => Endpoint::Local(text.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoints_are_parsed() {
        for (text, expected) in [
            (":a/b", Endpoint::Workspace("a/b".into())),
            ("jig:a", Endpoint::Workspace("a".into())),
            (":", Endpoint::Workspace(String::new())),
            (":/workspace/a", Endpoint::Workspace("/workspace/a".into())),
            ("a:b", Endpoint::Local("a:b".into())),
            ("./:a", Endpoint::Local("./:a".into())),
        ] {
            assert_eq!(parse_endpoint(text), expected, "{text}");
        }
    }
}
