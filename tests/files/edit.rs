//! `edit_file`: what it changes, what it says about that, and what it refuses.

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

/// The only occurrence, as it is when nothing is said.
fn only(old: &str, new: &str) -> Edit {
    Edit { occurrence: None, ..replace(old, new, Occurrence::Unique) }
}

fn request(path: &str, edits: Vec<Edit>) -> EditFileRequest {
    EditFileRequest { path: path.to_owned(), edits, ..EditFileRequest::default() }
}

async fn edit(daemon: &Daemon, request: EditFileRequest) -> Result<EditFileResponse, Refusal> {
    match daemon.tools().edit_file(request).await {
        Ok(response) => Ok(response.into_inner()),
        Err(status) => Err(Refusal::of(&status)),
    }
}

/// Applies a diff with git in a directory that is no repository.
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
async fn git_makes_of_the_diff_what_the_daemon_made() {
    let daemon = Daemon::start().await;
    let copies = tempfile::tempdir().unwrap();
    let numbers: String = (1..=100).map(|line| format!("{line}\n")).collect();
    for (name, content, edits) in [
        ("plain", "a\nb\nc\n", vec![only("b", "x\ny")]),
        ("with space", "a\n", vec![only("a", "b")]),
        ("quote\"back\\slash", "a\n", vec![only("a", "b")]),
        ("line\nbreak\tand tab", "a\n", vec![only("a", "b")]),
        ("caf\u{e9}", "a\n", vec![only("a", "b")]),
        ("below/a/directory", "a\n", vec![only("a", "b")]),
        ("crlf", "a\r\nb\r\n", vec![only("b\r\n", "c\r\nd\r\n")]),
        ("unended", "a\nb", vec![only("b", "c")]),
        ("now ended", "a\nb", vec![only("b", "b\n")]),
        ("no more ended", "a\nb\n", vec![only("b\n", "b")]),
        ("emptied", "a\nb\n", vec![only("a\nb\n", "")]),
        ("far apart", &numbers, vec![only("\n7\n", "\nseven\n"), only("\n93\n", "\n")]),
        ("everywhere", &numbers, vec![replace("1", "one", Occurrence::All)]),
        ("first", &numbers, vec![replace("9", "nine", Occurrence::First)]),
    ] {
        for directory in [daemon.workspace(), copies.path().to_owned()] {
            let file = directory.join(name);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, content).unwrap();
        }
        let response = edit(&daemon, request(name, edits)).await.unwrap();
        git_apply(copies.path(), &response.diff);
        let made = fs::read(daemon.file(name)).unwrap();
        assert_eq!(fs::read(copies.path().join(name)).unwrap(), made, "{name}");
        assert_ne!(made, content.as_bytes());
        let mut tools = daemon.tools();
        let read = tools
            .read_file(ReadFileRequest { path: name.to_owned(), ..ReadFileRequest::default() });
        assert_eq!(read.await.unwrap().into_inner().sha256, response.sha256);
    }
}

#[tokio::test]
async fn each_edit_tells_what_it_did() {
    let daemon = Daemon::start().await;
    fs::write(daemon.file("f"), "a\nb\na\n").unwrap();
    let edits = vec![
        replace("a", "c", Occurrence::First),
        replace("\n", "\n\n", Occurrence::All),
        only("b", "a"),
    ];
    let only_looking = EditFileRequest { dry_run: Some(true), ..request("f", edits.clone()) };
    let looked = edit(&daemon, only_looking).await.unwrap();
    assert_eq!(fs::read(daemon.file("f")).unwrap(), b"a\nb\na\n");
    let done = edit(&daemon, request("/workspace/f", edits)).await.unwrap();
    assert_eq!(looked, done);
    assert_eq!(fs::read(daemon.file("f")).unwrap(), b"c\n\na\n\na\n\n");
    let results: Vec<_> = done
        .edits
        .iter()
        .map(|edit| (edit.replacements, edit.occurrences_found, edit.lines_changed.as_slice()))
        .collect();
    let expected: [(u32, u32, &[u32]); 3] = [(1, 2, &[1]), (3, 3, &[1, 2, 3]), (1, 1, &[3])];
    assert_eq!(results, expected);
}

#[tokio::test]
async fn what_is_refused_leaves_the_file_as_it_is() {
    let daemon = Daemon::start().await;
    let content = "fn main() {\r\n    first(1);\r\n    second(2);\r\n}\r\n";
    fs::write(daemon.file("f"), content).unwrap();
    fs::write(daemon.file("binary"), b"a\xff").unwrap();
    fs::create_dir(daemon.file("directory")).unwrap();
    std::os::unix::fs::symlink("f", daemon.file("link")).unwrap();
    let good = only("main", "other");
    let stale = EditFileRequest {
        expected_sha256: Some("0".repeat(64)),
        ..request("f", vec![good.clone()])
    };
    for (request, reason, told) in [
        (request("none", vec![good.clone()]), "FILE_NOT_FOUND", "none"),
        (request("directory", vec![good.clone()]), "NOT_A_FILE", "a directory"),
        (request("link", vec![good.clone()]), "SYMLINK_BLOCKED", "link"),
        (request("../f", vec![good.clone()]), "PATH_ESCAPE", "../f"),
        (request("binary", vec![good.clone()]), "BINARY_FILE", "UTF-8"),
        (stale, "STALE_FILE", ""),
        (request("f", vec![]), "INVALID_PARAMS", "edits"),
        (request("f", vec![only("", "x")]), "INVALID_PARAMS", "edits[0].old_string"),
        (request("f", vec![good.clone(), only("x", "x")]), "INVALID_PARAMS", "edits[1].new_string"),
        (
            request("f", vec![good.clone(), only("first(2)", "x")]),
            "STRING_NOT_FOUND",
            "edits[1]: old_string is not in the file as the edits before have left it; nothing was changed; the nearest lines are:\n2:     first(1);",
        ),
        (request("f", vec![only("first(1);\n    second", "x")]), "STRING_NOT_FOUND", "CRLF"),
        (
            request("f", vec![only("first( 1 );", "x")]),
            "STRING_NOT_FOUND",
            "line 2 differs from it in white space only",
        ),
        (
            request("f", vec![good, only("(", "[")]),
            "STRING_NOT_UNIQUE",
            "edits[1]: old_string is there 3 times, at lines 1, 2, 3",
        ),
    ] {
        let shown = format!("{request:?}");
        let refusal = edit(&daemon, request).await.unwrap_err();
        assert_eq!(refusal.reason, reason, "{shown} {refusal:?}");
        assert!(refusal.message.contains(told), "{shown} {refusal:?}");
        assert_eq!(fs::read_to_string(daemon.file("f")).unwrap(), content);
    }
}

#[tokio::test]
async fn edits_of_one_file_at_once_are_all_made() {
    let daemon = Daemon::start().await;
    let content: String = (0..24).map(|number| format!("<{number}>\n")).collect();
    fs::write(daemon.file("f"), &content).unwrap();
    let calls: Vec<_> = (0..24)
        .map(|number| {
            let mut tools = daemon.tools();
            let change = only(&format!("<{number}>"), &format!("[{number}]"));
            tokio::spawn(async move { tools.edit_file(request("f", vec![change])).await })
        })
        .collect();
    for call in calls {
        call.await.unwrap().unwrap();
    }
    let expected = content.replace('<', "[").replace('>', "]");
    assert_eq!(fs::read_to_string(daemon.file("f")).unwrap(), expected);
}

#[tokio::test]
async fn hostile_edits_get_small_answers_in_time() {
    let daemon = Daemon::start().await;
    let letters = "a".repeat(10 << 20);
    fs::write(daemon.file("letters"), &letters).unwrap();
    fs::write(daemon.file("lines"), "\n".repeat(10 << 20)).unwrap();
    let long = format!("{}b", "a".repeat(9 << 20));
    let refusal = edit(&daemon, request("letters", vec![only(&long, "")])).await;
    assert_eq!(refusal.unwrap_err().reason, "STRING_NOT_FOUND");
    let endings = only(&"\n".repeat(9 << 20), &long[..5 << 20]);
    let response = edit(&daemon, request("lines", vec![endings])).await;
    let response = response.unwrap();
    assert!(prost_len(&response) < 4 << 20);
    let growing = replace("a", &"b".repeat(100), Occurrence::All);
    let refusal = edit(&daemon, request("letters", vec![growing])).await;
    assert_eq!(refusal.unwrap_err().reason, "FILE_TOO_LARGE");
    let all = replace("a", "b", Occurrence::All);
    let response = edit(&daemon, request("letters", vec![all])).await.unwrap();
    assert_eq!(response.edits[0].replacements, 10 << 20);
    assert!(prost_len(&response) < 4 << 20);
}

/// Bytes of a message.
fn prost_len(response: &EditFileResponse) -> usize {
    prost::Message::encoded_len(response)
}
