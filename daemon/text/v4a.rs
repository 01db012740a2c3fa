//! Patches in the V4A format, which OpenAI's models are trained to write. They have no line
//! numbers: context locates each change. Pure functions.
//!
//! ```text
//! *** Begin Patch
//! *** Update File: a.py         or: *** Add File: …, *** Delete File: …
//! *** Move to: b.py             optional
//! @@ class C                    optional: a line above the change, if context is ambiguous
//!  context
//! -removed
//! +added
//! *** End of File               optional: the change is at the end of the file
//! *** End Patch
//! ```
//!
//! Follows OpenAI's own implementation (`apply_diff` of its Agents SDK).

use std::{iter::Peekable, str::Lines};

const END_OF_FILE_MARKER: &str = "*** End of File";

/// The operation of a patch on one file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum V4aOperation {
    Add {
        path: String,
        content: String,
    },
    Update {
        path: String,
        /// New path of a file that the patch also moves.
        destination: Option<String>,
        /// Argument for [`apply`].
        diff: String,
    },
    Delete {
        path: String,
    },
}

/// Why a patch cannot be applied.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum V4aError {
    /// The patch cannot be parsed. Contains the problem.
    #[error("{0}")]
    Malformed(String),
    /// The file does not contain these lines.
    #[error("the file does not contain the context\n{0}")]
    ContextNotFound(String),
}

/// A replacement of adjacent lines.
#[derive(Debug)]
struct V4aChange {
    /// First removed line, counted from 0 within the section, in [`apply`] within the file.
    first_line: usize,
    removed: usize,
    added: Vec<String>,
}

/// A section of a diff: the lines that it expects, and its changes to them.
#[derive(Debug, Default)]
struct V4aSection {
    /// Lines above the section, in order, that locate it.
    anchors: Vec<String>,
    /// Context and removed lines.
    before: Vec<String>,
    /// Changes, in order.
    changes: Vec<V4aChange>,
    at_end_of_file: bool,
}

/// Parses a patch of several files.
pub(crate) fn parse(patch: &str) -> Result<Vec<V4aOperation>, V4aError> {
    let malformed = |text: String| Err(V4aError::Malformed(text));
    let mut lines = patch.trim().lines().peekable();
    if lines.next().map(str::trim_end) != Some("*** Begin Patch") {
        return malformed("the first line must be *** Begin Patch".to_owned());
    }

    let mut operations = Vec::new();
    while let Some(line) = lines.next() {
        let line = line.trim_end();
        if line == "*** End Patch" {
            return match (lines.next(), operations.is_empty()) {
                (None, false) => Ok(operations),
                (None, true) => malformed("it changes no file".to_owned()),
                (Some(line), _) => malformed(format!("unexpected {line:?} after *** End Patch")),
            };
        }

        if let Some(path) = line.strip_prefix("*** Add File: ") {
            let content = new_file_content(&read_body(&mut lines))?;
            operations.push(V4aOperation::Add { path: path.to_owned(), content });
        } else if let Some(path) = line.strip_prefix("*** Delete File: ") {
            operations.push(V4aOperation::Delete { path: path.to_owned() });
        } else if let Some(path) = line.strip_prefix("*** Update File: ") {
            let destination = lines
                .peek()
                .and_then(|line| line.strip_prefix("*** Move to: "))
                .map(|path| path.trim_end().to_owned());
            if destination.is_some() {
                lines.next();
            }
            let diff = read_body(&mut lines);
            operations.push(V4aOperation::Update { path: path.to_owned(), destination, diff });
        } else {
            return malformed(format!(
                "{line:?} is none of *** Add File: …, *** Update File: … and *** Delete File: …"
            ));
        }
    }
    malformed("the last line must be *** End Patch".to_owned())
}

/// Reads the lines of one file's operation, up to the next marker.
fn read_body(lines: &mut Peekable<Lines<'_>>) -> String {
    let is_body = |line: &&str| !line.starts_with("*** ") || *line == END_OF_FILE_MARKER;
    let mut body = String::new();
    while let Some(line) = lines.next_if(is_body) {
        body.push_str(line);
        body.push('\n');
    }
    body
}

/// Parses the content of a new file, whose lines all begin with `+`.
pub(crate) fn new_file_content(diff: &str) -> Result<String, V4aError> {
    let mut content = String::new();
    for line in diff.lines() {
        let Some(line) = line.strip_prefix('+') else {
            let text = format!("every line of a new file must begin with +: {line:?}");
            return Err(V4aError::Malformed(text));
        };
        content.push_str(line);
        content.push('\n');
    }
    Ok(content)
}

/// Applies the diff of one file. Added lines end with CRLF if the text contains one.
pub(crate) fn apply(text: &str, diff: &str) -> Result<String, V4aError> {
    let newline = if text.contains("\r\n") { "\r\n" } else { "\n" };
    let mut lines: Vec<&str> = text.split('\n').collect();
    for line in &mut lines {
        *line = line.strip_suffix('\r').unwrap_or(line);
    }

    let mut cursor = 0;
    let mut changes = Vec::new();
    for section in sections(diff)? {
        for anchor in &section.anchors {
            cursor = line_after_anchor(&lines, anchor, cursor)
                .ok_or_else(|| V4aError::ContextNotFound(anchor.clone()))?;
        }
        let at = find_section(&lines, &section, cursor)
            .ok_or_else(|| V4aError::ContextNotFound(section.before.join("\n")))?;
        cursor = at + section.before.len();
        changes.extend(
            section
                .changes
                .into_iter()
                .map(|change| V4aChange { first_line: at + change.first_line, ..change }),
        );
    }

    let mut changed: Vec<&str> = Vec::with_capacity(lines.len());
    let mut next = 0;
    for change in &changes {
        changed.extend(lines.get(next..change.first_line).unwrap_or_default());
        changed.extend(change.added.iter().map(String::as_str));
        next = change.first_line + change.removed;
    }
    changed.extend(lines.get(next..).unwrap_or_default());
    Ok(changed.join(newline))
}

fn sections(diff: &str) -> Result<Vec<V4aSection>, V4aError> {
    let mut sections: Vec<V4aSection> = Vec::new();
    let mut section = V4aSection::default();
    let is_begun = |section: &V4aSection| !section.before.is_empty() || !section.changes.is_empty();

    for line in diff.lines() {
        let line = line.strip_suffix('\r').unwrap_or(line);
        if line == END_OF_FILE_MARKER {
            section.at_end_of_file = true;
            continue;
        }

        if let Some(anchor) = line.strip_prefix("@@") {
            if is_begun(&section) {
                sections.push(std::mem::take(&mut section));
            }
            let anchor = anchor.trim();
            // Line numbers, as unified diffs have them, are ignored.
            if !anchor.is_empty() && !anchor.starts_with('-') {
                section.anchors.push(anchor.to_owned());
            }
            continue;
        }

        let (kind, content) = match line.chars().next() {
            None => (' ', ""),
            Some(kind) => (kind, line.get(1..).unwrap_or_default()),
        };

        match kind {
            ' ' => section.before.push(content.to_owned()),
            '-' => {
                let change = section.current_change();
                change.removed += 1;
                section.before.push(content.to_owned());
            }
            '+' => section.current_change().added.push(content.to_owned()),
            _ => {
                return Err(V4aError::Malformed(format!(
                    "a line must begin with a space, -, + or @@: {line:?}"
                )));
            }
        }
    }

    if is_begun(&section) {
        sections.push(section);
    }
    if sections.is_empty() {
        return Err(V4aError::Malformed("it changes nothing".to_owned()));
    }
    Ok(sections)
}

impl V4aSection {
    /// Returns the change that the next line of the diff belongs to.
    fn current_change(&mut self) -> &mut V4aChange {
        let at = self.before.len();
        let is_adjacent =
            self.changes.last().is_some_and(|change| change.first_line + change.removed == at);
        if !is_adjacent {
            self.changes.push(V4aChange { first_line: at, removed: 0, added: Vec::new() });
        }
        let last = self.changes.len() - 1;
        &mut self.changes[last]
    }
}

/// Returns the index of the line after the first anchor from `cursor` on: a line equal to `anchor`
/// or, if there is none, equal except for surrounding blanks.
fn line_after_anchor(lines: &[&str], anchor: &str, cursor: usize) -> Option<usize> {
    let find = |matches: &dyn Fn(&str) -> bool| {
        let position = lines.iter().skip(cursor).position(|line| matches(line))?;
        Some(cursor + position + 1)
    };
    find(&|line| line == anchor).or_else(|| find(&|line| line.trim() == anchor.trim()))
}

/// Returns the index of the first line of a section, from `cursor` on. Tries equal lines, then
/// lines equal except for trailing blanks, then except for surrounding blanks.
fn find_section(lines: &[&str], section: &V4aSection, cursor: usize) -> Option<usize> {
    let before = &section.before;
    if before.is_empty() {
        let end = lines.len().saturating_sub(1);
        return Some(if section.at_end_of_file { end } else { cursor });
    }

    let find = |from: usize| {
        let find_by = |equal: &dyn Fn(&str, &str) -> bool| {
            (from..=lines.len().checked_sub(before.len())?).find(|at| {
                let actual = lines.iter().skip(*at);
                before.iter().zip(actual).all(|(expected, actual)| equal(expected, actual))
            })
        };
        find_by(&|a, b| a == b)
            .or_else(|| find_by(&|a, b| a.trim_end() == b.trim_end()))
            .or_else(|| find_by(&|a, b| a.trim() == b.trim()))
    };

    if section.at_end_of_file {
        // The end with or without the newline of the last line.
        let last = lines.len().checked_sub(before.len())?;
        let mut at_end =
            [last.checked_sub(1), Some(last)].into_iter().flatten().filter(|at| *at >= cursor);
        if let Some(at) = at_end.find_map(|at| find(at).filter(|found| *found == at)) {
            return Some(at);
        }
    }
    find(cursor)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "class A:\n    def f(self):\n        return 1\n\nclass B:\n    def f(self):\n        return 1\n";

    #[test]
    fn diffs_apply_to_a_text() {
        for (diff, line, expected) in [
            ("@@\n-class A:\n+class C:\n", 0, "class C:"),
            (
                "@@ class B:\n@@ def f(self):\n-        return 1\n+        return 2\n",
                6,
                "        return 2",
            ),
            (
                " class B:\n     def f(self):\n-        return 1\n+        return 3\n",
                6,
                "        return 3",
            ),
            // Blanks may be others.
            ("@@ class B:\n def f(self):\n-return 1\n+        return 4\n", 6, "        return 4"),
            ("@@ -1,2 +1,2 @@\n-class A:\n+class D:\n", 0, "class D:"),
            ("+# first\n class A:\n", 0, "# first"),
            ("-        return 1\n+        return 5\n*** End of File\n", 6, "        return 5"),
        ] {
            let changed = apply(TEXT, diff).unwrap_or_else(|error| panic!("{diff}: {error}"));
            assert_eq!(changed.lines().nth(line), Some(expected), "{diff}\n{changed}");
            assert!(changed.ends_with('\n'));
        }
        assert_eq!(apply("a\r\nb\r\n", "-a\n+c\n").unwrap(), "c\r\nb\r\n");
        assert_eq!(apply("", "+a\n+b\n").unwrap(), "a\nb\n");
        let twice = "@@\n-class A:\n+class X:\n@@\n-class B:\n+class Y:\n";
        let changed = apply(TEXT, twice).unwrap();
        assert!(changed.contains("class X:") && changed.contains("class Y:"));
    }

    #[test]
    fn errors_tell_malformed_from_mismatched() {
        for (diff, is_malformed) in [
            ("-class Z:\n+x\n", false),
            ("@@ class Z:\n-class A:\n", false),
            ("-class B:\n-class A:\n", false),
            ("nonsense\n", true),
            ("", true),
        ] {
            let error = apply(TEXT, diff).unwrap_err();
            assert_eq!(matches!(error, V4aError::Malformed(_)), is_malformed, "{diff}: {error}");
        }
    }

    #[test]
    fn parses_a_patch_of_several_files() {
        let patch = "*** Begin Patch\n*** Add File: a.txt\n+one\n+two\n*** Update File: b.txt\n*** Move to: c.txt\n@@\n-x\n+y\n*** End of File\n*** Delete File: d.txt\n*** End Patch\n";
        assert_eq!(
            parse(patch).unwrap(),
            [
                V4aOperation::Add { path: "a.txt".to_owned(), content: "one\ntwo\n".to_owned() },
                V4aOperation::Update {
                    path: "b.txt".to_owned(),
                    destination: Some("c.txt".to_owned()),
                    diff: "@@\n-x\n+y\n*** End of File\n".to_owned()
                },
                V4aOperation::Delete { path: "d.txt".to_owned() },
            ]
        );
        for patch in [
            "",
            "*** Begin Patch\n*** End Patch",
            "*** Begin Patch\n*** Add File: a\n+x",
            "*** Begin Patch\n*** Add File: a\nx\n*** End Patch",
            "*** Begin Patch\n*** Rename File: a\n*** End Patch",
            "*** Begin Patch\n*** Delete File: a\n*** End Patch\nmore",
        ] {
            assert!(parse(patch).is_err(), "{patch}");
        }
    }
}
