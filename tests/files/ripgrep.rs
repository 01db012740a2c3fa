//! `search` and `list_files` find the same files and lines as ripgrep, in the same order.

use std::{
    ffi::OsStr,
    fs,
    os::unix::{ffi::OsStrExt as _, fs::symlink},
    path::Path,
    process::{Command, Stdio},
    sync::Once,
};

use base64::{Engine as _, prelude::BASE64_STANDARD};
use jig::api::v1::{ListFilesRequest, SearchRequest, SearchResponse};
use serde_json::Value;

use crate::support::{Daemon, run_setup_script, tools_directory};

/// A match: file, line, column, and the line without its ending.
type Match = (String, u64, u64, String);

/// Creates a tree with every feature that decides which files are searched, and how.
fn create_search_tree(root: &Path) {
    let long_line = format!("{}needle{}\n", "a".repeat(5000), "b".repeat(5000));
    let utf16: Vec<u8> =
        "\u{feff}one\nneedle \u{e9}\n".encode_utf16().flat_map(u16::to_le_bytes).collect();
    let late_nul = [b"needle\n", "aaaaaa\n".repeat(12_000).as_bytes(), b"\0needle\n"].concat();

    let files: &[(&[u8], &[u8])] = &[
        (b".git/HEAD", b"needle\n"),
        (b".git/info/exclude", b"excluded\n!logs/kept.log\n"),
        (b".gitignore", b"*.log\n/build/\n!important.log\ntmp*\n**/deep/**/gone\n"),
        (b".ignore", b"ignored.txt\n!sub/back.log\n"),
        (b".hidden/file", b"needle\n"),
        (b".hidden.rs", b"needle\n"),
        (b"a.rs", b"fn needle() {}\nNEEDLE\nNeedle needle\n"),
        (b"a.txt", b"one\ntwo needle\nthree\n"),
        (b"a/a.rs", b"needle"),
        (b"a-b/x", b"needle\n"),
        (b"build/out.rs", b"needle\n"),
        (b"crlf", b"one\r\nneedle\r\nthree\r\n"),
        (b"deep/1/2/3/4/gone/x", b"needle\n"),
        (b"deep/1/2/3/4/here/x", b"needle\n"),
        (b"empty", b""),
        (b"excluded", b"needle\n"),
        (b"ignored.txt", b"needle\n"),
        (b"important.log", b"needle\n"),
        (b"latin-1", b"\xe9t\xe9 needle \xff\nneedle\n"),
        (b"long", long_line.as_bytes()),
        (b"nul-first", b"\0\nneedle\n"),
        (b"nul-last", b"needle\nneedle\n\0"),
        (b"nul-late", &late_nul),
        (b"multi", b"needle\n  thread\nneedle\nthread\n\nneedle\n\nthread\n"),
        (b"name with space", b"needle\n"),
        (b"name\nwith line", b"needle\n"),
        (b"not-utf8-\xff", b"needle\n"),
        (b"not-utf8-\xfe/x", b"needle\n"),
        (b"other/.git/HEAD", b"needle\n"),
        (b"other/x.log", b"needle\n"),
        (b"other/.gitignore", b"y\n"),
        (b"other/y", b"needle\n"),
        (b"sub/.gitignore", b"!*.log\n/only-here\n*.bak\n!.env\n"),
        (b"sub/.ignore", b"secret\n!keep.bak\n"),
        (b"sub/.rgignore", b"!secret\nfor-rg\n"),
        (b"sub/for-rg", b"x\n"),
        (b"sub/.env", b"needle\n"),
        (b"sub/.other", b"needle\n"),
        (b"sub/back.log", b"needle\n"),
        (b"sub/keep.bak", b"needle\n"),
        (b"sub/lose.bak", b"needle\n"),
        (b"sub/only-here", b"needle\n"),
        (b"sub/secret", b"needle\n"),
        (b"sub/sub/only-here", b"needle\n"),
        (b"sub/sub/x.log", b"needle\n"),
        (b"tmp1", b"needle\n"),
        (b"tmp2/x", b"needle\n"),
        (b"unicode-\xc3\xa9/\xf0\x9f\x98\x80", "\u{c9}T\u{c9} needle \u{e9}t\u{e9}\n".as_bytes()),
        (b"utf-16", &utf16),
        (b"utf-8-mark", b"\xef\xbb\xbfneedle\n"),
        (b"without.end", b"x\nneedle"),
    ];

    for (name, content) in files {
        let path = root.join(OsStr::from_bytes(name));
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }

    symlink("a.txt", root.join("link")).unwrap();
    symlink("sub", root.join("links")).unwrap();
    let status = Command::new("mkfifo").arg(root.join("fifo")).status();
    assert!(status.unwrap().success());
}

/// Runs ripgrep in `directory`. Returns its standard output.
fn ripgrep(directory: &Path, arguments: &[String]) -> Vec<u8> {
    let output = Command::new(tools_directory().join("ripgrep/bin/rg"))
        .args(["--no-config", "--no-ignore-global"])
        .args(arguments)
        .current_dir(directory)
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let code = output.status.code();

    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(matches!(code, Some(0 | 1)), "{arguments:?}: {stderr}");

    output.stdout
}

/// Starts a daemon, after ripgrep is installed: the installation blocks the thread that answers the
/// keepalive of the daemon's connections.
async fn start_daemon_beside_ripgrep() -> Daemon {
    static INSTALLED: Once = Once::new();
    INSTALLED.call_once(|| run_setup_script("tests/files/install.sh"));
    Daemon::start().await
}

/// Ripgrep's matches for a request.
fn ripgrep_matches(directory: &Path, request: &SearchRequest) -> Vec<Match> {
    let mut arguments = vec!["--json".to_owned()];
    let mut add_flag = |flag: &str, is_set: bool| {
        if is_set {
            arguments.push(flag.to_owned());
        }
    };
    add_flag("--fixed-strings", !request.is_regex.unwrap_or(false));
    add_flag("--ignore-case", !request.case_sensitive.unwrap_or(false));
    add_flag("--hidden", request.hidden.unwrap_or(false));
    add_flag("--no-ignore", request.no_ignore.unwrap_or(false));
    add_flag("--multiline", request.multiline.unwrap_or(false));
    if let Some(depth) = request.max_depth {
        arguments.push(format!("--max-depth={depth}"));
    }

    arguments.extend(request.globs.iter().map(|glob| format!("--glob={glob}")));
    let exclude_globs = request.exclude_globs.iter();
    arguments.extend(exclude_globs.map(|glob| format!("--glob=!{glob}")));
    arguments.extend(["-e".to_owned(), request.query.clone(), "./".to_owned()]);
    let output = ripgrep(directory, &arguments);

    let mut matches: Vec<Match> = output
        .split(|byte| *byte == b'\n')
        .filter(|line| !line.is_empty())
        .map(|line| serde_json::from_slice::<Value>(line).unwrap())
        .filter(|message| message["type"] == "match")
        .filter_map(|message| {
            let data = &message["data"];
            let path = data["path"]["text"].as_str()?;
            let path = path.strip_prefix("./").unwrap_or(path);
            let start = data["submatches"][0]["start"].as_u64().unwrap();
            let line = data["line_number"].as_u64().unwrap();
            Some((path.to_owned(), line, start + 1, line_text(&data["lines"])))
        })
        .collect();
    matches.sort_unstable();

    matches
}

/// A text of ripgrep's JSON output without its line ending. Ripgrep encodes it in base64 if it is not
/// UTF-8.
fn line_text(value: &Value) -> String {
    let bytes = match value["text"].as_str() {
        Some(text) => text.as_bytes().to_vec(),
        None => BASE64_STANDARD.decode(value["bytes"].as_str().unwrap()).unwrap(),
    };
    let text = String::from_utf8_lossy(&bytes);
    let text = text.strip_suffix('\n').unwrap_or(&text);
    text.strip_suffix('\r').unwrap_or(text).to_owned()
}

fn daemon_matches(response: SearchResponse, prefix: &str) -> Vec<Match> {
    let matches = response.matches.into_iter().map(|matched| {
        let file = matched.file.strip_prefix(prefix).unwrap().to_owned();
        (file, matched.line.into(), matched.column.into(), matched.content)
    });
    matches.collect()
}

/// Requests that differ in query, globs, ignore files and depth.
fn search_requests() -> Vec<SearchRequest> {
    let needle = || SearchRequest {
        query: "needle".to_owned(),
        max_results: Some(1000),
        ..SearchRequest::default()
    };

    let regex =
        |query: &str| SearchRequest { query: query.to_owned(), is_regex: Some(true), ..needle() };
    let globs = |globs: &[&str], exclude_globs: &[&str]| SearchRequest {
        globs: globs.iter().map(|glob| (*glob).to_owned()).collect(),
        exclude_globs: exclude_globs.iter().map(|glob| (*glob).to_owned()).collect(),
        ..needle()
    };

    let multiline = |query: &str| SearchRequest { multiline: Some(true), ..regex(query) };
    let mut requests = vec![
        needle(),
        regex("^need"),
        regex("needle$"),
        regex("\\bneedle\\b.*"),
        regex("(?-i)N[A-Z]+"),
        regex("\u{e9}t\u{e9}"),
        regex("^$"),
        regex("[^a]{3}$"),
        regex("one|two|three"),
        multiline("needle\\s+thread"),
        multiline("(?s)one.*three"),
        multiline("\\n\\n"),
        multiline("needle"),
        globs(&["*.rs"], &[]),
        globs(&["*.log"], &[]),
        globs(&["/a.rs", "sub/**"], &[]),
        globs(&[], &["*.rs", "sub"]),
        globs(&["*.{rs,txt}"], &["a.*"]),
        globs(&[".hidden/**", ".env"], &[]),
        globs(&["**/x"], &["deep/**"]),
        globs(&["!a.rs"], &[]),
    ];

    for plain in requests.clone() {
        for (hidden, no_ignore, case_sensitive) in
            [(true, false, true), (false, true, false), (true, true, false)]
        {
            requests.push(SearchRequest {
                hidden: Some(hidden),
                no_ignore: Some(no_ignore),
                case_sensitive: Some(case_sensitive),
                ..plain.clone()
            });
        }
    }

    for depth in [1, 2, 3] {
        requests.push(SearchRequest { max_depth: Some(depth), ..needle() });
    }

    requests
}

/// Checks a response against ripgrep's matches. Long lines are shortened around the match.
fn assert_matches(response: SearchResponse, request: &SearchRequest, expected: &[Match]) {
    assert!(!response.timed_out && response.files_incomplete == 0);
    assert_eq!(response.total_matches as usize, expected.len(), "{request:?}");
    assert_eq!(response.truncated, expected.len() > 1000, "{request:?}");

    let expected = &expected[..expected.len().min(1000)];
    let prefix = match request.path.as_deref() {
        None | Some(".") => String::new(),
        Some(path) => format!("{path}/"),
    };
    let found = daemon_matches(response, &prefix);
    let positions = |matches: &[Match]| {
        let positions =
            matches.iter().map(|(file, line, column, _)| (file.clone(), *line, *column));
        positions.collect::<Vec<_>>()
    };
    assert_eq!(positions(&found), positions(expected), "{request:?}");

    let max_content_bytes = if request.multiline() { 16_000 } else { 2000 };
    for ((.., found), (.., expected)) in found.iter().zip(expected) {
        if expected.len() <= max_content_bytes {
            assert_eq!(found, expected, "{request:?}");
        } else {
            assert!(found.len() < 2010 && found.contains('\u{2026}'));
        }
    }
}

#[tokio::test]
async fn search_finds_what_ripgrep_finds() {
    let daemon = start_daemon_beside_ripgrep().await;
    create_search_tree(&daemon.workspace());

    let mut match_count = 0;
    for request in search_requests() {
        for path in [".", "sub", "sub/sub", "other", "deep/1"] {
            let request = SearchRequest { path: Some(path.to_owned()), ..request.clone() };
            let expected = ripgrep_matches(&daemon.file(path), &request);
            let response = daemon.tools().search(request.clone()).await;
            let response = response.unwrap().into_inner();
            assert_matches(response, &request, &expected);
            match_count += expected.len().min(1000);
        }
    }

    assert!(match_count > 1500, "only {match_count} matches were compared");
}

/// The files that ripgrep lists for a request, without those of git repositories.
fn ripgrep_files(directory: &Path, request: &ListFilesRequest) -> Vec<String> {
    let mut arguments = vec!["--files".to_owned(), "--null".to_owned()];
    let flags = [(!request.respect_ignore(), "--no-ignore"), (request.hidden(), "--hidden")];
    let flags = flags.iter().filter(|(is_set, _)| *is_set);
    arguments.extend(flags.map(|(_, flag)| (*flag).to_owned()));
    arguments.extend(request.max_depth.map(|depth| format!("--max-depth={depth}")));
    arguments.extend(request.glob.iter().map(|glob| format!("--glob={glob}")));
    arguments.push("./".to_owned());

    let output = ripgrep(directory, &arguments);
    let mut files: Vec<String> = output
        .split(|byte| *byte == 0)
        .filter_map(|path| str::from_utf8(path).ok())
        .filter_map(|path| path.strip_prefix("./"))
        .filter(|path| !format!("/{path}").contains("/.git/"))
        .map(str::to_owned)
        .collect();
    files.sort_unstable();

    files
}

#[tokio::test]
async fn list_files_lists_what_ripgrep_lists() {
    let daemon = start_daemon_beside_ripgrep().await;
    create_search_tree(&daemon.workspace());

    let mut file_count = 0;
    for glob in [
        None,
        Some("*.rs"),
        Some("*.log"),
        Some("!*.rs"),
        Some("/a.rs"),
        Some("sub/**"),
        Some(".*"),
        Some("{a,b,.hidden}/*"),
        Some("**/x"),
        Some("x*"),
    ] {
        for (respect_ignore, hidden, max_depth) in [
            (false, true, None),
            (true, true, None),
            (true, false, None),
            (false, false, None),
            (true, true, Some(1)),
            (false, true, Some(2)),
        ] {
            for root in [".", "sub", "deep/1", "other"] {
                let request = ListFilesRequest {
                    root: Some(root.to_owned()),
                    glob: glob.map(str::to_owned),
                    max_results: Some(10_000),
                    respect_ignore: Some(respect_ignore),
                    hidden: Some(hidden),
                    max_depth,
                    ..ListFilesRequest::default()
                };

                let response = daemon.tools().list_files(request.clone()).await;
                let files = response.unwrap().into_inner().files;
                assert_eq!(files, ripgrep_files(&daemon.file(root), &request), "{request:?}");

                file_count += files.len();
            }
        }
    }

    assert!(file_count > 500, "only {file_count} files were compared");
}

#[tokio::test]
async fn large_ignore_file_excludes_what_ripgrep_excludes() {
    let daemon = start_daemon_beside_ripgrep().await;
    let mut ignore = String::new();
    for number in 0..100_000 {
        ignore += &match number % 50 {
            0 => format!("*.e{number}\n"),
            1 => format!("!src/{number}\n"),
            2 if number < 10_000 => format!("?{number}*\n"),
            3 => format!("/top{number}\n"),
            4 => format!("build{number}/\n"),
            5..20 => format!("name{number}\n"),
            _ => format!("src/generated/{number}.rs\n"),
        };
    }

    assert!(ignore.len() > 3 << 19);

    fs::write(daemon.file(".ignore"), ignore).unwrap();

    for number in (0..100_000).step_by(7) {
        let (directory, name) = match number % 9 {
            0 => ("src", number.to_string()),
            1 => ("src/generated", format!("{number}.rs")),
            2 => ("", format!("top{number}")),
            3 => ("top", format!("top{number}")),
            4 => ("src", format!("name{number}")),
            5 => ("a/b", format!("x.e{number}")),
            6 => ("a", format!("x{number}x")),
            7 => ("build4", number.to_string()),
            _ => ("a", format!("build{number}")),
        };

        fs::create_dir_all(daemon.file(directory)).unwrap();
        fs::write(daemon.file(directory).join(name), "").unwrap();
    }

    let output = ripgrep(&daemon.workspace(), &["--files".to_owned()]);
    let output = String::from_utf8(output).unwrap();
    let mut expected: Vec<&str> = output.lines().collect();
    expected.sort_unstable();
    assert!(expected.len() > 5000 && expected.len() < 14_000);

    let request = ListFilesRequest {
        max_results: Some(10_000),
        respect_ignore: Some(true),
        hidden: Some(false),
        ..ListFilesRequest::default()
    };
    let response = daemon.tools().list_files(request).await.unwrap();
    let response = response.into_inner();
    assert_eq!(response.files, expected[..expected.len().min(10_000)]);
    assert_eq!(response.truncated_ignore_files, 0);
}
