//! Commands that exhaust shared resources: the disk, directories, descriptors, priority.

use std::fs;

use jig::api::v1::{Outcome, RunRequest};
use rustix::fs::{CWD, OFlags, mkdirat, openat};

use crate::{
    files::tools::Tool,
    support::{Daemon, Refusal, Setup, argv, full_size, promptly, shell},
};

#[tokio::test]
async fn case_30_full_workspace_fails_only_writes() {
    let daemon = Setup::new().workspace_on_small_disk().start().await;
    Tool::Write.call(&daemon, "f").await.unwrap();
    let response = daemon.run(shell("head -c 9000000 /dev/zero > fill")).await;
    assert_ne!(response.exit_code, Some(0));
    assert!(response.stderr.contains("No space left"), "{response:?}");

    let space = daemon.output(shell("df --output=avail . | tail -1")).await;
    assert_eq!(space.trim(), "0");

    for tool in [Tool::Write, Tool::Edit, Tool::Patch, Tool::Upload] {
        let status = tool.call(&daemon, "f").await.unwrap_err();
        let refusal = Refusal::from_status(&status);
        assert_eq!(refusal.reason, "NO_SPACE", "{tool:?}: {refusal:?}");
        assert_eq!(refusal.metadata["path"], "f", "{tool:?}: {refusal:?}");
    }

    assert_eq!(daemon.read_file("f").await.unwrap(), "written\n");

    let names = daemon.output(shell("ls -A")).await;
    assert_eq!(names, "f\nfill\n", "no partial file remains");

    Tool::Delete.call(&daemon, "fill").await.unwrap();
    Tool::Edit.call(&daemon, "f").await.unwrap();
    assert_eq!(daemon.output(shell("cat f")).await, "edited\n");
}

#[tokio::test]
async fn case_31_file_tools_reject_a_huge_file_cheaply() {
    let daemon = Daemon::start().await;
    let file = fs::File::create(daemon.file("huge")).unwrap();
    let mut size = i64::MAX as u64;
    while file.set_len(size).is_err() {
        size /= 2;
    }
    assert!(size >= 1 << 40, "{size}");

    let before = daemon.resident_bytes();
    for tool in [Tool::Read, Tool::Edit, Tool::ReadNotebook] {
        let status = promptly("the tool ends", tool.call(&daemon, "huge")).await.unwrap_err();
        assert_eq!(Refusal::from_status(&status).reason, "FILE_TOO_LARGE", "{tool:?}: {status:?}");
    }

    for tool in [Tool::Stat, Tool::ListFiles, Tool::ListDirectory] {
        let path = if tool == Tool::Stat { "huge" } else { "." };
        promptly("the tool ends", tool.call(&daemon, path)).await.unwrap();
    }

    promptly("the search ends", Tool::Search.call(&daemon, ".")).await.unwrap();

    let after = daemon.resident_bytes();
    assert!(after < before + (32 << 20), "{before} {after}");
}

#[tokio::test]
async fn case_32_file_tools_handle_wide_and_deep_directories() {
    let entries = full_size(100_000, 20_000);
    let daemon = Setup::new().exclusive().start().await;
    fs::create_dir(daemon.file("wide")).unwrap();
    for entry in 0..entries {
        fs::write(daemon.file(&format!("wide/{entry}")), "").unwrap();
    }

    let mut directory = openat(CWD, daemon.workspace(), OFlags::PATH, 0.into()).unwrap();
    for _ in 0..4000 {
        mkdirat(&directory, "d", 0o755.into()).unwrap();
        directory = openat(&directory, "d", OFlags::PATH, 0.into()).unwrap();
    }

    for tool in [Tool::ListFiles, Tool::ListDirectory, Tool::Search] {
        promptly("the tool ends", tool.call(&daemon, "wide")).await.unwrap();
        promptly("the tool ends", tool.call(&daemon, ".")).await.unwrap();
    }

    for path in ["d", "wide"] {
        let response =
            promptly("the deletion ends", Tool::Delete.call(&daemon, path)).await.unwrap();
        let count = if path == "d" { 4000 } else { entries + 1 };
        assert!(response.contains(&format!("deleted_count: {count} ")), "{response}");
    }

    assert_eq!(fs::read_dir(daemon.workspace()).unwrap().count(), 0);
}

#[tokio::test]
async fn case_34_command_cannot_raise_its_priority() {
    let daemon = Daemon::start().await;
    for command in [
        "nice -n -20 true",
        "chrt -f 1 true",
        "chrt -r 1 true",
        "chrt -d --sched-runtime 100000 --sched-period 1000000 0 true",
    ] {
        let response = daemon.run(shell(&format!("LC_ALL=C {command}"))).await;
        let is_refused = response.stderr.contains("ermission denied")
            || response.stderr.contains("not permitted");
        assert!(is_refused, "{command}: {response:?}");
    }
}

#[tokio::test]
async fn case_35_descriptor_exhaustion_does_not_affect_others() {
    let daemon = Daemon::start().await;
    let script = "ulimit -Sn $(ulimit -Hn); ulimit -n; \
        for i in $(seq 12); do (exec bash -c 'while eval \"exec {fd}</dev/null\"; do :; done 2>/dev/null; sleep 100') & done; sleep 100";
    let attack = daemon.spawn_run(RunRequest { timeout_sec: Some(5), ..shell(script) });

    for _ in 0..20 {
        daemon.output(shell("exec 9</dev/null; true")).await;
        Tool::ListDirectory.call(&daemon, ".").await.unwrap();
        daemon.tools_on_new_connection();
    }

    let response = attack.await.unwrap().unwrap();
    assert_eq!(response.outcome(), Outcome::TimedOut);
    assert_eq!(response.stdout.trim(), "4096");
}

#[tokio::test]
async fn case_36_long_arguments_are_passed_complete_or_rejected() {
    let daemon = Daemon::start().await;

    // One argument may have 128 KiB, all together 2 MiB (execve(2)).
    let long = "x".repeat((128 << 10) - 1);
    let response = daemon.run(argv(&["sh", "-c", "printf %s \"$1\" | wc -c", "sh", &long])).await;
    assert_eq!(response.stdout.trim(), long.len().to_string());

    let arguments: Vec<String> = (0..10_000).map(|number| format!("argument-{number}")).collect();
    let words = ["sh", "-c", "echo $#", "sh"].into_iter();
    let words: Vec<&str> = words.chain(arguments.iter().map(String::as_str)).collect();
    assert_eq!(daemon.run(argv(&words)).await.stdout.trim(), "10000");

    let too_long = "x".repeat(1 << 20);
    daemon.run_failing(argv(&["echo", &too_long]), "INVALID_PARAMS").await;

    let request = RunRequest { env: [("LONG".to_owned(), too_long)].into(), ..argv(&["true"]) };
    daemon.run_failing(request, "INVALID_PARAMS").await;
}
