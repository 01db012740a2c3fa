//! What comes near a string that a text does not hold: what a message says, so that whoever meant
//! it finds it.
//!
//! The work is bounded by the text's size, whatever the string: one pass to compare lines with the
//! first line of the string, and a second look at a few of them.

use std::{cmp::Reverse, collections::HashSet};

use memchr::{memchr_iter, memmem};

/// Bytes of the text that are looked at.
const MAX_SEARCHED_BYTES: usize = 16 << 20;
/// Bytes of a line that are compared.
const MAX_COMPARED_LINE_BYTES: usize = 400;
/// Words of the string's first line that count.
const MAX_COMPARED_WORDS: usize = 64;
/// Lines that are looked at a second time, with those behind them.
const MAX_RESCORED_LINES: usize = 20_000;
/// Lines of the string that are compared at the second look, the first one included.
const MAX_COMPARED_LINES: usize = 8;
/// Candidates that are shown.
const MAX_CANDIDATES: usize = 3;
/// Lines that are shown where only white space differs.
const MAX_SHOWN_LINES: usize = 5;
/// Bytes of a line that are shown.
const MAX_SHOWN_LINE_BYTES: usize = 160;
/// Likeness below which a line is no candidate; 200 is the same line.
const MIN_SIMILARITY: usize = 70;

/// What to say of a text that does not hold `wanted`.
pub(super) fn hint(text: &str, wanted: &str) -> String {
    if let Some(hint) = line_ending_hint(text, wanted) {
        return hint.to_owned();
    }
    let text = truncate_str(text, MAX_SEARCHED_BYTES);
    if let Some(hint) = whitespace_hint(text, wanted) {
        return hint;
    }
    let candidates = similar_lines(text, wanted);
    if candidates.is_empty() {
        return "nothing in it comes near: read it again".to_owned();
    }
    let shown: Vec<String> =
        candidates.iter().map(|(number, line)| quote_line(*number, line)).collect();
    format!("the nearest lines are:\n{}", shown.join("\n"))
}

/// Whether the string is there with other line endings.
fn line_ending_hint(text: &str, wanted: &str) -> Option<&'static str> {
    if !wanted.contains('\n') {
        return None;
    }
    let plain = wanted.replace("\r\n", "\n");
    let is_there = |string: &str| memmem::find(text.as_bytes(), string.as_bytes()).is_some();
    if plain != wanted && is_there(&plain) {
        return Some("its line endings are LF there: give \\n instead of \\r\\n");
    }
    let both = plain.replace('\n', "\r\n");
    (both != wanted && is_there(&both))
        .then_some("its line endings are CRLF there: give \\r\\n instead of \\n")
}

/// Whether the string is there with other white space.
fn whitespace_hint(text: &str, wanted: &str) -> Option<String> {
    let without = |text: &str| -> String { text.split_whitespace().collect() };
    let wanted = without(wanted);
    if wanted.is_empty() || wanted.len() > text.len() {
        return None;
    }
    let squeezed = without(text);
    let start = memmem::find(squeezed.as_bytes(), wanted.as_bytes())?;
    let first = offset_of_nonblank(text, start)?;
    let last = offset_of_nonblank(text, start + wanted.len() - 1)?;
    let line_of = |offset: usize| 1 + memchr_iter(b'\n', &text.as_bytes()[..offset]).count();
    let (first, last) = (line_of(first), line_of(last));
    let lines = text.split('\n').enumerate().skip(first - 1);
    let shown: Vec<String> = lines
        .take((last - first + 1).min(MAX_SHOWN_LINES))
        .map(|(index, line)| quote_line(index + 1, line))
        .collect();
    let place = match first == last {
        true => format!("line {first} differs"),
        false => format!("lines {first} to {last} differ"),
    };
    Some(format!(
        "{place} from it in white space only (indentation, spaces, line breaks):\n{}",
        shown.join("\n")
    ))
}

/// Where the byte with this position among those that are no white space is.
fn offset_of_nonblank(text: &str, position: usize) -> Option<usize> {
    let mut left = position;
    for (offset, character) in text.char_indices() {
        if character.is_whitespace() {
            continue;
        }
        if left < character.len_utf8() {
            return Some(offset);
        }
        left -= character.len_utf8();
    }
    None
}

/// The lines that come nearest, with their numbers, best first.
fn similar_lines<'a>(text: &'a str, wanted: &str) -> Vec<(usize, &'a str)> {
    let mut wanted = wanted
        .lines()
        .map(|line| truncate_str(line.trim(), MAX_COMPARED_LINE_BYTES))
        .skip_while(|line| line.is_empty());
    let Some(first) = wanted.next().map(LineSimilarity::new) else {
        return Vec::new();
    };
    let others: Vec<LineSimilarity<'_>> =
        wanted.take(MAX_COMPARED_LINES - 1).map(LineSimilarity::new).collect();

    let mut second_looks = MAX_RESCORED_LINES;
    // Likeness, number, and the text from the line on.
    let mut best: Vec<(usize, usize, &str)> = Vec::new();
    let mut rest = text;
    for (index, line) in text.split_inclusive('\n').enumerate() {
        let from_here = rest;
        rest = rest.get(line.len()..).unwrap_or_default();
        let mut likeness = first.score(line);
        if likeness < MIN_SIMILARITY {
            continue;
        }
        if second_looks > 0 {
            second_looks -= 1;
            let pairs = others.iter().zip(rest.split_inclusive('\n'));
            likeness += pairs.map(|(other, line)| other.score(line)).sum::<usize>();
        }
        best.push((likeness, index + 1, from_here));
        if best.len() > 2 * MAX_CANDIDATES {
            retain_best(&mut best);
        }
    }
    retain_best(&mut best);
    best.iter().filter_map(|(_, number, text)| Some((*number, text.lines().next()?))).collect()
}

/// Keeps those with the greatest likeness, the first ones of equals, best first.
fn retain_best(lines: &mut Vec<(usize, usize, &str)>) {
    lines.sort_by_key(|(likeness, number, _)| (Reverse(*likeness), *number));
    lines.truncate(MAX_CANDIDATES);
}

/// Compares lines with one.
#[derive(Debug)]
struct LineSimilarity<'a> {
    line: &'a str,
    words: HashSet<&'a str>,
    /// Bytes in the words.
    word_bytes: usize,
}

impl<'a> LineSimilarity<'a> {
    fn new(line: &'a str) -> Self {
        let words: HashSet<&str> = words(line).take(MAX_COMPARED_WORDS).collect();
        Self { line, word_bytes: words.iter().map(|word| word.len()).sum(), words }
    }

    /// 0 for nothing in common, 200 for the same: a half each for words, and for how the lines
    /// begin and end.
    fn score(&self, line: &str) -> usize {
        let line = truncate_str(line.trim(), MAX_COMPARED_LINE_BYTES);
        if line == self.line {
            return 200;
        }
        if line.is_empty() || self.line.is_empty() {
            return 0;
        }
        let (mut weight, mut common) = (0, 0);
        for word in words(line) {
            weight += word.len();
            if self.words.contains(word) {
                common += word.len();
            }
        }
        let (a, b) = (line.as_bytes(), self.line.as_bytes());
        let start = a.iter().zip(b).take_while(|(a, b)| a == b).count();
        let (a, b) = (&a[start..], &b[start..]);
        let end = (a.iter().rev().zip(b.iter().rev())).take_while(|(a, b)| a == b).count();
        let of_words = 200 * common.min(self.word_bytes) / (weight + self.word_bytes).max(1);
        let of_ends = 200 * (start + end) / (line.len() + self.line.len());
        // A line without words has its ends only.
        match weight + self.word_bytes {
            0 => 2 * of_ends,
            _ => of_words + of_ends,
        }
    }
}

fn words(line: &str) -> impl Iterator<Item = &str> {
    line.split(|character: char| !character.is_alphanumeric() && character != '_')
        .filter(|word| !word.is_empty())
}

/// A line as a message shows it.
fn quote_line(number: usize, line: &str) -> String {
    let line = line.trim_end_matches(['\r', '\n']);
    let start = truncate_str(line, MAX_SHOWN_LINE_BYTES);
    let more = if start.len() < line.len() { "…" } else { "" };
    // Carriage returns and other control characters would spoil how it is read.
    let start: String = start
        .chars()
        .flat_map(|character| match character {
            '\t' => vec!['\t'],
            control if control.is_control() => control.escape_default().collect(),
            other => vec![other],
        })
        .collect();
    format!("{number}: {start}{more}")
}

/// The start of a text, at most so many bytes of it.
fn truncate_str(text: &str, most: usize) -> &str {
    text.get(..text.floor_char_boundary(most)).unwrap_or(text)
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;

    #[test]
    fn hints_say_what_differs() {
        const FILE: &str = "fn main() {\n    let answer = compute(1, 2);\n    print(answer);\n}\n\nfn compute() {}\n";
        let crlf = FILE.replace('\n', "\r\n");
        for (text, wanted, expected) in [
            (
                FILE,
                "let answer = compute(1,  2);",
                "line 2 differs from it in white space only (indentation, spaces, line breaks):\n2:     let answer = compute(1, 2);",
            ),
            (
                FILE,
                "\tlet answer = compute(1, 2);\n\tprint(answer);",
                "lines 2 to 3 differ from it in white space only (indentation, spaces, line breaks):\n2:     let answer = compute(1, 2);\n3:     print(answer);",
            ),
            (FILE, "}\r\n\r\nfn", "its line endings are LF there: give \\n instead of \\r\\n"),
            (&crlf, "}\n\nfn", "its line endings are CRLF there: give \\r\\n instead of \\n"),
            (
                FILE,
                "let answer = compute(3, 2);\n",
                "the nearest lines are:\n2:     let answer = compute(1, 2);",
            ),
            (FILE, "zzz", "nothing in it comes near: read it again"),
            (FILE, "\n\n\n\n", "nothing in it comes near: read it again"),
            ("", "a", "nothing in it comes near: read it again"),
        ] {
            assert_eq!(hint(text, wanted), expected, "{wanted:?}");
        }
    }

    #[test]
    fn following_lines_decide_between_equals() {
        let text = "if a {\n    b();\n}\n".repeat(50) + "if a {\n    special();\n}\n";
        let hint = hint(&text, "if a {\n    specials();\n");
        assert!(hint.starts_with("the nearest lines are:\n151: if a {\n"), "{hint}");
        assert_eq!(hint.lines().count(), 1 + MAX_CANDIDATES);
    }

    #[test]
    fn the_work_and_the_words_are_bounded() {
        let lines = "let some_value = other(1);\n".repeat(40_000);
        let blank = " \n".repeat(1 << 19);
        let one = "ab ".repeat(1 << 19);
        let letters = "a".repeat(1 << 20);
        let begun = Instant::now();
        for text in [&lines, &blank, &one, &letters] {
            for wanted in [
                "let some_value = other(2);\n".repeat(30_000),
                "\n".repeat(1 << 20),
                format!("{}c", "ab ".repeat(1 << 18)),
                format!("{}c", "a".repeat(1 << 19)),
                format!("b{}", "a".repeat(1 << 19)),
            ] {
                let hint = hint(text, &wanted);
                assert!(hint.len() < 1500, "{}", hint.len());
            }
        }
        assert!(begun.elapsed() < Duration::from_secs(60), "{:?}", begun.elapsed());
    }

    #[test]
    fn garbage_never_panics() {
        let pieces = ["\u{1f600}", "a", " ", "\n", "\r\n", "\u{a0}", "\0", "\u{301}", "word "];
        let mut seed = 7_u64;
        let mut text = |most: usize| -> String {
            let mut random = |below: usize| {
                seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                usize::try_from(seed >> 33).unwrap() % below
            };
            (0..random(most)).map(|_| pieces[random(9)]).collect()
        };
        for _ in 0..2000 {
            let (file, wanted) = (text(60), text(12));
            hint(&file, &wanted);
        }
    }
}
