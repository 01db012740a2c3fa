//! Random, generated and hostile patches.

use std::{
    cell::Cell,
    collections::HashMap,
    time::{Duration, Instant},
};

use similar::TextDiff;

use super::*;
use crate::daemon::error::Reason;

/// Deterministic pseudorandom random.
struct Xorshift(u64);

impl Xorshift {
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
fn applying_a_diff_yields_the_new_text() {
    let mut random = Xorshift(0x1234_5678_9abc_def1);
    for round in 0..4000 {
        let (old, mut new) = (random.text(), random.text());
        if round % 2 == 0 {
            // A small difference.
            let at = random.below(old.len() + 1);
            let at = (0..=at).rev().find(|at| old.is_char_boundary(*at)).unwrap();
            new = format!("{}{}{}", &old[..at], random.pick(&["", "x", "\n", "y\n"]), &old[at..]);
        }
        // `similar` treats a lone carriage return as a line ending.
        if old == new || new.replace("\r\n", "").contains('\r') {
            continue;
        }
        let diff = TextDiff::from_lines(&old, &new);
        // Without context, lines added to a CRLF file get CRLF endings.
        let is_crlf = old.matches('\n').count() == old.matches("\r\n").count();
        let context = random.below(4).max(usize::from(is_crlf));
        let patch = diff.unified_diff().context_radius(context).header("a/f", "b/f").to_string();
        match apply_hunks(&old, patch.split_once("+++ b/f\n").unwrap().1) {
            Ok((result, fuzz, offset)) => {
                assert_eq!(result, new, "{old:?}\n{patch}");
                assert_eq!((fuzz, offset), (0, 0), "{old:?}\n{patch}");
            }
            Err(error) => panic!("{old:?}\n{patch}\n{error}"),
        }
    }
}

#[test]
fn garbage_is_rejected_or_applied() {
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
    let mut random = Xorshift(0x0fed_cba9_8765_4321);
    let is_full = std::env::var_os("JIG_FULL").is_some_and(|value| value == "1");
    let rounds = if is_full { 5_000_000 } else { 20_000 };
    let mut applied = 0;
    for round in 0..rounds {
        let mut before = files(&[("f", "a\nb\n")]);
        let mut patch = String::new();
        if round % 4 == 0 {
            // A diff with random defects.
            let (old, new) = (random.text(), random.text());
            let diff = TextDiff::from_lines(&old, &new);
            let diff = diff.unified_diff().header("a/f", "b/f").to_string();
            let mut lines: Vec<&str> = diff.split_inclusive('\n').collect();
            for _ in 0..random.below(4) {
                let at = random.below(lines.len() + 1);
                match random.below(3) {
                    0 => lines.insert(at, random.pick(PARTS)),
                    1 if at < lines.len() => drop(lines.remove(at)),
                    _ => lines.truncate(at + 3),
                }
            }
            patch = lines.concat();
            before.insert("f".to_owned(), old);
        }
        for _ in 0..random.below(14) {
            patch.push_str(random.pick(PARTS));
            patch.push_str(random.pick(&["\n", "\n", "\n", "\r\n", ""]));
        }
        match apply_patch(&before, &patch, random.below(4)) {
            Ok(_) => applied += 1,
            Err(error) => assert_ne!(error.reason, Reason::Internal),
        }
    }
    assert!(applied > rounds / 1000, "{applied}");
}

#[test]
fn hostile_patches_are_fast_or_can_be_cancelled() {
    // Many hunks at their expected line, and many far from it.
    let content: String = (0..300_000).map(|line| format!("{line}\n")).collect();
    for distance in [0, 100] {
        let hunks: String = (0..100_000)
            .map(|hunk| format!("@@ -{} +1 @@\n-{}\n+x\n", hunk * 3 + 1 + distance, hunk * 3))
            .collect();
        let start = Instant::now();
        let (after, _, offset) = apply_hunks(&content, &hunks).unwrap();
        assert_eq!((after.matches('x').count(), offset), (100_000, distance));
        assert!(start.elapsed() < Duration::from_secs(20), "{:?}", start.elapsed());
    }

    // One line repeated: each hunk almost matches everywhere.
    let hunk = format!("@@ -1 +1 @@\n{}-b\n", " a\n".repeat(500));
    let patch = format!("--- a/f\n+++ b/f\n{}", hunk.repeat(1000));
    let content = "a\n".repeat(400_000) + &"b\n".repeat(400_000);
    let patches = parse(&patch, 1).unwrap();
    let file = SourceFile { content: content.as_bytes(), mode: 0o644 };
    let originals = HashMap::from([("f".to_owned(), file)]);
    let checks = Cell::new(0);
    let check = || {
        checks.set(checks.get() + 1);
        if checks.get() > 20 { Err(Error::new(Reason::Timeout, "")) } else { Ok(()) }
    };
    let start = Instant::now();
    let error = plan(&patches, &originals, 10, &check, &|_| Ok(())).unwrap_err();
    assert_eq!(error.reason, Reason::Timeout);
    assert!(start.elapsed() < Duration::from_secs(20), "{:?}", start.elapsed());
}
