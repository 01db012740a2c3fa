//! `PUT /v1/files/PATH`.

use std::{
    fs::{self, File},
    io::{Read as _, Write as _},
    net::{Shutdown, TcpStream},
    os::unix::fs::PermissionsExt as _,
};

use super::{rest, rest_error, start_runtime};
use crate::support::{Daemon, eventually};

/// Largest file of the API.
const MAX_FILE_BYTES: u64 = 64 << 20;

fn mode(daemon: &Daemon, path: &str) -> u32 {
    fs::metadata(daemon.file(path)).unwrap().permissions().mode() & 0o7777
}

#[tokio::test]
async fn body_becomes_the_file() {
    let daemon = start_runtime().await;
    // More than one chunk of an upload.
    let content: Vec<u8> = (0..2_500_000_u32).map(|index| (index % 253) as u8).collect();
    let source = daemon.sibling_path("source");
    fs::write(&source, &content).unwrap();
    let source = source.to_str().unwrap();

    let chunked = ["--upload-file", source, "-H", "transfer-encoding: chunked"];
    for (arguments, path) in
        [(&["--upload-file", source][..], "new/a%2Fb/raw"), (&chunked, "new/chunked")]
    {
        let response = rest(&daemon, arguments, &format!("/v1/files/{path}"));
        assert_eq!((response.status, &*response.body), (204, ""), "{path}");
    }
    for path in ["new/a/b/raw", "new/chunked"] {
        assert!(fs::read(daemon.file(path)).unwrap() == content, "{path}");
        assert_eq!(mode(&daemon, path), 0o644);
    }

    let empty = ["-X", "PUT", "-H", "content-length: 0"];
    assert_eq!(rest(&daemon, &empty, "/v1/files/new/chunked").status, 204);
    assert_eq!(fs::read(daemon.file("new/chunked")).unwrap(), b"");
}

#[tokio::test]
async fn form_has_a_part_with_the_file() {
    let daemon = start_runtime().await;
    let form = ["-X", "PUT", "-F", "note=x", "-F", "file=content;filename=ignored"];
    assert_eq!(rest(&daemon, &form, "/v1/files/form").status, 204);
    assert_eq!(fs::read_to_string(daemon.file("form")).unwrap(), "content");

    let form_type = "content-type: multipart/form-data";
    let with_boundary = format!("{form_type}; boundary=b");
    let raw = |content_type, body| ["-X", "PUT", "-H", content_type, "--data-binary", body];
    let cut = "--b\r\ncontent-disposition: form-data; name=\"file\"\r\n\r\ncut";
    let requests = [
        &["-X", "PUT", "-F", "other=content"][..],
        &raw(&with_boundary, cut),
        &raw(&with_boundary, "no form at all"),
        &raw(&with_boundary, ""),
        &raw(form_type, "x"),
    ];
    for request in requests {
        let error = rest_error(&daemon, request, "/v1/files/missing");
        assert_eq!(error, (400, "INVALID_ARGUMENT".to_owned()), "{request:?}");
    }
    assert!(!daemon.file("missing").exists());
}

#[tokio::test]
async fn mode_is_set_on_new_and_existing_files() {
    let daemon = start_runtime().await;
    let put = ["-X", "PUT", "--data-binary", "x"];
    for (query, expected) in [("?mode=0755", 0o755), ("?mode=0600", 0o600), ("", 0o644)] {
        assert_eq!(rest(&daemon, &put, &format!("/v1/files/f{query}")).status, 204);
        assert_eq!(mode(&daemon, "f"), expected, "{query}");
    }

    for wrong in ["755", "0855", "00755", "1755", "+755", "0o75", "rwx", "%2B075", "0755&mode=1"] {
        let path = format!("/v1/files/f?mode={wrong}");
        let (status, code) = rest_error(&daemon, &put, &path);
        assert_eq!((status, &*code), (400, "INVALID_ARGUMENT"), "{wrong}");
    }
    assert_eq!(mode(&daemon, "f"), 0o644);

    fs::create_dir(daemon.file("directory")).unwrap();
    assert_eq!(rest_error(&daemon, &put, "/v1/files/directory").0, 400);
    assert_eq!(rest_error(&daemon, &put, "/v1/files/").0, 400);
}

#[tokio::test]
async fn file_that_is_too_large_is_rejected() {
    let daemon = start_runtime().await;
    let source = daemon.sibling_path("large");
    File::create(&source).unwrap().set_len(MAX_FILE_BYTES + (1 << 20)).unwrap();
    let source = source.to_str().unwrap();
    let chunked = ["--upload-file", source, "-H", "transfer-encoding: chunked"];
    let ignored_part = format!("ignored=@{source}");
    let form = ["-X", "PUT", "-F", &*ignored_part, "-F", "file=content"];
    for arguments in [&["--upload-file", source][..], &chunked, &form] {
        let (status, code) = rest_error(&daemon, arguments, "/v1/files/large");
        assert_eq!((status, &*code), (413, "RESOURCE_EXHAUSTED"), "{arguments:?}");
    }
    assert!(!daemon.file("large").exists());
}

#[tokio::test]
async fn files_on_the_way_have_limited_memory() {
    let daemon = start_runtime().await;
    let mut first = TcpStream::connect(daemon.agent_sandbox_address("REST")).unwrap();
    let head = format!(
        "PUT /v1/files/first HTTP/1.1\r\nhost: localhost\r\ncontent-length: {MAX_FILE_BYTES}\r\n\r\n"
    );
    first.write_all(head.as_bytes()).unwrap();

    let put = ["-X", "PUT", "--data-binary", "x"];
    eventually("the memory is reserved", async || {
        let response = rest(&daemon, &put, "/v1/files/second");
        response.status == 429 && response.headers["retry-after"] == "1"
    })
    .await;
    drop(first);
    eventually("the memory is free", async || {
        rest(&daemon, &put, "/v1/files/second").status == 204
    })
    .await;
    assert!(!daemon.file("first").exists());
}

#[tokio::test]
async fn incomplete_body_changes_nothing() {
    let daemon = start_runtime().await;
    fs::write(daemon.file("kept"), "old").unwrap();
    let mut client = TcpStream::connect(daemon.agent_sandbox_address("REST")).unwrap();
    let head = "PUT /v1/files/kept HTTP/1.1\r\nhost: localhost\r\ncontent-length: 100\r\n\r\npart";
    client.write_all(head.as_bytes()).unwrap();
    client.shutdown(Shutdown::Write).unwrap();
    let mut response = Vec::new();
    client.read_to_end(&mut response).unwrap();
    assert_eq!(fs::read_to_string(daemon.file("kept")).unwrap(), "old");

    let put = ["-X", "PUT", "--data-binary", "new"];
    assert_eq!(rest(&daemon, &put, "/v1/files/kept").status, 204);
    eventually("only the file is left", async || {
        let entries = fs::read_dir(daemon.workspace()).unwrap().count();
        entries == 1 && fs::read_to_string(daemon.file("kept")).unwrap() == "new"
    })
    .await;
}
