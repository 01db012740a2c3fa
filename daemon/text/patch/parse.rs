//! Splits a patch into files: git headers and plain ones. Other text around them is skipped.

use super::{
    file_names::{self, NamePair},
    file_patch::{FilePatch, FilePatchKind},
    hunk::{self, Hunk},
    patch_lines::{PatchLines, parse_error, quote_line},
};
use crate::daemon::error::{Error, Reason};

/// Files of a patch.
const MAX_PATCH_FILES: usize = 10_000;

/// The extended headers of git.
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

/// Parses a patch. `strip` is the number of leading components to strip from names.
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
            let problem = "a hunk must follow the names of its file: `--- a/FILE` and `+++ b/FILE`";
            return Err(parse_error(at, problem));
        } else {
            reject_binary(&lines, at)?;
            at += 1;
        }

        if files.len() > MAX_PATCH_FILES {
            let problem = format!("the patch changes more than {MAX_PATCH_FILES} files: split it");
            return Err(parse_error(at - 1, problem));
        }
    }

    if files.is_empty() {
        let problem = "no unified diff found: a file begins with the lines `--- a/FILE` and `+++ b/FILE`, a hunk with `@@ -LINE,COUNT +LINE,COUNT @@`";
        return Err(parse_error(0, problem));
    }
    Ok(files)
}

/// Parses a file that begins with `diff --git`. Returns it and the line after it.
fn parse_git_file<'p>(
    lines: &PatchLines<'p>,
    start: usize,
    strip: usize,
) -> Result<(FilePatch<'p>, usize), Error> {
    let (extended, mut at) = parse_extended_headers(lines, start)?;
    reject_binary(lines, at)?;
    let (mut marker_names, mut hunks) = (None, Vec::new());
    if lines.is_file_header(at) {
        marker_names = Some(parse_marker_names(lines, at)?);
        (hunks, at) = read_hunks(lines, at + 2, is_crlf(lines, at))?;
    } else if lines.get(at).starts_with("@@") {
        (hunks, at) = read_hunks(lines, at, is_crlf(lines, start))?;
    }

    let ExtendedHeaders { is_copy, is_new, is_deleted, executable, .. } = extended;
    let (old, new, kind) = match (extended.from, extended.to) {
        (Some(from), Some(to)) => {
            // These names never have the prefix `a/` or `b/`.
            let strip = strip.saturating_sub(1);
            let kind = if is_copy { FilePatchKind::Copy } else { FilePatchKind::Rename };
            let [from, to] =
                [from, to].map(|name| file_names::strip_components(&name, strip, start));
            (from?, to?, kind)
        }
        (None, None) => {
            let creates = is_new || matches!(marker_names, Some((None, Some(_))));
            let deletes = is_deleted || matches!(marker_names, Some((Some(_), None)));
            let name = resolve_name(extended.names, marker_names, strip, start)?;
            let kind = match (creates, deletes) {
                (true, true) => {
                    let problem = "the patch both creates and deletes this file";
                    return Err(parse_error(start, problem));
                }
                (true, false) => FilePatchKind::Create,
                (false, true) => FilePatchKind::Delete,
                (false, false) => FilePatchKind::Modify,
            };
            (name.clone(), name, kind)
        }
        _ => {
            let problem = "a renamed or copied file needs both headers: the old and the new name";
            return Err(parse_error(start, problem));
        }
    };

    if kind == FilePatchKind::Modify && hunks.is_empty() && executable.is_none() {
        return Err(parse_error(start, "the patch changes nothing of this file"));
    }
    let file = FilePatch { old, new, kind, executable, hunks };
    Ok((file, at))
}

/// Parses a `diff --git` line and the extended headers below it. Returns them and the line after.
fn parse_extended_headers(
    lines: &PatchLines<'_>,
    start: usize,
) -> Result<(ExtendedHeaders, usize), Error> {
    let text = lines.get(start).strip_prefix("diff --git ").unwrap_or_default();
    let mut headers = ExtendedHeaders {
        names: file_names::parse_git_names(text, start)?,
        ..ExtendedHeaders::default()
    };

    let mut at = start + 1;
    loop {
        let line = lines.get(at);
        let value =
            |prefixes: &[&str]| prefixes.iter().find_map(|prefix| line.strip_prefix(prefix));
        if let Some(text) = value(&["old mode "]) {
            parse_executable(text, at)?;
        } else if let Some(text) = value(&["new mode "]) {
            headers.executable = Some(parse_executable(text, at)?);
        } else if let Some(text) = value(&["new file mode "]) {
            headers.executable = Some(parse_executable(text, at)?);
            headers.is_new = true;
        } else if let Some(text) = value(&["deleted file mode "]) {
            parse_executable(text, at)?;
            headers.is_deleted = true;
        } else if let Some(text) = value(&["rename from ", "rename old ", "copy from "]) {
            headers.is_copy = line.starts_with("copy");
            headers.from = Some(file_names::parse_header_name(text, at)?);
        } else if let Some(text) = value(&["rename to ", "rename new ", "copy to "]) {
            headers.to = Some(file_names::parse_header_name(text, at)?);
        } else if let Some(text) = value(&["index "]) {
            if let Some((_, mode)) = text.split_once(' ') {
                parse_executable(mode, at)?;
            }
        } else if value(&["similarity index ", "dissimilarity index "]).is_none() {
            return Ok((headers, at));
        }
        at += 1;
    }
}

/// Parses git's mode of a file. Returns whether it is executable.
///
/// # Errors
///
/// For modes of symbolic links, submodules and anything else that is no regular file.
fn parse_executable(text: &str, at: usize) -> Result<bool, Error> {
    let mode = u32::from_str_radix(text.trim(), 8).ok();
    match mode.map(|mode| (mode & 0o170_000, mode)) {
        Some((0o100_000, mode)) => Ok(mode & 0o111 != 0),
        Some((0o120_000, _)) => Err(Error::new(
            Reason::SymlinkBlocked,
            format!(
                "line {} of the patch: it creates or changes a symbolic link, which is not allowed",
                at + 1
            ),
        )
        .with_metadata("line", (at + 1).to_string())),
        Some((0o160_000, _)) => {
            let problem = "it changes a submodule: only files can be patched";
            Err(parse_error(at, problem))
        }
        _ => Err(parse_error(at, format!("{} is not a file mode", quote_line(text)))),
    }
}

/// Returns the name of a file that is not renamed.
fn resolve_name(
    names: Option<(String, String)>,
    marker_names: Option<NamePair>,
    strip: usize,
    at: usize,
) -> Result<String, Error> {
    let names_differ = || {
        let problem = "the names of the file differ, but no header declares a rename";
        parse_error(at, problem)
    };
    let names = names.map(|(old, new)| (Some(old), Some(new)));
    if let (Some(names), Some(marker_names)) = (&names, &marker_names) {
        let agrees = |marker: &Option<String>, name| marker.is_none() || marker == name;
        if !agrees(&marker_names.0, &names.0) || !agrees(&marker_names.1, &names.1) {
            return Err(names_differ());
        }
    }

    // The `diff --git` line comes first: for a created or deleted file, only this line has both
    // names and so reveals their prefixes.
    let pair = names
        .or(marker_names)
        .ok_or_else(|| parse_error(at, "the `diff --git` line does not show where its first name ends: add the lines `---` and `+++`"))?;
    match file_names::strip_names(&pair, strip, at)? {
        (Some(old), Some(new)) if old == new => Ok(old),
        (Some(name), None) | (None, Some(name)) => Ok(name),
        _ => Err(names_differ()),
    }
}

/// Parses a file that begins with `---` and `+++`. Returns it and the line after it.
fn parse_plain_file<'p>(
    lines: &PatchLines<'p>,
    start: usize,
    strip: usize,
) -> Result<(FilePatch<'p>, usize), Error> {
    let pair = parse_marker_names(lines, start)?;
    let (name, kind) = match file_names::strip_names(&pair, strip, start)? {
        (None, None) => return Err(parse_error(start, "the file has no name")),
        (None, Some(new)) => (new, FilePatchKind::Create),
        (Some(old), None) => (old, FilePatchKind::Delete),
        (Some(old), Some(new)) => match file_names::common_name(&old, &new) {
            Some(name) => (name.to_owned(), FilePatchKind::Modify),
            None => {
                let problem = format!(
                    "the file is {} before and {} after the change: give both lines the same name, or declare a rename with `diff --git`, `rename from` and `rename to` above them",
                    quote_line(&old),
                    quote_line(&new)
                );
                return Err(parse_error(start, problem));
            }
        },
    };

    let (hunks, at) = read_hunks(lines, start + 2, is_crlf(lines, start))?;
    if hunks.is_empty() {
        let problem = "no hunk follows the names of this file";
        return Err(parse_error(start, problem));
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

/// Whether the patch itself has CRLF line endings. Then its hunks do not show the endings of the
/// file.
fn is_crlf(lines: &PatchLines<'_>, at: usize) -> bool {
    lines.raw(at).is_some_and(|line| line.ends_with('\r'))
}

/// Parses all hunks from here on. Returns them and the line after them.
fn read_hunks<'p>(
    lines: &PatchLines<'p>,
    mut at: usize,
    is_crlf: bool,
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
        let (hunk, end) = hunk::read_hunk(lines, next, is_crlf)?;
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
