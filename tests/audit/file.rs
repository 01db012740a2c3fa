//! The file of the audit log: rotation, full disks and wrong settings.

use std::{fs, os::unix::fs::PermissionsExt as _};

use jig::api::v1::ReadFileRequest;
use serde_json::Value;

use super::{AuditDirectory, stop};
use crate::support::{Daemon, Setup, eventually, run_jigd, shell};

/// Mounts a small file system at the directory of the audit log, which only the daemon sees, and
/// executes the daemon.
const SMALL_DISK_SCRIPT: &str =
    r#"mount -t tmpfs -o size=256k,mode=700 tmpfs "$JIG_TEST_AUDIT" && exec "$0" "$@""#;

async fn read_missing(daemon: &Daemon, path: String) {
    let request = ReadFileRequest { path, ..ReadFileRequest::default() };
    daemon.tools().read_file(request).await.unwrap_err();
}

#[tokio::test]
async fn a_hangup_opens_the_file_anew() {
    let audit = AuditDirectory::new();
    let mut daemon = audit.of(Setup::new()).start().await;
    let old = audit.file().with_extension("old");
    daemon.run(shell("true")).await;
    eventually("the line is written", async || audit.lines().len() == 2).await;
    fs::rename(audit.file(), &old).unwrap();
    daemon.reload_config(Daemon::RELOADED).await;
    daemon.run(shell("true")).await;
    stop(&mut daemon).await;

    let old = fs::read_to_string(old).unwrap();
    let old: Vec<Value> = old.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let all: Vec<_> = old.into_iter().chain(audit.lines()).collect();
    let events: Vec<_> = all.iter().map(|line| line["event"].as_str().unwrap()).collect();
    let expected =
        ["daemon_started", "tool_call", "config_reloaded", "tool_call", "daemon_stopped"];
    assert_eq!(events, expected);
    assert_eq!(all[2]["status"], "success");
    let mode = fs::metadata(audit.file()).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
}

#[tokio::test]
async fn the_confined_daemon_rotates_the_file() {
    let audit = AuditDirectory::new();
    let setup = Setup::new().workspace_table("[audit]\nmax_bytes = 1048576\nmax_files = 1");
    let mut daemon = audit.of(setup).start().await;
    for number in 0..600 {
        read_missing(&daemon, format!("{number}/{}", "d/".repeat(1900))).await;
    }
    stop(&mut daemon).await;

    let rotated = audit.file().with_extension("jsonl.1");
    let first = fs::read_to_string(&rotated).unwrap();
    let (first, last) = (first.lines().last().unwrap(), audit.lines().remove(0));
    let first: Value = serde_json::from_str(first).unwrap();
    let next = first["sequence"].as_u64().unwrap() + 1;
    assert_eq!(last["sequence"].as_u64(), Some(next));
    assert!(fs::metadata(&rotated).unwrap().len() <= 1 << 20);
    assert_eq!(fs::read_dir(rotated.parent().unwrap()).unwrap().count(), 2);
}

#[tokio::test]
async fn calls_continue_on_a_full_disk_and_no_line_is_lost() {
    let audit = AuditDirectory::new();
    let directory = audit.file().parent().unwrap().to_owned();
    let setup = Setup::new()
        .environment("JIG_TEST_AUDIT", directory.to_str().unwrap())
        .wrapped_by(["unshare", "--mount", "sh", "-c", SMALL_DISK_SCRIPT]);
    let mut daemon = audit.of(setup).start().await;
    let below = |name: &str| {
        let path = directory.strip_prefix("/").unwrap();
        format!("/proc/{}/root/{}/{name}", daemon.pid(), path.display())
    };
    let (file, filler) = (below("audit.jsonl"), below("filler"));
    eventually("the log begins", async || {
        fs::read_to_string(&file).is_ok_and(|text| !text.is_empty())
    })
    .await;

    fs::write(&filler, vec![0; 1 << 20]).unwrap_err();
    for number in 0..100 {
        read_missing(&daemon, format!("missing-{number}/{}", "d/".repeat(100))).await;
    }
    eventually("the daemon reports it", async || daemon.log().contains("cannot be written")).await;
    let cut = fs::read_to_string(&file).unwrap();
    assert!(cut.lines().count() < 100, "the disk is full");

    fs::remove_file(&filler).unwrap();
    eventually("the log is written again", async || daemon.log().contains("is written again"))
        .await;
    daemon.run(shell("true")).await;
    eventually("the last line is written", async || {
        fs::read_to_string(&file).unwrap().lines().count() == 102
    })
    .await;
    let text = fs::read_to_string(&file).unwrap();
    for (index, line) in text.lines().enumerate() {
        let line: Value = serde_json::from_str(line).unwrap();
        assert_eq!(line["sequence"], index + 1);
    }
    stop(&mut daemon).await;
}

#[test]
fn commands_cannot_reach_the_file_and_its_directory_exists() {
    let workspace = tempfile::tempdir().unwrap();
    let check = |path: &str| {
        let directory = workspace.path().to_str().unwrap();
        let arguments = ["--check", "--workspace", directory, "--audit-log", path];
        let output = run_jigd(&arguments);
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    let inside = workspace.path().join("audit.jsonl");
    let (code, problem) = check(inside.to_str().unwrap());
    assert!(code == Some(78) && problem.contains("--audit-log"), "{problem}");
    let (code, problem) = check("/no-such-directory/audit.jsonl");
    assert!(code == Some(78) && problem.contains("is no directory"), "{problem}");
}
