//! Exact string replacement in a text. Edits apply in order, each to the result of those before it.

use memchr::{memchr_iter, memmem::Finder};

use super::similar_lines;
use crate::daemon::error::{Error, Reason, Violation};

/// Size of a text, before and after each edit.
pub(crate) const MAX_TEXT_BYTES: usize = 256 << 20;
/// Line numbers in the results of all edits together, so that a response fits into one message.
const MAX_REPORTED_LINES: usize = 100_000;
/// Line numbers in the error about an ambiguous string.
const MAX_ERROR_LINES: usize = 10;
/// Replacements between two cancellation checks.
const REPLACEMENTS_PER_CHECK: usize = 1 << 16;

/// A replacement of one string by another.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct StringEdit {
    old: String,
    new: String,
    occurrence: Occurrence,
}

/// Which occurrences of a string to replace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Occurrence {
    /// The only one. More than one is an error.
    Unique,
    First,
    /// All that do not overlap, from left to right.
    All,
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) struct EditedText {
    pub(crate) text: String,
    /// One result per edit, in order.
    pub(crate) results: Vec<StringEditResult>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct StringEditResult {
    /// Number of replaced occurrences.
    pub(crate) replacements: usize,
    /// Number of occurrences before the edit, not overlapping.
    pub(crate) occurrences: usize,
    /// Line, counted from 1, on which each replaced occurrence began. All edits together report at
    /// most [`MAX_REPORTED_LINES`].
    pub(crate) lines: Vec<u32>,
}

impl StringEdit {
    /// Validates an edit. `index` is its position in the request.
    ///
    /// # Errors
    ///
    /// For an empty `old`, and for equal strings.
    pub(crate) fn new(
        index: usize,
        old: String,
        new: String,
        occurrence: Occurrence,
    ) -> Result<Self, Violation> {
        let violation = |field: &str, description: &str| Violation {
            field: format!("edits[{index}].{field}"),
            description: description.to_owned(),
        };

        if old.is_empty() {
            return Err(violation("old_string", "is required and must not be empty"));
        }
        if old == new {
            let problem = "must differ from old_string: the edit would change nothing";
            return Err(violation("new_string", problem));
        }
        Ok(Self { old, new, occurrence })
    }
}

/// Applies all edits, or none.
///
/// `check` fails when the call is cancelled or out of time. `hold` reserves this many bytes of
/// memory for text, and fails without them.
pub(crate) fn apply(
    text: &str,
    edits: &[StringEdit],
    check: &dyn Fn() -> Result<(), Error>,
    hold: &dyn Fn(usize) -> Result<(), Error>,
) -> Result<EditedText, Error> {
    hold(text.len())?;
    let mut text = text.to_owned();
    let mut results = Vec::with_capacity(edits.len());
    let mut remaining_lines = MAX_REPORTED_LINES;

    for (index, edit) in edits.iter().enumerate() {
        check()?;
        let (edited, result) = edit.apply(index, text, remaining_lines, check, hold)?;
        remaining_lines -= result.lines.len();
        results.push(result);
        text = edited;
    }
    Ok(EditedText { text, results })
}

impl StringEdit {
    fn apply(
        &self,
        index: usize,
        mut text: String,
        max_lines: usize,
        check: &dyn Fn() -> Result<(), Error>,
        hold: &dyn Fn(usize) -> Result<(), Error>,
    ) -> Result<(String, StringEditResult), Error> {
        let finder = Finder::new(&self.old);
        let mut matches = finder.find_iter(text.as_bytes());
        let Some(first) = matches.next() else {
            return Err(not_found_error(index, &text, &self.old));
        };
        let occurrences = 1 + matches.count();
        let replacements = match self.occurrence {
            Occurrence::Unique if occurrences > 1 => {
                return Err(not_unique_error(index, &text, &finder, occurrences));
            }
            Occurrence::Unique | Occurrence::First => 1,
            Occurrence::All => occurrences,
        };
        check()?;

        let size = self.edited_size(index, &text, replacements)?;
        // The text before this edit is freed only after it.
        hold(text.len() + size)?;

        let mut lines = LineNumbers::new(max_lines);
        if replacements == 1 {
            lines.add(&text, first);
            text.replace_range(first..first + self.old.len(), &self.new);
        } else {
            let mut edited = String::with_capacity(size);
            let mut end = 0;
            for (number, start) in finder.find_iter(text.as_bytes()).enumerate() {
                if number % REPLACEMENTS_PER_CHECK == 0 {
                    check()?;
                }
                lines.add(&text, start);
                edited.push_str(&text[end..start]);
                edited.push_str(&self.new);
                end = start + self.old.len();
            }
            edited.push_str(&text[end..]);
            text = edited;
        }
        Ok((text, StringEditResult { replacements, occurrences, lines: lines.numbers }))
    }

    /// Returns the size of `text` after this many replacements, or an error above the limit.
    fn edited_size(&self, index: usize, text: &str, replacements: usize) -> Result<usize, Error> {
        // Does not overflow: the occurrences lie in the text, and the text lies in memory.
        let removed = replacements * self.old.len();
        replacements
            .checked_mul(self.new.len())
            .and_then(|added| added.checked_add(text.len() - removed))
            .filter(|size| *size <= MAX_TEXT_BYTES)
            .ok_or_else(|| {
                Error::new(
                    Reason::FileTooLarge,
                    format!(
                        "edits[{index}] would make the file larger than 256 MiB with its {replacements} replacements; nothing was changed"
                    ),
                )
            })
    }
}

/// Collects the line numbers of increasing offsets in a text.
#[derive(Debug)]
struct LineNumbers {
    numbers: Vec<u32>,
    max_lines: usize,
    line: u32,
    offset: usize,
}

impl LineNumbers {
    fn new(max_lines: usize) -> Self {
        Self { numbers: Vec::new(), max_lines, line: 1, offset: 0 }
    }

    fn add(&mut self, text: &str, offset: usize) {
        if self.numbers.len() == self.max_lines {
            return;
        }
        let newlines = memchr_iter(b'\n', &text.as_bytes()[self.offset..offset]).count();
        self.line = self.line.saturating_add(u32::try_from(newlines).unwrap_or(u32::MAX));
        self.offset = offset;
        self.numbers.push(self.line);
    }
}

fn not_unique_error(index: usize, text: &str, finder: &Finder<'_>, occurrences: usize) -> Error {
    let mut lines = LineNumbers::new(MAX_ERROR_LINES);
    for offset in finder.find_iter(text.as_bytes()).take(MAX_ERROR_LINES) {
        lines.add(text, offset);
    }
    let numbers: Vec<String> = lines.numbers.iter().map(u32::to_string).collect();
    let more = if occurrences > MAX_ERROR_LINES { ", …" } else { "" };
    let lines = numbers.join(", ");

    Error::new(
        Reason::StringNotUnique,
        format!(
            "edits[{index}]: old_string occurs {occurrences} times (lines {lines}{more}){}; include more of the surrounding text, or set occurrence to OCCURRENCE_FIRST or OCCURRENCE_ALL; nothing was changed",
            after_earlier_edits(index),
        ),
    )
    .with_metadata("edit", format!("edits[{index}]"))
    .with_metadata("occurrences", occurrences.to_string())
    .with_metadata("lines", lines)
}

fn not_found_error(index: usize, text: &str, old: &str) -> Error {
    Error::new(
        Reason::StringNotFound,
        format!(
            "edits[{index}]: old_string is not in the file{}; nothing was changed; {}",
            after_earlier_edits(index),
            similar_lines::hint(text, old)
        ),
    )
    .with_metadata("edit", format!("edits[{index}]"))
}

fn after_earlier_edits(index: usize) -> &'static str {
    match index {
        0 => "",
        _ => " as the edits before have left it",
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;

    fn edit(index: usize, old: &str, new: &str, occurrence: Occurrence) -> StringEdit {
        StringEdit::new(index, old.to_owned(), new.to_owned(), occurrence).unwrap()
    }

    fn apply_all(text: &str, edits: &[(&str, &str, Occurrence)]) -> Result<EditedText, Error> {
        let edits: Vec<StringEdit> = edits
            .iter()
            .enumerate()
            .map(|(index, (old, new, occurrence))| edit(index, old, new, *occurrence))
            .collect();
        apply(text, &edits, &|| Ok(()), &|_| Ok(()))
    }

    #[test]
    fn replaces_the_requested_occurrences() {
        use Occurrence::{All, First, Unique};
        for (text, old, new, occurrence, expected, occurrences, lines) in [
            ("abc", "b", "x", Unique, "axc", 1, &[1][..]),
            ("a\nb\nc", "c", "", Unique, "a\nb\n", 1, &[3]),
            ("a\nb\nb", "b", "x", First, "a\nx\nb", 2, &[2]),
            ("a\nb\nb", "b", "b\nb", All, "a\nb\nb\nb\nb", 2, &[2, 3]),
            ("aaaaa", "aa", "b", All, "bba", 2, &[1, 1]),
            ("aaa", "aa", "b", Unique, "ba", 1, &[1]),
            ("aaa", "a", "aa", All, "aaaaaa", 3, &[1, 1, 1]),
            ("a\r\nb\r\n", "\r\n", "\n", All, "a\nb\n", 2, &[1, 2]),
            ("\u{e9}\u{20ac}", "\u{20ac}", "e", Unique, "\u{e9}e", 1, &[1]),
            ("all", "all", "", Unique, "", 1, &[1]),
        ] {
            let edited = apply_all(text, &[(old, new, occurrence)]).unwrap();
            assert_eq!(edited.text, expected, "{text:?} {old:?}");
            let result = &edited.results[0];
            assert_eq!(result.occurrences, occurrences, "{text:?} {old:?}");
            assert_eq!(result.replacements, lines.len());
            assert_eq!(result.lines, lines);
        }
    }

    #[test]
    fn each_edit_sees_the_result_of_earlier_ones() {
        use Occurrence::{All, Unique};
        let edited = apply_all("a\n", &[("a", "b\nb", Unique), ("b", "c", All)]).unwrap();
        assert_eq!(edited.text, "c\nc\n");
        assert_eq!(edited.results[1].lines, [1, 2]);
        let error = apply_all("a\n", &[("a", "b", Unique), ("a", "c", All)]).unwrap_err();
        assert_eq!(error.reason, Reason::StringNotFound);
        assert!(error.message.starts_with("edits[1]: "), "{error}");
    }

    #[test]
    fn errors_report_edit_lines_and_count() {
        let text = "x\n".repeat(12) + "y";
        let error =
            apply_all(&text, &[("y", "z", Occurrence::Unique), ("x", "", Occurrence::Unique)]);
        let error = error.unwrap_err();
        assert_eq!(error.reason, Reason::StringNotUnique);
        let expected =
            "edits[1]: old_string occurs 12 times (lines 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, …) as";
        assert!(error.message.starts_with(expected), "{error}");
        for (old, new, field) in [("", "a", "old_string"), ("a", "a", "new_string")] {
            let violation =
                StringEdit::new(2, old.to_owned(), new.to_owned(), Occurrence::All).unwrap_err();
            assert_eq!(violation.field, format!("edits[2].{field}"));
        }
    }

    #[test]
    fn text_size_and_reported_lines_are_limited() {
        let text = "a".repeat(1 << 20);
        let new = "b".repeat(257);
        let error = apply_all(&text, &[("a", &new, Occurrence::All)]).unwrap_err();
        assert_eq!(error.reason, Reason::FileTooLarge);
        let edits: Vec<_> = (0..20)
            .map(|number| match number % 2 {
                0 => ("a", "b", Occurrence::All),
                _ => ("b", "a", Occurrence::All),
            })
            .collect();
        let edited = apply_all(&text, &edits).unwrap();
        let lines: usize = edited.results.iter().map(|result| result.lines.len()).sum();
        assert_eq!(lines, MAX_REPORTED_LINES);
        assert_eq!(edited.results[19].replacements, 1 << 20);
    }

    #[test]
    fn hostile_strings_are_found_in_linear_time() {
        let text = "a".repeat(2 << 20);
        let old = "a".repeat(1 << 19) + "b";
        let start = Instant::now();
        let error = apply_all(&text, &[(&old, "", Occurrence::All)]).unwrap_err();
        assert_eq!(error.reason, Reason::StringNotFound);
        assert!(start.elapsed() < Duration::from_secs(20), "{:?}", start.elapsed());
    }

    #[test]
    fn stops_when_the_check_fails() {
        let cancelled = || Err(Error::new(Reason::Timeout, "over"));
        let error =
            apply("a", &[edit(0, "a", "b", Occurrence::All)], &cancelled, &|_| Ok(())).unwrap_err();
        assert_eq!(error.reason, Reason::Timeout);
    }

    /// Reference implementation, character by character.
    fn model(text: &str, edits: &[StringEdit]) -> Result<(String, Vec<usize>), (usize, Reason)> {
        let mut text: Vec<char> = text.chars().collect();
        let mut counts = Vec::new();
        for (index, edit) in edits.iter().enumerate() {
            let old: Vec<char> = edit.old.chars().collect();
            let (mut edited, mut at, mut count) = (Vec::new(), 0, 0);
            while at < text.len() {
                if text[at..].starts_with(&old) {
                    count += 1;
                    if count == 1 || edit.occurrence == Occurrence::All {
                        edited.extend(edit.new.chars());
                    } else {
                        edited.extend(&old);
                    }
                    at += old.len();
                } else {
                    edited.push(text[at]);
                    at += 1;
                }
            }
            match (count, edit.occurrence) {
                (0, _) => return Err((index, Reason::StringNotFound)),
                (2.., Occurrence::Unique) => return Err((index, Reason::StringNotUnique)),
                _ => counts.push(count),
            }
            text = edited;
        }
        Ok((text.into_iter().collect(), counts))
    }

    #[test]
    fn random_edits_match_the_model() {
        let mut seed = 3_u64;
        let mut random = move |below: usize| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            usize::try_from(seed >> 33).unwrap() % below
        };
        let mut applied = 0;
        for _ in 0..10_000 {
            let mut text = |limit: usize| -> String {
                let pieces = ["a", "b", "\n", "\r\n", "\u{20ac}"];
                (0..random(limit)).map(|_| pieces[random(5)]).collect()
            };
            let file = text(30);
            let strings: Vec<_> = (0..3).map(|_| (text(4), text(4))).collect();
            let edits: Vec<StringEdit> = strings
                .into_iter()
                .enumerate()
                .filter_map(|(index, (old, new))| {
                    let occurrence =
                        [Occurrence::Unique, Occurrence::First, Occurrence::All][random(3)];
                    StringEdit::new(index, old, new, occurrence).ok()
                })
                .collect();
            match (apply(&file, &edits, &|| Ok(()), &|_| Ok(())), model(&file, &edits)) {
                (Ok(edited), Ok((text, counts))) => {
                    assert_eq!(edited.text, text, "{file:?} {edits:?}");
                    let occurrences: Vec<_> =
                        edited.results.iter().map(|result| result.occurrences).collect();
                    assert_eq!(occurrences, counts);
                    applied += usize::from(!edits.is_empty());
                }
                (Err(error), Err((index, reason))) => {
                    assert_eq!(error.reason, reason, "{file:?} {edits:?}");
                    assert!(error.message.starts_with(&format!("edits[{index}]")));
                }
                (result, model) => panic!("{file:?} {edits:?} {result:?} {model:?}"),
            }
        }
        assert!(applied > 1000, "{applied}");
    }
}
