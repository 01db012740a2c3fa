//! Patches made by chance, by a diff and by somebody hostile.

use std::{
    cell::Cell,
    collections::HashMap,
    time::{Duration, Instant},
};

use similar::TextDiff;

use super::*;
use crate::daemon::error::Reason;

/// Numbers that look random and are always the same (xorshift).
struct LineNumbering(u64);

impl LineNumbering {
    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 >> 16).unwrap() % limit
    }

    fn pick<'a>(&mut self, from: &[&'a str]) -> &'a str {
        from[self.below(from.len())]
    }

    fn text(&mut self) -> String {
        let mut text = String::new();
        for _ in 0..self.below(30) {
            text.push_str(self.pick(&["a", "b", "", "- x", "-- x", "++ y", "@@", "\\", "ä", " "]));
            text.push_str(self.pick(&["\n", "\n", "\n", "\r\n"]));
        }
        text.push_str(self.pick(&["", "", "end"]));
        text
    }
}

#[test]
fn a_diff_makes_the_new_text_of_the_old_one() {
    let mut numbers = LineNumbering(0x1234_5678_9abc_def1);
    for round in 0..4000 {
        let (old, mut new) = (numbers.text(), numbers.text());
        if round % 2 == 0 {
            // Little is different.
            let at = numbers.below(old.len() + 1);
            let at = (0..=at).rev().find(|at| old.is_char_boundary(*at)).unwrap();
            new = format!("{}{}{}", &old[..at], numbers.pick(&["", "x", "\n", "y\n"]), &old[at..]);
        }
        // To the crate that makes the diff, a carriage return alone ends a line.
        if old == new || new.replace("\r\n", "").contains('\r') {
            continue;
        }
        let diff = TextDiff::from_lines(&old, &new);
        // Without context, lines added to a file of Windows become such lines.
        let is_windows = old.matches('\n').count() == old.matches("\r\n").count();
        let context = numbers.below(4).max(usize::from(is_windows));
        let mut patch = diff.unified_diff();
        let patch = patch.context_radius(context).header("a/f", "b/f").to_string();
        match one(&old, patch.split_once("+++ b/f\n").unwrap().1) {
            Ok((result, fuzz, offset)) => {
                assert_eq!(result, new, "{old:?}\n{patch}");
                assert_eq!((fuzz, offset), (0, 0), "{old:?}\n{patch}");
            }
            Err(error) => panic!("{old:?}\n{patch}\n{error}"),
        }
    }
}

#[test]
fn garbage_is_refused_or_applied_but_never_a_defect() {
    const PARTS: &[&str] = &[
        "diff --git a/f b/f",
        "--- a/f",
        "+++ b/f",
        "+++ /dev/null",
        "--- /dev/null",
        "@@ -1,2 +1,2 @@",
        "@@ -0,0 +1 @@",
        "@@",
        "@@ -4294967295,4294967295 +1 @@",
        "+",
        "-",
        " ",
        "",
        "+a",
        "-a",
        " a",
        " b",
        "\\ No newline at end of file",
        "rename from f",
        "rename to g",
        "new file mode 100644",
        "deleted file mode 100755",
        "old mode 100644",
        "new mode 100755",
        "--- \"a/\\",
        "+++ \"b/\\303",
        "\"",
        "```",
        "-- ",
        "2",
        "diff --git \"a/f\" \"b/ä",
        "diff --git ä",
        "copy from f",
        "copy to ä",
    ];
    let mut numbers = LineNumbering(0x0fed_cba9_8765_4321);
    let rounds = match std::env::var_os("JIG_FULL").is_some_and(|value| value == "1") {
        true => 5_000_000,
        false => 20_000,
    };
    let mut applied = 0;
    for round in 0..rounds {
        let mut before = files(&[("f", "a\nb\n")]);
        let mut patch = String::new();
        if round % 4 == 0 {
            // A diff with something wrong in it.
            let (old, new) = (numbers.text(), numbers.text());
            let diff = TextDiff::from_lines(&old, &new);
            let mut diff = diff.unified_diff();
            let diff = diff.header("a/f", "b/f").to_string();
            let mut lines: Vec<&str> = diff.split_inclusive('\n').collect();
            for _ in 0..numbers.below(4) {
                let at = numbers.below(lines.len() + 1);
                match numbers.below(3) {
                    0 => lines.insert(at, numbers.pick(PARTS)),
                    1 if at < lines.len() => drop(lines.remove(at)),
                    _ => lines.truncate(at + 3),
                }
            }
            patch = lines.concat();
            before.insert("f".to_owned(), old);
        }
        for _ in 0..numbers.below(14) {
            patch.push_str(numbers.pick(PARTS));
            patch.push_str(numbers.pick(&["\n", "\n", "\n", "\r\n", ""]));
        }
        match patched(&before, &patch, numbers.below(4)) {
            Ok(_) => applied += 1,
            Err(error) => assert_ne!(error.reason, Reason::Internal),
        }
    }
    assert!(applied > rounds / 1000, "{applied}");
}

#[test]
fn hostile_patches_are_done_soon_or_can_be_stopped() {
    // Many hunks that fit far from where they say, and many that stand where they say.
    let content: String = (0..300_000).map(|line| format!("{line}\n")).collect();
    for away in [0, 100] {
        let hunks: String = (0..100_000)
            .map(|hunk| format!("@@ -{} +1 @@\n-{}\n+x\n", hunk * 3 + 1 + away, hunk * 3))
            .collect();
        let begun = Instant::now();
        let (after, _, offset) = one(&content, &hunks).unwrap();
        assert_eq!((after.matches('x').count(), offset), (100_000, away));
        assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", begun.elapsed());
    }
    // Nothing but one line, again and again: each hunk almost fits everywhere.
    let hunk = format!("@@ -1 +1 @@\n{}-b\n", " a\n".repeat(500));
    let patch = format!("--- a/f\n+++ b/f\n{}", hunk.repeat(1000));
    let content = "a\n".repeat(400_000) + &"b\n".repeat(400_000);
    let patches = parse(&patch, 1).unwrap();
    let file = SourceFile { content: content.as_bytes(), mode: 0o644 };
    let originals = HashMap::from([("f".to_owned(), file)]);
    let asked = Cell::new(0);
    let stop = || {
        asked.set(asked.get() + 1);
        match asked.get() > 20 {
            true => Err(Error::new(Reason::Timeout, "")),
            false => Ok(()),
        }
    };
    let begun = Instant::now();
    let error = plan(&patches, &originals, 10, &stop, &|_| Ok(())).unwrap_err();
    assert_eq!(error.reason, Reason::Timeout);
    assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", begun.elapsed());
}
