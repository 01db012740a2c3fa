//! The comment of each RPC names every error that its file tool returns.

use std::{collections::BTreeSet, fs, os::unix::fs::symlink};

use jig::api::v1::CreateDirectoryRequest;
use rustix::fs::{CWD, FileType, Mode, mknodat};

use super::descriptors::errors_of;
use crate::{
    files::tools::Tool,
    support::{Daemon, Refusal, Setup},
    tidy::assert_none,
};

/// The file tools and their RPCs.
const TOOL_RPCS: &[(Tool, &str)] = &[
    (Tool::Read, "ReadFile"),
    (Tool::ListFiles, "ListFiles"),
    (Tool::ListDirectory, "ListDirectory"),
    (Tool::Stat, "StatPath"),
    (Tool::Search, "Search"),
    (Tool::ReadNotebook, "ReadNotebook"),
    (Tool::Write, "WriteFile"),
    (Tool::Edit, "EditFile"),
    (Tool::Patch, "ApplyPatch"),
    (Tool::EditNotebook, "EditNotebook"),
    (Tool::MoveFrom, "MovePath"),
    (Tool::MoveTo, "MovePath"),
    (Tool::Delete, "DeletePath"),
];

/// Errors of each tool that the paths of the test below do not cause.
const RARE_ERRORS: &[(&str, &[&str])] = &[
    ("ApplyPatch", &["FILE_TOO_LARGE", "STALE_FILE"]),
    ("DeletePath", &["DIRECTORY_NOT_EMPTY"]),
    ("EditFile", &["FILE_TOO_LARGE", "STALE_FILE"]),
    ("EditNotebook", &["FILE_TOO_LARGE", "STALE_FILE"]),
    ("ListFiles", &["TIMEOUT", "TOO_MANY_FILES"]),
    ("MovePath", &["DIRECTORY_NOT_EMPTY", "FILE_EXISTS"]),
    ("Search", &["RESOURCE_EXHAUSTED", "TOO_MANY_FILES"]),
    ("WriteFile", &["FILE_TOO_LARGE", "STALE_FILE"]),
];

#[test]
fn comments_name_rare_errors() {
    let found = RARE_ERRORS.iter().flat_map(|(rpc, reasons)| {
        let named = errors_of(rpc);
        let missing = reasons.iter().filter(move |reason| !named.contains(**reason));
        missing.map(move |reason| format!("{rpc}: {reason}"))
    });
    assert_none("errors that no comment names", found);
}

#[tokio::test]
async fn comments_name_every_observed_error() {
    let config = "protected = [\"safe\"]";
    let daemon = Setup::new().workspace_table(config).start().await;
    let too_long = format!("w/{}", "n".repeat(256));
    let child_of_long = format!("{too_long}/x");

    let mut found = BTreeSet::new();
    for path in [
        "w/f",
        "w/binary",
        "w/none",
        "w/none/x",
        "w/d",
        "w/f/x",
        "w/f/x/y",
        "w/link",
        "w/link/x",
        "w/fifo",
        "w/fifo/x",
        &too_long,
        &child_of_long,
        ".",
        "../x",
        "/etc",
        "safe",
        "safe/x",
        "",
        "a\0b",
    ] {
        for (tool, rpc) in TOOL_RPCS {
            recreate_test_tree(&daemon);
            if let Err(status) = tool.call(&daemon, path).await {
                found.insert((*rpc, Refusal::from_status(&status).reason));
            }
        }

        recreate_test_tree(&daemon);
        let path = path.to_owned();
        let request = CreateDirectoryRequest { path };
        if let Err(status) = daemon.tools().create_directory(request).await {
            found.insert(("CreateDirectory", Refusal::from_status(&status).reason));
        }
    }

    assert!(found.len() > 60, "only {} errors were returned", found.len());

    let unnamed = found.iter().filter(|(rpc, reason)| !errors_of(rpc).contains(reason));
    let unnamed = unnamed.map(|(rpc, reason)| format!("{rpc}: {reason}"));
    assert_none("errors that no comment names", unnamed);
}

/// Creates the directory `w` and the file `other-path` anew, for moves from and to it.
fn recreate_test_tree(daemon: &Daemon) {
    let path = |name: &str| daemon.file("w").join(name);
    if path("").exists() {
        fs::remove_dir_all(path("")).unwrap();
    }

    fs::create_dir_all(path("d/d")).unwrap();
    fs::write(path("f"), "text\n").unwrap();
    fs::write(path("binary"), b"\xff\0").unwrap();
    symlink("f", path("link")).unwrap();
    let mode = Mode::from_raw_mode(0o666);
    mknodat(CWD, path("fifo"), FileType::Fifo, mode, 0).unwrap();
    let other_path = daemon.file("other-path");

    if other_path.is_dir() {
        fs::remove_dir_all(&other_path).unwrap();
    } else if other_path.symlink_metadata().is_ok() {
        fs::remove_file(&other_path).unwrap();
    }

    fs::write(other_path, "").unwrap();
}
