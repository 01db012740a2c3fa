//! The client's command of each tool for files, with a real daemon.

use std::{
    fs,
    io::{Read as _, Write as _},
    os::unix::fs::FileExt as _,
    path::Path,
    process::{Command, Stdio},
};

use base64::{Engine as _, prelude::BASE64_STANDARD};
use serde_json::Value;

use crate::support::Daemon;

/// A workspace, and `jig` on it.
struct CliWorkspace {
    daemon: Daemon,
    local_dir: tempfile::TempDir,
}

impl CliWorkspace {
    async fn start() -> Self {
        Self { daemon: Daemon::start().await, local_dir: tempfile::tempdir().unwrap() }
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_jig"));
        command
            .args(arguments)
            .current_dir(self.local_dir.path())
            .env_clear()
            .env("JIG_ADDRESS", format!("unix:{}", self.daemon.socket().display()))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command
    }

    /// Runs `jig`, which must exit with `code`; answers what it wrote to both streams.
    fn run_jig(&self, arguments: &[&str], input: &str, code: i32) -> String {
        let mut child = self.command(arguments).spawn().unwrap();
        // A command that does not read its input may have ended already.
        let _unread = child.stdin.take().unwrap().write_all(input.as_bytes());
        let output = child.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {output:?}");
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        text(output.stdout) + &text(output.stderr)
    }

    fn run_jig_json(&self, arguments: &[&str], code: i32) -> Value {
        let text = self.run_jig(&[&["--json"], arguments].concat(), "", code);
        serde_json::from_str(&text).unwrap()
    }

    fn content(&self, path: impl AsRef<Path>) -> String {
        fs::read_to_string(self.daemon.workspace().join(path)).unwrap()
    }
}

#[tokio::test]
async fn jig_writes_edits_and_patches_files() {
    let workspace = CliWorkspace::start().await;
    let written = workspace.run_jig(&["write", "a/f"], "one\ntwo\nthree\n", 0);
    assert_eq!(written, "created a/f (14 bytes)\n");
    assert!(
        workspace
            .run_jig(&["write", "a/f", "--create-new", "--text", "x"], "", 1)
            .contains("FILE_EXISTS")
    );
    workspace.run_jig(&["write", "a/f", "--append", "--text", "four\n"], "", 0);
    assert_eq!(workspace.content("a/f"), "one\ntwo\nthree\nfour\n");

    let diff = workspace.run_jig(&["edit", "a/f", "--old", "two", "--new", "2"], "", 0);
    assert!(diff.contains("-two\n+2\n"), "{diff}");
    assert!(!diff.contains('\x1b'), "colours are for terminals");
    let edits = r#"[{"old_string": "e", "new_string": "E", "occurrence": "ALL"}]"#;
    workspace.run_jig(&["edit", "a/f", "--edits", "-"], edits, 0);
    assert_eq!(workspace.content("a/f"), "onE\n2\nthrEE\nfour\n");
    let error = workspace.run_jig_json(&["edit", "a/f", "--old", "none", "--new", ""], 1);
    assert_eq!(error["error"]["reason"], "STRING_NOT_FOUND", "{error}");

    let patch = "--- a/a/f\n+++ b/a/f\n@@ -1,2 +1,2 @@\n-onE\n+one\n 2\n";
    let dry = workspace.run_jig(&["patch", "--dry-run"], patch, 0);
    assert_eq!(dry, "M a/f\n");
    assert_eq!(workspace.content("a/f"), "onE\n2\nthrEE\nfour\n");
    workspace.run_jig(&["patch", "-"], patch, 0);
    assert_eq!(workspace.content("a/f"), "one\n2\nthrEE\nfour\n");
}

#[tokio::test]
async fn jig_lists_moves_and_deletes_paths() {
    let workspace = CliWorkspace::start().await;
    assert_eq!(workspace.run_jig(&["mkdir", "a/b"], "", 0), "created a\ncreated a/b\n");
    fs::write(workspace.daemon.file("a/f"), "12345").unwrap();
    let list = workspace.run_jig(&["ls", "-l", "a"], "", 0);
    let lines: Vec<&str> = list.lines().collect();
    assert!(lines[0].starts_with("drwx") && lines[0].ends_with(" b/"), "{list}");
    assert!(lines[1].starts_with("-rw-") && lines[1].ends_with(" f"), "{list}");
    let list = workspace.run_jig_json(&["ls", "-l", "a"], 0);
    assert_eq!(list["entries"][1]["size_bytes"], 5, "{list}");
    assert_eq!(workspace.run_jig_json(&["stat", "a/f"], 0)["type"], "FILE_TYPE_FILE");
    assert!(workspace.run_jig(&["stat", "a/f"], "", 0).contains("size    5 bytes"));

    workspace.run_jig(&["mv", "a/f", "g"], "", 0);
    assert_eq!(workspace.content("g"), "12345");
    workspace.run_jig(&["rm", "g"], "", 0);
    assert!(workspace.run_jig(&["rm", "a"], "", 1).contains("DIRECTORY_NOT_EMPTY"));
    assert_eq!(workspace.run_jig_json(&["rm", "-r", "a"], 0)["deleted_count"], 2);
    assert_eq!(workspace.run_jig(&["ls"], "", 0), "");
}

#[tokio::test]
async fn jig_continues_after_a_path_that_fails() {
    let workspace = CliWorkspace::start().await;
    let made = workspace.run_jig(&["mkdir", "a", "../b", "c/d"], "", 1);
    assert!(made.starts_with("created a\ncreated c\ncreated c/d\n"), "{made}");
    assert!(made.contains("jig: ../b: "), "{made}");
    for name in ["e", "f"] {
        fs::write(workspace.daemon.file(name), format!("{name} has 10\n")).unwrap();
    }

    let read = workspace.run_jig(&["read", "e", "none", "f"], "", 1);
    assert!(read.starts_with("e has 10\nf has 10\n"), "{read}");
    let error = read.lines().last().unwrap();
    assert!(error.starts_with("jig: none: FILE_NOT_FOUND: "), "{read}");
    assert_eq!(read.lines().count(), 3, "{read}");
    let encoded = workspace.run_jig(&["read", "--base64", "e", "f"], "", 0);
    assert_eq!(encoded, "ZSBoYXMgMTAK\nZiBoYXMgMTAK\n");
    let output = workspace.run_jig(&["stat", "e", "none", "f"], "", 1);
    assert_eq!(output.matches("size    9 bytes").count(), 2, "{output}");
    let lines = workspace.run_jig(&["stat", "--json", "e", "none", "f"], "", 1);
    let lines: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let paths: Vec<_> = lines.iter().map(|line| line["path"].as_str().unwrap()).collect();
    assert_eq!(paths, ["e", "none", "f"]);
    assert_eq!(lines[1]["error"]["reason"], "FILE_NOT_FOUND", "{lines:?}");
    assert_eq!(lines[2]["size_bytes"], 9, "{lines:?}");

    let output = workspace.run_jig(&["rm", "--request-id", "x", "e", "f"], "", 64);
    assert!(output.contains("each path is a call"), "{output}");
    let output = workspace.run_jig(&["rm", "e", "c", "none", "f"], "", 1);
    assert!(output.contains("jig: c: DIRECTORY_NOT_EMPTY: "), "{output}");
    assert!(output.contains("jig: none: FILE_NOT_FOUND: "), "{output}");
    assert_eq!(output.lines().count(), 2, "{output}");
    assert_eq!(workspace.run_jig(&["rm", "-r", "a", "c"], "", 0), "");
    assert_eq!(workspace.run_jig(&["ls"], "", 0), "");
}

#[tokio::test]
async fn jig_searches_text_and_edits_notebook_cells() {
    let workspace = CliWorkspace::start().await;
    fs::write(workspace.daemon.file("a.txt"), "x\nNeedle here\ny\n").unwrap();
    assert_eq!(workspace.run_jig(&["search", "needle"], "", 0), "a.txt:2:1:Needle here\n");
    assert_eq!(
        workspace.run_jig(&["search", "n.*e h", ".", "-E", "-C", "1"], "", 0),
        "a.txt-1-x\na.txt:2:1:Needle here\na.txt-3-y\n"
    );
    for (letters, printed) in [
        (&["-n", "-i"][..], "a.txt:2:1:Needle here\n"),
        (&["-A", "1"], "a.txt:2:1:Needle here\na.txt-3-y\n"),
        (&["-B", "1"], "a.txt-1-x\na.txt:2:1:Needle here\n"),
        (&["-l"], "a.txt\n"),
        (&["-c"], "a.txt:1\n"),
    ] {
        let arguments = [&["search", "needle"], letters].concat();
        assert_eq!(workspace.run_jig(&arguments, "", 0), printed, "{letters:?}");
    }
    assert_eq!(workspace.run_jig(&["search", "-s", "needle"], "", 1), "");
    assert_eq!(workspace.run_jig(&["search", "--", "-x"], "", 1), "");
    assert_eq!(workspace.run_jig_json(&["search", "nothing"], 1)["total_matches"], 0);
    // As grep has it: patterns, and then where to search.
    assert_eq!(
        workspace.run_jig(&["search", "-e", "^y$", "-e", "n.*e h", "a.txt"], "", 0),
        "a.txt:2:1:Needle here\na.txt:3:1:y\n"
    );
    let output = workspace.run_jig(&["search", "-e", "x", "a.txt", "b"], "", 2);
    assert!(output.contains("only one path"), "{output}");
    let output = workspace.run_jig(&["search", "-e", "("], "", 2);
    assert!(output.contains("INVALID_REGEX"), "{output}");

    // What nobody has looked into may hold it.
    let long = format!("needle\n{}", "x".repeat(9 << 20));
    fs::write(workspace.daemon.file("long"), long).unwrap();
    let output = workspace.run_jig(&["search", "nothing"], "", 2);
    assert!(output.starts_with("jig: files that were not searched") && output.ends_with(": 1\n"));
    assert!(workspace.run_jig(&["search", "needle"], "", 0).ends_with(&output));
    assert_eq!(workspace.run_jig_json(&["search", "nothing"], 2)["files_incomplete"], 1);
    fs::remove_file(workspace.daemon.file("long")).unwrap();

    let notebook = r#"{"cells": [{"cell_type": "code", "execution_count": null, "id": "c1", "metadata": {}, "outputs": [], "source": ["1"]}], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}"#;
    fs::write(workspace.daemon.file("n.ipynb"), notebook).unwrap();
    workspace.run_jig(
        &["notebook", "edit", "n.ipynb", "--insert", "--type", "markdown", "--text", "hi"],
        "",
        0,
    );
    workspace.run_jig(&["notebook", "edit", "n.ipynb", "--cell", "c1"], "2 + 2", 0);
    let cells = workspace.run_jig_json(&["notebook", "read", "n.ipynb"], 0);
    assert_eq!(cells["cells"][0]["source"], "2 + 2", "{cells}");
    assert_eq!(cells["cells"][1]["type"], "CELL_TYPE_MARKDOWN", "{cells}");
    assert!(
        workspace
            .run_jig(&["notebook", "read", "n.ipynb", "--index", "9"], "", 1)
            .contains("CELL_NOT_FOUND")
    );
}

#[tokio::test]
async fn jig_reports_local_errors_as_local() {
    let workspace = CliWorkspace::start().await;
    fs::write(workspace.daemon.file("f"), "").unwrap();
    fs::write(workspace.local_dir.path().join("here"), "").unwrap();
    fs::create_dir(workspace.local_dir.path().join("dir")).unwrap();
    let missing = ("NOT_FOUND", "FILE_NOT_FOUND");
    let exists = ("ALREADY_EXISTS", "FILE_EXISTS");
    let no_file = ("FAILED_PRECONDITION", "NOT_A_FILE");
    let no_directory = ("FAILED_PRECONDITION", "NOT_A_DIRECTORY");
    for (arguments, (code, reason)) in [
        (&["write", "f", "--from", "/nonexistent"][..], missing),
        (&["write", "f", "--from", "dir"], no_file),
        (&["patch", "/nonexistent"], missing),
        (&["edit", "f", "--edits", "/nonexistent"], missing),
        (&["cp", "none", ":x"], missing),
        (&["cp", "/dev/null", ":x"], no_file),
        (&["cp", ":f", "none/x"], missing),
        (&["cp", ":f", "here/x"], no_directory),
        (&["cp", "-n", ":f", "here"], exists),
    ] {
        let error = &workspace.run_jig_json(arguments, 1)["error"];
        assert_eq!(error["code"], code, "{arguments:?}: {error}");
        assert_eq!(error["reason"], reason, "{arguments:?}: {error}");
        assert!(error["metadata"]["local_path"].is_string(), "{error}");
        let text = workspace.run_jig(arguments, "", 1);
        let says = format!("jig: {reason}: the local file \"");
        assert!(text.starts_with(&says), "{arguments:?}: {text}");
    }
    // Arguments that are not understood are an error too.
    for (arguments, code) in [
        (&["search"][..], 2),
        (&["search", "--no-such-flag", "text"], 2),
        (&["search", "text", "--no-such-flag"], 2),
        (&["ls", "--no-such-flag"], 64),
        (&["cp", "a", "b"], 64),
        (&["serve"], 64),
        (&["health", "--no-such-flag"], 1),
        (&["run", "--no-such-flag"], 125),
    ] {
        let error = &workspace.run_jig_json(arguments, code)["error"];
        assert_eq!(error["code"], "INVALID_ARGUMENT", "{arguments:?}: {error}");
    }
}

/// Runs `jig`, and answers what it wrote to its standard output and how it ended.
fn stdout_and_code(shop: &CliWorkspace, arguments: &[&str]) -> (Vec<u8>, Option<i32>) {
    let output = shop.command(arguments).output().unwrap();
    (output.stdout, output.status.code())
}

#[tokio::test]
async fn jig_read_pipes_files_byte_for_byte() {
    let workspace = CliWorkspace::start().await;
    let lines: String = (0..1_000_000).map(|line| format!("line {line}\n")).collect();
    assert!(lines.len() > 10 << 20);
    fs::write(workspace.daemon.file("lines"), &lines).unwrap();
    let bytes: Vec<u8> = lines.bytes().map(|byte| byte.wrapping_mul(7)).collect();
    fs::write(workspace.daemon.file("bytes"), &bytes).unwrap();
    fs::write(workspace.daemon.file("empty"), "").unwrap();
    let read = |arguments: &[&str]| stdout_and_code(&workspace, &[&["read"], arguments].concat());
    assert!(read(&["lines"]) == (lines.clone().into_bytes(), Some(0)));
    assert!(read(&["bytes"]) == (bytes.clone(), Some(0)));
    assert_eq!(read(&["empty"]), (Vec::new(), Some(0)));
    assert_eq!(read(&["empty", "--base64"]), (b"\n".to_vec(), Some(0)));
    let base64 = BASE64_STANDARD.encode(&bytes) + "\n";
    assert!(read(&["bytes", "--base64"]) == (base64.into_bytes(), Some(0)));
    // Ranges that no single answer holds.
    let rest = lines.strip_prefix("line 0\n").unwrap();
    assert!(read(&["lines", "--lines", "2:"]) == (rest.into(), Some(0)));
    let base64 = BASE64_STANDARD.encode(rest) + "\n";
    assert!(read(&["lines", "--lines", "2:", "--base64"]) == (base64.into_bytes(), Some(0)));
    assert_eq!(read(&["lines", "--lines", "2"]), (b"line 1\n".to_vec(), Some(0)));
    // What is asked for is no more than that.
    assert_eq!(read(&["lines", "--max", "4"]), (b"line".to_vec(), Some(0)));
    let json = workspace.run_jig_json(&["read", "lines"], 0);
    assert_eq!(json["omitted_lines"], 990_000, "{json}");
    // Lines of any size, of files that are as large as they like, and of what is no UTF-8.
    let long = "x".repeat(11 << 20) + "\n";
    fs::write(workspace.daemon.file("long"), format!("{long}2\n")).unwrap();
    assert!(read(&["long", "--lines", "1"]) == (long.into_bytes(), Some(0)));
    assert_eq!(read(&["long", "--lines", "2"]), (b"2\n".to_vec(), Some(0)));
    fs::write(workspace.daemon.file("latin1"), b"caf\xe9\nb\xff\xfe\n\n").unwrap();
    let latin1 = read(&["latin1", "--lines", ":2"]);
    assert_eq!(latin1, (b"caf\xe9\nb\xff\xfe\n".to_vec(), Some(0)));
    let huge = fs::File::create(workspace.daemon.file("huge")).unwrap();
    huge.write_all_at(b"\nend\n", 300 << 20).unwrap();
    assert_eq!(read(&["huge", "--lines", "2:"]), (b"end\n".to_vec(), Some(0)));
    let output = workspace.run_jig(&["read", "latin1", "--lines", "4"], "", 1);
    assert!(output.starts_with("jig: LINE_RANGE_INVALID: line 4 "), "{output}");
    assert!(output.contains("has 3 lines"), "{output}");
    assert!(workspace.run_jig(&["read", "none"], "", 1).contains("FILE_NOT_FOUND"));
}

#[tokio::test]
async fn jig_read_reports_files_that_change_during_the_read() {
    let workspace = CliWorkspace::start().await;
    let lines = "0123456789abcde\n".repeat(6 << 20);
    // Another one in its place, and one of the same size.
    let others = ["changed".to_owned(), lines.replace('0', "1")];
    let ways = [&["read", "f"][..], &["read", "f", "--lines", "1:"]];
    for (arguments, other) in
        ways.iter().flat_map(|way| others.iter().map(move |other| (way, other)))
    {
        fs::write(workspace.daemon.file("f"), &lines).unwrap();
        let mut child = workspace.command(arguments).spawn().unwrap();
        let mut stdout = child.stdout.take().unwrap();
        // It has begun; most of it is not asked for before more is taken.
        stdout.read_exact(&mut [0]).unwrap();
        fs::write(workspace.daemon.file("f"), other).unwrap();
        let mut rest = Vec::new();
        stdout.read_to_end(&mut rest).unwrap();
        let output = child.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{arguments:?}");
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert!(stderr.contains("STALE_FILE"), "{arguments:?}: {stderr}");
        assert!(rest.len() < lines.len());
    }
}
