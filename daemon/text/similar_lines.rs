//! Hints for an edit whose string is not in the text: other line endings, other white space, or
//! the most similar lines.
//!
//! The work is linear in the size of the text, whatever the string. One pass compares each line
//! with the first line of the string, a second pass rescores a limited number of candidates.

use std::{cmp::Reverse, collections::HashSet};

use memchr::{memchr_iter, memmem};

use super::truncate_str;

/// Part of the text that is searched.
const MAX_SEARCHED_BYTES: usize = 16 << 20;
/// Part of each line that is compared.
const MAX_COMPARED_LINE_BYTES: usize = 400;
/// Words of each line of the string that are compared.
const MAX_COMPARED_WORDS: usize = 64;
/// Candidates that are rescored together with the lines after them.
const MAX_RESCORED_LINES: usize = 20_000;
/// Lines of the string that are compared, including the first.
const MAX_COMPARED_LINES: usize = 8;
/// Candidates in the hint.
const MAX_CANDIDATES: usize = 3;
/// Lines in the hint about white space.
const MAX_SHOWN_LINES: usize = 5;
/// Part of each line in the hint.
const MAX_SHOWN_LINE_BYTES: usize = 160;
/// Score below which a line is no candidate. Equal lines score [`MAX_SIMILARITY_SCORE`].
const MIN_SIMILARITY_SCORE: usize = 70;
const MAX_SIMILARITY_SCORE: usize = 200;

/// Describes what in `text` is most similar to `wanted`, for an error message.
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
        return "no line is similar: read the file again".to_owned();
    }
    let shown: Vec<String> =
        candidates.iter().map(|(number, line)| quote_line(*number, line)).collect();
    format!("the nearest lines are:\n{}", shown.join("\n"))
}

/// Returns a hint if the text contains the string with other line endings.
fn line_ending_hint(text: &str, wanted: &str) -> Option<&'static str> {
    if !wanted.contains('\n') {
        return None;
    }
    let plain = wanted.replace("\r\n", "\n");
    let contains = |string: &str| memmem::find(text.as_bytes(), string.as_bytes()).is_some();

    if plain != wanted && contains(&plain) {
        return Some("its line endings are LF there: give \\n instead of \\r\\n");
    }
    let crlf = plain.replace('\n', "\r\n");
    (crlf != wanted && contains(&crlf))
        .then_some("its line endings are CRLF there: give \\r\\n instead of \\n")
}

/// Returns a hint if the text contains the string with other white space.
fn whitespace_hint(text: &str, wanted: &str) -> Option<String> {
    let squeeze = |text: &str| -> String { text.split_whitespace().collect() };
    let wanted = squeeze(wanted);
    if wanted.is_empty() || wanted.len() > text.len() {
        return None;
    }
    let squeezed = squeeze(text);
    let start = memmem::find(squeezed.as_bytes(), wanted.as_bytes())?;
    let first = offset_of_nonblank(text, start)?;
    let last = offset_of_nonblank(text, start + wanted.len() - 1)?;

    let line_of = |offset: usize| 1 + memchr_iter(b'\n', &text.as_bytes()[..offset]).count();
    let (first, last) = (line_of(first), line_of(last));
    let shown: Vec<String> = text
        .split('\n')
        .enumerate()
        .skip(first - 1)
        .take((last - first + 1).min(MAX_SHOWN_LINES))
        .map(|(index, line)| quote_line(index + 1, line))
        .collect();
    let range = if first == last {
        format!("line {first} differs")
    } else {
        format!("lines {first} to {last} differ")
    };
    Some(format!(
        "{range} from it in white space only (indentation, spaces, line breaks):\n{}",
        shown.join("\n")
    ))
}

/// Returns the offset in `text` of its `position`-th byte, not counting white space.
fn offset_of_nonblank(text: &str, position: usize) -> Option<usize> {
    let mut remaining = position;
    for (offset, character) in text.char_indices() {
        if character.is_whitespace() {
            continue;
        }
        if remaining < character.len_utf8() {
            return Some(offset);
        }
        remaining -= character.len_utf8();
    }
    None
}

/// Returns the most similar lines with their line numbers, best first.
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

    let mut rescores_left = MAX_RESCORED_LINES;
    // Score, line number, and the text from the line on.
    let mut best: Vec<(usize, usize, &str)> = Vec::new();
    let mut rest = text;
    for (index, line) in text.split_inclusive('\n').enumerate() {
        let from_here = rest;
        rest = rest.get(line.len()..).unwrap_or_default();
        let mut score = first.score(line);
        if score < MIN_SIMILARITY_SCORE {
            continue;
        }
        if rescores_left > 0 {
            rescores_left -= 1;
            let pairs = others.iter().zip(rest.split_inclusive('\n'));
            score += pairs.map(|(other, line)| other.score(line)).sum::<usize>();
        }
        best.push((score, index + 1, from_here));
        if best.len() > 2 * MAX_CANDIDATES {
            retain_best(&mut best);
        }
    }
    retain_best(&mut best);
    best.iter().filter_map(|(_, number, text)| Some((*number, text.lines().next()?))).collect()
}

/// Keeps the candidates with the highest scores, the earliest of equals, best first.
fn retain_best(lines: &mut Vec<(usize, usize, &str)>) {
    lines.sort_by_key(|(score, number, _)| (Reverse(*score), *number));
    lines.truncate(MAX_CANDIDATES);
}

/// Scores lines by their similarity to one line.
#[derive(Debug)]
struct LineSimilarity<'a> {
    line: &'a str,
    words: HashSet<&'a str>,
    /// Bytes in `words`.
    word_bytes: usize,
}

impl<'a> LineSimilarity<'a> {
    fn new(line: &'a str) -> Self {
        let words: HashSet<&str> = words(line).take(MAX_COMPARED_WORDS).collect();
        Self { line, word_bytes: words.iter().map(|word| word.len()).sum(), words }
    }

    /// Returns a score from 0 (nothing in common) to [`MAX_SIMILARITY_SCORE`] (equal). Half of it is
    /// the share of common words, half the share of common prefix and suffix.
    fn score(&self, line: &str) -> usize {
        let line = truncate_str(line.trim(), MAX_COMPARED_LINE_BYTES);
        if line == self.line {
            return MAX_SIMILARITY_SCORE;
        }
        if line.is_empty() || self.line.is_empty() {
            return 0;
        }
        let (mut word_bytes, mut common) = (0, 0);
        for word in words(line) {
            word_bytes += word.len();
            if self.words.contains(word) {
                common += word.len();
            }
        }

        let (a, b) = (line.as_bytes(), self.line.as_bytes());
        let prefix = a.iter().zip(b).take_while(|(a, b)| a == b).count();
        let (a, b) = (&a[prefix..], &b[prefix..]);
        let suffix = (a.iter().rev().zip(b.iter().rev())).take_while(|(a, b)| a == b).count();

        let all_word_bytes = word_bytes + self.word_bytes;
        let word_score = 200 * common.min(self.word_bytes) / all_word_bytes.max(1);
        let end_score = 200 * (prefix + suffix) / (line.len() + self.line.len());
        // Lines without words are compared by prefix and suffix only.
        if all_word_bytes == 0 { 2 * end_score } else { word_score + end_score }
    }
}

fn words(line: &str) -> impl Iterator<Item = &str> {
    line.split(|character: char| !character.is_alphanumeric() && character != '_')
        .filter(|word| !word.is_empty())
}

/// Formats a line for a message, with its line number.
fn quote_line(number: usize, line: &str) -> String {
    let line = line.trim_end_matches(['\r', '\n']);
    let start = truncate_str(line, MAX_SHOWN_LINE_BYTES);
    let more = if start.len() < line.len() { "…" } else { "" };
    // Control characters such as carriage returns would garble the message.
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

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;

    #[test]
    fn hints_report_the_difference() {
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
            (FILE, "zzz", "no line is similar: read the file again"),
            (FILE, "\n\n\n\n", "no line is similar: read the file again"),
            ("", "a", "no line is similar: read the file again"),
        ] {
            assert_eq!(hint(text, wanted), expected, "{wanted:?}");
        }
    }

    #[test]
    fn following_lines_break_ties() {
        let text = "if a {\n    b();\n}\n".repeat(50) + "if a {\n    special();\n}\n";
        let hint = hint(&text, "if a {\n    specials();\n");
        assert!(hint.starts_with("the nearest lines are:\n151: if a {\n"), "{hint}");
        assert_eq!(hint.lines().count(), 1 + MAX_CANDIDATES);
    }

    #[test]
    fn hostile_texts_take_bounded_time() {
        let lines = "let some_value = other(1);\n".repeat(40_000);
        let blank = " \n".repeat(1 << 19);
        let one = "ab ".repeat(1 << 19);
        let letters = "a".repeat(1 << 20);
        let start = Instant::now();
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
        assert!(start.elapsed() < Duration::from_secs(60), "{:?}", start.elapsed());
    }

    #[test]
    fn garbage_never_panics() {
        let pieces = ["\u{1f600}", "a", " ", "\n", "\r\n", "\u{a0}", "\0", "\u{301}", "word "];
        let mut seed = 7_u64;
        let mut text = |limit: usize| -> String {
            let mut random = |below: usize| {
                seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                usize::try_from(seed >> 33).unwrap() % below
            };
            (0..random(limit)).map(|_| pieces[random(9)]).collect()
        };
        for _ in 0..2000 {
            let (file, wanted) = (text(60), text(12));
            hint(&file, &wanted);
        }
    }
}
