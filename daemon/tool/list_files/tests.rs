//! Lists trees built for the purpose, in pages of every size.

use std::{
    ffi::OsStr,
    fs,
    os::unix::{ffi::OsStrExt as _, fs::symlink, net::UnixListener},
    path::Path,
    thread,
    time::Duration,
};

use rustix::fs::{CWD, FileType, Mode, mknodat};
use tempfile::TempDir;

use super::*;
use crate::daemon::error::Reason;

/// A workspace with empty files.
fn workspace(files: &[&str]) -> (TempDir, Workspace) {
    let directory = tempfile::tempdir().unwrap();
    for file in files {
        write(directory.path(), file.as_bytes());
    }
    let workspace = Workspace::open("w", directory.path(), "/workspace").unwrap();
    (directory, workspace)
}

fn write(directory: &Path, file: &[u8]) {
    let path = directory.join(OsStr::from_bytes(file));
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, "").unwrap();
}

fn list_files(
    workspace: &Workspace,
    request: &v1::ListFilesRequest,
    cancel: &CancelToken,
) -> Result<ToolOutput<v1::ListFilesResponse>, Error> {
    let page = Mutex::new(FilePage::default());
    let complete = super::fill_page(workspace, request, &page, cancel)?;
    page.into_inner().unwrap().into_output(complete)
}

fn list(workspace: &Workspace, request: v1::ListFilesRequest) -> v1::ListFilesResponse {
    list_files(workspace, &request, &CancelToken::new()).unwrap().response
}

/// All pages of `size` files together, with the number of skipped names.
fn paged(workspace: &Workspace, request: &v1::ListFilesRequest, size: u32) -> (Vec<String>, u32) {
    let mut request = v1::ListFilesRequest { max_results: Some(size), ..request.clone() };
    let (mut files, mut skipped) = (Vec::new(), 0);
    loop {
        let page = list(workspace, request.clone());
        assert!(page.files.len() <= usize::try_from(size).unwrap());
        assert_eq!(page.truncated, !page.next_page_token.is_empty());
        assert!(!page.truncated || !page.files.is_empty());

        files.extend(page.files);
        skipped += page.skipped_names;
        if !page.truncated {
            return (files, skipped);
        }

        assert!(page.next_page_token.len() <= 16_384);
        request.page_token = Some(page.next_page_token);
    }
}

#[test]
fn pages_of_any_size_add_up_to_the_list_sorted_by_whole_path() {
    let long = "n".repeat(255);
    let mut expected = vec![
        "a",
        "a b",
        "a!/x",
        "a-/x",
        "a.d/x",
        "a.txt",
        "aa/b-",
        "aa/b.c/d",
        "aa/b/c",
        "aa.b",
        "ab/a/a/a",
        "ab/a.a",
        "ab/a/b",
        "new\nline",
        "B/x",
        ".hidden",
        ".d/x",
        "\u{202e}rtl",
        "\u{e9}/\u{1f600}",
        "-",
        "e/e/e/e/e/e",
        &long,
        "z/0",
        "z/1",
        "z/2",
        "z0",
        "*",
        "[",
        "\\",
    ];
    let (directory, workspace) = workspace(&expected);
    expected.sort_unstable();

    // A skipped name at every position where a page boundary could lose it or count it twice.
    let skipped: &[&[u8]] = &[
        b"\x80",
        b"\xff",
        b"\xff-directory/a/b",
        b"a\xff",
        b"aa/b/\xff",
        b"z/1\xff",
        b"z\xff/x",
        b"z\xff/y",
    ];
    for name in skipped {
        write(directory.path(), name);
    }

    fs::create_dir_all(directory.path().join("empty/empty")).unwrap();

    let request = v1::ListFilesRequest::default();
    let whole = list(&workspace, request.clone());
    assert_eq!(whole.files, expected);
    assert_eq!((whole.truncated, whole.skipped_names), (false, 7));

    for size in 1..=u32::try_from(expected.len()).unwrap() + 1 {
        let (files, skipped) = paged(&workspace, &request, size);
        assert_eq!(files, expected, "{size}");
        assert_eq!(skipped, 7, "{size}");
    }

    for (root, below) in [("aa", "aa/"), ("/workspace/z/", "z/"), ("e/e/../e", "e/e/")] {
        let request = v1::ListFilesRequest { root: Some(root.to_owned()), ..Default::default() };
        let expected: Vec<&str> =
            expected.iter().filter_map(|path| path.strip_prefix(below)).collect();
        for size in [1, 2, 100] {
            assert_eq!(paged(&workspace, &request, size).0, expected, "{root} {size}");
        }
    }
}

#[test]
fn only_regular_files_outside_git_directories_are_listed() {
    let (directory, workspace) =
        workspace(&["d/f", ".git/HEAD", "d/.git/config", "m/x", ".github/x", ".gitignore"]);

    let at = |name: &str| directory.path().join(name);
    fs::write(at("m/.git"), "gitdir: elsewhere").unwrap();
    mknodat(CWD, at("fifo"), FileType::Fifo, Mode::RWXU, 0).unwrap();
    let _socket = UnixListener::bind(at("socket")).unwrap();
    symlink("d/f", at("link")).unwrap();
    symlink("d", at("d/loop")).unwrap();
    symlink("/", at("out")).unwrap();
    symlink("x", at("").join(OsStr::from_bytes(b"\xff"))).unwrap();

    let page = list(&workspace, v1::ListFilesRequest::default());
    assert_eq!(page.files, [".github/x", ".gitignore", "d/f", "m/.git", "m/x"]);
    assert_eq!(page.skipped_names, 0);
}

#[test]
fn filters_of_the_request_apply() {
    let files = [
        "#h",
        "a.rs",
        "a.txt",
        "b ",
        "d/.c/a.rs",
        "d/a.rs",
        "d/e/b.rs",
        "d/x/f/g.rs",
        ".e.rs",
        "o.log",
        "s/o.log",
        "s/keep.log",
    ];
    let (directory, workspace) = workspace(&files);
    fs::create_dir(directory.path().join(".git")).unwrap();
    fs::write(directory.path().join(".gitignore"), "*.log\n/d/e/\n").unwrap();
    fs::write(directory.path().join("s/.ignore"), "!keep.log\n").unwrap();

    let all = v1::ListFilesRequest::default();
    let glob =
        |glob: &str| v1::ListFilesRequest { glob: Some(glob.to_owned()), ..Default::default() };
    let in_d = |request: v1::ListFilesRequest| v1::ListFilesRequest {
        root: Some("d".to_owned()),
        ..request
    };
    let ignoring = |request: v1::ListFilesRequest| v1::ListFilesRequest {
        respect_ignore: Some(true),
        ..request
    };
    let visible =
        |request: v1::ListFilesRequest| v1::ListFilesRequest { hidden: Some(false), ..request };
    let levels =
        |max_depth: u32| v1::ListFilesRequest { max_depth: Some(max_depth), ..Default::default() };

    for (request, expected) in [
        (glob("*.rs"), ".e.rs|a.rs|d/.c/a.rs|d/a.rs|d/e/b.rs|d/x/f/g.rs"),
        (glob("/*.rs"), ".e.rs|a.rs"),
        (glob("a.{rs,txt}"), "a.rs|a.txt|d/.c/a.rs|d/a.rs"),
        (glob("d/*.rs"), "d/a.rs"),
        (glob("d/**/b.rs"), "d/e/b.rs"),
        (glob("d/**"), "d/.c/a.rs|d/a.rs|d/e/b.rs|d/x/f/g.rs"),
        (glob("d/"), ""),
        (glob("!d"), "#h|.e.rs|.gitignore|a.rs|a.txt|b |o.log|s/.ignore|s/keep.log|s/o.log"),
        (visible(glob("!*.{rs,log}")), "#h|a.txt|b "),
        (glob("#h"), "#h"),
        (glob("b "), "b "),
        (glob("b\\ "), "b "),
        (glob("b"), ""),
        (in_d(glob("*.rs")), ".c/a.rs|a.rs|e/b.rs|x/f/g.rs"),
        (in_d(glob("/a.rs")), "a.rs"),
        (in_d(glob("d/a.rs")), ""),
        (visible(in_d(all.clone())), "a.rs|e/b.rs|x/f/g.rs"),
        (visible(glob(".e.rs")), ".e.rs"),
        (levels(1), "#h|.e.rs|.gitignore|a.rs|a.txt|b |o.log"),
        (in_d(levels(2)), ".c/a.rs|a.rs|e/b.rs"),
        (in_d(levels(3)), ".c/a.rs|a.rs|e/b.rs|x/f/g.rs"),
        (visible(ignoring(all.clone())), "#h|a.rs|a.txt|b |d/a.rs|d/x/f/g.rs|s/keep.log"),
        // Ignore files above the root apply. As in ripgrep, a glob overrides them and hidden names.
        (ignoring(in_d(all)), ".c/a.rs|a.rs|x/f/g.rs"),
        (ignoring(glob("*.log")), "o.log|s/keep.log|s/o.log"),
    ] {
        assert_eq!(list(&workspace, request.clone()).files.join("|"), expected, "{request:?}");
        for size in [1, 2, 3] {
            assert_eq!(
                paged(&workspace, &request, size).0.join("|"),
                expected,
                "{size} {request:?}"
            );
        }
    }
}

#[test]
fn unlistable_roots_and_invalid_globs_report_a_reason() {
    let (directory, workspace) = workspace(&["d/f"]);
    symlink("d", directory.path().join("link")).unwrap();
    for (root, reason) in [
        ("none", Reason::DirectoryNotFound),
        ("d/none/x", Reason::DirectoryNotFound),
        ("d/f", Reason::NotADirectory),
        ("d/f/x", Reason::NotADirectory),
        ("link", Reason::SymlinkBlocked),
        ("link/x", Reason::SymlinkBlocked),
        ("..", Reason::PathEscape),
        ("/", Reason::PathEscape),
    ] {
        let request = v1::ListFilesRequest { root: Some(root.to_owned()), ..Default::default() };
        let error = list_files(&workspace, &request, &CancelToken::new()).unwrap_err();
        assert_eq!(error.reason, reason, "{root}");
    }

    for glob in ["[", "a[b-", "{a", "a{b,c", "[z-a]", "!["] {
        let request = v1::ListFilesRequest { glob: Some(glob.to_owned()), ..Default::default() };
        let error = list_files(&workspace, &request, &CancelToken::new()).unwrap_err();
        assert_eq!(error.reason, Reason::InvalidGlob, "{glob}");
        assert!(error.message.contains(&format!("{glob:?}")), "{error}");
    }
}

#[test]
fn page_token_belongs_to_its_request() {
    let (_directory, workspace) = workspace(&["a", "b", "c"]);
    let first = v1::ListFilesRequest { max_results: Some(1), ..Default::default() };
    let token = list(&workspace, first.clone()).next_page_token;
    let next = v1::ListFilesRequest { page_token: Some(token.clone()), ..first };

    // The page size may differ, and so may other spellings of the same filters.
    let same = v1::ListFilesRequest {
        root: Some("/workspace/".to_owned()),
        max_results: Some(7),
        hidden: Some(true),
        respect_ignore: Some(false),
        glob: Some(String::new()),
        ..next.clone()
    };
    assert_eq!(list(&workspace, same).files, ["b", "c"]);

    let changes: [fn(&mut v1::ListFilesRequest); 7] = [
        |request| request.glob = Some("*".to_owned()),
        |request| request.hidden = Some(false),
        |request| request.respect_ignore = Some(true),
        |request| request.max_depth = Some(1),
        |request| request.page_token = Some("x".to_owned()),
        |request| request.page_token = Some("AAAA".to_owned()),
        |request| request.page_token = Some("not base64!".to_owned()),
    ];

    for change in changes {
        let mut request = next.clone();
        change(&mut request);
        let error = list_files(&workspace, &request, &CancelToken::new()).unwrap_err();
        assert_eq!(error.reason, Reason::InvalidParams);
        assert_eq!(error.violations[0].field, "page_token");
    }
}

#[test]
fn page_fits_into_a_default_message() {
    let directory = "n".repeat(200);
    let deep = [directory.as_str(); 15].join("/");
    let files: Vec<String> = (0..1100).map(|number| format!("{deep}/{number:04}")).collect();
    let names: Vec<&str> = files.iter().map(String::as_str).collect();
    let (_directory, workspace) = workspace(&names);
    let page =
        list(&workspace, v1::ListFilesRequest { max_results: Some(10_000), ..Default::default() });
    assert!(page.truncated);
    assert!(prost::Message::encoded_len(&page) < 4 << 20);

    let (all, _) = paged(&workspace, &v1::ListFilesRequest::default(), 10_000);
    assert_eq!(all, files);
}

#[test]
fn walk_ends_when_cancelled() {
    let files: Vec<String> = (0..9000).map(|number| format!("{}/{number}", number % 100)).collect();
    let names: Vec<&str> = files.iter().map(String::as_str).collect();
    let (_directory, workspace) = workspace(&names);

    let cancel = CancelToken::new();
    cancel.cancel();
    let request = v1::ListFilesRequest { max_results: Some(10_000), ..Default::default() };
    let error = list_files(&workspace, &request, &cancel).unwrap_err();
    assert_eq!(error.reason, Reason::Timeout);

    // A cancelled walk returns a page, and the next page continues after it.
    for delay in (0..).map(|steps| Duration::from_micros(steps * 20)) {
        let cancel = CancelToken::new();
        let page = thread::scope(|scope| {
            let list = scope.spawn(|| list_files(&workspace, &request, &cancel));
            thread::sleep(delay);
            cancel.cancel();
            list.join().unwrap()
        });
        let Ok(page) = page else {
            continue; // cancelled before the first file
        };

        let mut listed = page.response.files;
        assert!(page.response.truncated, "never in the midst of it");
        assert_eq!(page.error_type, Some("TIMEOUT"));

        let rest = v1::ListFilesRequest {
            page_token: Some(page.response.next_page_token),
            ..request.clone()
        };
        listed.extend(list(&workspace, rest).files);
        assert_eq!(listed.len(), 9000);
        assert!(listed.is_sorted());
        break;
    }
}
