//! `GET`, `HEAD` and `DELETE` of `/v1/files/PATH`.

use std::{
    fs,
    os::unix::fs::{PermissionsExt as _, symlink},
};

use serde_json::json;

use super::{rest, rest_command, rest_error, runtime_setup, start_runtime};

#[tokio::test]
async fn file_is_read_byte_by_byte() {
    let daemon = start_runtime().await;
    // More than one message of a download.
    let content: Vec<u8> = (0..700_001_u32).map(|index| (index % 251) as u8).collect();
    fs::create_dir(daemon.file("a b")).unwrap();
    fs::write(daemon.file("a b/ü.bin"), &content).unwrap();
    fs::write(daemon.file("empty"), "").unwrap();

    for path in ["/v1/files/a%20b/%C3%BC.bin", "/v1/files/a%20b%2F%C3%BC.bin"] {
        let output = rest_command(&daemon, &["--fail"], path).output().unwrap();
        assert!(output.stdout == content, "{path}: {} bytes", output.stdout.len());
        let head = rest(&daemon, &["--head"], path);
        assert_eq!((head.status, &*head.body), (200, ""));
        assert_eq!(head.headers["content-type"], "application/octet-stream");
        assert_eq!(head.headers["content-length"], "700001");
    }
    let response = rest(&daemon, &[], "/v1/files//empty");
    assert_eq!((response.status, &*response.body), (200, ""));
    assert_eq!(response.headers["content-length"], "0");
}

#[tokio::test]
async fn directory_is_listed() {
    let daemon = start_runtime().await;
    for path in ["/v1/files", "/v1/files/", "/v1/files/%2F", "/v1/files/%2E"] {
        assert_eq!(rest(&daemon, &[], path).json(), json!({ "path": "/", "entries": [] }));
    }

    fs::create_dir_all(daemon.file("src/below")).unwrap();
    fs::write(daemon.file("src/main.py"), "print()").unwrap();
    fs::set_permissions(daemon.file("src/main.py"), fs::Permissions::from_mode(0o751)).unwrap();
    fs::set_permissions(daemon.file("src/below"), fs::Permissions::from_mode(0o700)).unwrap();
    // The standard has no type for it.
    symlink("main.py", daemon.file("src/link")).unwrap();
    let listing = rest(&daemon, &[], "/v1/files/src/").json();
    assert_eq!(listing["path"], "/src/");
    let entries = listing["entries"].as_array().unwrap();
    assert_eq!(entries.len(), 2, "{listing}");
    let facts = |index: usize| {
        let entry = &entries[index];
        [&entry["name"], &entry["type"], &entry["size"], &entry["mode"]].map(Clone::clone)
    };
    assert_eq!(facts(0), [json!("below"), json!("directory"), json!(0), json!("0700")]);
    assert_eq!(facts(1), [json!("main.py"), json!("file"), json!(7), json!("0751")]);
    let modified = entries[1]["modified_at"].as_str().unwrap();
    assert!(modified.starts_with("20") && modified.ends_with('Z'), "{modified}");

    let head = rest(&daemon, &["--head"], "/v1/files/src");
    assert_eq!((head.status, &*head.headers["content-type"]), (200, "application/json"));
}

#[tokio::test]
async fn directory_of_several_pages_is_listed_completely() {
    let daemon = start_runtime().await;
    for index in 0..1_234 {
        fs::write(daemon.file(&format!("{index:04}")), "").unwrap();
    }
    let listing = rest(&daemon, &[], "/v1/files/").json();
    let entries = listing["entries"].as_array().unwrap();
    let names: Vec<_> = entries.iter().map(|entry| entry["name"].as_str().unwrap()).collect();
    assert_eq!(names, (0..1_234).map(|index| format!("{index:04}")).collect::<Vec<_>>());
}

#[tokio::test]
async fn paths_do_not_lead_out_of_the_workspace() {
    let daemon = start_runtime().await;
    let secret = daemon.sibling_path("secret");
    fs::write(&secret, "secret").unwrap();
    symlink(&secret, daemon.file("out")).unwrap();
    symlink("..", daemon.file("up")).unwrap();
    let put = ["-X", "PUT", "--data-binary", "changed"];

    for path in ["../secret", "%2E%2E%2Fsecret", "a/../../secret", "out", "up/secret"] {
        let path = format!("/v1/files/{path}");
        for arguments in [&[][..], &put] {
            let (status, code) = rest_error(&daemon, arguments, &path);
            assert_eq!((status, &*code), (403, "PERMISSION_DENIED"), "{arguments:?} {path}");
        }
        assert_eq!(rest(&daemon, &["--head"], &path).status, 403, "{path}");
    }
    for path in ["../secret", "up/secret"] {
        let path = format!("/v1/files/{path}?recursive=true");
        assert_eq!(rest_error(&daemon, &["-X", "DELETE"], &path).0, 403, "{path}");
    }
    assert_eq!(fs::read_to_string(&secret).unwrap(), "secret");

    // Relative to the workspace, as the SDKs read it.
    assert_eq!(rest_error(&daemon, &[], "/v1/files//etc/passwd").0, 404);
    for path in ["a%00b", "%FF"] {
        let (status, code) = rest_error(&daemon, &[], &format!("/v1/files/{path}"));
        assert_eq!((status, &*code), (400, "INVALID_ARGUMENT"), "{path}");
    }
}

#[tokio::test]
async fn missing_and_special_files_are_errors() {
    let daemon = start_runtime().await;
    assert_eq!(rest_error(&daemon, &[], "/v1/files/none"), (404, "NOT_FOUND".to_owned()));
    assert_eq!(rest(&daemon, &["--head"], "/v1/files/none").status, 404);
    let fifo = daemon.file("fifo");
    rustix::fs::mknodat(
        rustix::fs::CWD,
        &fifo,
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::from_raw_mode(0o644),
        0,
    )
    .unwrap();
    let expected = (400, "FAILED_PRECONDITION".to_owned());
    assert_eq!(rest_error(&daemon, &[], "/v1/files/fifo"), expected);
}

#[tokio::test]
async fn directories_are_deleted_if_empty_or_recursively() {
    let daemon = start_runtime().await;
    fs::create_dir_all(daemon.file("full/empty")).unwrap();
    fs::write(daemon.file("full/file"), "").unwrap();
    let delete = ["-X", "DELETE"];

    for path in ["full", "full?recursive=false"] {
        let path = format!("/v1/files/{path}");
        assert_eq!(rest_error(&daemon, &delete, &path), (409, "CONFLICT".to_owned()));
    }
    let (status, _) = rest_error(&daemon, &delete, "/v1/files/full?recursive=maybe");
    assert_eq!(status, 400);
    assert!(daemon.file("full/file").exists());

    for path in ["full/empty", "full/file", "full?recursive=true"] {
        if path == "full?recursive=true" {
            fs::create_dir_all(daemon.file("full/a/b/c")).unwrap();
        }
        let response = rest(&daemon, &delete, &format!("/v1/files/{path}"));
        assert_eq!((response.status, &*response.body), (204, ""), "{path}");
    }
    assert!(!daemon.file("full").exists());
    assert_eq!(rest_error(&daemon, &delete, "/v1/files/full").0, 404);
    assert_eq!(rest_error(&daemon, &delete, "/v1/files/?recursive=true").0, 400);
}

#[tokio::test]
async fn policy_decides_as_for_every_call() {
    let daemon = runtime_setup()
        .workspace_table(&format!(
            "protected = [\"fixed\"]\n{}\n[policy]\ndeny_tools = [\"delete_path\"]",
            super::TABLE
        ))
        .workspace_file("fixed", "old")
        .start()
        .await;
    let put = ["-X", "PUT", "--data-binary", "new"];
    assert_eq!(rest_error(&daemon, &put, "/v1/files/fixed").0, 403);
    assert_eq!(rest(&daemon, &[], "/v1/files/fixed").body, "old");
    let (status, code) = rest_error(&daemon, &["-X", "DELETE"], "/v1/files/fixed");
    assert_eq!((status, &*code), (400, "FAILED_PRECONDITION"));
}
