//! The files of a patch: headers of git and plain ones. What stands around them is passed over.

use super::{
    file::{FilePatch, Kind},
    hunk::{self, Hunk},
    lines::{Lines, misunderstood, shown},
    names::{self, Pair},
};
use crate::daemon::error::{Error, Reason};

/// Most files of a patch.
const MOST_FILES: usize = 10_000;

/// What the extended headers of git say.
#[derive(Debug, Default)]
struct Extended {
    names: Option<(String, String)>,
    from: Option<String>,
    to: Option<String>,
    is_copy: bool,
    is_new: bool,
    is_deleted: bool,
    executable: Option<bool>,
}

/// Understands a patch. `strip` is the number of components to take off the names in it.
pub(crate) fn parse(patch: &str, strip: usize) -> Result<Vec<FilePatch<'_>>, Error> {
    let lines = Lines::split(patch)?;
    let mut files = Vec::new();
    let mut at = 0;
    while at < lines.len() {
        let line = lines.get(at);
        if line.starts_with("diff --git ") {
            let (file, next) = git_file(&lines, at, strip)?;
            files.push(file);
            at = next;
        } else if lines.names_at(at) {
            let (file, next) = plain_file(&lines, at, strip)?;
            files.push(file);
            at = next;
        } else if line.starts_with("@@") {
            let problem =
                "a hunk must stand below the names of its file: `--- a/FILE` and `+++ b/FILE`";
            return Err(misunderstood(at, problem));
        } else {
            refuse_binary(&lines, at)?;
            at += 1;
        }
        if files.len() > MOST_FILES {
            let problem = format!("the patch changes more than {MOST_FILES} files: split it");
            return Err(misunderstood(at - 1, problem));
        }
    }
    if files.is_empty() {
        let problem = "it holds no unified diff: a file begins with the lines `--- a/FILE` and `+++ b/FILE`, a hunk with `@@ -LINE,COUNT +LINE,COUNT @@`";
        return Err(misunderstood(0, problem));
    }
    Ok(files)
}

/// Reads a file that begins with `diff --git`, and answers the line that follows it.
fn git_file<'p>(
    lines: &Lines<'p>,
    begin: usize,
    strip: usize,
) -> Result<(FilePatch<'p>, usize), Error> {
    let (extended, mut at) = extended(lines, begin)?;
    refuse_binary(lines, at)?;
    let (mut marked, mut hunks) = (None, Vec::new());
    if lines.names_at(at) {
        marked = Some(marked_names(lines, at)?);
        (hunks, at) = read_hunks(lines, at + 2, is_windows(lines, at))?;
    } else if lines.get(at).starts_with("@@") {
        (hunks, at) = read_hunks(lines, at, is_windows(lines, begin))?;
    }
    let Extended { is_copy, is_new, is_deleted, executable, .. } = extended;
    let (old, new, kind) = match (extended.from, extended.to) {
        (Some(from), Some(to)) => {
            // These names never have `a/` or `b/` before them.
            let strip = strip.saturating_sub(1);
            let kind = if is_copy { Kind::Copy } else { Kind::Rename };
            let [from, to] = [from, to].map(|name| names::without_components(&name, strip, begin));
            (from?, to?, kind)
        }
        (None, None) => {
            let made = is_new || matches!(marked, Some((None, Some(_))));
            let gone = is_deleted || matches!(marked, Some((Some(_), None)));
            let name = one_name(extended.names, marked, strip, begin)?;
            let kind = match (made, gone) {
                (true, true) => {
                    let problem = "a file cannot be made and deleted at once";
                    return Err(misunderstood(begin, problem));
                }
                (true, false) => Kind::Create,
                (false, true) => Kind::Delete,
                (false, false) => Kind::Modify,
            };
            (name.clone(), name, kind)
        }
        _ => {
            return Err(misunderstood(begin, "only one name of a renamed file is told"));
        }
    };
    if kind == Kind::Modify && hunks.is_empty() && executable.is_none() {
        return Err(misunderstood(begin, "nothing of this file is changed"));
    }
    let file = FilePatch { old, new, kind, executable, hunks };
    Ok((file, at))
}

/// Reads a `diff --git` line and the extended headers below it.
fn extended(lines: &Lines<'_>, begin: usize) -> Result<(Extended, usize), Error> {
    let line = lines.get(begin);
    let text = line.strip_prefix("diff --git ").unwrap_or_default();
    let mut found = Extended { names: names::of_git(text, begin)?, ..Extended::default() };
    let mut at = begin + 1;
    loop {
        let line = lines.get(at);
        let after =
            |prefixes: &[&str]| prefixes.iter().find_map(|prefix| line.strip_prefix(prefix));
        if let Some(text) = after(&["old mode "]) {
            is_executable(text, at)?;
        } else if let Some(text) = after(&["new mode "]) {
            found.executable = Some(is_executable(text, at)?);
        } else if let Some(text) = after(&["new file mode "]) {
            found.executable = Some(is_executable(text, at)?);
            found.is_new = true;
        } else if let Some(text) = after(&["deleted file mode "]) {
            is_executable(text, at)?;
            found.is_deleted = true;
        } else if let Some(text) = after(&["rename from ", "rename old ", "copy from "]) {
            found.is_copy = line.starts_with("copy");
            found.from = Some(names::in_header(text, at)?);
        } else if let Some(text) = after(&["rename to ", "rename new ", "copy to "]) {
            found.to = Some(names::in_header(text, at)?);
        } else if let Some(text) = after(&["index "]) {
            if let Some((_, mode)) = text.split_once(' ') {
                is_executable(mode, at)?;
            }
        } else if after(&["similarity index ", "dissimilarity index "]).is_none() {
            return Ok((found, at));
        }
        at += 1;
    }
}

/// What a mode of git says about a file, which must be a regular one.
fn is_executable(text: &str, at: usize) -> Result<bool, Error> {
    let mode = u32::from_str_radix(text.trim(), 8).ok();
    match mode.map(|mode| (mode & 0o170_000, mode)) {
        Some((0o100_000, mode)) => Ok(mode & 0o111 != 0),
        Some((0o120_000, _)) => Err(Error::new(
            Reason::SymlinkBlocked,
            format!(
                "line {} of the patch: it makes or changes a symbolic link, which is not allowed",
                at + 1
            ),
        )
        .with("line", (at + 1).to_string())),
        Some((0o160_000, _)) => {
            let problem = "it changes a submodule: only files can be patched";
            Err(misunderstood(at, problem))
        }
        _ => Err(misunderstood(at, format!("{} is no mode of a file", shown(text)))),
    }
}

/// The name of a file that is not renamed.
fn one_name(
    names: Option<(String, String)>,
    marked: Option<Pair>,
    strip: usize,
    at: usize,
) -> Result<String, Error> {
    let differ = || {
        let problem = "the names of the file differ, but nothing says that it was renamed";
        misunderstood(at, problem)
    };
    let names = names.map(|(old, new)| (Some(old), Some(new)));
    if let (Some(names), Some(marked)) = (&names, &marked) {
        let same = |marked: &Option<String>, name| marked.is_none() || marked == name;
        if !same(&marked.0, &names.0) || !same(&marked.1, &names.1) {
            return Err(differ());
        }
    }
    // Where a file is made or deleted, only the first line has both names, and so tells what
    // stands before them.
    let pair = names
        .or(marked)
        .ok_or_else(|| misunderstood(at, "it cannot be told where the first name ends"))?;
    match names::stripped(&pair, strip, at)? {
        (Some(old), Some(new)) if old == new => Ok(old),
        (Some(name), None) | (None, Some(name)) => Ok(name),
        _ => Err(differ()),
    }
}

/// Reads a file that begins with `---` and `+++`, and answers the line that follows it.
fn plain_file<'p>(
    lines: &Lines<'p>,
    begin: usize,
    strip: usize,
) -> Result<(FilePatch<'p>, usize), Error> {
    let pair = marked_names(lines, begin)?;
    let (name, kind) = match names::stripped(&pair, strip, begin)? {
        (None, None) => return Err(misunderstood(begin, "the file has no name")),
        (None, Some(new)) => (new, Kind::Create),
        (Some(old), None) => (old, Kind::Delete),
        (Some(old), Some(new)) => match names::of_one_file(&old, &new) {
            Some(name) => (name.to_owned(), Kind::Modify),
            None => {
                let problem = format!(
                    "the file is {} before and {} after the change: give both lines the same name; to rename it, put `diff --git`, `rename from` and `rename to` above them",
                    shown(&old),
                    shown(&new)
                );
                return Err(misunderstood(begin, problem));
            }
        },
    };
    let (hunks, at) = read_hunks(lines, begin + 2, is_windows(lines, begin))?;
    if hunks.is_empty() {
        let problem = "no hunk stands below the names of this file";
        return Err(misunderstood(begin, problem));
    }
    let file = FilePatch { old: name.clone(), new: name, kind, executable: None, hunks };
    Ok((file, at))
}

fn marked_names(lines: &Lines<'_>, at: usize) -> Result<Pair, Error> {
    let name = |at, marker| {
        let text = lines.get(at);
        names::after_marker(text.strip_prefix(marker).unwrap_or_default(), at)
    };
    Ok((name(at, "--- ")?, name(at + 1, "+++ ")?))
}

/// Whether the lines of the patch themselves end with carriage returns: then those of the hunks
/// say nothing about the file's.
fn is_windows(lines: &Lines<'_>, at: usize) -> bool {
    lines.raw(at).is_some_and(|line| line.ends_with('\r'))
}

/// Reads all hunks from here on, and answers the line that follows them.
fn read_hunks<'p>(
    lines: &Lines<'p>,
    mut at: usize,
    windows: bool,
) -> Result<(Vec<Hunk<'p>>, usize), Error> {
    let mut hunks = Vec::new();
    loop {
        let mut next = at;
        while next < lines.len() && lines.get(next).is_empty() {
            next += 1;
        }
        if !lines.get(next).starts_with("@@") {
            return Ok((hunks, next));
        }
        let (hunk, end) = hunk::read(lines, next, windows)?;
        hunks.push(hunk);
        at = end;
    }
}

fn refuse_binary(lines: &Lines<'_>, at: usize) -> Result<(), Error> {
    let line = lines.get(at);
    if line == "GIT binary patch" || line.starts_with("Binary files ") && line.ends_with(" differ")
    {
        let problem = "it changes a binary file: only text can be patched";
        return Err(misunderstood(at, problem));
    }
    Ok(())
}
