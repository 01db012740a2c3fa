//! `jig cp`: files between this side and the workspace.
//!
//! | file | holds |
//! |---|---|
//! | [`copies`] | what was copied and what was left out |
//! | [`manner`] | how it is copied, and the names that copies have |
//! | [`place`] | where on this side a copy is put |
//! | [`receive`] | out of the workspace |
//! | [`send`] | into the workspace |

mod copies;
mod manner;
mod place;
mod receive;
mod send;

use std::process::ExitCode;

use clap::Args;

use self::{copies::Copies, manner::Manner};
use super::finish;
use crate::{connection, exit, failure::Failure, global::Global};

/// Copy files into the workspace or out of it, of any size.
///
/// The side that begins with `:` (or `jig:`) is the workspace; exactly one must. A file on this side
/// with such a name is `./:name`. Files appear whole or not at all, with the permission bits of what
/// was copied; on this side without those that the umask takes. A copy whose connection is lost
/// goes on by itself, and one into the workspace that was broken off goes on when it is repeated
/// within a day, up to 64 GiB. A file of the workspace that is changed while it is copied is copied again, a few
/// times, and is then an error. On this side a copy takes the place of a regular file, or of nothing,
/// also where a symbolic link at DST leads; for devices and pipes there is `jig read`. Where DST ends with `/`, or is a directory of this side, the copy keeps its name in
/// it.
#[derive(Debug, Args)]
pub(crate) struct CpArgs {
    /// What to copy: `file`, or `:file` in the workspace.
    #[arg(value_name = "SRC")]
    source: String,
    /// Where to: `:file` in the workspace, or `file`.
    #[arg(value_name = "DST")]
    destination: String,
    /// Copy a directory with the files and directories in it; of `.`, what is in it. `.git` is left
    /// out. So is what cannot be copied, as symbolic links: it is named, and the exit code is 1.
    #[arg(short, long)]
    recursive: bool,
    /// Fail where something is there.
    #[arg(short, long)]
    no_clobber: bool,
    /// Replace the file of the workspace only if this is its SHA-256.
    #[arg(long, value_name = "SHA256", conflicts_with = "recursive")]
    expect: Option<String>,
}

/// One end of a copy.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Side {
    Here(String),
    Workspace(String),
}

pub(crate) fn cp(global: &Global, args: CpArgs) -> ExitCode {
    let as_json = global.json;
    let manner = Manner {
        recursive: args.recursive,
        no_clobber: args.no_clobber,
        expect: args.expect,
        quiet: as_json,
    };
    let result = match (side(&args.source), side(&args.destination)) {
        (Side::Here(from), Side::Workspace(to)) => {
            connection::call(global, move |client| send::send(client, from, to, manner))
        }
        (Side::Workspace(from), Side::Here(to)) => connection::call(global, move |client| {
            receive::receive(client, from, to.into(), manner)
        }),
        _ => Err(Failure::Usage(
            "exactly one of SRC and DST must begin with `:`, as what is in the workspace does"
                .to_owned(),
        )),
    };
    let printed = result.and_then(|copies: Copies| {
        copies.print(as_json)?;
        Ok(copies.is_all())
    });
    match printed {
        Ok(false) => ExitCode::from(exit::FAILURE),
        printed => finish(printed.map(drop), as_json),
    }
}

fn side(text: &str) -> Side {
    match text.strip_prefix("jig:").or_else(|| text.strip_prefix(':')) {
        Some(path) => Side::Workspace(path.to_owned()),
        None => Side::Here(text.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sides() {
        for (text, expected) in [
            (":a/b", Side::Workspace("a/b".into())),
            ("jig:a", Side::Workspace("a".into())),
            (":", Side::Workspace(String::new())),
            (":/workspace/a", Side::Workspace("/workspace/a".into())),
            ("a:b", Side::Here("a:b".into())),
            ("./:a", Side::Here("./:a".into())),
        ] {
            assert_eq!(side(text), expected, "{text}");
        }
    }
}
