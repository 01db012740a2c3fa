//! Every error that a tool for files answers is one that the comment of its RPC names.

use std::{collections::BTreeSet, fs, os::unix::fs::symlink};

use jig::api::v1::CreateDirectoryRequest;
use rustix::fs::{CWD, FileType, Mode, mknodat};

use super::descriptors::errors_of;
use crate::{
    files::tools::Tool,
    support::{Daemon, Refusal, Setup},
    tidy::assert_none,
};

/// The tools, and their RPCs.
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

/// What each tool answers, beside what the paths below bring about.
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
    let table = "protected = [\"safe\"]";
    let daemon = Setup::new().workspace_table(table).start().await;
    let too_long = format!("w/{}", "n".repeat(256));
    let below = format!("{too_long}/x");
    let mut found = BTreeSet::new();
    for path in [
        "w/f", "w/binary", "w/none", "w/none/x", "w/d", "w/f/x", "w/f/x/y", "w/link", "w/link/x",
        "w/fifo", "w/fifo/x", &too_long, &below, ".", "../x", "/etc", "safe", "safe/x", "", "a\0b",
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
    assert!(found.len() > 60, "only {} errors were seen", found.len());
    let unnamed = found.iter().filter(|(rpc, reason)| !errors_of(rpc).contains(reason));
    let unnamed = unnamed.map(|(rpc, reason)| format!("{rpc}: {reason}"));
    assert_none("errors that no comment names", unnamed);
}

/// Makes the directory `w`, whatever was done to it, and what is moved to elsewhere.
fn recreate_test_tree(daemon: &Daemon) {
    let at = |name: &str| daemon.file("w").join(name);
    if at("").exists() {
        fs::remove_dir_all(at("")).unwrap();
    }
    fs::create_dir_all(at("d/d")).unwrap();
    fs::write(at("f"), "text\n").unwrap();
    fs::write(at("binary"), b"\xff\0").unwrap();
    symlink("f", at("link")).unwrap();
    let mode = Mode::from_raw_mode(0o666);
    mknodat(CWD, at("fifo"), FileType::Fifo, mode, 0).unwrap();
    let other = daemon.file("other-path");
    if other.is_dir() {
        fs::remove_dir_all(&other).unwrap();
    } else if other.symlink_metadata().is_ok() {
        fs::remove_file(&other).unwrap();
    }
    fs::write(other, "").unwrap();
}
