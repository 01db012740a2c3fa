//! File names, creation, deletion, renames and modes.

use std::collections::HashMap;

use super::*;
use crate::daemon::error::Reason;

#[test]
fn parses_names_in_every_header_form() {
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
        ("--- f~\n+++ f\n", 1, "f"),
        ("--- d/f.c.~12~\n+++ d/f.c\n", 1, "d/f.c"),
        ("--- f.old\t2026-01-31 12:34:56\n+++ f 2026-01-31 12:34:57\n", 1, "f"),
        ("--- a/f.bak\n+++ b/f\n", 1, "f"),
        ("--- f\n+++ f.orig\n", 1, "f"),
        ("--- a/f\t2026-01-31 12:34:56.000 +0100\n+++ b/f\t2026-01-31 12:34:56\n", 1, "f"),
        ("--- a/f 2026-01-31 12:34:56.000 +0100\n+++ b/f 2026-01-31 12:34:56\n", 1, "f"),
        ("--- a/b c\t\n+++ b/b c\t\n", 1, "b c"),
        ("--- a/b c  \n+++ b/b c\n", 1, "b c"),
        ("--- \"a/\\303\\244\\t\\\"\\\\\"\n+++ \"b/\\303\\244\\t\\\"\\\\\"\n", 1, "ä\t\"\\"),
        ("--- a/f\r\n+++ b/f\r\n", 1, "f"),
        ("Index: f\n=====\n--- f\t(revision 1)\n+++ f\t(working copy)\n", 1, "f"),
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
        assert_eq!((&*parsed[0].old, &*parsed[0].new), (path, path), "{headers}");
    }
}

#[test]
fn malformed_and_hostile_patches_are_rejected_with_a_line_number() {
    use Reason::{PatchParseError as Parse, PathEscape, SymlinkBlocked};
    for (patch, reason, line) in [
        ("", Parse, 1),
        ("hello\n", Parse, 1),
        ("*** Begin Patch\n*** Update File: f\n@@\n-1\n+2\n", Parse, 3),
        ("@@ -1 +1 @@\n-1\n+2\n", Parse, 1),
        ("--- foo.c\n+++ foo.cpp\n@@ -1 +1 @@\n-1\n+2\n", Parse, 1),
        ("--- f\n+++ f2\n@@ -1 +1 @@\n-1\n+2\n", Parse, 1),
        ("--- f\n+++ f.\n@@ -1 +1 @@\n-1\n+2\n", Parse, 1),
        ("--- f.orig\n+++ g\n@@ -1 +1 @@\n-1\n+2\n", Parse, 1),
        ("--- d/~\n+++ d\n@@ -1 +1 @@\n-1\n+2\n", Parse, 1),
        ("--- one\n+++ two\n@@ -1 +1 @@\n-1\n+2\n", Parse, 1),
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
        ("diff --git a/f b/g\n--- a/f\n+++ b/g\n@@ -1 +1 @@\n-1\n", Parse, 1),
        ("diff --git a/f b/f\n--- a/f\n+++ b/g\n@@ -1 +1 @@\n-1\n", Parse, 1),
        ("diff --git a/f b/g\nrename from f\n", Parse, 1),
        ("diff --git a/f b/f\nnew file mode 100644\ndeleted file mode 100644\n", Parse, 1),
        ("diff --git a/f b/f\nold mode 100644\nnew mode 9\n", Parse, 3),
        ("diff --git a/f b/f\nnew file mode 160000\n", Parse, 2),
        ("diff --git a/f b/f\nindex 1..2 160000\n", Parse, 2),
        ("diff --git a/f b/f\nindex 1..2\nGIT binary patch\nliteral 3\n", Parse, 3),
        ("diff --git a/f b/f\nindex 1..2\nBinary files a/f and b/f differ\n", Parse, 3),
        ("Binary files f and g differ\n", Parse, 1),
        ("diff --git a/f b/f\nnew file mode 120000\n", SymlinkBlocked, 2),
        ("diff --git a/f b/f\nindex 1..2 120000\n", SymlinkBlocked, 2),
        ("--- /etc/passwd\n+++ b/f\n", PathEscape, 1),
        ("--- a/f\n+++ /etc/passwd\n", PathEscape, 2),
        ("--- a/f\n+++ /workspace/f\n", PathEscape, 2),
        ("--- a//etc/f\n+++ b//etc/f\n@@ -1 +1 @@\n-1\n", PathEscape, 1),
        ("diff --git /a /a\n", PathEscape, 1),
        ("diff --git \"/a\" \"/a\"\n", PathEscape, 1),
        ("diff --git a/f b/g\nrename from f\nrename to /g\n", PathEscape, 3),
    ] {
        let error = parse(patch, 1).unwrap_err();
        assert_eq!(error.reason, reason, "{patch}: {error}");
        let named = format!("line {line} of the patch");
        assert!(error.message.starts_with(&named), "{patch}: {error}");
    }
}

#[test]
fn files_are_created_deleted_renamed_and_changed_twice() {
    let before = files(&[("a", "1\n"), ("b", "2\n"), ("e", "")]);
    let new = "diff --git a/n b/n\nnew file mode 100755\n";
    for (case, patch, expected, changes) in [
        (
            "created",
            "--- /dev/null\n+++ b/n\n@@ -0,0 +1 @@\n+x\n",
            vec![("a", "1\n"), ("b", "2\n"), ("e", ""), ("n", "x\n")],
            vec!["n Added"],
        ),
        (
            "created without /dev/null",
            "--- a/n\n+++ b/n\n@@ -0,0 +1 @@\n+x\n",
            vec![("a", "1\n"), ("b", "2\n"), ("e", ""), ("n", "x\n")],
            vec!["n Added"],
        ),
        (
            "created empty",
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
            "swapped",
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
            "onto a deleted file",
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
            "created, then changed",
            "--- /dev/null\n+++ b/n\n@@ -0,0 +1 @@\n+x\n--- a/n\n+++ b/n\n@@ -1 +1 @@\n-x\n+y\n",
            vec![("a", "1\n"), ("b", "2\n"), ("e", ""), ("n", "y\n")],
            vec!["n Added", "n Modified"],
        ),
        (
            "created, then deleted",
            "--- /dev/null\n+++ b/n\n@@ -0,0 +1 @@\n+x\n--- a/n\n+++ /dev/null\n@@ -1 +0,0 @@\n-x\n",
            vec![("a", "1\n"), ("b", "2\n"), ("e", "")],
            vec!["n Added", "n Deleted"],
        ),
        (
            "deleted, then created",
            "--- a/a\n+++ /dev/null\n@@ -1 +0,0 @@\n-1\n--- /dev/null\n+++ b/a\n@@ -0,0 +1 @@\n+x\n",
            vec![("a", "x\n"), ("b", "2\n"), ("e", "")],
            vec!["a Deleted", "a Added"],
        ),
    ] {
        let (after, changed) =
            apply_patch(&before, patch, 1).unwrap_or_else(|error| panic!("{case}: {error}"));
        assert_eq!(after, files(&expected), "{case}");
        let actual: Vec<_> =
            changed.iter().map(|file| format!("{} {:?}", file.path, file.kind)).collect();
        assert_eq!(actual, changes, "{case}");
    }

    for (patch, reason) in [
        ("--- a/x\n+++ b/x\n@@ -1 +1 @@\n-1\n+2\n", Reason::FileNotFound),
        ("--- a/x\n+++ /dev/null\n@@ -1 +0,0 @@\n-1\n", Reason::FileNotFound),
        ("diff --git a/x b/y\nrename from x\nrename to y\n", Reason::FileNotFound),
        ("diff --git a/x b/y\ncopy from x\ncopy to y\n", Reason::FileNotFound),
        (
            "diff --git a/a b/c\nrename from a\nrename to c\ndiff --git a/a b/d\nrename from a\nrename to d\n",
            Reason::FileNotFound,
        ),
        ("diff --git a/a b/b\nrename from a\nrename to b\n", Reason::FileExists),
        ("diff --git a/a b/b\ncopy from a\ncopy to b\n", Reason::FileExists),
        ("--- /dev/null\n+++ b/a\n@@ -0,0 +1 @@\n+x\n", Reason::FileExists),
        ("diff --git a/a b/a\ndeleted file mode 100644\n", Reason::PatchHunkFail),
        ("--- a/a\n+++ /dev/null\n@@ -1 +1 @@\n-1\n+2\n", Reason::PatchHunkFail),
        ("--- /dev/null\n+++ b/n\n@@ -1 +1,2 @@\n old\n+x\n", Reason::PatchHunkFail),
    ] {
        let error = apply_patch(&before, patch, 1).unwrap_err();
        assert_eq!(error.reason, reason, "{patch}: {error}");
    }
}

#[test]
fn modes_change_in_the_executable_bits_only() {
    let modes = |old: u32, patch: &str| {
        let patches = parse(patch, 1).unwrap();
        let file = SourceFile { content: b"1\n", mode: old };
        let originals = HashMap::from([("a".to_owned(), file)]);
        let plan = plan(&patches, &originals, 0, &never_cancelled, &|_| Ok(())).unwrap();
        let new_modes = plan.outcomes.into_iter().map(|(_, outcome)| match outcome {
            PathOutcome::Written { mode, .. } => mode,
            PathOutcome::Deleted => Some(0),
        });
        new_modes.collect::<Vec<_>>()
    };
    let change = |to: &str| format!("diff --git a/a b/a\nold mode 100644\nnew mode {to}\n");

    assert_eq!(modes(0o640, &change("100755")), [Some(0o750)]);
    assert_eq!(modes(0o751, &change("100644")), [Some(0o640)]);
    assert_eq!(modes(0o755, &change("100755")), []);
    for (text, expected) in [("100755", 0o755), ("100644", 0o644)] {
        let patch = format!("diff --git a/n b/n\nnew file mode {text}\n");
        assert_eq!(modes(0o600, &patch), [Some(expected)]);
    }
    assert_eq!(modes(0o600, "--- /dev/null\n+++ b/n\n@@ -0,0 +1 @@\n+x\n"), [None]);
    let rename = "diff --git a/a b/c\nrename from a\nrename to c\n";
    assert_eq!(modes(0o604, rename), [Some(0), Some(0o604)]);
    let changed = "--- a/a\n+++ b/a\n@@ -1 +1 @@\n-1\n+2\n";
    assert_eq!(modes(0o604, changed), [None]);
}

#[test]
fn error_about_different_names_contains_both() {
    let patch = "--- a/foo.c\n+++ b/foo.cpp\n@@ -1 +1 @@\n-1\n+2\n";
    let error = parse(patch, 1).unwrap_err();
    for part in ["\"foo.c\"", "\"foo.cpp\"", "rename from"] {
        assert!(error.message.contains(part), "{error}");
    }
}

#[test]
fn memory_is_reserved_before_contents_are_created() {
    let mut patch = String::new();
    for copy in 0..3 {
        patch += &format!(
            "diff --git a/big b/{copy}\ncopy from big\ncopy to {copy}\n--- a/big\n+++ b/{copy}\n@@ -1 +1 @@\n-1\n+2\n"
        );
    }
    let patches = parse(&patch, 1).unwrap();
    let content = format!("1\n{}", "more\n".repeat(100));
    let big = SourceFile { content: content.as_bytes(), mode: 0o644 };
    let originals = HashMap::from([("big".to_owned(), big)]);
    let peak = std::cell::Cell::new(0);
    let hold = |bytes| {
        peak.set(peak.get().max(bytes));
        Ok(())
    };
    plan(&patches, &originals, 0, &never_cancelled, &hold).unwrap();
    assert_eq!(peak.get(), 3 * content.len());

    let hold = |bytes| {
        if bytes <= 2 * content.len() { Ok(()) } else { Err(Error::new(Reason::FileTooLarge, "")) }
    };
    let error = plan(&patches, &originals, 0, &never_cancelled, &hold).unwrap_err();
    assert_eq!(error.reason, Reason::FileTooLarge);
}
