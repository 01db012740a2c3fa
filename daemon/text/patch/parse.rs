//! The files of a patch: headers of git and plain ones. What stands around them is passed over.

use super::{
    file_names::{self, NamePair},
    file_patch::{FilePatch, FilePatchKind},
    hunk::{self, Hunk},
    patch_lines::{PatchLines, parse_error, quote_line},
};
use crate::daemon::error::{Error, Reason};

/// Most files of a patch.
const MAX_FILES: usize = 10_000;

/// What the extended headers of git say.
#[derive(Debug, Default)]
struct ExtendedHeaders {
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
    let lines = PatchLines::split(patch)?;
    let mut files = Vec::new();
    let mut at = 0;
    while at < lines.len() {
        let line = lines.get(at);
        if line.starts_with("diff --git ") {
            let (file, next) = parse_git_file(&lines, at, strip)?;
            files.push(file);
            at = next;
        } else if lines.is_file_header(at) {
            let (file, next) = parse_plain_file(&lines, at, strip)?;
            files.push(file);
            at = next;
        } else if line.starts_with("@@") {
            let problem =
                "a hunk must stand below the names of its file: `--- a/FILE` and `+++ b/FILE`";
            return Err(parse_error(at, problem));
        } else {
            reject_binary(&lines, at)?;
            at += 1;
        }
        if files.len() > MAX_FILES {
            let problem = format!("the patch changes more than {MAX_FILES} files: split it");
            return Err(parse_error(at - 1, problem));
        }
    }
    if files.is_empty() {
        let problem = "it holds no unified diff: a file begins with the lines `--- a/FILE` and `+++ b/FILE`, a hunk with `@@ -LINE,COUNT +LINE,COUNT @@`";
        return Err(parse_error(0, problem));
    }
    Ok(files)
}

/// Reads a file that begins with `diff --git`, and answers the line that follows it.
fn parse_git_file<'p>(
    lines: &PatchLines<'p>,
    begin: usize,
    strip: usize,
) -> Result<(FilePatch<'p>, usize), Error> {
    let (extended, mut at) = parse_extended_headers(lines, begin)?;
    reject_binary(lines, at)?;
    let (mut marked, mut hunks) = (None, Vec::new());
    if lines.is_file_header(at) {
        marked = Some(parse_marker_names(lines, at)?);
        (hunks, at) = read_hunks(lines, at + 2, is_crlf(lines, at))?;
    } else if lines.get(at).starts_with("@@") {
        (hunks, at) = read_hunks(lines, at, is_crlf(lines, begin))?;
    }
    let ExtendedHeaders { is_copy, is_new, is_deleted, executable, .. } = extended;
    let (old, new, kind) = match (extended.from, extended.to) {
        (Some(from), Some(to)) => {
            // These names never have `a/` or `b/` before them.
            let strip = strip.saturating_sub(1);
            let kind = if is_copy { FilePatchKind::Copy } else { FilePatchKind::Rename };
            let [from, to] =
                [from, to].map(|name| file_names::strip_components(&name, strip, begin));
            (from?, to?, kind)
        }
        (None, None) => {
            let made = is_new || matches!(marked, Some((None, Some(_))));
            let gone = is_deleted || matches!(marked, Some((Some(_), None)));
            let name = resolve_name(extended.names, marked, strip, begin)?;
            let kind = match (made, gone) {
                (true, true) => {
                    let problem = "a file cannot be made and deleted at once";
                    return Err(parse_error(begin, problem));
                }
                (true, false) => FilePatchKind::Create,
                (false, true) => FilePatchKind::Delete,
                (false, false) => FilePatchKind::Modify,
            };
            (name.clone(), name, kind)
        }
        _ => {
            return Err(parse_error(begin, "only one name of a renamed file is told"));
        }
    };
    if kind == FilePatchKind::Modify && hunks.is_empty() && executable.is_none() {
        return Err(parse_error(begin, "nothing of this file is changed"));
    }
    let file = FilePatch { old, new, kind, executable, hunks };
    Ok((file, at))
}

/// Reads a `diff --git` line and the extended headers below it.
fn parse_extended_headers(
    lines: &PatchLines<'_>,
    begin: usize,
) -> Result<(ExtendedHeaders, usize), Error> {
    let line = lines.get(begin);
    let text = line.strip_prefix("diff --git ").unwrap_or_default();
    let mut found = ExtendedHeaders {
        names: file_names::parse_git_names(text, begin)?,
        ..ExtendedHeaders::default()
    };
    let mut at = begin + 1;
    loop {
        let line = lines.get(at);
        let after =
            |prefixes: &[&str]| prefixes.iter().find_map(|prefix| line.strip_prefix(prefix));
        if let Some(text) = after(&["old mode "]) {
            parse_executable(text, at)?;
        } else if let Some(text) = after(&["new mode "]) {
            found.executable = Some(parse_executable(text, at)?);
        } else if let Some(text) = after(&["new file mode "]) {
            found.executable = Some(parse_executable(text, at)?);
            found.is_new = true;
        } else if let Some(text) = after(&["deleted file mode "]) {
            parse_executable(text, at)?;
            found.is_deleted = true;
        } else if let Some(text) = after(&["rename from ", "rename old ", "copy from "]) {
            found.is_copy = line.starts_with("copy");
            found.from = Some(file_names::parse_header_name(text, at)?);
        } else if let Some(text) = after(&["rename to ", "rename new ", "copy to "]) {
            found.to = Some(file_names::parse_header_name(text, at)?);
        } else if let Some(text) = after(&["index "]) {
            if let Some((_, mode)) = text.split_once(' ') {
                parse_executable(mode, at)?;
            }
        } else if after(&["similarity index ", "dissimilarity index "]).is_none() {
            return Ok((found, at));
        }
        at += 1;
    }
}

/// What a mode of git says about a file, which must be a regular one.
fn parse_executable(text: &str, at: usize) -> Result<bool, Error> {
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
        .with_metadata("line", (at + 1).to_string())),
        Some((0o160_000, _)) => {
            let problem = "it changes a submodule: only files can be patched";
            Err(parse_error(at, problem))
        }
        _ => Err(parse_error(at, format!("{} is no mode of a file", quote_line(text)))),
    }
}

/// The name of a file that is not renamed.
fn resolve_name(
    names: Option<(String, String)>,
    marked: Option<NamePair>,
    strip: usize,
    at: usize,
) -> Result<String, Error> {
    let differ = || {
        let problem = "the names of the file differ, but nothing says that it was renamed";
        parse_error(at, problem)
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
        .ok_or_else(|| parse_error(at, "it cannot be told where the first name ends"))?;
    match file_names::strip_names(&pair, strip, at)? {
        (Some(old), Some(new)) if old == new => Ok(old),
        (Some(name), None) | (None, Some(name)) => Ok(name),
        _ => Err(differ()),
    }
}

/// Reads a file that begins with `---` and `+++`, and answers the line that follows it.
fn parse_plain_file<'p>(
    lines: &PatchLines<'p>,
    begin: usize,
    strip: usize,
) -> Result<(FilePatch<'p>, usize), Error> {
    let pair = parse_marker_names(lines, begin)?;
    let (name, kind) = match file_names::strip_names(&pair, strip, begin)? {
        (None, None) => return Err(parse_error(begin, "the file has no name")),
        (None, Some(new)) => (new, FilePatchKind::Create),
        (Some(old), None) => (old, FilePatchKind::Delete),
        (Some(old), Some(new)) => match file_names::common_name(&old, &new) {
            Some(name) => (name.to_owned(), FilePatchKind::Modify),
            None => {
                let problem = format!(
                    "the file is {} before and {} after the change: give both lines the same name; to rename it, put `diff --git`, `rename from` and `rename to` above them",
                    quote_line(&old),
                    quote_line(&new)
                );
                return Err(parse_error(begin, problem));
            }
        },
    };
    let (hunks, at) = read_hunks(lines, begin + 2, is_crlf(lines, begin))?;
    if hunks.is_empty() {
        let problem = "no hunk stands below the names of this file";
        return Err(parse_error(begin, problem));
    }
    let file = FilePatch { old: name.clone(), new: name, kind, executable: None, hunks };
    Ok((file, at))
}

fn parse_marker_names(lines: &PatchLines<'_>, at: usize) -> Result<NamePair, Error> {
    let name = |at, marker| {
        let text = lines.get(at);
        file_names::parse_marker_name(text.strip_prefix(marker).unwrap_or_default(), at)
    };
    Ok((name(at, "--- ")?, name(at + 1, "+++ ")?))
}

/// Whether the lines of the patch themselves end with carriage returns: then those of the hunks
/// say nothing about the file's.
fn is_crlf(lines: &PatchLines<'_>, at: usize) -> bool {
    lines.raw(at).is_some_and(|line| line.ends_with('\r'))
}

/// Reads all hunks from here on, and answers the line that follows them.
fn read_hunks<'p>(
    lines: &PatchLines<'p>,
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
        let (hunk, end) = hunk::read_hunk(lines, next, windows)?;
        hunks.push(hunk);
        at = end;
    }
}

fn reject_binary(lines: &PatchLines<'_>, at: usize) -> Result<(), Error> {
    let line = lines.get(at);
    if line == "GIT binary patch" || line.starts_with("Binary files ") && line.ends_with(" differ")
    {
        let problem = "it changes a binary file: only text can be patched";
        return Err(parse_error(at, problem));
    }
    Ok(())
}
