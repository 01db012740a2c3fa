//! Unified diff of two texts, in the format of git.
//!
//! The crate `similar` compares the lines. This module bounds its work: it compares only the part
//! that differs, compares lines by number, and stops at a number of lines and at a time. A diff
//! beyond these limits is correct but not minimal.

use std::{
    collections::HashMap,
    convert::Infallible,
    fmt::Write as _,
    ops::Range,
    time::{Duration, Instant},
};

use memchr::{memchr, memchr_iter, memrchr, memrchr_iter};
use similar::{
    Algorithm,
    algorithms::{DiffHook, diff_slices_deadline},
};

use super::count_lines;

/// Lines of context before and after a change.
const CONTEXT_LINES: usize = 3;
/// Lines of either text that are compared. In a longer text, everything from the first to the last
/// difference is one change.
const MAX_COMPARED_LINES: usize = 200_000;
/// Time for the comparison. Everything not compared by then is one change.
const MAX_COMPARE_TIME: Duration = Duration::from_millis(500);

/// A replacement of a range of old lines by a range of new lines.
#[derive(Debug, Clone, PartialEq, Eq)]
struct LineChange {
    old: Range<usize>,
    new: Range<usize>,
}

/// Collects the changes: the lines between equal lines. This makes the result independent of how
/// the algorithm reports a change, and of what it skips at its deadline.
#[derive(Debug, Default)]
struct ChangeCollector {
    changes: Vec<LineChange>,
    /// Where the last equal lines end, in the old and the new text.
    end: (usize, usize),
}

/// A diff under construction, of limited size.
#[derive(Debug)]
struct DiffWriter {
    text: String,
    max_bytes: usize,
    /// Lines left out because of the limit.
    omitted_lines: usize,
}

/// Returns the unified diff of two versions of the file at `path`. Empty if they are equal.
///
/// A diff of more than about `max_bytes` is cut in the middle of a hunk, so that it cannot be
/// applied by mistake.
pub(crate) fn unified(path: &str, old: &str, new: &str, max_bytes: usize) -> String {
    if old == new {
        return String::new();
    }
    let mut output = DiffWriter { text: String::new(), max_bytes, omitted_lines: 0 };
    output.write_file_header(path);

    let (start, old_end, new_end) = trim_common(old, new);
    let before = count_lines(&old.as_bytes()[..start]);
    let (old, new) = (&old[start..old_end], &new[start..new_end]);

    if count_lines(old.as_bytes()).max(count_lines(new.as_bytes())) > MAX_COMPARED_LINES {
        output.write_coarse_hunk(before, old, new);
    } else {
        let old: Vec<&str> = old.split_inclusive('\n').collect();
        let new: Vec<&str> = new.split_inclusive('\n').collect();
        let changes = changes(&old, &new);
        let mut rest = changes.as_slice();
        while let Some(count) = first_hunk_length(rest) {
            let (hunk, later) = rest.split_at(count);
            output.write_hunk(before, &old, &new, hunk);
            rest = later;
        }
    }
    output.finish()
}

/// Returns the range in which the texts differ, with context: the common start, and the end in
/// each text. All three are starts of lines.
fn trim_common(old: &str, new: &str) -> (usize, usize, usize) {
    let (old, new) = (old.as_bytes(), new.as_bytes());
    let common = old.iter().zip(new).take_while(|(a, b)| a == b).count();
    let start = memrchr(b'\n', &old[..common]).map_or(0, |newline| newline + 1);
    let context = memrchr_iter(b'\n', &old[..start]).nth(CONTEXT_LINES);
    let first = context.map_or(0, |newline| newline + 1);

    let (old_rest, new_rest) = (old[start..].iter().rev(), new[start..].iter().rev());
    let common = old_rest.zip(new_rest).take_while(|(a, b)| a == b).count();
    // The first line of the common end may be the tail of a longer line.
    let tail = &old[old.len() - common..];
    let after =
        memchr_iter(b'\n', tail).nth(CONTEXT_LINES).map_or(0, |newline| tail.len() - newline - 1);
    (first, old.len() - after, new.len() - after)
}

fn changes(old: &[&str], new: &[&str]) -> Vec<LineChange> {
    let mut numbers = HashMap::new();
    let mut numbered = |lines: &[&str]| -> Vec<usize> {
        let mut number = |line| {
            let next = numbers.len();
            *numbers.entry(line).or_insert(next)
        };
        lines.iter().map(|line| number((*line).to_owned())).collect()
    };
    let (old, new) = (numbered(old), numbered(new));

    let mut changes = ChangeCollector::default();
    let deadline = Instant::now().checked_add(MAX_COMPARE_TIME);
    let Ok(()) = diff_slices_deadline(Algorithm::Myers, &mut changes, &old, &new, deadline);
    // Closes a change at the very end.
    let Ok(()) = changes.equal(old.len(), new.len(), 0);
    changes.changes
}

/// Returns how many of the changes belong to the first hunk: those whose contexts touch.
fn first_hunk_length(changes: &[LineChange]) -> Option<usize> {
    changes.first()?;
    let touches = |pair: &&[LineChange]| match pair {
        [one, next] => next.old.start - one.old.end <= 2 * CONTEXT_LINES,
        _ => false,
    };
    Some(1 + changes.windows(2).take_while(touches).count())
}

impl DiffHook for ChangeCollector {
    type Error = Infallible;

    fn equal(&mut self, old: usize, new: usize, len: usize) -> Result<(), Infallible> {
        if self.end != (old, new) {
            self.changes.push(LineChange { old: self.end.0..old, new: self.end.1..new });
        }
        self.end = (old + len, new + len);
        Ok(())
    }
}

impl DiffWriter {
    /// Writes the header of the file. The line `diff --git` makes git treat the file as modified,
    /// not as created or deleted, even if one of its versions is empty.
    fn write_file_header(&mut self, path: &str) {
        let (old, new) = (git_quoted("a/", path), git_quoted("b/", path));
        // A tab ends a name that contains spaces.
        let end = if path.contains(' ') && !old.starts_with('"') { "\t" } else { "" };
        self.text = format!("diff --git {old} {new}\n--- {old}{end}\n+++ {new}{end}\n");
    }

    /// Writes a hunk. `before` is the number of lines before the given ones.
    fn write_hunk(&mut self, before: usize, old: &[&str], new: &[&str], changes: &[LineChange]) {
        let (Some(first), Some(last)) = (changes.first(), changes.last()) else {
            return;
        };
        let lead = first.old.start.min(CONTEXT_LINES);
        let trail = (old.len() - last.old.end).min(CONTEXT_LINES);
        let old_range = first.old.start - lead..last.old.end + trail;
        let new_range = first.new.start - lead..last.new.end + trail;
        self.write_hunk_header(before, &old_range, &new_range);

        let mut at = old_range.start;
        for change in changes {
            self.write_lines(' ', &old[at..change.old.start]);
            self.write_lines('-', &old[change.old.clone()]);
            self.write_lines('+', &new[change.new.clone()]);
            at = change.old.end;
        }
        self.write_lines(' ', &old[at..old_range.end]);
    }

    /// Writes one hunk that replaces all lines.
    fn write_coarse_hunk(&mut self, before: usize, old: &str, new: &str) {
        self.write_hunk_header(
            before,
            &(0..count_lines(old.as_bytes())),
            &(0..count_lines(new.as_bytes())),
        );
        for (sign, text) in [('-', old), ('+', new)] {
            for line in text.split_inclusive('\n') {
                self.write_line(sign, line);
            }
        }
    }

    fn write_hunk_header(&mut self, before: usize, old: &Range<usize>, new: &Range<usize>) {
        // Once a line is omitted, later hunks are only counted.
        if self.omitted_lines == 0 {
            let (old, new) = (format_range(before, old), format_range(before, new));
            writeln!(self.text, "@@ -{old} +{new} @@").expect("a String takes everything");
        }
    }

    fn write_lines(&mut self, sign: char, lines: &[&str]) {
        for line in lines {
            self.write_line(sign, line);
        }
    }

    fn write_line(&mut self, sign: char, line: &str) {
        if self.omitted_lines > 0 || self.text.len() + line.len() >= self.max_bytes {
            self.omitted_lines += 1;
            return;
        }
        self.text.push(sign);
        self.text.push_str(line);
        if !line.ends_with('\n') {
            self.text.push_str("\n\\ No newline at end of file\n");
        }
    }

    fn finish(mut self) -> String {
        if self.omitted_lines > 0 {
            let omitted = self.omitted_lines;
            writeln!(self.text, "[the diff was cut: {omitted} more lines]")
                .expect("a String takes everything");
        }
        self.text
    }
}

/// Formats a range for a hunk header. An empty range is named by the line before it.
fn format_range(before: usize, lines: &Range<usize>) -> String {
    let start = before + lines.start;
    match lines.len() {
        0 => format!("{start},0"),
        1 => format!("{}", start + 1),
        length => format!("{},{length}", start + 1),
    }
}

/// Quotes a file name as git does: only if it contains characters that need it.
fn git_quoted(side: &str, path: &str) -> String {
    let needs_quotes = |byte: u8| byte < b' ' || matches!(byte, b'"' | b'\\' | 0x7f);
    if memchr(b'"', path.as_bytes()).is_none() && !path.bytes().any(needs_quotes) {
        return format!("{side}{path}");
    }

    let mut name = format!("\"{side}");
    for character in path.chars() {
        match character {
            '"' | '\\' => name.extend(['\\', character]),
            '\n' => name.push_str("\\n"),
            '\t' => name.push_str("\\t"),
            '\0'..=' ' | '\x7f' if character != ' ' => {
                write!(name, "\\{:03o}", u32::from(character)).expect("a String takes everything");
            }
            other => name.push(other),
        }
    }
    name.push('"');
    name
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Applies a diff of this module, strictly.
    fn apply(old: &str, diff: &str) -> String {
        let old: Vec<&str> = old.split_inclusive('\n').collect();
        let mut new = String::new();
        let mut at = 0;
        let lines: Vec<&str> = diff.split_inclusive('\n').collect();
        for (index, line) in lines.iter().enumerate().skip(3) {
            let no_newline = lines.get(index + 1).is_some_and(|next| next.starts_with('\\'));
            let (sign, text) = line.split_at(1);
            let text = if no_newline { &text[..text.len() - 1] } else { text };
            match sign {
                "@" => {
                    let range = text.split(['-', ' ']).nth(2).unwrap();
                    let (start, count) = range.split_once(',').unwrap_or((range, "1"));
                    let start: usize = start.parse().unwrap();
                    let start = if count == "0" { start } else { start - 1 };
                    new.extend(old[at..start].iter().copied());
                    at = start;
                }
                " " | "-" => {
                    assert_eq!(old[at], text);
                    at += 1;
                    if sign == " " {
                        new.push_str(text);
                    }
                }
                "+" => new.push_str(text),
                "\\" => {}
                other => panic!("{other:?}"),
            }
        }
        new.extend(old[at..].iter().copied());
        new
    }

    #[test]
    fn diffs_have_the_format_of_git() {
        for (old, new, expected) in [
            ("", "", ""),
            ("a\n", "a\n", ""),
            ("a\n", "b\n", "@@ -1 +1 @@\n-a\n+b\n"),
            ("", "a\n", "@@ -0,0 +1 @@\n+a\n"),
            ("a\nb\n", "", "@@ -1,2 +0,0 @@\n-a\n-b\n"),
            ("a\nb", "a\nb\n", "@@ -1,2 +1,2 @@\n a\n-b\n\\ No newline at end of file\n+b\n"),
            ("a\nb", "c\nb", "@@ -1,2 +1,2 @@\n-a\n+c\n b\n\\ No newline at end of file\n"),
            (
                "1\n2\n3\n4\n5\n6\n7\n8\n9\n",
                "1\n2\n3\n4\nx\n6\n7\n8\n9\n",
                "@@ -2,7 +2,7 @@\n 2\n 3\n 4\n-5\n+x\n 6\n 7\n 8\n",
            ),
            ("a\r\nb\r\n", "a\r\nc\r\n", "@@ -1,2 +1,2 @@\n a\r\n-b\r\n+c\r\n"),
        ] {
            let diff = unified("d/f", old, new, 1 << 20);
            let body = match expected {
                "" => String::new(),
                hunks => format!("diff --git a/d/f b/d/f\n--- a/d/f\n+++ b/d/f\n{hunks}"),
            };
            assert_eq!(diff, body, "{old:?} {new:?}");
        }
    }

    #[test]
    fn names_are_quoted_only_if_needed() {
        for (path, expected) in [
            ("a b", "--- a/a b\t\n"),
            ("\u{e9}", "--- a/\u{e9}\n"),
            ("a\"b", "--- \"a/a\\\"b\"\n"),
            ("a\\b\n\t\x01 c", "--- \"a/a\\\\b\\n\\t\\001 c\"\n"),
        ] {
            let diff = unified(path, "a", "b", 1 << 20);
            assert!(diff.contains(expected), "{diff}");
        }
    }

    #[test]
    fn applying_a_diff_yields_the_new_text() {
        let mut seed = 1_u64;
        let mut random = move |below: usize| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            usize::try_from(seed >> 33).unwrap() % below
        };
        for round in 0..3000 {
            let mut text = |lines: usize| {
                let mut text = String::new();
                for _ in 0..random(lines) {
                    text.push_str(["a\n", "b\n", "\n", "c\r\n", "dd\n"][random(5)]);
                }
                text.push_str(["", "", "e", "a"][random(4)]);
                text
            };
            let (old, other) = (text(40), text(4));
            // Every second pair differs in one part only.
            let new = if round % 2 == 0 {
                text(40)
            } else {
                let at = old.find('b').unwrap_or(old.len());
                format!("{}{other}{}", &old[..at], &old[at..])
            };
            let diff = unified("f", &old, &new, 1 << 20);
            assert_eq!(apply(&old, &diff), new, "{old:?} {diff}");
        }
    }

    #[test]
    fn hostile_texts_take_bounded_time_and_memory() {
        let numbers = |from: usize, step: usize| -> String {
            (0..150_000).map(|line| format!("{}\n", from + line * step % 7919)).collect()
        };
        // Each line occurs once, in an order of its own.
        let shuffled = |step: usize| -> String {
            (0..50_021).map(|line| format!("{}\n", line * step % 50_021)).collect()
        };
        let start = Instant::now();
        for (old, new) in [
            (numbers(0, 1), numbers(1, 3)),
            (shuffled(1), shuffled(50_020)),
            (shuffled(1), shuffled(17_011)),
            (numbers(0, 1), numbers(0, 1).replace('1', "2")),
            ("\n".repeat(2 << 20), "a\n".repeat(1 << 20)),
            ("a".repeat(2 << 20), "b".repeat(2 << 20)),
        ] {
            let diff = unified("f", &old, &new, 1 << 20);
            assert!(diff.len() < (1 << 20) + 200);
            if !diff.ends_with(" more lines]\n") {
                assert!(apply(&old, &diff) == new, "{diff:.300}");
            }
        }
        assert!(start.elapsed() < Duration::from_secs(30), "{:?}", start.elapsed());
    }

    #[test]
    fn large_text_with_a_small_change_has_a_small_diff() {
        let old = "some line\n".repeat(200_000);
        let mut new = old.clone();
        new.replace_range(1_000_000..1_000_004, "SOME");
        let diff = unified("f", &old, &new, 1 << 20);
        assert_eq!(diff.lines().count(), 3 + 1 + 8);
        assert!(diff.contains("\n@@ -99998,7 +99998,7 @@\n"), "{diff}");
    }
}
