//! Where hunks apply, and the errors about those that do not fit.

use super::{apply_hunks, apply_patch, files};
use crate::daemon::error::Reason;

#[test]
fn hunks_apply_in_every_form() {
    let numbered = |range: std::ops::Range<usize>| -> String {
        range.map(|number| format!("{number}\n")).collect()
    };
    let twenty = numbered(1..21);
    let ten = |with: &str| numbered(1..21).replace("10\n", with);
    for (case, content, hunks, expected, fuzz, offset) in [
        ("exact", &*twenty, "@@ -9,3 +9,3 @@\n 9\n-10\n+x\n 11\n", ten("x\n"), 0, 0),
        ("wrong line", &twenty, "@@ -3,3 +3,3 @@\n 9\n-10\n+x\n 11\n", ten("x\n"), 0, 6),
        ("line after the end", &twenty, "@@ -99,3 +99,3 @@\n 9\n-10\n+x\n 11\n", ten("x\n"), 0, 90),
        ("counts too high", &twenty, "@@ -9,7 +9,9 @@\n 9\n-10\n+x\n 11\n", ten("x\n"), 0, 0),
        ("counts too low", &twenty, "@@ -9,1 +9,1 @@\n 9\n-10\n+x\n 11\n", ten("x\n"), 0, 0),
        ("no counts", &twenty, "@@ -9 +9 @@\n 9\n-10\n+x\n 11\n", ten("x\n"), 0, 0),
        ("bare", &twenty, "@@\n 9\n-10\n+x\n 11\n", ten("x\n"), 0, 0),
        ("bare twice", &twenty, "@@ @@\n 9\n-10\n+x\n 11\n", ten("x\n"), 0, 0),
        ("dots", &twenty, "@@ ... @@\n 9\n-10\n+x\n 11\n", ten("x\n"), 0, 0),
        ("section", &twenty, "@@ -9,3 +9,3 @@ fn f() {\n 9\n-10\n+x\n 11\n", ten("x\n"), 0, 0),
        ("no end of header", &twenty, "@@ -9,3 +9,3\n 9\n-10\n+x\n 11\n", ten("x\n"), 0, 0),
        (
            "huge number",
            &twenty,
            "@@ -99999999999999999999,3 +9,3 @@\n 9\n-10\n+x\n 11\n",
            ten("x\n"),
            0,
            0,
        ),
        ("first line stale", &twenty, "@@ -9,3 +9,3 @@\n old\n-10\n+x\n 11\n", ten("x\n"), 1, 0),
        (
            "two lines stale",
            &twenty,
            "@@ -8,4 +8,4 @@\n old\n old\n-10\n+x\n 11\n",
            ten("x\n"),
            2,
            0,
        ),
        ("stale and moved", &twenty, "@@ -5,3 +5,3 @@\n 9\n-10\n+x\n old\n", ten("x\n"), 1, 4),
        (
            "context before the file",
            "1\n2\n",
            "@@ -1,3 +1,3 @@\n 0\n 1\n-2\n+x\n",
            "1\nx\n".into(),
            1,
            0,
        ),
        ("no context", &twenty, "@@ -10 +10 @@\n-10\n+x\n", ten("x\n"), 0, 0),
        ("only adds", &twenty, "@@ -10,0 +11 @@\n+x\n", ten("10\nx\n"), 0, 0),
        ("adds at the start", "1\n", "@@ -0,0 +1 @@\n+x\n", "x\n1\n".into(), 0, 0),
        ("adds at the end", "1\n", "@@ -1,0 +2 @@\n+x\n", "1\nx\n".into(), 0, 0),
        ("fills an empty file", "", "@@\n+x\n", "x\n".into(), 0, 0),
        ("blank stripped", "a\n\nb\n", "@@ -1,3 +1,3 @@\n a\n\n-b\n+x\n", "a\n\nx\n".into(), 0, 0),
        (
            "blank stripped, wrong counts",
            "a\n\nb\n",
            "@@ -1,1 +1,1 @@\n a\n\n-b\n+x\n\n\n",
            "a\n\nx\n".into(),
            0,
            0,
        ),
        ("added before removed", "a\n", "@@ -1 +1 @@\n+b\n-a\n", "b\n".into(), 0, 0),
        (
            "looks like a header",
            "-- x\n1\n",
            "@@ -1,2 +1,2 @@\n--- x\n+++ y\n 1\n",
            "++ y\n1\n".into(),
            0,
            0,
        ),
        (
            "two hunks, same offset",
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
        ("unicode", "ä\u{2028}ö\n", "@@ -1 +1 @@\n-ä\u{2028}ö\n+☃\n", "☃\n".into(), 0, 0),
        // Text around the patch.
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
        ("prose", &twenty, "@@ -9,9 +9,9 @@\n 9\n-10\n+x\n 11\n\nThis was it.\n", ten("x\n"), 0, 0),
        ("list", &twenty, "@@ -9,3 +9,3 @@\n 9\n-10\n+x\n 11\n\n- changed\n", ten("x\n"), 0, 0),
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
        // Line endings.
        (
            "CRLF file",
            "a\r\nb\r\nc\r\n",
            "@@ -1,3 +1,4 @@\n a\n-b\n+x\n+y\n c\n",
            "a\r\nx\r\ny\r\nc\r\n".into(),
            0,
            0,
        ),
        (
            "CRLF patch",
            "a\nb\nc\n",
            "@@ -1,3 +1,3 @@\n a\r\n-b\r\n+x\r\n c\r\n",
            "a\nx\nc\n".into(),
            0,
            0,
        ),
        (
            "CRLF file and patch",
            "a\r\nb\r\n",
            "@@ -1,2 +1,2 @@\n a\r\n-b\r\n+x\r\n",
            "a\r\nx\r\n".into(),
            0,
            0,
        ),
        (
            "becomes CRLF",
            "a\nb\n",
            "@@ -1,2 +1,2 @@\n-a\n-b\n+a\r\n+b\r\n",
            "a\r\nb\r\n".into(),
            0,
            0,
        ),
        (
            "loses one CRLF",
            "a\r\nb\r\n",
            "@@ -1,2 +1,2 @@\n-a\r\n b\r\n+a\n",
            "b\r\na\n".into(),
            0,
            0,
        ),
        (
            "insertion into a CRLF file",
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
            "loses its CRLF at the end",
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
        ("patch without marker", "a\nb", "@@ -1,2 +1,2 @@\n a\n-b\n+x\n", "a\nx".into(), 0, 0),
        (
            "patch without marker, grows",
            "a\nb",
            "@@ -1,2 +1,3 @@\n a\n b\n+x\n",
            "a\nb\nx".into(),
            0,
            0,
        ),
        (
            "wrong marker",
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
            "marker in the middle",
            "a\nb\n",
            "@@ -1 +1 @@\n-a\n+x\n\\ No newline at end of file\n",
            "x\nb\n".into(),
            0,
            0,
        ),
        ("the patch ends early", "a\n", "@@ -1 +1 @@\n-a\n+x", "x\n".into(), 0, 0),
    ] {
        let result = apply_hunks(content, hunks).unwrap_or_else(|error| panic!("{case}: {error}"));
        assert_eq!(result, (expected, fuzz, offset), "{case}");
    }

    // CRLF endings of the patch itself do not apply to the file.
    let patch = "--- a/f\r\n+++ b/f\r\n@@ -1,2 +1,2 @@\r\n a\r\n-b\r\n+x\r\n";
    for (before, expected) in [("a\nb\n", "a\nx\n"), ("a\r\nb\r\n", "a\r\nx\r\n")] {
        let (after, _) = apply_patch(&files(&[("f", before)]), patch, 1).unwrap();
        assert_eq!(after["f"], expected);
    }
}

#[test]
fn errors_show_the_lines_of_the_file() {
    for (content, hunks, shown) in [
        ("a\nb\nc\n", "@@ -1,3 +1,3 @@\n a\n-B\n+x\n c\n", "\"B\" where line 2 is \"b\""),
        ("a\nb\n", "@@ -1,3 +1,3 @@\n a\n-b\n-c\n", "\"c\" where line 3 is the end of the file"),
        ("a\nx\nc\n", "@@ -1,3 +1,3 @@\n a\n-b\n+x\n c\n", "it is already applied"),
        ("a\nb\nc\n", "@@\n a\n-x\n c\n", "1: \"a\"\n2: \"b\"\n3: \"c\""),
        ("", "@@ -1 +1 @@\n-a\n", "The file is empty"),
        ("a\n1\na\n1\n", "@@\n a\n-1\n+2\n", "equally well at lines 1 and 3"),
        ("a\n0\na\n", "@@ -2 +2 @@\n-a\n+b\n", "equally well at lines 1 and 3"),
        ("a\n", "@@\n+x\n", "it only adds lines"),
        ("a\n", "@@ -5,0 +6 @@\n+x\n", "it only adds lines"),
        (
            "a\nb\n",
            "@@ -2 +2 @@\n-b\n+x\n@@ -1 +1 @@\n-a\n+y\n",
            "hunk 2 of \"f\" (line 6 of the patch)",
        ),
        ("a\nb\nc\n", "@@ -1,3 +1,4 @@\n x\n y\n z\n+n\n", "\"x\" where line 1 is \"a\""),
    ] {
        let error = apply_hunks(content, hunks).unwrap_err();
        assert_eq!(error.reason, Reason::PatchHunkFail, "{error}");
        assert!(error.message.contains(shown), "{hunks}: {error}");
        assert!(error.metadata.contains(&("path".into(), "f".to_owned())));
    }

    let long = "y".repeat(10_000) + "\n";
    let error = apply_hunks(&long.repeat(100), "@@ -1 +1 @@\n-a\n").unwrap_err();
    assert!(error.message.len() < 2000, "{}", error.message.len());
}
