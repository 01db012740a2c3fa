//! Replacing strings in a text, one edit after the other. Each sees what those before it have made.

use memchr::{memchr_iter, memmem::Finder};

use super::similar_lines;
use crate::daemon::error::{Error, Reason, Violation};

/// Most bytes of a text, before and after each edit.
pub(crate) const MAX_TEXT_BYTES: usize = 256 << 20;
/// Most lines that the results of all edits name together: an answer must fit into a message.
const MAX_REPORTED_LINES: usize = 100_000;
/// Lines that an error names of a string that is there several times.
const MAX_ERROR_LINES: usize = 10;
/// Replacements between two looks at the time.
const REPLACEMENTS_PER_CHECK: usize = 1 << 16;

/// A replacement.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct StringEdit {
    old: String,
    new: String,
    occurrence: Occurrence,
}

/// Which of several occurrences to replace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Occurrence {
    /// The only one.
    Unique,
    /// The first one.
    First,
    /// All that do not overlap, from left to right.
    All,
}

/// A text after its edits.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct EditedText {
    /// The text.
    pub(crate) text: String,
    /// What each edit did.
    pub(crate) results: Vec<StringEditResult>,
}

/// What one edit did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct StringEditResult {
    /// Occurrences that were replaced.
    pub(crate) replacements: usize,
    /// Occurrences that there were, not overlapping.
    pub(crate) occurrences: usize,
    /// Line, counted from 1, at which each replaced occurrence began; the first ones of very many.
    pub(crate) lines: Vec<u32>,
}

impl StringEdit {
    /// An edit, the one with this `index` among those of its request.
    pub(crate) fn new(
        index: usize,
        old: String,
        new: String,
        which: Occurrence,
    ) -> Result<Self, Violation> {
        let violation = |field: &str, description: &str| Violation {
            field: format!("edits[{index}].{field}"),
            description: description.to_owned(),
        };
        if old.is_empty() {
            return Err(violation("old_string", "must be given and not be empty"));
        }
        if old == new {
            let problem = "must differ from old_string: the edit would change nothing";
            return Err(violation("new_string", problem));
        }
        Ok(Self { old, new, occurrence: which })
    }
}

/// Makes all edits, or none. `check` says whether there is still time, and `hold` whether there is
/// memory for this many bytes of new text.
pub(crate) fn apply(
    text: &str,
    edits: &[StringEdit],
    check: &dyn Fn() -> Result<(), Error>,
    hold: &dyn Fn(usize) -> Result<(), Error>,
) -> Result<EditedText, Error> {
    hold(text.len())?;
    let mut text = text.to_owned();
    let mut results = Vec::with_capacity(edits.len());
    let mut lines_left = MAX_REPORTED_LINES;
    for (index, edit) in edits.iter().enumerate() {
        check()?;
        let (after, result) = edit.apply(index, text, lines_left, check, hold)?;
        lines_left -= result.lines.len();
        results.push(result);
        text = after;
    }
    Ok(EditedText { text, results })
}

impl StringEdit {
    fn apply(
        &self,
        index: usize,
        mut text: String,
        most_lines: usize,
        check: &dyn Fn() -> Result<(), Error>,
        hold: &dyn Fn(usize) -> Result<(), Error>,
    ) -> Result<(String, StringEditResult), Error> {
        let finder = Finder::new(&self.old);
        let mut occurrences = finder.find_iter(text.as_bytes());
        let Some(first) = occurrences.next() else {
            return Err(not_found_error(index, &text, &self.old));
        };
        let found = 1 + occurrences.count();
        let replacements = match self.occurrence {
            Occurrence::Unique if found > 1 => {
                return Err(not_unique_error(index, &text, &finder, found));
            }
            Occurrence::Unique | Occurrence::First => 1,
            Occurrence::All => found,
        };
        check()?;
        // Neither can overflow: the occurrences lie in the text, which is no larger than memory.
        let removed = replacements * self.old.len();
        let size = replacements
            .checked_mul(self.new.len())
            .and_then(|added| added.checked_add(text.len() - removed));
        let Some(size) = size.filter(|size| *size <= MAX_TEXT_BYTES) else {
            return Err(Error::new(
                Reason::FileTooLarge,
                format!(
                    "edits[{index}] would make the file larger than 256 MiB with its {replacements} replacements; nothing was changed"
                ),
            ));
        };
        // The text before this edit is let go only after it.
        hold(text.len() + size)?;
        let mut lines = LineNumbers::new(most_lines);
        if replacements == 1 {
            lines.add(&text, first);
            text.replace_range(first..first + self.old.len(), &self.new);
        } else {
            let mut after = String::with_capacity(size);
            let mut end = 0;
            for (number, start) in finder.find_iter(text.as_bytes()).enumerate() {
                if number % REPLACEMENTS_PER_CHECK == 0 {
                    check()?;
                }
                lines.add(&text, start);
                after.push_str(&text[end..start]);
                after.push_str(&self.new);
                end = start + self.old.len();
            }
            after.push_str(&text[end..]);
            text = after;
        }
        let result = StringEditResult { replacements, occurrences: found, lines: lines.numbers };
        Ok((text, result))
    }
}

/// Lines of growing offsets in a text.
#[derive(Debug)]
struct LineNumbers {
    numbers: Vec<u32>,
    max_lines: usize,
    line: u32,
    offset: usize,
}

impl LineNumbers {
    fn new(most: usize) -> Self {
        Self { numbers: Vec::new(), max_lines: most, line: 1, offset: 0 }
    }

    fn add(&mut self, text: &str, offset: usize) {
        if self.numbers.len() == self.max_lines {
            return;
        }
        let endings = memchr_iter(b'\n', &text.as_bytes()[self.offset..offset]).count();
        self.line = self.line.saturating_add(u32::try_from(endings).unwrap_or(u32::MAX));
        self.offset = offset;
        self.numbers.push(self.line);
    }
}

fn not_unique_error(index: usize, text: &str, finder: &Finder<'_>, found: usize) -> Error {
    let mut lines = LineNumbers::new(MAX_ERROR_LINES);
    for offset in finder.find_iter(text.as_bytes()).take(MAX_ERROR_LINES) {
        lines.add(text, offset);
    }
    let named: Vec<String> = lines.numbers.iter().map(u32::to_string).collect();
    let more = if found > MAX_ERROR_LINES { ", …" } else { "" };
    let lines = named.join(", ");
    Error::new(
        Reason::StringNotUnique,
        format!(
            "edits[{index}]: old_string is there {found} times, at lines {lines}{more}{}; give more of the text around the one that you mean, or take OCCURRENCE_FIRST or OCCURRENCE_ALL; nothing was changed",
            after_earlier_edits(index),
        ),
    )
    .with_metadata("edit", format!("edits[{index}]"))
    .with_metadata("occurrences", found.to_string())
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

    fn edit(index: usize, old: &str, new: &str, which: Occurrence) -> StringEdit {
        StringEdit::new(index, old.to_owned(), new.to_owned(), which).unwrap()
    }

    fn make(text: &str, edits: &[(&str, &str, Occurrence)]) -> Result<EditedText, Error> {
        let edits: Vec<StringEdit> = edits
            .iter()
            .enumerate()
            .map(|(index, (old, new, which))| edit(index, old, new, *which))
            .collect();
        apply(text, &edits, &|| Ok(()), &|_| Ok(()))
    }

    #[test]
    fn occurrences_are_replaced_as_asked() {
        use Occurrence::{All, First, Unique};
        for (text, old, new, which, expected, found, lines) in [
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
            let edited = make(text, &[(old, new, which)]).unwrap();
            assert_eq!(edited.text, expected, "{text:?} {old:?}");
            let result = &edited.results[0];
            assert_eq!(result.occurrences, found, "{text:?} {old:?}");
            assert_eq!(result.replacements, lines.len());
            assert_eq!(result.lines, lines);
        }
    }

    #[test]
    fn an_edit_sees_those_before_it() {
        use Occurrence::{All, Unique};
        let edited = make("a\n", &[("a", "b\nb", Unique), ("b", "c", All)]).unwrap();
        assert_eq!(edited.text, "c\nc\n");
        assert_eq!(edited.results[1].lines, [1, 2]);
        let error = make("a\n", &[("a", "b", Unique), ("a", "c", All)]).unwrap_err();
        assert_eq!(error.reason, Reason::StringNotFound);
        assert!(error.message.starts_with("edits[1]: "), "{error}");
    }

    #[test]
    fn failures_say_where_and_how_often() {
        let text = "x\n".repeat(12) + "y";
        let error = make(&text, &[("y", "z", Occurrence::Unique), ("x", "", Occurrence::Unique)]);
        let error = error.unwrap_err();
        assert_eq!(error.reason, Reason::StringNotUnique);
        let told =
            "edits[1]: old_string is there 12 times, at lines 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, … as";
        assert!(error.message.starts_with(told), "{error}");
        for (old, new, field) in [("", "a", "old_string"), ("a", "a", "new_string")] {
            let violation =
                StringEdit::new(2, old.to_owned(), new.to_owned(), Occurrence::All).unwrap_err();
            assert_eq!(violation.field, format!("edits[2].{field}"));
        }
    }

    #[test]
    fn results_are_bounded() {
        let text = "a".repeat(1 << 20);
        let new = "b".repeat(257);
        let error = make(&text, &[("a", &new, Occurrence::All)]).unwrap_err();
        assert_eq!(error.reason, Reason::FileTooLarge);
        let edits: Vec<_> = (0..20)
            .map(|number| match number % 2 {
                0 => ("a", "b", Occurrence::All),
                _ => ("b", "a", Occurrence::All),
            })
            .collect();
        let edited = make(&text, &edits).unwrap();
        let lines: usize = edited.results.iter().map(|result| result.lines.len()).sum();
        assert_eq!(lines, MAX_REPORTED_LINES);
        assert_eq!(edited.results[19].replacements, 1 << 20);
    }

    #[test]
    fn hostile_strings_take_no_longer_than_others() {
        let text = "a".repeat(2 << 20);
        let old = "a".repeat(1 << 19) + "b";
        let begun = Instant::now();
        let error = make(&text, &[(&old, "", Occurrence::All)]).unwrap_err();
        assert_eq!(error.reason, Reason::StringNotFound);
        assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", begun.elapsed());
    }

    #[test]
    fn work_ends_when_its_time_is_up() {
        let stopped = || Err(Error::new(Reason::Timeout, "over"));
        let error =
            apply("a", &[edit(0, "a", "b", Occurrence::All)], &stopped, &|_| Ok(())).unwrap_err();
        assert_eq!(error.reason, Reason::Timeout);
    }

    /// What the edits mean, as simply as it can be said.
    fn model(text: &str, edits: &[StringEdit]) -> Result<(String, Vec<usize>), (usize, Reason)> {
        let mut text: Vec<char> = text.chars().collect();
        let mut counts = Vec::new();
        for (index, edit) in edits.iter().enumerate() {
            let old: Vec<char> = edit.old.chars().collect();
            let (mut after, mut at, mut found) = (Vec::new(), 0, 0);
            while at < text.len() {
                if text[at..].starts_with(&old) {
                    found += 1;
                    if found == 1 || edit.occurrence == Occurrence::All {
                        after.extend(edit.new.chars());
                    } else {
                        after.extend(&old);
                    }
                    at += old.len();
                } else {
                    after.push(text[at]);
                    at += 1;
                }
            }
            match (found, edit.occurrence) {
                (0, _) => return Err((index, Reason::StringNotFound)),
                (2.., Occurrence::Unique) => return Err((index, Reason::StringNotUnique)),
                _ => counts.push(found),
            }
            text = after;
        }
        Ok((text.into_iter().collect(), counts))
    }

    #[test]
    fn random_edits_do_what_the_model_says() {
        let mut seed = 3_u64;
        let mut random = move |below: usize| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            usize::try_from(seed >> 33).unwrap() % below
        };
        let mut good = 0;
        for _ in 0..10_000 {
            let mut text = |most: usize| -> String {
                let pieces = ["a", "b", "\n", "\r\n", "\u{20ac}"];
                (0..random(most)).map(|_| pieces[random(5)]).collect()
            };
            let file = text(30);
            let strings: Vec<_> = (0..3).map(|_| (text(4), text(4))).collect();
            let edits: Vec<StringEdit> = strings
                .into_iter()
                .enumerate()
                .filter_map(|(index, (old, new))| {
                    let which = [Occurrence::Unique, Occurrence::First, Occurrence::All][random(3)];
                    StringEdit::new(index, old, new, which).ok()
                })
                .collect();
            match (apply(&file, &edits, &|| Ok(()), &|_| Ok(())), model(&file, &edits)) {
                (Ok(edited), Ok((text, counts))) => {
                    assert_eq!(edited.text, text, "{file:?} {edits:?}");
                    let found: Vec<_> =
                        edited.results.iter().map(|result| result.occurrences).collect();
                    assert_eq!(found, counts);
                    good += usize::from(!edits.is_empty());
                }
                (Err(error), Err((index, reason))) => {
                    assert_eq!(error.reason, reason, "{file:?} {edits:?}");
                    assert!(error.message.starts_with(&format!("edits[{index}]")));
                }
                (result, model) => panic!("{file:?} {edits:?} {result:?} {model:?}"),
            }
        }
        assert!(good > 1000, "{good}");
    }
}
