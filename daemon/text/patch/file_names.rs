//! The names of files in the headers of a patch.

use super::{
    file_patch::DEV_NULL,
    patch_lines::{parse_error, quote_line},
};
use crate::daemon::error::{Error, Reason};

/// Most bytes of a name: the kernel takes no longer path.
const MAX_NAME_BYTES: usize = 4096;

/// What marks a file as it was before, or is to be after a change.
const BACKUP_SUFFIXES: &[&str] = &[".bak", ".new", ".old", ".orig"];

/// Two names as they stand in a header, unquoted; none for `/dev/null`.
pub(super) type NamePair = (Option<String>, Option<String>);

/// The name on a `---` or `+++` line, without these; none for `/dev/null`.
pub(super) fn parse_marker_name(text: &str, at: usize) -> Result<Option<String>, Error> {
    let name = if text.starts_with('"') {
        unquote(text, at)?.0
    } else {
        // git ends a name that has blanks with a tab, diff puts the time behind one.
        let name = match text.split_once('\t') {
            Some((name, _)) => name,
            None => strip_timestamp(text.trim_end()),
        };
        name.to_owned()
    };
    check_name(&name, at)?;
    Ok((name != DEV_NULL).then_some(name))
}

/// A name that an extended header ends with.
pub(super) fn parse_header_name(text: &str, at: usize) -> Result<String, Error> {
    let name = if text.starts_with('"') { unquote(text, at)?.0 } else { text.to_owned() };
    check_name(&name, at)?;
    Ok(name)
}

/// The names of a `diff --git` line, without this. None when it cannot be told where the first one
/// ends: then the lines that follow must say it.
pub(super) fn parse_git_names(text: &str, at: usize) -> Result<Option<(String, String)>, Error> {
    let (old, new) = if text.starts_with('"') {
        let (old, rest) = unquote(text, at)?;
        let Some(rest) = rest.strip_prefix(' ') else {
            return Ok(None);
        };
        (old, parse_header_name(rest, at)?)
    } else if let Some((old, quoted)) = text.split_once(" \"") {
        let (new, _) = unquote(text.get(text.len() - quoted.len() - 1..).unwrap_or(""), at)?;
        (old.to_owned(), new)
    } else {
        // Blanks are not quoted: but what is not renamed has the same name twice.
        let middle = text.len() / 2;
        match (text.get(..middle), text.get(middle..)) {
            (Some(old), Some(new))
                if new.starts_with(' ') && differ_in_first_component_only(old, &new[1..]) =>
            {
                (old.to_owned(), new[1..].to_owned())
            }
            _ => return Ok(None),
        }
    };
    check_name(&old, at)?;
    check_name(&new, at)?;
    Ok(Some((old, new)))
}

/// Takes leading components off. What is left has one at least.
///
/// By default one is taken off, which belongs to the name only where it is `a/` before and `b/`
/// after the change; or where the names are the same but for it, as with `git diff` when
/// `diff.mnemonicPrefix` is set, or with `diff -r`.
pub(super) fn strip_names(
    (old, new): &NamePair,
    strip: usize,
    at: usize,
) -> Result<NamePair, Error> {
    let begins = |name: &Option<String>, prefix| {
        name.as_ref().is_none_or(|name: &String| name.starts_with(prefix))
    };
    let one_place = || match (old, new) {
        (Some(old), Some(new)) => old != new && differ_in_first_component_only(old, new),
        _ => false,
    };
    let strip = match strip {
        1 if begins(old, "a/") && begins(new, "b/") || one_place() => 1,
        1 => 0,
        more => more,
    };
    let strip = |name: &Option<String>| {
        name.as_ref().map(|name| strip_components(name, strip, at)).transpose()
    };
    Ok((strip(old)?, strip(new)?))
}

/// Takes `count` leading components off a name, but not the last.
pub(super) fn strip_components(name: &str, count: usize, at: usize) -> Result<String, Error> {
    let mut rest = name;
    for _ in 0..count {
        match rest.split_once('/') {
            Some((_, below)) if !below.is_empty() => rest = below,
            _ => break,
        }
    }
    check_name(rest, at)?;
    Ok(rest.to_owned())
}

/// The file that two names mean. They may differ in their first components, of which `strip` says
/// nothing else, and in what marks the copy that somebody has kept or is about to put in place.
pub(super) fn common_name<'n>(old: &'n str, new: &'n str) -> Option<&'n str> {
    if differ_in_first_component_only(old, new) || strip_backup_suffix(old) == new {
        Some(new)
    } else if strip_backup_suffix(new) == old {
        Some(old)
    } else {
        None
    }
}

/// Takes off `.orig` and the like, `~` and `.~1~`.
fn strip_backup_suffix(name: &str) -> &str {
    let marked = BACKUP_SUFFIXES.iter().find_map(|mark| name.strip_suffix(mark));
    let numbered = || {
        let (name, number) = name.strip_suffix('~')?.rsplit_once(".~")?;
        let is_number = !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit());
        is_number.then_some(name)
    };
    let kept = numbered().or(marked).or_else(|| name.strip_suffix('~'));
    kept.filter(|name| !name.is_empty() && !name.ends_with('/')).unwrap_or(name)
}

/// Whether two names are the same but for their first components.
fn differ_in_first_component_only(old: &str, new: &str) -> bool {
    let below = |name| str::split_once(name, '/').map(|(_, below)| below);
    old == new || below(old).is_some() && below(old) == below(new)
}

/// Refuses names that no file of a workspace has.
fn check_name(name: &str, at: usize) -> Result<(), Error> {
    if name.is_empty() || name.len() > MAX_NAME_BYTES || name.contains('\0') {
        return Err(parse_error(at, "a file has a name that no file can have"));
    }
    if name.starts_with('/') && name != DEV_NULL {
        return Err(Error::new(
            Reason::PathEscape,
            format!(
                "line {} of the patch: {} is absolute: name files relative to the workspace",
                at + 1,
                quote_line(name)
            ),
        )
        .with_metadata("path", name));
    }
    Ok(())
}

/// Reads a name in quotation marks, with the escapes of C, and answers what follows it.
fn unquote(text: &str, at: usize) -> Result<(String, &str), Error> {
    let problem = |problem: &str| parse_error(at, format!("{}: {problem}", quote_line(text)));
    let mut name = Vec::new();
    let bytes = text.as_bytes();
    let mut next = 1;
    loop {
        let byte =
            *bytes.get(next).ok_or_else(|| problem("a name in quotation marks does not end"))?;
        next += 1;
        if byte == b'"' {
            break;
        }
        if byte != b'\\' {
            name.push(byte);
            continue;
        }
        let escaped = bytes.get(next).copied();
        next += 1;
        name.push(match escaped {
            Some(b'a') => 7,
            Some(b'b') => 8,
            Some(b't') => b'\t',
            Some(b'n') => b'\n',
            Some(b'v') => 11,
            Some(b'f') => 12,
            Some(b'r') => b'\r',
            Some(same @ (b'"' | b'\\')) => same,
            Some(b'0'..=b'3') => {
                let digits = text.get(next - 1..next + 2);
                next += 2;
                digits
                    .and_then(|digits| u8::from_str_radix(digits, 8).ok())
                    .ok_or_else(|| problem("a byte is written with three octal digits"))?
            }
            _ => return Err(problem("a name has an escape that git does not know")),
        });
    }
    let name =
        String::from_utf8(name).map_err(|_| problem("a name is not UTF-8: it cannot be used"))?;
    Ok((name, text.get(next..).unwrap_or_default()))
}

/// Takes off a time that stands behind a blank: ` 2026-01-31 12:34:56` and what follows it.
fn strip_timestamp(text: &str) -> &str {
    const TIMESTAMP_FORM: &[u8] = b" 0000-00-00 00:00:00";
    let has_form = |window: &[u8]| {
        window.iter().zip(TIMESTAMP_FORM).all(|(byte, form)| match form {
            b'0' => byte.is_ascii_digit(),
            form => byte == form,
        })
    };
    let found = text.as_bytes().windows(TIMESTAMP_FORM.len()).rposition(has_form);
    found.and_then(|end| text.get(..end)).map_or(text, str::trim_end)
}
