//! Patches as OpenAI's models are trained to write them (V4A): no numbers of lines, but as much context as finds
//! the place. Texts in, texts out.
//!
//! ```text
//! *** Begin Patch
//! *** Update File: a.py         or: *** Add File: …, *** Delete File: …
//! *** Move to: b.py             if it is to be
//! @@ class C                    a line above the place, if context does not find it
//!  context
//! -removed
//! +added
//! *** End of File               if it is to be at the end
//! *** End Patch
//! ```
//!
//! The rules are those of OpenAI's own implementation (`apply_diff` of its Agents SDK).

/// What a patch does to one file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum V4aOperation {
    /// Makes it.
    Add {
        /// Its path.
        path: String,
        /// What it is to hold.
        content: String,
    },
    /// Changes it.
    Update {
        /// Its path.
        path: String,
        /// Where it is to be then, if elsewhere.
        destination: Option<String>,
        /// What changes, for [`apply`].
        diff: String,
    },
    /// Removes it.
    Delete {
        /// Its path.
        path: String,
    },
}

/// Why a patch cannot be applied.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum V4aError {
    /// It cannot be understood.
    #[error("{0}")]
    Malformed(String),
    /// The file has nothing like it.
    #[error("the context does not fit: the file has no place with\n{0}")]
    ContextNotFound(String),
}

/// A change of some lines.
#[derive(Debug)]
struct V4aChange {
    /// First of the lines that go, counted from 0.
    first_line: usize,
    removed: usize,
    added: Vec<String>,
}

/// One section of a diff: what is there before, and what changes of it.
#[derive(Debug, Default)]
struct V4aSection {
    /// Lines above the place, in their order.
    anchors: Vec<String>,
    /// Lines that are there.
    before: Vec<String>,
    /// Changes, by the positions of their first lines among those.
    changes: Vec<V4aChange>,
    at_end_of_file: bool,
}

/// Reads a patch of several files.
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
                (Some(line), _) => malformed(format!("{line:?} stands behind *** End Patch")),
            };
        }
        let is_of_file = |line: &&str| !line.starts_with("*** ") || *line == END_OF_FILE_MARKER;
        let body = |lines: &mut std::iter::Peekable<std::str::Lines<'_>>| {
            let mut body = String::new();
            while let Some(line) = lines.next_if(is_of_file) {
                body.push_str(line);
                body.push('\n');
            }
            body
        };
        if let Some(path) = line.strip_prefix("*** Add File: ") {
            let content = new_file_content(&body(&mut lines))?;
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
            operations.push(V4aOperation::Update {
                path: path.to_owned(),
                destination,
                diff: body(&mut lines),
            });
        } else {
            return malformed(format!(
                "{line:?} is none of *** Add File: …, *** Update File: … and *** Delete File: …"
            ));
        }
    }
    malformed("the last line must be *** End Patch".to_owned())
}

const END_OF_FILE_MARKER: &str = "*** End of File";

/// What a new file holds, of which every line begins with `+`.
pub(crate) fn new_file_content(diff: &str) -> Result<String, V4aError> {
    let mut content = String::new();
    for line in diff.lines() {
        let Some(line) = line.strip_prefix('+') else {
            let text = format!("every line of a new file begins with +, and {line:?} does not");
            return Err(V4aError::Malformed(text));
        };
        content.push_str(line);
        content.push('\n');
    }
    Ok(content)
}

/// Changes a text as a diff says.
pub(crate) fn apply(text: &str, diff: &str) -> Result<String, V4aError> {
    let newline = if text.contains("\r\n") { "\r\n" } else { "\n" };
    let mut lines: Vec<&str> = text.split('\n').collect();
    for line in &mut lines {
        *line = line.strip_suffix('\r').unwrap_or(line);
    }
    let mut cursor = 0;
    let mut chunks = Vec::new();
    for section in sections(diff)? {
        for anchor in &section.anchors {
            cursor = line_after_anchor(&lines, anchor, cursor)
                .ok_or_else(|| V4aError::ContextNotFound(anchor.clone()))?;
        }
        let at = find_section(&lines, &section, cursor)
            .ok_or_else(|| V4aError::ContextNotFound(section.before.join("\n")))?;
        cursor = at + section.before.len();
        chunks.extend(
            section
                .changes
                .into_iter()
                .map(|chunk| V4aChange { first_line: at + chunk.first_line, ..chunk }),
        );
    }
    let mut changed: Vec<&str> = Vec::with_capacity(lines.len());
    let mut next = 0;
    for chunk in &chunks {
        changed.extend(lines.get(next..chunk.first_line).unwrap_or_default());
        changed.extend(chunk.added.iter().map(String::as_str));
        next = chunk.first_line + chunk.removed;
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
            // Numbers of lines, as other diffs have them, find nothing.
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
                let chunk = section.current_change();
                chunk.removed += 1;
                section.before.push(content.to_owned());
            }
            '+' => section.current_change().added.push(content.to_owned()),
            _ => {
                let text = format!(
                    "every line begins with a space, - or +, or is @@ and a line above, and {line:?} is none of these"
                );
                return Err(V4aError::Malformed(text));
            }
        }
    }
    if is_begun(&section) {
        sections.push(section);
    }
    match sections.is_empty() {
        true => Err(V4aError::Malformed("it changes nothing".to_owned())),
        false => Ok(sections),
    }
}

impl V4aSection {
    /// The change that the next line belongs to.
    fn current_change(&mut self) -> &mut V4aChange {
        let at = self.before.len();
        let goes_on =
            self.changes.last().is_some_and(|chunk| chunk.first_line + chunk.removed == at);
        if !goes_on {
            self.changes.push(V4aChange { first_line: at, removed: 0, added: Vec::new() });
        }
        let last = self.changes.len() - 1;
        &mut self.changes[last]
    }
}

/// The line below one that is an anchor: from `cursor` on or, where there is none, above it.
fn line_after_anchor(lines: &[&str], anchor: &str, cursor: usize) -> Option<usize> {
    let find = |is: &dyn Fn(&str) -> bool| {
        let from_here = lines.iter().skip(cursor).position(|line| is(line));
        from_here.map(|position| cursor + position + 1)
    };
    find(&|line| line == anchor).or_else(|| find(&|line| line.trim() == anchor.trim()))
}

/// Where the lines of a section are, from `cursor` on: exactly, or but for blanks at their ends, or around them.
fn find_section(lines: &[&str], section: &V4aSection, cursor: usize) -> Option<usize> {
    let before = &section.before;
    if before.is_empty() {
        return Some(match section.at_end_of_file {
            true => lines.len().saturating_sub(1),
            false => cursor,
        });
    }
    let find = |from: usize| {
        let fits = |is: &dyn Fn(&str, &str) -> bool| {
            (from..=lines.len().checked_sub(before.len())?).find(|at| {
                let there = lines.iter().skip(*at);
                before.iter().zip(there).all(|(one, other)| is(one, other))
            })
        };
        fits(&|one, other| one == other)
            .or_else(|| fits(&|one, other| one.trim_end() == other.trim_end()))
            .or_else(|| fits(&|one, other| one.trim() == other.trim()))
    };
    if section.at_end_of_file {
        // With or without the end of the last line.
        let last = lines.len().checked_sub(before.len())?;
        let at_end = [last.checked_sub(1), Some(last)].into_iter().flatten();
        let mut at_end = at_end.filter(|at| *at >= cursor);
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
    fn texts_are_changed_as_a_diff_says() {
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
    fn what_does_not_fit_is_told() {
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
    fn a_patch_has_several_files() {
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
