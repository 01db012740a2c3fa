//! Reads files of all kinds, by lines and by bytes.

use std::{
    fs,
    io::Write as _,
    os::unix::fs::{FileExt as _, symlink},
};

use rustix::fs::{CWD, FileType, Mode, mknodat};
use sha2::{Digest as _, Sha256};
use tempfile::TempDir;
use v1::Encoding::{Base64, Utf8};

use super::*;
use crate::daemon::{error::Reason, workspace::Workspace};

fn read_file(
    workspace: &Workspace,
    request: v1::ReadFileRequest,
    cancel: &CancelToken,
) -> Result<v1::ReadFileResponse, Error> {
    let path = workspace.resolve(&request.path)?;
    read_excerpt(&workspace.open_file(&path)?, &request, cancel)
}

/// Reads a file with and without a blocking thread, and compares the results.
fn read_both_ways(
    workspace: &Workspace,
    request: v1::ReadFileRequest,
) -> Result<v1::ReadFileResponse, Error> {
    let path = workspace.resolve(&request.path)?;
    let cached = workspace
        .open_file_cached(&path, MAX_NONBLOCKING_READ_BYTES)
        .map(|file| read_excerpt(&file, &request, &CancelToken::new()));
    let read = read_file(workspace, request, &CancelToken::new());
    if let Some(cached) = cached {
        assert_eq!(format!("{cached:?}"), format!("{read:?}"));
    }
    read
}

fn workspace() -> (TempDir, Workspace) {
    let directory = tempfile::tempdir().unwrap();
    let workspace = Workspace::open("w", directory.path(), "/workspace").unwrap();
    (directory, workspace)
}

fn request(path: &str) -> v1::ReadFileRequest {
    v1::ReadFileRequest { path: path.to_owned(), ..Default::default() }
}

fn read(
    content: impl AsRef<[u8]>,
    change: impl FnOnce(&mut v1::ReadFileRequest),
) -> Result<v1::ReadFileResponse, Error> {
    let (directory, workspace) = workspace();
    fs::write(directory.path().join("f"), content).unwrap();
    let mut request = request("/workspace/f");
    change(&mut request);
    read_both_ways(&workspace, request)
}

/// Lines of different lengths. Each contains its line number.
fn numbered(lines: u64) -> String {
    (1..=lines).map(|line| format!("{line}\n")).collect()
}

#[test]
fn whole_files_are_returned_unchanged() {
    for (content, lines) in [
        ("", 0),
        ("\n", 1),
        ("a", 1),
        ("a\n", 1),
        ("a\nb", 2),
        ("a\r\nb\r\n", 2),
        ("a\rb", 1),
        ("\n\n\n", 3),
        ("nul \0 is text\n", 1),
        ("\u{feff}\u{202e}\u{1f600}\u{e9}\n", 1),
        (&"\u{20ac}".repeat(200_000), 1),
        (&format!("a{}", "\u{1f600}".repeat(100_000)), 1),
        (&numbered(10_000), 10_000),
    ] {
        for encoding in [Utf8, Base64] {
            let response =
                read(content, |request| request.encoding = Some(encoding.into())).unwrap();
            let expected = v1::ReadFileResponse {
                content: if encoding == Base64 {
                    BASE64_STANDARD.encode(content)
                } else {
                    content.to_owned()
                },
                encoding: encoding.into(),
                truncated: false,
                omitted_lines: 0,
                total_lines: lines,
                start_line: lines.min(1),
                end_line: lines,
                size_bytes: content.len() as u64,
                sha256: hash(content),
                next_path: String::new(),
            };
            assert_eq!(response, expected);
        }
    }
    assert_eq!(hash(""), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
}

fn hash(content: &str) -> String {
    to_hex(&Sha256::digest(content))
}

#[test]
fn line_ranges_are_inclusive_and_clamped() {
    const FILE: &str = "one\ntwo\r\nthree\n\nfive";
    for (start, end, content, lines) in [
        (Some(1), Some(1), "one\n", (1, 1)),
        (Some(2), Some(3), "two\r\nthree\n", (2, 3)),
        (Some(4), Some(4), "\n", (4, 4)),
        (Some(4), None, "\nfive", (4, 5)),
        (Some(5), Some(5), "five", (5, 5)),
        (Some(5), Some(u32::MAX), "five", (5, 5)),
        (None, Some(2), "one\ntwo\r\n", (1, 2)),
        (Some(1), None, FILE, (1, 5)),
    ] {
        let response = read(FILE, |request| {
            request.start_line = start;
            request.end_line = end;
        })
        .unwrap();

        assert_eq!(response.content, content, "{start:?} {end:?}");
        assert_eq!((response.start_line, response.end_line), lines);
        assert!(!response.truncated);
        assert_eq!((response.total_lines, response.omitted_lines), (5, 0));
        assert_eq!(response.sha256, hash(FILE));
    }
}

#[test]
fn range_outside_the_file_is_rejected() {
    for (content, start, end, reason) in [
        ("a\nb\n", 3, None, Some(Reason::LineRangeInvalid)),
        ("a\nb\n", 2, None, None),
        ("a\nb", 3, Some(3), Some(Reason::LineRangeInvalid)),
        ("", 1, None, None),
        ("", 1, Some(7), None),
        ("", 2, None, Some(Reason::LineRangeInvalid)),
        ("a", u32::MAX, None, Some(Reason::LineRangeInvalid)),
        ("a\nb\n", 2, Some(1), Some(Reason::InvalidParams)),
    ] {
        let result = read(content, |request| {
            request.start_line = Some(start);
            request.end_line = end;
        });
        assert_eq!(result.err().map(|error| error.reason), reason, "{content:?}");
    }

    let error = read("a\nb\n", |request| request.start_line = Some(9)).unwrap_err();
    assert!(error.message.contains("has 2 lines"), "{error}");

    let error = read("a", |request| {
        request.start_line = Some(2);
        request.end_line = Some(1);
    });
    assert_eq!(error.unwrap_err().violations[0].field, "end_line");
}

#[test]
fn long_files_return_their_first_and_last_lines() {
    for (lines, final_ending) in [(10_001, true), (10_001, false), (10_002, true), (25_000, false)]
    {
        let mut content = numbered(lines);
        if !final_ending {
            content.pop();
        }
        let split: Vec<&str> = content.split_inclusive('\n').collect();
        let head = split[..5000].concat();
        let tail = split[split.len() - 5000..].concat();
        let expected = format!("{head}{tail}");

        // With the whole file in memory; with none of the tail; with a part of it.
        let all = expected.len();
        for max_bytes in
            [3 << 20, all + 1, all, all - 1, head.len() + 7, head.len(), head.len() - 1, 3]
        {
            let response = read(&content, |request| {
                request.max_bytes = Some(u32::try_from(max_bytes).unwrap());
            })
            .unwrap();
            let expected = &expected[..max_bytes.min(all)];

            assert!(response.content == expected, "{lines} {max_bytes}");
            assert!(response.truncated);
            assert_eq!(u64::from(response.omitted_lines), lines - 10_000);
            assert_eq!(u64::from(response.total_lines), lines);
            assert_eq!(response.start_line, 1);
            let last = expected.trim_end().split('\n').next_back().unwrap();
            if max_bytes >= all || max_bytes <= head.len() && expected.ends_with('\n') {
                assert_eq!(response.end_line.to_string(), last, "{lines} {max_bytes}");
            }
            assert!(response.end_line.to_string().starts_with(last), "{lines} {max_bytes}");
            assert_eq!(response.sha256, hash(&content));
        }
    }

    // A range that covers the whole file omits no lines.
    let content = numbered(12_000);
    let response = read(&content, |request| request.start_line = Some(1)).unwrap();
    assert!(response.content == content && !response.truncated);
    assert_eq!((response.omitted_lines, response.end_line), (0, 12_000));
}

#[test]
fn text_is_truncated_between_characters_and_bytes_anywhere() {
    for (content, max_bytes, expected, end_line) in [
        ("a\u{20ac}b", 1, "a", 1),
        ("a\u{20ac}b", 2, "a", 1),
        ("a\u{20ac}b", 3, "a", 1),
        ("a\u{20ac}b", 4, "a\u{20ac}", 1),
        ("\u{1f600}", 3, "", 1),
        ("a\nb\nc\n", 2, "a\n", 1),
        ("a\nb\nc\n", 3, "a\nb", 2),
        ("a\nb\nc\n", 5, "a\nb\nc", 3),
    ] {
        for start_line in [None, Some(1)] {
            let cut = |encoding: v1::Encoding| {
                read(content, |request| {
                    request.max_bytes = Some(max_bytes);
                    request.start_line = start_line;
                    request.encoding = Some(encoding.into());
                })
                .unwrap()
            };

            let text = cut(Utf8);
            assert_eq!(text.content, expected, "{content:?} {max_bytes}");
            assert!(text.truncated);
            assert_eq!((text.start_line, text.end_line), (1, end_line));

            let bytes = cut(Base64);
            let expected = &content.as_bytes()[..usize::try_from(max_bytes).unwrap()];
            assert_eq!(bytes.content, BASE64_STANDARD.encode(expected));
            assert!(bytes.truncated);
        }
    }

    let exact = read("abc", |request| request.max_bytes = Some(3)).unwrap();
    assert!(!exact.truncated);
}

#[test]
fn one_huge_line_is_limited_to_max_bytes() {
    let content = "\u{20ac}".repeat(2 << 20);
    let response = read(&content, |_| ()).unwrap();
    assert_eq!(response.content.len(), (3 << 20) / 3 * 3);
    assert!(response.truncated);
    assert_eq!((response.total_lines, response.end_line), (1, 1));
    assert_eq!(response.size_bytes, content.len() as u64);
}

#[test]
fn invalid_text_is_rejected_anywhere_in_the_file() {
    let mut late = numbered(50_000).into_bytes();
    late.push(0xff);
    let mut split = vec![b'a'; 128 * 1024 - 1];
    split.extend([0xe2, 0x82]);

    for content in [&b"\xff"[..], b"a\n\xc3", b"\xed\xa0\x80", b"\xc0\x80", &late, &split] {
        for start_line in [None, Some(1)] {
            let error = read(content, |request| {
                request.start_line = start_line;
                request.end_line = start_line;
            })
            .unwrap_err();
            assert_eq!(error.reason, Reason::BinaryFile);
            assert!(error.message.contains("ENCODING_BASE64"), "{error}");
        }

        let bytes = read(content, |request| {
            request.start_line = Some(1);
            request.encoding = Some(Base64.into());
        });
        assert_eq!(bytes.unwrap().content, BASE64_STANDARD.encode(content));
    }
}

#[test]
fn large_files_need_a_range_and_are_not_read_without() {
    let (directory, workspace) = workspace();
    let file = fs::File::create(directory.path().join("f")).unwrap();
    for size in [(256 << 20) + 1, 1 << 40] {
        file.set_len(size).unwrap();
        let error = read_file(&workspace, request("f"), &CancelToken::new()).unwrap_err();
        assert_eq!(error.reason, Reason::FileTooLarge);
        assert!(error.message.contains("start_line"), "{error}");
    }

    // A file without line endings is read until the call is cancelled.
    let cancel = CancelToken::new();
    let late = cancel.clone();
    let waiting = std::thread::spawn(move || {
        std::thread::sleep(std::time::Duration::from_millis(50));
        late.cancel();
    });
    let ranged = v1::ReadFileRequest { start_line: Some(2), ..request("f") };
    let error = read_file(&workspace, ranged, &cancel).unwrap_err();
    assert_eq!(error.reason, Reason::Timeout);
    waiting.join().unwrap();
}

#[test]
fn large_files_are_not_read_beyond_the_range() {
    const FAR: u64 = 300 << 20;
    let (directory, workspace) = workspace();
    let file = fs::File::create(directory.path().join("f")).unwrap();
    let ranged = |start, end, max_bytes, encoding: v1::Encoding| {
        let request = v1::ReadFileRequest {
            start_line: Some(start),
            end_line: end,
            max_bytes,
            encoding: Some(encoding.into()),
            ..request("f")
        };
        read_file(&workspace, request, &CancelToken::new())
    };

    file.write_all_at(b"one\ntwo \xe2\x82\xac\nthree\xff", 0).unwrap();
    file.write_all_at(b"\nlast but one\nlast", FAR).unwrap();
    let size = file.metadata().unwrap().len();
    for (start, end, max_bytes, content, truncated, last) in [
        (1, Some(1), None, "one\n", false, 1),
        (2, Some(2), None, "two \u{20ac}\n", false, 2),
        (1, Some(2), Some(10), "one\ntwo ", true, 2),
        (2, None, Some(4), "two ", true, 2),
        (4, Some(4), None, "last but one\n", false, 4),
        (4, None, None, "last but one\nlast", false, 5),
        (5, Some(9), None, "last", false, 5),
    ] {
        let response = ranged(start, end, max_bytes, Utf8).unwrap();
        let expected = v1::ReadFileResponse {
            content: content.to_owned(),
            encoding: Utf8.into(),
            truncated,
            start_line: start,
            end_line: last,
            size_bytes: size,
            ..Default::default()
        };
        assert_eq!(response, expected);
    }

    // Invalid text and missing lines are found within the range.
    let error = ranged(3, Some(3), None, Utf8).unwrap_err();
    assert_eq!(error.reason, Reason::BinaryFile);
    let response = ranged(3, Some(3), Some(5), Base64).unwrap();
    assert_eq!(response.content, BASE64_STANDARD.encode("three"));
    let error = ranged(6, None, None, Base64).unwrap_err();
    assert_eq!(error.reason, Reason::LineRangeInvalid);
    assert!(error.message.contains("has 5 lines"), "{error}");

    // One line of a tebibyte.
    file.set_len(0).unwrap();
    file.set_len(1 << 40).unwrap();
    let response = ranged(1, Some(1), Some(10), Utf8).unwrap();
    assert_eq!((response.content.len(), response.truncated), (10, true));
}

#[test]
fn only_regular_files_are_opened() {
    let (directory, workspace) = workspace();
    let at = |name: &str| directory.path().join(name);
    fs::create_dir(at("directory")).unwrap();
    fs::write(at("directory/file"), "text").unwrap();
    mknodat(CWD, at("fifo"), FileType::Fifo, Mode::RWXU, 0).unwrap();
    let _socket = std::os::unix::net::UnixListener::bind(at("socket")).unwrap();
    symlink("directory/file", at("link")).unwrap();
    symlink("directory", at("way")).unwrap();
    symlink("/etc/passwd", at("out")).unwrap();

    for (path, reason) in [
        ("directory/file", None),
        ("/workspace/directory/../directory//file", None),
        ("directory", Some(Reason::NotAFile)),
        (".", Some(Reason::NotAFile)),
        ("fifo", Some(Reason::NotAFile)),
        ("socket", Some(Reason::NotAFile)),
        ("link", Some(Reason::SymlinkBlocked)),
        ("way/file", Some(Reason::SymlinkBlocked)),
        ("out", Some(Reason::SymlinkBlocked)),
        ("none", Some(Reason::FileNotFound)),
        ("none/file", Some(Reason::FileNotFound)),
        ("directory/file/x", Some(Reason::FileNotFound)),
        ("../x", Some(Reason::PathEscape)),
        ("/etc/passwd", Some(Reason::PathEscape)),
    ] {
        let result = read_file(&workspace, request(path), &CancelToken::new());
        assert_eq!(result.err().map(|error| error.reason), reason, "{path}");
    }
}

#[test]
fn file_that_changes_during_a_read_gives_a_consistent_response() {
    let (directory, workspace) = workspace();
    let path = directory.path().join("f");
    fs::write(&path, numbered(20_000)).unwrap();

    let cancel = CancelToken::new();
    let ended = cancel.clone();
    let writer = std::thread::spawn(move || {
        let mut round = 0_u64;
        while ended.check().is_ok() {
            round += 1;
            let mut file = fs::OpenOptions::new().append(true).open(&path).unwrap();
            file.write_all(numbered(50).as_bytes()).unwrap();
            if round.is_multiple_of(20) {
                file.set_len(round).unwrap();
            }
        }
    });

    for _ in 0..200 {
        let short = v1::ReadFileRequest { max_bytes: Some(50_000), ..request("f") };
        let response = read_file(&workspace, short, &CancelToken::new()).unwrap();
        assert!(response.content.len() <= 50_000);
        assert!(response.end_line <= response.total_lines);
    }
    cancel.cancel();
    writer.join().unwrap();
}

#[test]
fn part_ends_with_a_line_or_a_whole_character() {
    assert_eq!(part_length(b"ab\ncd"), 3);
    assert_eq!(part_length("aé".as_bytes().get(..2).unwrap()), 1);
    assert_eq!(part_length("é".as_bytes().get(..1).unwrap()), 1);
    assert_eq!(part_length(b"a\xffb"), 3);
}
