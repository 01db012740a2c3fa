//! Searches in small trees.

use std::{
    ffi::OsStr,
    fs,
    os::unix::{ffi::OsStrExt as _, fs::symlink, net::UnixListener},
    path::Path,
    time::{Duration, Instant},
};

use rustix::fs::{CWD, FileType, Mode, mknodat};
use tempfile::TempDir;

use super::*;
use crate::daemon::{
    error::Reason,
    workspace::{Workspace, glob::compile_globs},
};

fn tree(files: &[(&str, &[u8])]) -> (TempDir, Workspace) {
    let directory = tempfile::tempdir().unwrap();
    for (name, content) in files {
        write(directory.path(), name.as_bytes(), content);
    }
    let workspace = Workspace::open("w", directory.path(), "/workspace").unwrap();
    (directory, workspace)
}

fn write(directory: &Path, name: &[u8], content: &[u8]) {
    let path = directory.join(OsStr::from_bytes(name));
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, content).unwrap();
}

fn filter() -> WalkFilter {
    WalkFilter {
        globs: compile_globs([]).unwrap(),
        respect_ignore: true,
        include_hidden: false,
        include_git: false,
        max_depth: None,
    }
}

fn options(text: &str, multiline: bool, context_lines: usize, max_matches: usize) -> SearchOptions {
    SearchOptions {
        pattern: SearchPattern::new(SearchQuery {
            text,
            is_regex: true,
            case_sensitive: true,
            multiline,
        })
        .unwrap(),
        context_lines,
        max_matches,
        max_bytes: 1 << 20,
    }
}

fn search_in(
    workspace: &Workspace,
    path: &str,
    options: &SearchOptions,
) -> Result<SearchResults, Error> {
    let path = workspace.resolve(path).unwrap();
    let progress = SearchProgress::new(options.max_matches, options.max_bytes);
    let is_complete = workspace.search(&path, filter(), options, &progress, &CancelToken::new())?;
    assert!(is_complete);
    Ok(progress.take())
}

/// Formats each match as `file:line:column:before|content|after`.
fn format_matches(results: &SearchResults) -> Vec<String> {
    let lines = results.matches.iter().map(|(path, item)| {
        let joined = |lines: &[String]| lines.join(",");
        format!(
            "{path}:{}:{}:{}|{}|{}",
            item.line,
            item.column,
            joined(&item.before),
            item.content,
            joined(&item.after)
        )
    });
    lines.collect()
}

#[test]
fn matches_have_context_lines() {
    for (content, query, context, expected) in [
        ("a\nx\nb\n", "x", 1, &["f:2:1:a|x|b"][..]),
        ("a\nx\nb\n", "x", 0, &["f:2:1:|x|"]),
        ("x", "x", 2, &["f:1:1:|x|"]),
        ("x\r\ny\r\n", "y", 2, &["f:2:1:x|y|"]),
        // Lines between two matches are context of both, and so are the matches.
        ("x1\na\nx2\n", "x", 1, &["f:1:1:|x1|a", "f:3:1:a|x2|"]),
        ("x1\nx2\nx3\n", "x", 1, &["f:1:1:|x1|x2", "f:2:1:x1|x2|x3", "f:3:1:x2|x3|"]),
        ("x1\na\nb\nc\nx2\n", "x", 1, &["f:1:1:|x1|a", "f:5:1:c|x2|"]),
        ("1\n2\n3\n4\nx\n5\n6\n7\n8\n", "x", 3, &["f:5:1:2,3,4|x|5,6,7"]),
        ("\u{e9}ax", "x", 0, &["f:1:4:|\u{e9}ax|"]),
        ("a xx x", "x+", 0, &["f:1:3:|a xx x|"]),
        ("ab\ncb", "b$", 0, &["f:1:2:|ab|", "f:2:2:|cb|"]),
        ("\n\nx", "^", 0, &["f:1:1:||", "f:2:1:||", "f:3:1:|x|"]),
    ] {
        let (_directory, workspace) = tree(&[("f", content.as_bytes())]);
        for path in [".", "f"] {
            let results = search_in(&workspace, path, &options(query, false, context, 9)).unwrap();
            assert_eq!(format_matches(&results), expected, "{content:?} {query} {path}");
            assert_eq!(results.total, expected.len() as u64);
            assert_eq!((results.files_searched, results.files_incomplete), (1, 0));
        }
    }
}

#[test]
fn matches_can_span_lines() {
    for (content, query, context, expected) in [
        ("a\nx\ny\nb\n", "x\\ny", 1, &["f:2:1:a|x\ny|b"][..]),
        (
            // As in ripgrep, matches in adjacent lines are merged.
            "a\n x\ny\nx\ny\n",
            "x\ny",
            1,
            &["f:2:2:a| x\ny\nx\ny|"],
        ),
        ("a\nb\nc\nd\n", "(?s)b.*c", 2, &["f:2:1:a|b\nc|d"]),
        ("foo\n", "foo$", 0, &["f:1:1:|foo|"]),
    ] {
        let (_directory, workspace) = tree(&[("f", content.as_bytes())]);
        let results = search_in(&workspace, ".", &options(query, true, context, 9)).unwrap();
        assert_eq!(format_matches(&results), expected, "{content:?} {query}");
    }
    let many = "a\n".repeat(100_000) + "x";
    let (_directory, workspace) = tree(&[("f", many.as_bytes())]);
    let results = search_in(&workspace, ".", &options("(?s)a.*\nx", true, 2, 9)).unwrap();
    let item = &results.matches[0].1;
    assert!(item.content.len() < 20_000 && item.content.ends_with('\u{2026}'));
}

#[test]
fn encodings_are_detected_as_by_ripgrep() {
    let utf16: Vec<u8> = "\u{feff}a\u{e9}x\n".encode_utf16().flat_map(u16::to_le_bytes).collect();
    let (_directory, workspace) = tree(&[
        ("binary", b"b\0x\nx\n"),
        ("broken", b"\xff\xfe\0x"),
        ("latin", b"\xe9x\xff\n"),
        ("utf16", &utf16),
        ("utf8", "\u{feff}x".as_bytes()),
    ]);
    let results = search_in(&workspace, ".", &options("x", false, 0, 9)).unwrap();
    assert_eq!(
        format_matches(&results),
        ["latin:1:2:|\u{fffd}x\u{fffd}|", "utf16:1:4:|a\u{e9}x|", "utf8:1:1:|x|"]
    );
    assert_eq!((results.files_searched, results.files_incomplete), (5, 0));
}

#[test]
fn first_matches_in_path_order_are_returned_and_all_are_counted() {
    let names: Vec<String> = (0..300).map(|number| format!("{}/{number:03}", number % 7)).collect();
    let files: Vec<(&str, &[u8])> =
        names.iter().map(|name| (name.as_str(), &b"x\ny\nx\n"[..])).collect();
    let (_directory, workspace) = tree(&files);
    let all = search_in(&workspace, ".", &options("x", false, 1, 1000)).unwrap();
    let all_lines = format_matches(&all);
    assert_eq!((all_lines.len(), all.total, all.files_searched), (600, 600, 300));
    let order: Vec<_> = all.matches.iter().map(|(path, item)| (path.clone(), item.line)).collect();
    assert!(order.is_sorted());
    for max_matches in [1, 2, 3, 50, 599, 600, 601] {
        let results = search_in(&workspace, ".", &options("x", false, 1, max_matches)).unwrap();
        assert_eq!(format_matches(&results), all_lines[..max_matches.min(600)], "{max_matches}");
        assert_eq!(results.total, 600);
    }
    let small = SearchOptions { max_bytes: 200, ..options("x", false, 1, 1000) };
    let results = search_in(&workspace, ".", &small).unwrap();
    assert!((1..10).contains(&results.matches.len()));
    assert_eq!(results.total, 600);
}

#[test]
fn only_regular_files_are_opened() {
    let (directory, workspace) = tree(&[("a/file", b"x"), ("secret/x", b"x")]);
    let at = |name: &str| directory.path().join(name);
    let outside = tempfile::tempdir().unwrap();
    fs::write(outside.path().join("file"), "x").unwrap();
    symlink(outside.path().join("file"), at("a/link")).unwrap();
    symlink(outside.path(), at("a/links")).unwrap();
    mknodat(CWD, at("a/fifo"), FileType::Fifo, Mode::RWXU, 0).unwrap();
    let _socket = UnixListener::bind(at("a/socket")).unwrap();
    let results = search_in(&workspace, ".", &options("x", false, 0, 9)).unwrap();
    assert_eq!(format_matches(&results), ["a/file:1:1:|x|", "secret/x:1:1:|x|"]);
    for (path, reason) in [
        ("a/link", Reason::SymlinkBlocked),
        ("a/links/file", Reason::SymlinkBlocked),
        ("a/fifo", Reason::NotAFile),
        ("a/socket", Reason::NotAFile),
        ("none", Reason::FileNotFound),
        ("a/file/x", Reason::FileNotFound),
    ] {
        let error = search_in(&workspace, path, &options("x", false, 0, 9)).unwrap_err();
        assert_eq!(error.reason, reason, "{path}");
    }
}

#[test]
fn file_with_a_too_long_line_is_reported_as_incomplete() {
    let long = [vec![b'a'; MAX_SEARCH_BUFFER_BYTES + 1000], b"x".to_vec()].concat();
    let (_directory, workspace) = tree(&[("a", &long), ("b", b"x")]);
    for multiline in [false, true] {
        let results = search_in(&workspace, ".", &options("x", multiline, 0, 9)).unwrap();
        assert_eq!(format_matches(&results), ["b:1:1:|x|"]);
        assert_eq!((results.files_searched, results.files_incomplete), (2, 1));
    }
}

#[test]
fn cancelled_search_returns_its_matches_at_once() {
    let (directory, workspace) = tree(&[("a", b"x\n")]);
    let large = fs::File::create(directory.path().join("b")).unwrap();
    for _ in 0..400 {
        std::io::Write::write_all(&mut &large, "yy\n".repeat(100_000).as_bytes()).unwrap();
    }
    let base = workspace.resolve(".").unwrap();
    for query in ["x", "(?:[a-z]{1,30}){20}x|^x$", "x|y"] {
        let cancel = CancelToken::new();
        let options = options(query, false, 2, 5);
        let progress = SearchProgress::new(options.max_matches, options.max_bytes);
        thread::scope(|scope| {
            let search = scope.spawn(|| {
                let complete = workspace.search(&base, filter(), &options, &progress, &cancel);
                (complete.unwrap(), Instant::now())
            });
            let start = Instant::now();
            while !progress.take().matches.iter().any(|(path, _)| &**path == "a") {
                let timeout = Duration::from_secs(60);
                assert!(start.elapsed() < timeout, "{query}: no match");
                thread::yield_now();
            }
            cancel.cancel();
            let cancelled = Instant::now();
            let (complete, end) = search.join().unwrap();
            eprintln!("{query} {:?}", end.saturating_duration_since(cancelled));
            assert!(!complete);
            let limit = Duration::from_millis(if cfg!(debug_assertions) { 5000 } else { 50 });
            assert!(end.saturating_duration_since(cancelled) < limit, "{query}");
        });
    }
    let cancel = CancelToken::new();
    cancel.cancel();
    let progress = SearchProgress::new(1, 1);
    let options = options("x", false, 0, 1);
    let complete = workspace.search(&base, filter(), &options, &progress, &cancel);
    assert!(!complete.unwrap());
}
