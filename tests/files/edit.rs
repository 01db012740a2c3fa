//! `edit_file`: its changes, its response and its errors.

use std::{
    fs,
    io::Write as _,
    path::Path,
    process::{Command, Stdio},
};

use jig::api::v1::{Edit, EditFileRequest, EditFileResponse, Occurrence, ReadFileRequest};

use crate::support::{Daemon, Refusal};

fn replace(old: &str, new: &str, occurrence: Occurrence) -> Edit {
    Edit {
        old_string: old.to_owned(),
        new_string: new.to_owned(),
        occurrence: Some(occurrence.into()),
    }
}

/// Replaces the only occurrence, which is the default.
fn replace_unique(old: &str, new: &str) -> Edit {
    Edit { occurrence: None, ..replace(old, new, Occurrence::Unique) }
}

fn edit_request(path: &str, edits: Vec<Edit>) -> EditFileRequest {
    EditFileRequest { path: path.to_owned(), edits, ..EditFileRequest::default() }
}

async fn edit(daemon: &Daemon, request: EditFileRequest) -> Result<EditFileResponse, Refusal> {
    match daemon.tools().edit_file(request).await {
        Ok(response) => Ok(response.into_inner()),
        Err(status) => Err(Refusal::from_status(&status)),
    }
}

/// Applies a diff with git in a directory that is not a repository.
fn git_apply(directory: &Path, diff: &str) {
    let mut git = Command::new("git")
        .arg("apply")
        .current_dir(directory)
        .env("GIT_CEILING_DIRECTORIES", directory.parent().unwrap())
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    git.stdin.take().unwrap().write_all(diff.as_bytes()).unwrap();
    assert!(git.wait().unwrap().success(), "{diff}");
}

#[tokio::test]
async fn git_apply_of_the_diff_gives_the_edited_file() {
    let daemon = Daemon::start().await;
    let git_dir = tempfile::tempdir().unwrap();
    let numbers: String = (1..=100).map(|line| format!("{line}\n")).collect();

    for (name, content, edits) in [
        ("plain", "a\nb\nc\n", vec![replace_unique("b", "x\ny")]),
        ("with space", "a\n", vec![replace_unique("a", "b")]),
        ("quote\"back\\slash", "a\n", vec![replace_unique("a", "b")]),
        ("line\nbreak\tand tab", "a\n", vec![replace_unique("a", "b")]),
        ("caf\u{e9}", "a\n", vec![replace_unique("a", "b")]),
        ("below/a/directory", "a\n", vec![replace_unique("a", "b")]),
        ("crlf", "a\r\nb\r\n", vec![replace_unique("b\r\n", "c\r\nd\r\n")]),
        ("unended", "a\nb", vec![replace_unique("b", "c")]),
        ("now ended", "a\nb", vec![replace_unique("b", "b\n")]),
        ("no more ended", "a\nb\n", vec![replace_unique("b\n", "b")]),
        ("emptied", "a\nb\n", vec![replace_unique("a\nb\n", "")]),
        (
            "far apart",
            &numbers,
            vec![replace_unique("\n7\n", "\nseven\n"), replace_unique("\n93\n", "\n")],
        ),
        ("everywhere", &numbers, vec![replace("1", "one", Occurrence::All)]),
        ("first", &numbers, vec![replace("9", "nine", Occurrence::First)]),
    ] {
        for directory in [daemon.workspace(), git_dir.path().to_owned()] {
            let file = directory.join(name);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, content).unwrap();
        }

        let response = edit(&daemon, edit_request(name, edits)).await.unwrap();
        git_apply(git_dir.path(), &response.diff);
        let edited = fs::read(daemon.file(name)).unwrap();
        assert_eq!(fs::read(git_dir.path().join(name)).unwrap(), edited, "{name}");
        assert_ne!(edited, content.as_bytes());

        let mut tools = daemon.tools();
        let read = tools
            .read_file(ReadFileRequest { path: name.to_owned(), ..ReadFileRequest::default() });
        assert_eq!(read.await.unwrap().into_inner().sha256, response.sha256);
    }
}

#[tokio::test]
async fn response_describes_each_edit() {
    let daemon = Daemon::start().await;
    fs::write(daemon.file("f"), "a\nb\na\n").unwrap();
    let edits = vec![
        replace("a", "c", Occurrence::First),
        replace("\n", "\n\n", Occurrence::All),
        replace_unique("b", "a"),
    ];
    let dry_run = EditFileRequest { dry_run: Some(true), ..edit_request("f", edits.clone()) };
    let preview = edit(&daemon, dry_run).await.unwrap();
    assert_eq!(fs::read(daemon.file("f")).unwrap(), b"a\nb\na\n");

    let response = edit(&daemon, edit_request("/workspace/f", edits)).await.unwrap();
    assert_eq!(preview, response);
    assert_eq!(fs::read(daemon.file("f")).unwrap(), b"c\n\na\n\na\n\n");

    let results: Vec<_> = response
        .edits
        .iter()
        .map(|edit| (edit.replacements, edit.occurrences_found, edit.lines_changed.as_slice()))
        .collect();
    let expected: [(u32, u32, &[u32]); 3] = [(1, 2, &[1]), (3, 3, &[1, 2, 3]), (1, 1, &[3])];
    assert_eq!(results, expected);
}

#[tokio::test]
async fn failed_edit_leaves_the_file_unchanged() {
    let daemon = Daemon::start().await;
    let content = "fn main() {\r\n    first(1);\r\n    second(2);\r\n}\r\n";
    fs::write(daemon.file("f"), content).unwrap();
    fs::write(daemon.file("binary"), b"a\xff").unwrap();
    fs::create_dir(daemon.file("directory")).unwrap();
    std::os::unix::fs::symlink("f", daemon.file("link")).unwrap();
    let valid = replace_unique("main", "other");
    let stale = EditFileRequest {
        expected_sha256: Some("0".repeat(64)),
        ..edit_request("f", vec![valid.clone()])
    };

    for (request, reason, message_part) in [
        (edit_request("none", vec![valid.clone()]), "FILE_NOT_FOUND", "none"),
        (edit_request("directory", vec![valid.clone()]), "NOT_A_FILE", "a directory"),
        (edit_request("link", vec![valid.clone()]), "SYMLINK_BLOCKED", "link"),
        (edit_request("../f", vec![valid.clone()]), "PATH_ESCAPE", "../f"),
        (edit_request("binary", vec![valid.clone()]), "BINARY_FILE", "UTF-8"),
        (stale, "STALE_FILE", ""),
        (edit_request("f", vec![]), "INVALID_PARAMS", "edits"),
        (edit_request("f", vec![replace_unique("", "x")]), "INVALID_PARAMS", "edits[0].old_string"),
        (
            edit_request("f", vec![valid.clone(), replace_unique("x", "x")]),
            "INVALID_PARAMS",
            "edits[1].new_string",
        ),
        (
            edit_request("f", vec![valid.clone(), replace_unique("first(2)", "x")]),
            "STRING_NOT_FOUND",
            "edits[1]: old_string is not in the file as the edits before have left it; nothing was changed; the nearest lines are:\n2:     first(1);",
        ),
        (
            edit_request("f", vec![replace_unique("first(1);\n    second", "x")]),
            "STRING_NOT_FOUND",
            "CRLF",
        ),
        (
            edit_request("f", vec![replace_unique("first( 1 );", "x")]),
            "STRING_NOT_FOUND",
            "line 2 differs from it in white space only",
        ),
        (
            edit_request("f", vec![valid, replace_unique("(", "[")]),
            "STRING_NOT_UNIQUE",
            "edits[1]: old_string occurs 3 times (lines 1, 2, 3)",
        ),
    ] {
        let request_text = format!("{request:?}");
        let refusal = edit(&daemon, request).await.unwrap_err();
        assert_eq!(refusal.reason, reason, "{request_text} {refusal:?}");
        assert!(refusal.message.contains(message_part), "{request_text} {refusal:?}");
        assert_eq!(fs::read_to_string(daemon.file("f")).unwrap(), content);
    }
}

#[tokio::test]
async fn concurrent_edits_of_one_file_all_succeed() {
    let daemon = Daemon::start().await;
    let content: String = (0..24).map(|number| format!("<{number}>\n")).collect();
    fs::write(daemon.file("f"), &content).unwrap();

    let calls: Vec<_> = (0..24)
        .map(|number| {
            let mut tools = daemon.tools();
            let change = replace_unique(&format!("<{number}>"), &format!("[{number}]"));
            tokio::spawn(async move { tools.edit_file(edit_request("f", vec![change])).await })
        })
        .collect();
    for call in calls {
        call.await.unwrap().unwrap();
    }

    let expected = content.replace('<', "[").replace('>', "]");
    assert_eq!(fs::read_to_string(daemon.file("f")).unwrap(), expected);
}

#[tokio::test]
async fn hostile_edits_get_small_responses_promptly() {
    let daemon = Daemon::start().await;
    let letters = "a".repeat(10 << 20);
    fs::write(daemon.file("letters"), &letters).unwrap();
    fs::write(daemon.file("lines"), "\n".repeat(10 << 20)).unwrap();
    let long_text = format!("{}b", "a".repeat(9 << 20));
    let result = edit(&daemon, edit_request("letters", vec![replace_unique(&long_text, "")])).await;
    assert_eq!(result.unwrap_err().reason, "STRING_NOT_FOUND");

    let long_edit = replace_unique(&"\n".repeat(9 << 20), &long_text[..5 << 20]);
    let response = edit(&daemon, edit_request("lines", vec![long_edit])).await;
    let response = response.unwrap();
    assert!(encoded_bytes(&response) < 4 << 20);

    let growing = replace("a", &"b".repeat(100), Occurrence::All);
    let result = edit(&daemon, edit_request("letters", vec![growing])).await;
    assert_eq!(result.unwrap_err().reason, "FILE_TOO_LARGE");

    let replace_all = replace("a", "b", Occurrence::All);
    let response = edit(&daemon, edit_request("letters", vec![replace_all])).await.unwrap();
    assert_eq!(response.edits[0].replacements, 10 << 20);
    assert!(encoded_bytes(&response) < 4 << 20);
}

fn encoded_bytes(response: &EditFileResponse) -> usize {
    prost::Message::encoded_len(response)
}
