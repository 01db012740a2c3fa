//! What a search finds, in trees made for it.

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

fn selection() -> WalkFilter {
    WalkFilter {
        globs: compile_globs([]).unwrap(),
        respect_ignore: true,
        include_hidden: false,
        include_git: false,
        max_depth: None,
    }
}

fn wish(text: &str, multiline: bool, context: usize, most: usize) -> SearchOptions {
    SearchOptions {
        pattern: SearchPattern::new(SearchQuery {
            text,
            is_regex: true,
            case_sensitive: true,
            multiline,
        })
        .unwrap(),
        context_lines: context,
        max_matches: most,
        max_bytes: 1 << 20,
    }
}

fn search_in(
    workspace: &Workspace,
    path: &str,
    wish: &SearchOptions,
) -> Result<SearchResults, Error> {
    let path = workspace.resolve(path).unwrap();
    let progress = SearchProgress::new(wish.max_matches, wish.max_bytes);
    let complete = workspace.search(&path, selection(), wish, &progress, &CancelToken::new())?;
    assert!(complete);
    Ok(progress.take())
}

/// Each match as `file:line:column:content`, with its context in front of and behind bars.
fn shown(finds: &SearchResults) -> Vec<String> {
    let hits = finds.matches.iter().map(|(path, hit)| {
        let around = |lines: &[String]| lines.join(",");
        format!(
            "{path}:{}:{}:{}|{}|{}",
            hit.line,
            hit.column,
            around(&hit.before),
            hit.content,
            around(&hit.after)
        )
    });
    hits.collect()
}

#[test]
fn matches_have_the_lines_around_them() {
    for (content, query, context, expected) in [
        ("a\nx\nb\n", "x", 1, &["f:2:1:a|x|b"][..]),
        ("a\nx\nb\n", "x", 0, &["f:2:1:|x|"]),
        ("x", "x", 2, &["f:1:1:|x|"]),
        ("x\r\ny\r\n", "y", 2, &["f:2:1:x|y|"]),
        // Lines between two matches belong to both, and so do the matches.
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
            let finds = search_in(&workspace, path, &wish(query, false, context, 9)).unwrap();
            assert_eq!(shown(&finds), expected, "{content:?} {query} {path}");
            assert_eq!(finds.total, expected.len() as u64);
            assert_eq!((finds.files_searched, finds.files_incomplete), (1, 0));
        }
    }
}

#[test]
fn a_match_may_span_lines() {
    for (content, query, context, expected) in [
        ("a\nx\ny\nb\n", "x\\ny", 1, &["f:2:1:a|x\ny|b"][..]),
        (
            // As ripgrep has it, matches in adjoining lines are one.
            "a\n x\ny\nx\ny\n",
            "x\ny",
            1,
            &["f:2:2:a| x\ny\nx\ny|"],
        ),
        ("a\nb\nc\nd\n", "(?s)b.*c", 2, &["f:2:1:a|b\nc|d"]),
        ("foo\n", "foo$", 0, &["f:1:1:|foo|"]),
    ] {
        let (_directory, workspace) = tree(&[("f", content.as_bytes())]);
        let finds = search_in(&workspace, ".", &wish(query, true, context, 9)).unwrap();
        assert_eq!(shown(&finds), expected, "{content:?} {query}");
    }
    let many = "a\n".repeat(100_000) + "x";
    let (_directory, workspace) = tree(&[("f", many.as_bytes())]);
    let finds = search_in(&workspace, ".", &wish("(?s)a.*\nx", true, 2, 9)).unwrap();
    let hit = &finds.matches[0].1;
    assert!(hit.content.len() < 20_000 && hit.content.ends_with('\u{2026}'));
}

#[test]
fn encodings_are_those_of_ripgrep() {
    let utf16: Vec<u8> = "\u{feff}a\u{e9}x\n".encode_utf16().flat_map(u16::to_le_bytes).collect();
    let (_directory, workspace) = tree(&[
        ("binary", b"b\0x\nx\n"),
        ("broken", b"\xff\xfe\0x"),
        ("latin", b"\xe9x\xff\n"),
        ("utf16", &utf16),
        ("utf8", "\u{feff}x".as_bytes()),
    ]);
    let finds = search_in(&workspace, ".", &wish("x", false, 0, 9)).unwrap();
    assert_eq!(
        shown(&finds),
        ["latin:1:2:|\u{fffd}x\u{fffd}|", "utf16:1:4:|a\u{e9}x|", "utf8:1:1:|x|"]
    );
    assert_eq!((finds.files_searched, finds.files_incomplete), (5, 0));
}

#[test]
fn the_first_matches_are_those_of_the_whole_order_and_all_are_counted() {
    let names: Vec<String> = (0..300).map(|number| format!("{}/{number:03}", number % 7)).collect();
    let files: Vec<(&str, &[u8])> =
        names.iter().map(|name| (name.as_str(), &b"x\ny\nx\n"[..])).collect();
    let (_directory, workspace) = tree(&files);
    let all = search_in(&workspace, ".", &wish("x", false, 1, 1000)).unwrap();
    let all_shown = shown(&all);
    assert_eq!((all_shown.len(), all.total, all.files_searched), (600, 600, 300));
    let order: Vec<_> = all.matches.iter().map(|(path, hit)| (path.clone(), hit.line)).collect();
    assert!(order.is_sorted());
    for most in [1, 2, 3, 50, 599, 600, 601] {
        let finds = search_in(&workspace, ".", &wish("x", false, 1, most)).unwrap();
        assert_eq!(shown(&finds), all_shown[..most.min(600)], "{most}");
        assert_eq!(finds.total, 600);
    }
    let small = SearchOptions { max_bytes: 200, ..wish("x", false, 1, 1000) };
    let finds = search_in(&workspace, ".", &small).unwrap();
    assert!((1..10).contains(&finds.matches.len()));
    assert_eq!(finds.total, 600);
}

#[test]
fn what_is_no_file_is_not_opened() {
    let (directory, workspace) = tree(&[("a/file", b"x"), ("secret/x", b"x")]);
    let at = |name: &str| directory.path().join(name);
    let outside = tempfile::tempdir().unwrap();
    fs::write(outside.path().join("file"), "x").unwrap();
    symlink(outside.path().join("file"), at("a/link")).unwrap();
    symlink(outside.path(), at("a/links")).unwrap();
    mknodat(CWD, at("a/fifo"), FileType::Fifo, Mode::RWXU, 0).unwrap();
    let _socket = UnixListener::bind(at("a/socket")).unwrap();
    let finds = search_in(&workspace, ".", &wish("x", false, 0, 9)).unwrap();
    assert_eq!(shown(&finds), ["a/file:1:1:|x|", "secret/x:1:1:|x|"]);
    for (path, reason) in [
        ("a/link", Reason::SymlinkBlocked),
        ("a/links/file", Reason::SymlinkBlocked),
        ("a/fifo", Reason::NotAFile),
        ("a/socket", Reason::NotAFile),
        ("none", Reason::FileNotFound),
        ("a/file/x", Reason::FileNotFound),
    ] {
        let error = search_in(&workspace, path, &wish("x", false, 0, 9)).unwrap_err();
        assert_eq!(error.reason, reason, "{path}");
    }
}

#[test]
fn a_line_that_is_too_long_is_told_and_the_rest_is_searched() {
    let long = [vec![b'a'; MAX_SEARCH_BUFFER_BYTES + 1000], b"x".to_vec()].concat();
    let (_directory, workspace) = tree(&[("a", &long), ("b", b"x")]);
    for multiline in [false, true] {
        let finds = search_in(&workspace, ".", &wish("x", multiline, 0, 9)).unwrap();
        assert_eq!(shown(&finds), ["b:1:1:|x|"]);
        assert_eq!((finds.files_searched, finds.files_incomplete), (2, 1));
    }
}

#[test]
fn a_search_that_is_stopped_answers_at_once_with_what_it_has() {
    let (directory, workspace) = tree(&[("a", b"x\n")]);
    let large = fs::File::create(directory.path().join("b")).unwrap();
    for _ in 0..400 {
        std::io::Write::write_all(&mut &large, "yy\n".repeat(100_000).as_bytes()).unwrap();
    }
    let base = workspace.resolve(".").unwrap();
    for query in ["x", "(?:[a-z]{1,30}){20}x|^x$", "x|y"] {
        let stop = CancelToken::new();
        let wish = wish(query, false, 2, 5);
        let progress = SearchProgress::new(wish.max_matches, wish.max_bytes);
        thread::scope(|scope| {
            let search = scope.spawn(|| {
                let complete = workspace.search(&base, selection(), &wish, &progress, &stop);
                (complete.unwrap(), Instant::now())
            });
            let begun = Instant::now();
            while !progress.take().matches.iter().any(|(path, _)| &**path == "a") {
                let patience = Duration::from_secs(60);
                assert!(begun.elapsed() < patience, "{query}: it finds nothing");
                thread::yield_now();
            }
            stop.cancel();
            let stopped = Instant::now();
            let (complete, end) = search.join().unwrap();
            eprintln!("{query} {:?}", end.saturating_duration_since(stopped));
            assert!(!complete);
            let patience = Duration::from_millis(if cfg!(debug_assertions) { 5000 } else { 50 });
            assert!(end.saturating_duration_since(stopped) < patience, "{query}");
        });
    }
    let stop = CancelToken::new();
    stop.cancel();
    let progress = SearchProgress::new(1, 1);
    let wish = wish("x", false, 0, 1);
    let complete = workspace.search(&base, selection(), &wish, &progress, &stop);
    assert!(!complete.unwrap());
}
