//! File names in the headers of a patch.

use super::{
    file_patch::DEV_NULL,
    patch_lines::{parse_error, quote_line},
};
use crate::daemon::error::{Error, Reason};

/// The kernel's limit for a path (`PATH_MAX`).
const MAX_NAME_BYTES: usize = 4096;

/// Suffixes of copies of a file from before or after a change.
const BACKUP_SUFFIXES: &[&str] = &[".bak", ".new", ".old", ".orig"];

/// Old and new name in a header, unquoted. `None` for `/dev/null`.
pub(super) type NamePair = (Option<String>, Option<String>);

/// Parses the rest of a `---` or `+++` line. `None` for `/dev/null`.
pub(super) fn parse_marker_name(text: &str, at: usize) -> Result<Option<String>, Error> {
    let name = if text.starts_with('"') {
        unquote(text, at)?.0
    } else {
        // git ends a name that contains blanks with a tab. diff appends a tab and a timestamp.
        match text.split_once('\t') {
            Some((name, _)) => name,
            None => strip_timestamp(text.trim_end()),
        }
        .to_owned()
    };
    check_name(&name, at)?;
    Ok((name != DEV_NULL).then_some(name))
}

/// Parses the name at the end of an extended header.
pub(super) fn parse_header_name(text: &str, at: usize) -> Result<String, Error> {
    let name = if text.starts_with('"') { unquote(text, at)?.0 } else { text.to_owned() };
    check_name(&name, at)?;
    Ok(name)
}

/// Parses the rest of a `diff --git` line. `None` if the end of the first name is ambiguous: then
/// later lines must have the names.
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
        // Blanks are not quoted. Without a rename, however, both names are equal.
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

/// Strips leading components from both names. At least one component remains.
///
/// With the default of 1, a component is stripped only where it is no part of the name:
///
/// * from `a/` and `b/`
/// * from names that differ in the first component only, as `git diff` with `diff.mnemonicPrefix`
///   and `diff -r` write them
pub(super) fn strip_names(
    (old, new): &NamePair,
    strip: usize,
    at: usize,
) -> Result<NamePair, Error> {
    let has_prefix = |name: &Option<String>, prefix| {
        name.as_ref().is_none_or(|name: &String| name.starts_with(prefix))
    };
    let same_file = || match (old, new) {
        (Some(old), Some(new)) => old != new && differ_in_first_component_only(old, new),
        _ => false,
    };
    let count = match strip {
        1 if has_prefix(old, "a/") && has_prefix(new, "b/") || same_file() => 1,
        1 => 0,
        more => more,
    };
    let strip = |name: &Option<String>| {
        name.as_ref().map(|name| strip_components(name, count, at)).transpose()
    };
    Ok((strip(old)?, strip(new)?))
}

/// Strips `count` leading components from a name. The last component always remains.
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

/// Returns the file that two names mean. They may differ in their first component, because `strip`
/// can leave a prefix, and in the suffix of a backup copy.
pub(super) fn common_name<'n>(old: &'n str, new: &'n str) -> Option<&'n str> {
    if differ_in_first_component_only(old, new) || strip_backup_suffix(old) == new {
        Some(new)
    } else if strip_backup_suffix(new) == old {
        Some(old)
    } else {
        None
    }
}

/// Strips `.orig` and the like, `~` and `.~1~`.
fn strip_backup_suffix(name: &str) -> &str {
    let suffixed = BACKUP_SUFFIXES.iter().find_map(|suffix| name.strip_suffix(suffix));
    let numbered = || {
        let (name, number) = name.strip_suffix('~')?.rsplit_once(".~")?;
        let is_number = !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit());
        is_number.then_some(name)
    };
    let stripped = numbered().or(suffixed).or_else(|| name.strip_suffix('~'));
    stripped.filter(|name| !name.is_empty() && !name.ends_with('/')).unwrap_or(name)
}

/// Whether two names are equal after their first components.
fn differ_in_first_component_only(old: &str, new: &str) -> bool {
    let rest = |name| str::split_once(name, '/').map(|(_, rest)| rest);
    old == new || rest(old).is_some() && rest(old) == rest(new)
}

/// Rejects names that no file of a workspace can have.
fn check_name(name: &str, at: usize) -> Result<(), Error> {
    if name.is_empty() || name.len() > MAX_NAME_BYTES || name.contains('\0') {
        return Err(parse_error(at, "the file name is not valid (empty, too long, or with a NUL)"));
    }
    if name.starts_with('/') && name != DEV_NULL {
        return Err(Error::new(
            Reason::PathEscape,
            format!(
                "line {} of the patch: {} is absolute: file names must be relative to the workspace",
                at + 1,
                quote_line(name)
            ),
        )
        .with_metadata("path", name));
    }
    Ok(())
}

/// Parses a name in quotes, with the escapes of C. Returns it and the text after it.
fn unquote(text: &str, at: usize) -> Result<(String, &str), Error> {
    let problem = |problem: &str| parse_error(at, format!("{}: {problem}", quote_line(text)));
    let mut name = Vec::new();
    let bytes = text.as_bytes();
    let mut next = 1;

    loop {
        let byte = *bytes.get(next).ok_or_else(|| problem("the quoted file name has no end"))?;
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
                    .ok_or_else(|| problem("an escaped byte must have three octal digits"))?
            }
            _ => return Err(problem("the file name has an escape that git does not know")),
        });
    }

    let name = String::from_utf8(name).map_err(|_| problem("the file name is not UTF-8"))?;
    Ok((name, text.get(next..).unwrap_or_default()))
}

/// Strips a timestamp after a blank, ` 2026-01-31 12:34:56`, and everything after it.
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
