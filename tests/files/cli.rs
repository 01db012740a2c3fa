//! The client's command for each file tool, with a real daemon.

use std::{fs, io::Read as _, os::unix::fs::FileExt as _};

use base64::{Engine as _, prelude::BASE64_STANDARD};
use serde_json::Value;

use super::client_fixture::ClientFixture;

fn content(fixture: &ClientFixture, path: &str) -> String {
    fs::read_to_string(fixture.daemon.file(path)).unwrap()
}

#[tokio::test]
async fn jig_writes_edits_and_patches_files() {
    let fixture = ClientFixture::start().await;
    let written = fixture.run_jig(&["write", "a/f"], "one\ntwo\nthree\n", 0);
    assert_eq!(written, "created a/f (14 bytes)\n");
    assert!(
        fixture
            .run_jig(&["write", "a/f", "--create-new", "--text", "x"], "", 1)
            .contains("FILE_EXISTS")
    );

    fixture.run_jig(&["write", "a/f", "--append", "--text", "four\n"], "", 0);
    assert_eq!(content(&fixture, "a/f"), "one\ntwo\nthree\nfour\n");

    let diff = fixture.run_jig(&["edit", "a/f", "--old", "two", "--new", "2"], "", 0);
    assert!(diff.contains("-two\n+2\n"), "{diff}");
    assert!(!diff.contains('\x1b'), "colours are for terminals");

    let edits = r#"[{"old_string": "e", "new_string": "E", "occurrence": "ALL"}]"#;
    fixture.run_jig(&["edit", "a/f", "--edits", "-"], edits, 0);
    assert_eq!(content(&fixture, "a/f"), "onE\n2\nthrEE\nfour\n");

    let error = fixture.run_jig_json(&["edit", "a/f", "--old", "none", "--new", ""], 1);
    assert_eq!(error["error"]["reason"], "STRING_NOT_FOUND", "{error}");

    let patch = "--- a/a/f\n+++ b/a/f\n@@ -1,2 +1,2 @@\n-onE\n+one\n 2\n";
    let preview = fixture.run_jig(&["patch", "--dry-run"], patch, 0);
    assert_eq!(preview, "M a/f\n");
    assert_eq!(content(&fixture, "a/f"), "onE\n2\nthrEE\nfour\n");

    fixture.run_jig(&["patch", "-"], patch, 0);
    assert_eq!(content(&fixture, "a/f"), "one\n2\nthrEE\nfour\n");
}

#[tokio::test]
async fn jig_lists_moves_and_deletes_paths() {
    let fixture = ClientFixture::start().await;
    assert_eq!(fixture.run_jig(&["mkdir", "a/b"], "", 0), "created a\ncreated a/b\n");

    fs::write(fixture.daemon.file("a/f"), "12345").unwrap();
    let list = fixture.run_jig(&["ls", "-l", "a"], "", 0);
    let lines: Vec<&str> = list.lines().collect();
    assert!(lines[0].starts_with("drwx") && lines[0].ends_with(" b/"), "{list}");
    assert!(lines[1].starts_with("-rw-") && lines[1].ends_with(" f"), "{list}");

    let list = fixture.run_jig_json(&["ls", "-l", "a"], 0);
    assert_eq!(list["entries"][1]["size_bytes"], 5, "{list}");
    assert_eq!(fixture.run_jig_json(&["stat", "a/f"], 0)["type"], "FILE_TYPE_FILE");
    assert!(fixture.run_jig(&["stat", "a/f"], "", 0).contains("size    5 bytes"));

    fixture.run_jig(&["mv", "a/f", "g"], "", 0);
    assert_eq!(content(&fixture, "g"), "12345");

    fixture.run_jig(&["rm", "g"], "", 0);
    assert!(fixture.run_jig(&["rm", "a"], "", 1).contains("DIRECTORY_NOT_EMPTY"));
    assert_eq!(fixture.run_jig_json(&["rm", "-r", "a"], 0)["deleted_count"], 2);
    assert_eq!(fixture.run_jig(&["ls"], "", 0), "");
}

#[tokio::test]
async fn jig_continues_after_a_path_that_fails() {
    let fixture = ClientFixture::start().await;
    let output = fixture.run_jig(&["mkdir", "a", "../b", "c/d"], "", 1);
    assert!(output.starts_with("created a\ncreated c\ncreated c/d\n"), "{output}");
    assert!(output.contains("jig: ../b: "), "{output}");

    for name in ["e", "f"] {
        fs::write(fixture.daemon.file(name), format!("{name} has 10\n")).unwrap();
    }

    let read = fixture.run_jig(&["read", "e", "none", "f"], "", 1);
    assert!(read.starts_with("e has 10\nf has 10\n"), "{read}");

    let error = read.lines().last().unwrap();
    assert!(error.starts_with("jig: none: FILE_NOT_FOUND: "), "{read}");
    assert_eq!(read.lines().count(), 3, "{read}");

    let encoded = fixture.run_jig(&["read", "--base64", "e", "f"], "", 0);
    assert_eq!(encoded, "ZSBoYXMgMTAK\nZiBoYXMgMTAK\n");

    let output = fixture.run_jig(&["stat", "e", "none", "f"], "", 1);
    assert_eq!(output.matches("size    9 bytes").count(), 2, "{output}");

    let lines = fixture.run_jig(&["stat", "--json", "e", "none", "f"], "", 1);
    let lines: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let paths: Vec<_> = lines.iter().map(|line| line["path"].as_str().unwrap()).collect();
    assert_eq!(paths, ["e", "none", "f"]);
    assert_eq!(lines[1]["error"]["reason"], "FILE_NOT_FOUND", "{lines:?}");
    assert_eq!(lines[2]["size_bytes"], 9, "{lines:?}");

    let output = fixture.run_jig(&["rm", "--request-id", "x", "e", "f"], "", 64);
    assert!(output.contains("each path is a call"), "{output}");

    let output = fixture.run_jig(&["rm", "e", "c", "none", "f"], "", 1);
    assert!(output.contains("jig: c: DIRECTORY_NOT_EMPTY: "), "{output}");
    assert!(output.contains("jig: none: FILE_NOT_FOUND: "), "{output}");
    assert_eq!(output.lines().count(), 2, "{output}");
    assert_eq!(fixture.run_jig(&["rm", "-r", "a", "c"], "", 0), "");
    assert_eq!(fixture.run_jig(&["ls"], "", 0), "");
}

#[tokio::test]
async fn jig_searches_text_and_edits_notebook_cells() {
    let fixture = ClientFixture::start().await;
    fs::write(fixture.daemon.file("a.txt"), "x\nNeedle here\ny\n").unwrap();
    assert_eq!(fixture.run_jig(&["search", "needle"], "", 0), "a.txt:2:1:Needle here\n");
    assert_eq!(
        fixture.run_jig(&["search", "n.*e h", ".", "-E", "-C", "1"], "", 0),
        "a.txt-1-x\na.txt:2:1:Needle here\na.txt-3-y\n"
    );

    for (flags, expected) in [
        (&["-n", "-i"][..], "a.txt:2:1:Needle here\n"),
        (&["-A", "1"], "a.txt:2:1:Needle here\na.txt-3-y\n"),
        (&["-B", "1"], "a.txt-1-x\na.txt:2:1:Needle here\n"),
        (&["-l"], "a.txt\n"),
        (&["-c"], "a.txt:1\n"),
    ] {
        let arguments = [&["search", "needle"], flags].concat();
        assert_eq!(fixture.run_jig(&arguments, "", 0), expected, "{flags:?}");
    }

    assert_eq!(fixture.run_jig(&["search", "-s", "needle"], "", 1), "");
    assert_eq!(fixture.run_jig(&["search", "--", "-x"], "", 1), "");
    assert_eq!(fixture.run_jig_json(&["search", "nothing"], 1)["total_matches"], 0);

    // As with grep: patterns first, then the path.
    assert_eq!(
        fixture.run_jig(&["search", "-e", "^y$", "-e", "n.*e h", "a.txt"], "", 0),
        "a.txt:2:1:Needle here\na.txt:3:1:y\n"
    );

    let output = fixture.run_jig(&["search", "-e", "x", "a.txt", "b"], "", 2);
    assert!(output.contains("only one path"), "{output}");

    let output = fixture.run_jig(&["search", "-e", "("], "", 2);
    assert!(output.contains("INVALID_REGEX"), "{output}");

    // A file that was not searched may contain the text.
    let large = format!("needle\n{}", "x".repeat(9 << 20));
    fs::write(fixture.daemon.file("long"), large).unwrap();
    let output = fixture.run_jig(&["search", "nothing"], "", 2);
    assert!(output.starts_with("jig: files that were not searched") && output.ends_with(": 1\n"));
    assert!(fixture.run_jig(&["search", "needle"], "", 0).ends_with(&output));
    assert_eq!(fixture.run_jig_json(&["search", "nothing"], 2)["files_incomplete"], 1);

    fs::remove_file(fixture.daemon.file("long")).unwrap();

    let notebook = r#"{"cells": [{"cell_type": "code", "execution_count": null, "id": "c1", "metadata": {}, "outputs": [], "source": ["1"]}], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}"#;
    fs::write(fixture.daemon.file("n.ipynb"), notebook).unwrap();
    fixture.run_jig(
        &["notebook", "edit", "n.ipynb", "--insert", "--type", "markdown", "--text", "hi"],
        "",
        0,
    );
    fixture.run_jig(&["notebook", "edit", "n.ipynb", "--cell", "c1"], "2 + 2", 0);
    let cells = fixture.run_jig_json(&["notebook", "read", "n.ipynb"], 0);
    assert_eq!(cells["cells"][0]["source"], "2 + 2", "{cells}");
    assert_eq!(cells["cells"][1]["type"], "CELL_TYPE_MARKDOWN", "{cells}");
    assert!(
        fixture
            .run_jig(&["notebook", "read", "n.ipynb", "--index", "9"], "", 1)
            .contains("CELL_NOT_FOUND")
    );
}

#[tokio::test]
async fn jig_reports_local_errors_as_local() {
    let fixture = ClientFixture::start().await;
    fs::write(fixture.daemon.file("f"), "").unwrap();
    fs::write(fixture.local_dir.path().join("here"), "").unwrap();
    fs::create_dir(fixture.local_dir.path().join("dir")).unwrap();
    let missing = ("NOT_FOUND", "FILE_NOT_FOUND");
    let exists = ("ALREADY_EXISTS", "FILE_EXISTS");
    let not_a_file = ("FAILED_PRECONDITION", "NOT_A_FILE");
    let not_a_directory = ("FAILED_PRECONDITION", "NOT_A_DIRECTORY");

    for (arguments, (code, reason)) in [
        (&["write", "f", "--from", "/nonexistent"][..], missing),
        (&["write", "f", "--from", "dir"], not_a_file),
        (&["patch", "/nonexistent"], missing),
        (&["edit", "f", "--edits", "/nonexistent"], missing),
        (&["cp", "none", ":x"], missing),
        (&["cp", "/dev/null", ":x"], not_a_file),
        (&["cp", ":f", "none/x"], missing),
        (&["cp", ":f", "here/x"], not_a_directory),
        (&["cp", "-n", ":f", "here"], exists),
    ] {
        let error = &fixture.run_jig_json(arguments, 1)["error"];
        assert_eq!(error["code"], code, "{arguments:?}: {error}");
        assert_eq!(error["reason"], reason, "{arguments:?}: {error}");
        assert!(error["metadata"]["local_path"].is_string(), "{error}");
        let text = fixture.run_jig(arguments, "", 1);
        let expected = format!("jig: {reason}: the local file \"");
        assert!(text.starts_with(&expected), "{arguments:?}: {text}");
    }

    // Invalid arguments are reported as JSON too.
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
        let error = &fixture.run_jig_json(arguments, code)["error"];
        assert_eq!(error["code"], "INVALID_ARGUMENT", "{arguments:?}: {error}");
    }
}

/// Runs `jig`. Returns its standard output and its exit code.
fn stdout_and_code(fixture: &ClientFixture, arguments: &[&str]) -> (Vec<u8>, Option<i32>) {
    let output = fixture.command(arguments).output().unwrap();
    (output.stdout, output.status.code())
}

#[tokio::test]
async fn jig_read_pipes_files_byte_for_byte() {
    let fixture = ClientFixture::start().await;
    let lines: String = (0..1_000_000).map(|line| format!("line {line}\n")).collect();
    assert!(lines.len() > 10 << 20);

    fs::write(fixture.daemon.file("lines"), &lines).unwrap();
    let bytes: Vec<u8> = lines.bytes().map(|byte| byte.wrapping_mul(7)).collect();
    fs::write(fixture.daemon.file("bytes"), &bytes).unwrap();
    fs::write(fixture.daemon.file("empty"), "").unwrap();
    let read = |arguments: &[&str]| stdout_and_code(&fixture, &[&["read"], arguments].concat());
    assert!(read(&["lines"]) == (lines.clone().into_bytes(), Some(0)));
    assert!(read(&["bytes"]) == (bytes.clone(), Some(0)));
    assert_eq!(read(&["empty"]), (Vec::new(), Some(0)));
    assert_eq!(read(&["empty", "--base64"]), (b"\n".to_vec(), Some(0)));

    let base64 = BASE64_STANDARD.encode(&bytes) + "\n";
    assert!(read(&["bytes", "--base64"]) == (base64.into_bytes(), Some(0)));

    // Ranges larger than one response.
    let rest = lines.strip_prefix("line 0\n").unwrap();
    assert!(read(&["lines", "--lines", "2:"]) == (rest.into(), Some(0)));

    let base64 = BASE64_STANDARD.encode(rest) + "\n";
    assert!(read(&["lines", "--lines", "2:", "--base64"]) == (base64.into_bytes(), Some(0)));
    assert_eq!(read(&["lines", "--lines", "2"]), (b"line 1\n".to_vec(), Some(0)));

    // `--max` limits the bytes.
    assert_eq!(read(&["lines", "--max", "4"]), (b"line".to_vec(), Some(0)));

    let json = fixture.run_jig_json(&["read", "lines"], 0);
    assert_eq!(json["omitted_lines"], 990_000, "{json}");

    // Lines of any size, huge files, and content that is not UTF-8.
    let long_line = "x".repeat(11 << 20) + "\n";
    fs::write(fixture.daemon.file("long"), format!("{long_line}2\n")).unwrap();
    assert!(read(&["long", "--lines", "1"]) == (long_line.into_bytes(), Some(0)));
    assert_eq!(read(&["long", "--lines", "2"]), (b"2\n".to_vec(), Some(0)));

    fs::write(fixture.daemon.file("latin1"), b"caf\xe9\nb\xff\xfe\n\n").unwrap();
    let latin1 = read(&["latin1", "--lines", ":2"]);
    assert_eq!(latin1, (b"caf\xe9\nb\xff\xfe\n".to_vec(), Some(0)));

    let huge = fs::File::create(fixture.daemon.file("huge")).unwrap();
    huge.write_all_at(b"\nend\n", 300 << 20).unwrap();
    assert_eq!(read(&["huge", "--lines", "2:"]), (b"end\n".to_vec(), Some(0)));

    let output = fixture.run_jig(&["read", "latin1", "--lines", "4"], "", 1);
    assert!(output.starts_with("jig: LINE_RANGE_INVALID: line 4 "), "{output}");
    assert!(output.contains("has 3 lines"), "{output}");
    assert!(fixture.run_jig(&["read", "none"], "", 1).contains("FILE_NOT_FOUND"));
}

#[tokio::test]
async fn jig_read_reports_files_that_change_during_the_read() {
    let fixture = ClientFixture::start().await;
    let lines = "0123456789abcde\n".repeat(6 << 20);

    // A shorter content, and one of the same size.
    let contents = ["changed".to_owned(), lines.replace('0', "1")];
    let commands = [&["read", "f"][..], &["read", "f", "--lines", "1:"]];
    for (arguments, content) in
        commands.iter().flat_map(|command| contents.iter().map(move |content| (command, content)))
    {
        fs::write(fixture.daemon.file("f"), &lines).unwrap();
        let mut child = fixture.command(arguments).spawn().unwrap();
        let mut stdout = child.stdout.take().unwrap();

        // The read has started; `jig` requests the rest only as the pipe drains.
        stdout.read_exact(&mut [0]).unwrap();
        fs::write(fixture.daemon.file("f"), content).unwrap();
        let mut rest = Vec::new();
        stdout.read_to_end(&mut rest).unwrap();
        let output = child.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{arguments:?}");

        let stderr = String::from_utf8(output.stderr).unwrap();
        assert!(stderr.contains("STALE_FILE"), "{arguments:?}: {stderr}");
        assert!(rest.len() < lines.len());
    }
}
