//! Unified diffs: understanding them, as git and as language models write them, and applying them.
//!
//! [`fn@parse`] makes [`FilePatch`]es of a text, whose paths the caller may put in order then;
//! [`fn@plan`] says what becomes of the files. Own code, because what it has to say beside the result
//! (which places are equally good, how far away and how inexactly each hunk fitted, when to give
//! up) is what libraries keep to themselves.
//!
//! | file | holds |
//! |---|---|
//! | [`file`](mod@file) | what a patch does to one file |
//! | [`lines`] | the lines of a patch and their numbers |
//! | [`names`] | the names of files in headers |
//! | [`mod@parse`] | the files of a patch |
//! | [`hunk`] | the hunks of a file |
//! | [`apply`] | the hunks on a text |
//! | [`search`] | where a hunk fits |
//! | [`misfit`] | what to say about a hunk that does not |
//! | [`plan`](mod@plan) | all files of a patch, one after the other |

mod apply;
mod file;
mod hunk;
mod lines;
mod misfit;
mod names;
mod parse;
mod plan;
mod search;

pub(crate) use file::FilePatch;
pub(crate) use parse::parse;
pub(crate) use plan::{Change, Changed, Fate, File, plan};

#[cfg(test)]
mod tests {
    use std::{
        cell::Cell,
        collections::{BTreeMap, HashMap},
        time::{Duration, Instant},
    };

    use similar::TextDiff;

    use super::*;
    use crate::daemon::error::{Error, Reason};

    type Files = BTreeMap<String, String>;

    fn files(pairs: &[(&str, &str)]) -> Files {
        let own = |(path, content): &(&str, &str)| (path.to_string(), content.to_string());
        pairs.iter().map(own).collect()
    }

    fn go_on() -> Result<(), Error> {
        Ok(())
    }

    /// Applies a patch, and answers all files then and what was said about those of the patch.
    fn patched(before: &Files, patch: &str, strip: usize) -> Result<(Files, Vec<Changed>), Error> {
        let patches = parse(patch, strip)?;
        let originals = before.iter();
        let originals = originals
            .map(|(path, content)| {
                (
                    path.clone(),
                    File {
                        mode: 0o644,
                        content: content.as_bytes(),
                    },
                )
            })
            .collect();
        let plan = plan(&patches, &originals, 2, &go_on)?;
        let mut after = before.clone();
        for (path, fate) in plan.fates {
            match fate {
                Fate::Written { content, .. } => {
                    after.insert(path, String::from_utf8(content.into_owned()).unwrap())
                }
                Fate::Deleted => after.remove(&path),
            };
        }
        Ok((after, plan.changed))
    }

    /// Applies hunks to a file `f`, and answers its content, the fuzz and the offset.
    fn one(content: &str, hunks: &str) -> Result<(String, usize, usize), Error> {
        let patch = format!("--- a/f\n+++ b/f\n{hunks}");
        let (mut after, changed) = patched(&files(&[("f", content)]), &patch, 1)?;
        Ok((
            after.remove("f").unwrap(),
            changed[0].fuzz,
            changed[0].offset,
        ))
    }

    #[test]
    fn hunks_are_understood_however_they_are_written() {
        let numbered = |range: std::ops::Range<usize>| -> String {
            range.map(|number| format!("{number}\n")).collect()
        };
        let twenty = numbered(1..21);
        let ten = |with: &str| numbered(1..21).replace("10\n", with);
        for (what, content, hunks, expected, fuzz, offset) in [
            (
                "exact",
                &*twenty,
                "@@ -9,3 +9,3 @@\n 9\n-10\n+x\n 11\n",
                ten("x\n"),
                0,
                0,
            ),
            (
                "wrong line",
                &twenty,
                "@@ -3,3 +3,3 @@\n 9\n-10\n+x\n 11\n",
                ten("x\n"),
                0,
                6,
            ),
            (
                "line behind the end",
                &twenty,
                "@@ -99,3 +99,3 @@\n 9\n-10\n+x\n 11\n",
                ten("x\n"),
                0,
                90,
            ),
            (
                "counts too high",
                &twenty,
                "@@ -9,7 +9,9 @@\n 9\n-10\n+x\n 11\n",
                ten("x\n"),
                0,
                0,
            ),
            (
                "counts too low",
                &twenty,
                "@@ -9,1 +9,1 @@\n 9\n-10\n+x\n 11\n",
                ten("x\n"),
                0,
                0,
            ),
            (
                "no counts",
                &twenty,
                "@@ -9 +9 @@\n 9\n-10\n+x\n 11\n",
                ten("x\n"),
                0,
                0,
            ),
            ("bare", &twenty, "@@\n 9\n-10\n+x\n 11\n", ten("x\n"), 0, 0),
            (
                "bare twice",
                &twenty,
                "@@ @@\n 9\n-10\n+x\n 11\n",
                ten("x\n"),
                0,
                0,
            ),
            (
                "dots",
                &twenty,
                "@@ ... @@\n 9\n-10\n+x\n 11\n",
                ten("x\n"),
                0,
                0,
            ),
            (
                "section",
                &twenty,
                "@@ -9,3 +9,3 @@ fn f() {\n 9\n-10\n+x\n 11\n",
                ten("x\n"),
                0,
                0,
            ),
            (
                "no end of header",
                &twenty,
                "@@ -9,3 +9,3\n 9\n-10\n+x\n 11\n",
                ten("x\n"),
                0,
                0,
            ),
            (
                "huge number",
                &twenty,
                "@@ -99999999999999999999,3 +9,3 @@\n 9\n-10\n+x\n 11\n",
                ten("x\n"),
                0,
                0,
            ),
            (
                "first line stale",
                &twenty,
                "@@ -9,3 +9,3 @@\n old\n-10\n+x\n 11\n",
                ten("x\n"),
                1,
                0,
            ),
            (
                "two lines stale",
                &twenty,
                "@@ -8,4 +8,4 @@\n old\n old\n-10\n+x\n 11\n",
                ten("x\n"),
                2,
                0,
            ),
            (
                "stale and moved",
                &twenty,
                "@@ -5,3 +5,3 @@\n 9\n-10\n+x\n old\n",
                ten("x\n"),
                1,
                4,
            ),
            (
                "context before the file",
                "1\n2\n",
                "@@ -1,3 +1,3 @@\n 0\n 1\n-2\n+x\n",
                "1\nx\n".into(),
                1,
                0,
            ),
            (
                "no context",
                &twenty,
                "@@ -10 +10 @@\n-10\n+x\n",
                ten("x\n"),
                0,
                0,
            ),
            (
                "only adds",
                &twenty,
                "@@ -10,0 +11 @@\n+x\n",
                ten("10\nx\n"),
                0,
                0,
            ),
            (
                "adds at the begin",
                "1\n",
                "@@ -0,0 +1 @@\n+x\n",
                "x\n1\n".into(),
                0,
                0,
            ),
            (
                "adds at the end",
                "1\n",
                "@@ -1,0 +2 @@\n+x\n",
                "1\nx\n".into(),
                0,
                0,
            ),
            ("fills an empty file", "", "@@\n+x\n", "x\n".into(), 0, 0),
            (
                "blank taken off",
                "a\n\nb\n",
                "@@ -1,3 +1,3 @@\n a\n\n-b\n+x\n",
                "a\n\nx\n".into(),
                0,
                0,
            ),
            (
                "blank taken off, wrong counts",
                "a\n\nb\n",
                "@@ -1,1 +1,1 @@\n a\n\n-b\n+x\n\n\n",
                "a\n\nx\n".into(),
                0,
                0,
            ),
            (
                "added before removed",
                "a\n",
                "@@ -1 +1 @@\n+b\n-a\n",
                "b\n".into(),
                0,
                0,
            ),
            (
                "looks like names",
                "-- x\n1\n",
                "@@ -1,2 +1,2 @@\n--- x\n+++ y\n 1\n",
                "++ y\n1\n".into(),
                0,
                0,
            ),
            (
                "two hunks, moved alike",
                "0\n0\na\n1\na\n2\n",
                "@@ -1 +1 @@\n-a\n+x\n@@ -3 +3 @@\n-a\n+y\n",
                "0\n0\nx\n1\ny\n2\n".into(),
                0,
                2,
            ),
            (
                "two bare hunks",
                "a\n1\nb\n1\n",
                "@@\n a\n-1\n+2\n\n@@\n b\n-1\n+2\n",
                "a\n2\nb\n2\n".into(),
                0,
                0,
            ),
            (
                "unicode",
                "ä\u{2028}ö\n",
                "@@ -1 +1 @@\n-ä\u{2028}ö\n+☃\n",
                "☃\n".into(),
                0,
                0,
            ),
            // What stands around it.
            (
                "fence",
                &twenty,
                "@@ -9,3 +9,3 @@\n 9\n-10\n+x\n 11\n```\nThis was it.\n+ and more\n",
                ten("x\n"),
                0,
                0,
            ),
            (
                "fence, wrong counts",
                &twenty,
                "@@ -9,9 +9,9 @@\n 9\n-10\n+x\n 11\n```\n",
                ten("x\n"),
                0,
                0,
            ),
            (
                "prose",
                &twenty,
                "@@ -9,9 +9,9 @@\n 9\n-10\n+x\n 11\n\nThis was it.\n",
                ten("x\n"),
                0,
                0,
            ),
            (
                "list",
                &twenty,
                "@@ -9,3 +9,3 @@\n 9\n-10\n+x\n 11\n\n- changed\n",
                ten("x\n"),
                0,
                0,
            ),
            (
                "signature",
                &twenty,
                "@@ -9,3 +9,3 @@\n 9\n-10\n+x\n 11\n-- \n2.39.2\n\n",
                ten("x\n"),
                0,
                0,
            ),
            (
                "signature, wrong counts",
                &twenty,
                "@@ -9,9 +9,3 @@\n 9\n-10\n+x\n 11\n-- \n2.39.2\n",
                ten("x\n"),
                0,
                0,
            ),
            // Endings.
            (
                "file of Windows",
                "a\r\nb\r\nc\r\n",
                "@@ -1,3 +1,4 @@\n a\n-b\n+x\n+y\n c\n",
                "a\r\nx\r\ny\r\nc\r\n".into(),
                0,
                0,
            ),
            (
                "patch of Windows",
                "a\nb\nc\n",
                "@@ -1,3 +1,3 @@\n a\r\n-b\r\n+x\r\n c\r\n",
                "a\nx\nc\n".into(),
                0,
                0,
            ),
            (
                "both of Windows",
                "a\r\nb\r\n",
                "@@ -1,2 +1,2 @@\n a\r\n-b\r\n+x\r\n",
                "a\r\nx\r\n".into(),
                0,
                0,
            ),
            (
                "becomes one of Windows",
                "a\nb\n",
                "@@ -1,2 +1,2 @@\n-a\n-b\n+a\r\n+b\r\n",
                "a\r\nb\r\n".into(),
                0,
                0,
            ),
            (
                "is no more of Windows",
                "a\r\nb\r\n",
                "@@ -1,2 +1,2 @@\n-a\r\n b\r\n+a\n",
                "b\r\na\n".into(),
                0,
                0,
            ),
            (
                "added to one of Windows",
                "a\r\nb\r\n",
                "@@ -1,0 +2 @@\n+x\n",
                "a\r\nx\r\nb\r\n".into(),
                0,
                0,
            ),
            (
                "ends without newline",
                "a\nb",
                "@@ -1,2 +1,2 @@\n a\n-b\n\\ No newline at end of file\n+x\n\\ No newline at end of file\n",
                "a\nx".into(),
                0,
                0,
            ),
            (
                "gets a newline",
                "a\nb",
                "@@ -1,2 +1,2 @@\n a\n-b\n\\ No newline at end of file\n+x\n",
                "a\nx\n".into(),
                0,
                0,
            ),
            (
                "loses its newline",
                "a\nb\n",
                "@@ -1,2 +1,2 @@\n a\n-b\n+x\n\\ No newline at end of file\n",
                "a\nx".into(),
                0,
                0,
            ),
            (
                "loses one of Windows",
                "a\r\nb\r\n",
                "@@ -1,2 +1,2 @@\n a\r\n-b\r\n+b\n\\ No newline at end of file\n",
                "a\r\nb".into(),
                0,
                0,
            ),
            (
                "ends with a carriage return",
                "a\nb\r",
                "@@ -1,2 +1,2 @@\n a\n-b\r\n\\ No newline at end of file\n+c\r\n\\ No newline at end of file\n",
                "a\nc\r".into(),
                0,
                0,
            ),
            (
                "not said",
                "a\nb",
                "@@ -1,2 +1,2 @@\n a\n-b\n+x\n",
                "a\nx".into(),
                0,
                0,
            ),
            (
                "not said, grows",
                "a\nb",
                "@@ -1,2 +1,3 @@\n a\n b\n+x\n",
                "a\nb\nx".into(),
                0,
                0,
            ),
            (
                "said wrongly",
                "a\nb\n",
                "@@ -1,2 +1,2 @@\n a\n-b\n\\ No newline at end of file\n+x\n\\ No newline at end of file\n",
                "a\nx\n".into(),
                0,
                0,
            ),
            (
                "last line removed",
                "a\nb",
                "@@ -1,2 +1,1 @@\n a\n-b\n\\ No newline at end of file\n",
                "a\n".into(),
                0,
                0,
            ),
            (
                "said in the middle",
                "a\nb\n",
                "@@ -1 +1 @@\n-a\n+x\n\\ No newline at end of file\n",
                "x\nb\n".into(),
                0,
                0,
            ),
            (
                "the patch ends early",
                "a\n",
                "@@ -1 +1 @@\n-a\n+x",
                "x\n".into(),
                0,
                0,
            ),
        ] {
            let result = one(content, hunks).unwrap_or_else(|error| panic!("{what}: {error}"));
            assert_eq!(result, (expected, fuzz, offset), "{what}");
        }
        // Carriage returns of the whole patch say nothing about the file.
        let patch = "--- a/f\r\n+++ b/f\r\n@@ -1,2 +1,2 @@\r\n a\r\n-b\r\n+x\r\n";
        for (before, expected) in [("a\nb\n", "a\nx\n"), ("a\r\nb\r\n", "a\r\nx\r\n")] {
            let (after, _) = patched(&files(&[("f", before)]), patch, 1).unwrap();
            assert_eq!(after["f"], expected);
        }
    }

    #[test]
    fn hunks_that_do_not_fit_say_what_is_there() {
        for (content, hunks, shown) in [
            (
                "a\nb\nc\n",
                "@@ -1,3 +1,3 @@\n a\n-B\n+x\n c\n",
                "\"B\" where line 2 is \"b\"",
            ),
            (
                "a\nb\n",
                "@@ -1,3 +1,3 @@\n a\n-b\n-c\n",
                "\"c\" where line 3 is the end of the file",
            ),
            (
                "a\nx\nc\n",
                "@@ -1,3 +1,3 @@\n a\n-b\n+x\n c\n",
                "the lines that it makes are there already",
            ),
            (
                "a\nb\nc\n",
                "@@\n a\n-x\n c\n",
                "1: \"a\"\n2: \"b\"\n3: \"c\"",
            ),
            ("", "@@ -1 +1 @@\n-a\n", "The file is empty"),
            (
                "a\n1\na\n1\n",
                "@@\n a\n-1\n+2\n",
                "equally well at lines 1 and 3",
            ),
            (
                "a\n0\na\n",
                "@@ -2 +2 @@\n-a\n+b\n",
                "equally well at lines 1 and 3",
            ),
            ("a\n", "@@\n+x\n", "it only adds lines"),
            ("a\n", "@@ -5,0 +6 @@\n+x\n", "it only adds lines"),
            (
                "a\nb\n",
                "@@ -2 +2 @@\n-b\n+x\n@@ -1 +1 @@\n-a\n+y\n",
                "hunk 2 of \"f\" (line 6 of the patch)",
            ),
            (
                "a\nb\nc\n",
                "@@ -1,3 +1,4 @@\n x\n y\n z\n+n\n",
                "\"x\" where line 1 is \"a\"",
            ),
        ] {
            let error = one(content, hunks).unwrap_err();
            assert_eq!(error.reason, Reason::PatchHunkFail, "{error}");
            assert!(error.message.contains(shown), "{hunks}: {error}");
            assert!(error.metadata.contains(&("path", "f".to_owned())));
        }
        let long = "y".repeat(10_000) + "\n";
        let error = one(&long.repeat(100), "@@ -1 +1 @@\n-a\n").unwrap_err();
        assert!(error.message.len() < 2000, "{}", error.message.len());
    }

    #[test]
    fn names_are_found_however_they_are_written() {
        let hunk = "@@ -1 +1 @@\n-1\n+2\n";
        for (headers, strip, path) in [
            ("--- a/d/f\n+++ b/d/f\n", 1, "d/f"),
            ("--- d/f\n+++ d/f\n", 1, "d/f"),
            ("--- f\n+++ f\n", 1, "f"),
            ("--- a/f\n+++ a/f\n", 1, "a/f"),
            ("--- a/d/f\n+++ b/d/f\n", 0, "b/d/f"),
            ("--- a/d/e/f\n+++ b/d/e/f\n", 2, "e/f"),
            ("--- a/f\n+++ b/f\n", 3, "f"),
            ("--- old/d/f\n+++ new/d/f\n", 1, "d/f"),
            ("--- i/f\n+++ w/f\n", 1, "f"),
            ("--- f.orig\n+++ f\n", 1, "f"),
            ("--- f\n+++ f.new\n", 1, "f"),
            (
                "--- a/f\t2026-01-31 12:34:56.000 +0100\n+++ b/f\t2026-01-31 12:34:56\n",
                1,
                "f",
            ),
            (
                "--- a/f 2026-01-31 12:34:56.000 +0100\n+++ b/f 2026-01-31 12:34:56\n",
                1,
                "f",
            ),
            ("--- a/b c\t\n+++ b/b c\t\n", 1, "b c"),
            ("--- a/b c  \n+++ b/b c\n", 1, "b c"),
            (
                "--- \"a/\\303\\244\\t\\\"\\\\\"\n+++ \"b/\\303\\244\\t\\\"\\\\\"\n",
                1,
                "ä\t\"\\",
            ),
            ("--- a/f\r\n+++ b/f\r\n", 1, "f"),
            (
                "Index: f\n=====\n--- f\t(revision 1)\n+++ f\t(working copy)\n",
                1,
                "f",
            ),
            ("Here it is:\n```diff\n--- a/f\n+++ b/f\n", 1, "f"),
            (
                "From 123 Mon Sep 17\nSubject: x\n---\n f | 2 +-\n\ndiff --git a/f b/f\nindex 12..34 100644\n--- a/f\n+++ b/f\n",
                1,
                "f",
            ),
            ("diff --git a/f b/f\n", 1, "f"),
            ("diff --git i/f w/f\nindex 1..2\n--- i/f\n+++ w/f\n", 1, "f"),
            ("diff --git d/f d/f\n--- d/f\n+++ d/f\n", 1, "d/f"),
            ("diff --git a/b c b/b c\n", 1, "b c"),
            ("diff --git \"a/\\303\\244\" \"b/\\303\\244\"\n", 1, "ä"),
        ] {
            let patch = format!("{headers}{hunk}");
            let parsed = parse(&patch, strip).unwrap_or_else(|error| panic!("{headers}: {error}"));
            assert_eq!(parsed.len(), 1, "{headers}");
            assert_eq!(
                (&*parsed[0].old, &*parsed[0].new),
                (path, path),
                "{headers}"
            );
        }
    }

    #[test]
    fn patches_that_mean_nothing_or_harm_are_refused_with_their_line() {
        use Reason::{PatchParseError as Parse, PathEscape, SymlinkBlocked};
        for (patch, reason, line) in [
            ("", Parse, 1),
            ("hello\n", Parse, 1),
            (
                "*** Begin Patch\n*** Update File: f\n@@\n-1\n+2\n",
                Parse,
                3,
            ),
            ("@@ -1 +1 @@\n-1\n+2\n", Parse, 1),
            ("--- a/f\n+++ b/f\n", Parse, 1),
            ("--- a/f\n+++ b/f\n@@ -1 +1 @@\n", Parse, 3),
            ("--- a/f\n+++ b/f\n@@ -1,2 +1,2 @@\n a\nb\n+c\n", Parse, 5),
            ("--- a/f\n+++ b/f\n@@@ -1 -1 +1 @@@\n--1\n", Parse, 3),
            ("--- a/f\n+++ b/f\n@@\n\\ No newline\n", Parse, 4),
            ("--- /dev/null\n+++ /dev/null\n@@ -1 +1 @@\n-1\n", Parse, 1),
            ("--- \"a/f\n+++ b/f\n", Parse, 1),
            ("--- a/f\n+++ \"b/\\400\"\n", Parse, 2),
            ("--- a/f\n+++ \"b/\\377\"\n", Parse, 2),
            ("--- a/f\n+++ \"b/\\000\"\n", Parse, 2),
            ("--- a/f\n+++ \"b/\\q\"\n", Parse, 2),
            (&*format!("--- {}\n+++ b/f\n", "x".repeat(5000)), Parse, 1),
            ("--- a/f\n+++ \"b/\\3\n", Parse, 2),
            ("diff --git a/f b/f\nsome prose\n", Parse, 1),
            (
                "diff --git a/f b/g\n--- a/f\n+++ b/g\n@@ -1 +1 @@\n-1\n",
                Parse,
                1,
            ),
            (
                "diff --git a/f b/f\n--- a/f\n+++ b/g\n@@ -1 +1 @@\n-1\n",
                Parse,
                1,
            ),
            ("diff --git a/f b/g\nrename from f\n", Parse, 1),
            (
                "diff --git a/f b/f\nnew file mode 100644\ndeleted file mode 100644\n",
                Parse,
                1,
            ),
            (
                "diff --git a/f b/f\nold mode 100644\nnew mode 9\n",
                Parse,
                3,
            ),
            ("diff --git a/f b/f\nnew file mode 160000\n", Parse, 2),
            ("diff --git a/f b/f\nindex 1..2 160000\n", Parse, 2),
            (
                "diff --git a/f b/f\nindex 1..2\nGIT binary patch\nliteral 3\n",
                Parse,
                3,
            ),
            (
                "diff --git a/f b/f\nindex 1..2\nBinary files a/f and b/f differ\n",
                Parse,
                3,
            ),
            ("Binary files f and g differ\n", Parse, 1),
            (
                "diff --git a/f b/f\nnew file mode 120000\n",
                SymlinkBlocked,
                2,
            ),
            ("diff --git a/f b/f\nindex 1..2 120000\n", SymlinkBlocked, 2),
            ("--- /etc/passwd\n+++ b/f\n", PathEscape, 1),
            ("--- a/f\n+++ /etc/passwd\n", PathEscape, 2),
            ("--- a/f\n+++ /workspace/f\n", PathEscape, 2),
            (
                "--- a//etc/f\n+++ b//etc/f\n@@ -1 +1 @@\n-1\n",
                PathEscape,
                1,
            ),
            ("diff --git /a /a\n", PathEscape, 1),
            ("diff --git \"/a\" \"/a\"\n", PathEscape, 1),
            (
                "diff --git a/f b/g\nrename from f\nrename to /g\n",
                PathEscape,
                3,
            ),
        ] {
            let error = parse(patch, 1).unwrap_err();
            assert_eq!(error.reason, reason, "{patch}: {error}");
            let named = format!("line {line} of the patch");
            assert!(error.message.starts_with(&named), "{patch}: {error}");
        }
    }

    #[test]
    fn files_are_made_deleted_renamed_and_changed_twice() {
        let before = files(&[("a", "1\n"), ("b", "2\n"), ("e", "")]);
        let new = "diff --git a/n b/n\nnew file mode 100755\n";
        for (what, patch, expected, changes) in [
            (
                "made",
                "--- /dev/null\n+++ b/n\n@@ -0,0 +1 @@\n+x\n",
                vec![("a", "1\n"), ("b", "2\n"), ("e", ""), ("n", "x\n")],
                vec!["n Added"],
            ),
            (
                "made, not said",
                "--- a/n\n+++ b/n\n@@ -0,0 +1 @@\n+x\n",
                vec![("a", "1\n"), ("b", "2\n"), ("e", ""), ("n", "x\n")],
                vec!["n Added"],
            ),
            (
                "made empty",
                new,
                vec![("a", "1\n"), ("b", "2\n"), ("e", ""), ("n", "")],
                vec!["n Added"],
            ),
            (
                "deleted",
                "--- a/a\n+++ /dev/null\n@@ -1 +0,0 @@\n-1\n",
                vec![("b", "2\n"), ("e", "")],
                vec!["a Deleted"],
            ),
            (
                "deleted empty",
                "diff --git a/e b/e\ndeleted file mode 100644\n",
                vec![("a", "1\n"), ("b", "2\n")],
                vec!["e Deleted"],
            ),
            (
                "renamed",
                "diff --git a/a b/d/c\nsimilarity index 100%\nrename from a\nrename to d/c\n",
                vec![("b", "2\n"), ("d/c", "1\n"), ("e", "")],
                vec!["d/c Renamed { from: \"a\" }"],
            ),
            (
                "renamed and changed",
                "diff --git a/a b/c\nrename from a\nrename to c\n--- a/a\n+++ b/c\n@@ -1 +1 @@\n-1\n+x\n",
                vec![("b", "2\n"), ("c", "x\n"), ("e", "")],
                vec!["c Renamed { from: \"a\" }"],
            ),
            (
                "copied",
                "diff --git a/a b/c\ncopy from a\ncopy to c\n",
                vec![("a", "1\n"), ("b", "2\n"), ("c", "1\n"), ("e", "")],
                vec!["c Added"],
            ),
            (
                "exchanged",
                "diff --git a/a b/b\nrename from a\nrename to b\ndiff --git a/b b/a\nrename from b\nrename to a\n",
                vec![("a", "2\n"), ("b", "1\n"), ("e", "")],
                vec!["b Renamed { from: \"a\" }", "a Renamed { from: \"b\" }"],
            ),
            (
                "in a chain",
                "diff --git a/a b/b\nrename from a\nrename to b\ndiff --git a/b b/c\nrename from b\nrename to c\n",
                vec![("b", "1\n"), ("c", "2\n"), ("e", "")],
                vec!["b Renamed { from: \"a\" }", "c Renamed { from: \"b\" }"],
            ),
            (
                "over a deleted one",
                "diff --git a/a b/b\nrename from a\nrename to b\ndiff --git a/b b/b\ndeleted file mode 100644\n--- a/b\n+++ /dev/null\n@@ -1 +0,0 @@\n-2\n",
                vec![("b", "1\n"), ("e", "")],
                vec!["b Renamed { from: \"a\" }", "b Deleted"],
            ),
            (
                "changed twice",
                "--- a/a\n+++ b/a\n@@ -1 +1 @@\n-1\n+x\n--- a/a\n+++ b/a\n@@ -1 +1 @@\n-x\n+y\n",
                vec![("a", "y\n"), ("b", "2\n"), ("e", "")],
                vec!["a Modified", "a Modified"],
            ),
            (
                "made, then changed",
                "--- /dev/null\n+++ b/n\n@@ -0,0 +1 @@\n+x\n--- a/n\n+++ b/n\n@@ -1 +1 @@\n-x\n+y\n",
                vec![("a", "1\n"), ("b", "2\n"), ("e", ""), ("n", "y\n")],
                vec!["n Added", "n Modified"],
            ),
            (
                "made, then deleted",
                "--- /dev/null\n+++ b/n\n@@ -0,0 +1 @@\n+x\n--- a/n\n+++ /dev/null\n@@ -1 +0,0 @@\n-x\n",
                vec![("a", "1\n"), ("b", "2\n"), ("e", "")],
                vec!["n Added", "n Deleted"],
            ),
            (
                "deleted, then made",
                "--- a/a\n+++ /dev/null\n@@ -1 +0,0 @@\n-1\n--- /dev/null\n+++ b/a\n@@ -0,0 +1 @@\n+x\n",
                vec![("a", "x\n"), ("b", "2\n"), ("e", "")],
                vec!["a Deleted", "a Added"],
            ),
        ] {
            let result = patched(&before, patch, 1);
            let (after, changed) = result.unwrap_or_else(|error| panic!("{what}: {error}"));
            assert_eq!(after, files(&expected), "{what}");
            let told = changed
                .iter()
                .map(|file| format!("{} {:?}", file.path, file.change));
            assert_eq!(told.collect::<Vec<_>>(), changes, "{what}");
        }
        for (patch, reason) in [
            (
                "--- a/x\n+++ b/x\n@@ -1 +1 @@\n-1\n+2\n",
                Reason::FileNotFound,
            ),
            (
                "--- a/x\n+++ /dev/null\n@@ -1 +0,0 @@\n-1\n",
                Reason::FileNotFound,
            ),
            (
                "diff --git a/x b/y\nrename from x\nrename to y\n",
                Reason::FileNotFound,
            ),
            (
                "diff --git a/x b/y\ncopy from x\ncopy to y\n",
                Reason::FileNotFound,
            ),
            (
                "diff --git a/a b/c\nrename from a\nrename to c\ndiff --git a/a b/d\nrename from a\nrename to d\n",
                Reason::FileNotFound,
            ),
            (
                "diff --git a/a b/b\nrename from a\nrename to b\n",
                Reason::FileExists,
            ),
            (
                "diff --git a/a b/b\ncopy from a\ncopy to b\n",
                Reason::FileExists,
            ),
            (
                "--- /dev/null\n+++ b/a\n@@ -0,0 +1 @@\n+x\n",
                Reason::FileExists,
            ),
            (
                "diff --git a/a b/a\ndeleted file mode 100644\n",
                Reason::PatchHunkFail,
            ),
            (
                "--- a/a\n+++ /dev/null\n@@ -1 +1 @@\n-1\n+2\n",
                Reason::PatchHunkFail,
            ),
            (
                "--- /dev/null\n+++ b/n\n@@ -1 +1,2 @@\n old\n+x\n",
                Reason::PatchHunkFail,
            ),
        ] {
            let error = patched(&before, patch, 1).unwrap_err();
            assert_eq!(error.reason, reason, "{patch}: {error}");
        }
    }

    #[test]
    fn modes_change_in_the_bits_that_git_knows() {
        let mode = |old: u32, patch: &str| {
            let patches = parse(patch, 1).unwrap();
            let file = File {
                content: b"1\n",
                mode: old,
            };
            let originals = HashMap::from([("a".to_owned(), file)]);
            let plan = plan(&patches, &originals, 0, &go_on).unwrap();
            let fates = plan.fates.into_iter().map(|(_, fate)| match fate {
                Fate::Written { mode, .. } => mode,
                Fate::Deleted => Some(0),
            });
            fates.collect::<Vec<_>>()
        };
        let change = |to: &str| format!("diff --git a/a b/a\nold mode 100644\nnew mode {to}\n");
        assert_eq!(mode(0o640, &change("100755")), [Some(0o750)]);
        assert_eq!(mode(0o751, &change("100644")), [Some(0o640)]);
        assert_eq!(mode(0o755, &change("100755")), []);
        for (text, expected) in [("100755", 0o755), ("100644", 0o644)] {
            let patch = format!("diff --git a/n b/n\nnew file mode {text}\n");
            assert_eq!(mode(0o600, &patch), [Some(expected)]);
        }
        assert_eq!(
            mode(0o600, "--- /dev/null\n+++ b/n\n@@ -0,0 +1 @@\n+x\n"),
            [None]
        );
        let rename = "diff --git a/a b/c\nrename from a\nrename to c\n";
        assert_eq!(mode(0o604, rename), [Some(0), Some(0o604)]);
        let changed = "--- a/a\n+++ b/a\n@@ -1 +1 @@\n-1\n+2\n";
        assert_eq!(mode(0o604, changed), [None]);
    }

    /// Numbers that look random and are always the same (xorshift).
    struct Numbers(u64);

    impl Numbers {
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
                text.push_str(
                    self.pick(&["a", "b", "", "- x", "-- x", "++ y", "@@", "\\", "ä", " "]),
                );
                text.push_str(self.pick(&["\n", "\n", "\n", "\r\n"]));
            }
            text.push_str(self.pick(&["", "", "end"]));
            text
        }
    }

    #[test]
    fn a_diff_makes_the_new_text_of_the_old_one() {
        let mut numbers = Numbers(0x1234_5678_9abc_def1);
        for round in 0..4000 {
            let (old, mut new) = (numbers.text(), numbers.text());
            if round % 2 == 0 {
                // Little is different.
                let at = numbers.below(old.len() + 1);
                let at = (0..=at).rev().find(|at| old.is_char_boundary(*at)).unwrap();
                new = format!(
                    "{}{}{}",
                    &old[..at],
                    numbers.pick(&["", "x", "\n", "y\n"]),
                    &old[at..]
                );
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
            let patch = patch
                .context_radius(context)
                .header("a/f", "b/f")
                .to_string();
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
        let mut numbers = Numbers(0x0fed_cba9_8765_4321);
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
            assert!(
                begun.elapsed() < Duration::from_secs(20),
                "{:?}",
                begun.elapsed()
            );
        }
        // Nothing but one line, again and again: each hunk almost fits everywhere.
        let hunk = format!("@@ -1 +1 @@\n{}-b\n", " a\n".repeat(500));
        let patch = format!("--- a/f\n+++ b/f\n{}", hunk.repeat(1000));
        let content = "a\n".repeat(400_000) + &"b\n".repeat(400_000);
        let patches = parse(&patch, 1).unwrap();
        let file = File {
            content: content.as_bytes(),
            mode: 0o644,
        };
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
        let error = plan(&patches, &originals, 10, &stop).unwrap_err();
        assert_eq!(error.reason, Reason::Timeout);
        assert!(
            begun.elapsed() < Duration::from_secs(20),
            "{:?}",
            begun.elapsed()
        );
    }
}
