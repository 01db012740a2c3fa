//! `jig cp`: files between this side and the workspace.
//!
//! | file | holds |
//! |---|---|
//! | [`copies`] | what was copied and what was left out |
//! | [`git`] | what git and other version control tools would act on in a copy |
//! | [`manner`] | how it is copied, and the names that copies have |
//! | [`place`] | where on this side a copy is put |
//! | [`receive`] | out of the workspace |
//! | [`send`] | into the workspace |

mod copy_log;
mod destination;
mod git;
mod options;
mod receive;
mod send;

use std::process::ExitCode;

use clap::Args;

use self::{copy_log::CopyLog, options::CopyOptions};
use super::{exit_code, report_failure};
use crate::{cli_error::CliError, connection, exit, global::GlobalArgs};

/// Copy files into the workspace or out of it, of any size.
///
/// The side that begins with `:` (or `jig:`) is the workspace; exactly one must. A file on this side
/// with such a name is `./:name`. Where DST ends with `/`, or is a directory of this side, the copy
/// keeps its name in it.
///
/// Files appear whole or not at all, with the permission bits of what was copied; on this side
/// without those that the umask takes. A copy whose connection is lost goes on by itself, and one
/// into the workspace that was broken off goes on when it is repeated within a day, up to 64 GiB. A
/// file of the workspace that is changed while it is copied is copied again, a few times, and is
/// then an error.
///
/// On this side a copy takes the place of a regular file or of nothing, also of the one that a
/// symbolic link leads to which DST names. For devices and pipes there is `jig read`.
///
/// A copy out of the workspace is untrusted: commands and models may have written any of it. Read it
/// before a build tool, an editor or a shell acts on it.
#[derive(Debug, Args)]
pub(crate) struct CpArgs {
    /// What to copy: `file`, or `:file` in the workspace.
    #[arg(value_name = "SRC")]
    source: String,
    /// Where to: `:file` in the workspace, or `file`.
    #[arg(value_name = "DST")]
    destination: String,
    /// Copy a directory with the files and directories in it; of `.`, what is in it. Anything named
    /// `.git`, `.hg`, `.jj`, `.bzr`, `.sl`, `.pijul`, `_darcs`, `.fslckout` or `_FOSSIL_` is left out.
    /// So are other directories that git takes for a repository, and what cannot be copied, as
    /// symbolic links, or what a link of this side is in the way of: it is named, with the reason, and
    /// the exit code is 1.
    #[arg(short, long)]
    recursive: bool,
    /// Fail where something is there.
    #[arg(short, long)]
    no_clobber: bool,
    /// Copy `.git`, `.hg` and the like, and repositories too. In such a copy, git, Mercurial and other
    /// tools run the programs that its configuration names, also when a prompt or an editor calls
    /// them.
    #[arg(long)]
    with_git: bool,
    /// Replace the file of the workspace only if this is its SHA-256.
    #[arg(long, value_name = "SHA256", conflicts_with = "recursive")]
    expect: Option<String>,
}

/// One end of a copy.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Endpoint {
    Local(String),
    Workspace(String),
}

pub(crate) fn cp(global: &GlobalArgs, args: CpArgs) -> ExitCode {
    let as_json = global.json;
    let manner = CopyOptions {
        recursive: args.recursive,
        no_clobber: args.no_clobber,
        with_git: args.with_git,
        expected_sha256: args.expect,
        quiet: as_json,
    };
    let copies = CopyLog::default();
    let to_fill = copies.clone();
    if args.recursive
        && let Err(failure) = global.reject_request_id("each file of a directory is a call")
    {
        return report_failure(&failure, as_json).into();
    }
    let result = match (parse_endpoint(&args.source), parse_endpoint(&args.destination)) {
        (Endpoint::Local(from), Endpoint::Workspace(to)) => {
            connection::call(global, move |client| send::send(client, from, to, manner, to_fill))
        }
        (Endpoint::Workspace(from), Endpoint::Local(to)) => {
            connection::call(global, move |client| {
                receive::receive(client, from, to.into(), manner, to_fill)
            })
        }
        _ => Err(CliError::Usage(
            "exactly one of SRC and DST must begin with `:`, as what is in the workspace does"
                .to_owned(),
        )),
    };
    ExitCode::from(match result {
        Ok(()) => match print_outcome(&copies, None, as_json) {
            Ok(()) if copies.is_complete() => exit::SUCCESS,
            Ok(()) => exit::FAILURE,
            Err(failure) => report_failure(&failure, as_json),
        },
        Err(failure) if copies.is_empty() => report_failure(&failure, as_json),
        Err(failure) => {
            // Why it ended matters more than that nobody reads what it did before.
            let _unread = print_outcome(&copies, Some(&failure), as_json);
            exit_code(&failure)
        }
    })
}

/// Says what was copied, and what broke the copy off.
fn print_outcome(copies: &CopyLog, end: Option<&CliError>, as_json: bool) -> Result<(), CliError> {
    if as_json {
        return copies.print_json(end);
    }
    let printed = copies.print();
    if let Some(end) = end {
        end.report(false);
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
    fn sides() {
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
