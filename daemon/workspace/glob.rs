//! Compiles globs that select paths.

use ignore::overrides::{Override, OverrideBuilder};

use crate::daemon::error::{Error, Reason};

/// Compiles globs with the semantics of ripgrep's `--glob`: of those that match, the last decides.
/// Empty globs are ignored.
pub(crate) fn compile_globs<'a>(
    globs: impl IntoIterator<Item = &'a str>,
) -> Result<Override, Error> {
    let mut builder = OverrideBuilder::new("");
    for glob in globs.into_iter().filter(|glob| !glob.is_empty()) {
        builder.add(&to_ignore_line(glob)).map_err(|error| {
            let problem = if let ignore::Error::Glob { err, .. } = &error {
                err.clone()
            } else {
                error.to_string()
            };
            invalid_glob(glob, &problem)
        })?;
    }
    builder.build().map_err(|error| {
        Error::new(Reason::InvalidGlob, format!("the globs together are too large: {error}"))
    })
}

fn invalid_glob(glob: &str, problem: &str) -> Error {
    Error::new(Reason::InvalidGlob, format!("{glob:?} is not a glob: {problem}"))
        .with_metadata("glob", glob)
}

/// Converts a glob to a line of an ignore file, which the matcher expects. There, a leading `#`
/// would begin a comment, and trailing white space would be stripped.
fn to_ignore_line(glob: &str) -> String {
    if glob.starts_with('#') {
        return to_ignore_line(&format!("\\{glob}"));
    }
    match glob.char_indices().next_back() {
        Some((end, last)) if last.is_whitespace() => {
            let before = &glob[..end];
            let backslashes = before.len() - before.trim_end_matches('\\').len();
            // A backslash that escapes the white space is not needed within braces.
            let before = &before[..end - backslashes % 2];
            format!("{before}{{{last}}}")
        }
        _ => glob.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn globs_are_not_lines_of_an_ignore_file() {
        for (glob, matching, other) in [
            ("#a", "#a", "a"),
            ("!#a", "a", "#a"),
            ("a ", "a ", "a"),
            ("a\\ ", "a ", "a"),
            ("a\\\\\t", "a\\\t", "a\\"),
            ("a\u{3000}", "a\u{3000}", "a"),
            (" ", " ", ""),
            ("#", "#", "x"),
            ("a\nb", "a\nb", "a"),
        ] {
            let globs = compile_globs([glob]).unwrap();
            assert!(!globs.matched(matching, false).is_ignore(), "{glob:?}");
            assert!(globs.matched(other, false).is_ignore(), "{glob:?}");
        }
        assert!(compile_globs([""]).unwrap().is_empty());
    }

    #[test]
    fn the_last_matching_glob_decides() {
        let globs = compile_globs(["*.rs", "!a*", "ab.rs"]).unwrap();
        for (path, wanted) in [("b.rs", true), ("a.rs", false), ("ab.rs", true), ("c", false)] {
            assert_eq!(!globs.matched(path, false).is_ignore(), wanted, "{path}");
        }
    }
}
