//! Requests that are rejected before anything starts. Each would create a file if it ran.

use std::fs;

use jig::api::v1::{
    Edit, EditFileRequest, EditNotebookRequest, ReadFileRequest, RunRequest, WriteFileRequest,
};
use tonic::{Request, Status};

use crate::support::{Daemon, Refusal, argv, shell};

/// A command that leaves a file if it runs.
const MARKER_COMMAND: &str = "touch /workspace/ran";

fn marker_shell() -> RunRequest {
    shell(MARKER_COMMAND)
}

fn marker_argv() -> RunRequest {
    argv(&["touch", "/workspace/ran"])
}

fn with_env(name: &str, value: &str) -> RunRequest {
    RunRequest { env: [(name.to_owned(), value.to_owned())].into(), ..marker_shell() }
}

/// Checks that each request is rejected with an invalid field whose name contains the given text.
async fn check_invalid_fields(daemon: &Daemon, requests: Vec<(RunRequest, &str)>) {
    for (request, field) in requests {
        let refusal = daemon.run_failing(request, "INVALID_PARAMS").await;
        let fields = refusal.invalid_fields();
        assert!(fields.iter().any(|found| found.contains(field)), "{field}: {refusal:?}");
        assert!(
            refusal.violations.iter().all(|violation| !violation.description.is_empty()),
            "{refusal:?}"
        );
    }
    assert!(!daemon.file("ran").exists(), "a command was started");
}

#[tokio::test]
async fn exactly_one_of_command_and_argv_must_be_given() {
    let daemon = Daemon::start().await;
    let both = RunRequest { argv: marker_argv().argv, ..marker_shell() };
    let neither = RunRequest::default();

    for request in [both, neither] {
        let refusal = daemon.run_failing(request, "INVALID_PARAMS").await;
        assert!(!refusal.violations.is_empty(), "{refusal:?}");
        assert!(
            refusal.message.contains("command") && refusal.message.contains("argv"),
            "{refusal:?}"
        );
    }
    assert!(!daemon.file("ran").exists());
}

#[tokio::test]
async fn nul_characters_are_rejected_in_every_field() {
    let daemon = Daemon::start().await;
    let requests = vec![
        (shell(&format!("{MARKER_COMMAND}; : \0")), "command"),
        (argv(&["sh", "-c", MARKER_COMMAND, "\0"]), "argv[3]"),
        (RunRequest { cwd: Some("\0".to_owned()), ..marker_shell() }, "cwd"),
        (with_env("A\0B", "value"), "env"),
        (with_env("A", "val\0ue"), "env"),
    ];
    check_invalid_fields(&daemon, requests).await;
}

#[tokio::test]
async fn invalid_variable_names_are_rejected() {
    let daemon = Daemon::start().await;
    let requests = vec![
        (with_env("", "value"), "env"),
        (with_env("A=B", "value"), "env"),
        (with_env("=", ""), "env"),
    ];
    check_invalid_fields(&daemon, requests).await;
}

#[tokio::test]
async fn numbers_out_of_range_are_rejected() {
    let daemon = Daemon::start().await;

    let timeout = |seconds| RunRequest { timeout_sec: Some(seconds), ..marker_shell() };
    let output = |bytes| RunRequest { max_output_bytes: Some(bytes), ..marker_shell() };
    let requests = vec![
        (timeout(0), "timeout_sec"),
        (timeout(86_401), "timeout_sec"),
        (timeout(u32::MAX), "timeout_sec"),
        (output((10 << 20) + 1), "max_output_bytes"),
        (output(u32::MAX), "max_output_bytes"),
    ];
    check_invalid_fields(&daemon, requests).await;

    daemon.output(timeout(86_400)).await;
    daemon.output(output(10 << 20)).await;
}

#[tokio::test]
async fn oversized_fields_are_rejected_and_never_truncated() {
    let daemon = Daemon::start().await;

    let long = "x".repeat(131_072);
    let huge = "x".repeat(2 << 20);
    let requests = vec![
        (shell(&format!("{MARKER_COMMAND}; : {long}")), "command"),
        (argv(&["touch", "/workspace/ran", &long]), "argv[2]"),
        (argv(&["touch", "/workspace/ran", &huge]), "argv[2]"),
        (with_env("LONG", &long), "env"),
        (RunRequest { cwd: Some("x".repeat(4097)), ..marker_shell() }, "cwd"),
        (RunRequest { stdin: vec![b'x'; (8 << 20) + 1].into(), ..marker_shell() }, "stdin"),
    ];
    check_invalid_fields(&daemon, requests).await;

    // Each argument is short enough, but together they exceed the limit of the kernel (2 MiB).
    let mut many = vec!["touch", "/workspace/ran"];
    let argument = "x".repeat(100_000);
    many.extend(std::iter::repeat_n(argument.as_str(), 22));
    daemon.run_failing(argv(&many), "INVALID_PARAMS").await;
    let too_many: Vec<&str> =
        ["touch", "/workspace/ran"].into_iter().chain(std::iter::repeat_n("x", 65_535)).collect();
    daemon.run_failing(argv(&too_many), "INVALID_PARAMS").await;

    assert!(!daemon.file("ran").exists());
}

#[tokio::test]
async fn all_invalid_fields_are_reported_at_once() {
    let daemon = Daemon::start().await;

    let request = RunRequest {
        command: Some("touch /workspace/ran \0".to_owned()),
        cwd: Some("a\0b".to_owned()),
        env: [("A=B", "value"), ("", "value"), ("C", "\0")]
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .into(),
        timeout_sec: Some(0),
        max_output_bytes: Some(u32::MAX),
        ..RunRequest::default()
    };
    let refusal = daemon.run_failing(request, "INVALID_PARAMS").await;
    let fields = refusal.invalid_fields();

    for field in ["command", "cwd", "timeout_sec", "max_output_bytes"] {
        let count = fields.iter().filter(|found| **found == field).count();
        assert_eq!(count, 1, "{field}: {refusal:?}");
    }

    let variables = fields.iter().filter(|found| found.starts_with("env")).count();
    assert_eq!(variables, 3, "{refusal:?}");

    for violation in &refusal.violations {
        assert!(refusal.message.contains(&violation.field), "{refusal:?}");
    }
    assert!(!daemon.file("ran").exists());
}

#[tokio::test]
async fn cwd_outside_workspace_is_a_path_escape() {
    let daemon = Daemon::start().await;
    fs::create_dir(daemon.file("directory")).unwrap();
    for cwd in [
        "..",
        "../..",
        "directory/../..",
        "directory/../../workspace",
        "/",
        "/etc",
        "/tmp",
        "/workspace/..",
        "/workspace/../etc",
        "/workspacex",
        "/proc/self/cwd",
        daemon.workspace().to_str().unwrap(),
    ] {
        let request = RunRequest { cwd: Some(cwd.to_owned()), ..marker_argv() };
        daemon.run_failing(request, "PATH_ESCAPE").await;
    }

    assert!(!daemon.file("ran").exists());
}

#[tokio::test]
async fn kernel_limits_are_reported_by_field() {
    let daemon = Daemon::start().await;

    // Limits of execve(2): all arguments together a quarter of the stack, 2 MiB; a name 255 bytes;
    // a path 4,096 bytes.
    let long_argument = "x".repeat((128 << 10) - 1);
    for (request, field) in [
        (argv(&[&["printf"] as &[&str], &[&*long_argument; 20]].concat()), "argv"),
        (argv(&[&"x".repeat(300)]), "argv[0]"),
        (argv(&[&"./x".repeat(2000)]), "argv[0]"),
        (RunRequest { cwd: Some("x".repeat(300)), ..marker_argv() }, "cwd"),
    ] {
        let refusal = daemon.run_failing(request, "INVALID_PARAMS").await;
        assert_eq!(refusal.invalid_fields(), [field], "{refusal:?}");
    }

    std::os::unix::fs::symlink("loop", daemon.file("loop")).unwrap();
    let request = RunRequest { cwd: Some("loop".to_owned()), ..marker_argv() };
    daemon.run_failing(request, "SYMLINK_BLOCKED").await;
    assert!(!daemon.file("ran").exists());
}

#[tokio::test]
async fn missing_or_invalid_cwd_is_reported() {
    let daemon = Daemon::start().await;
    fs::write(daemon.file("file"), "").unwrap();
    for (cwd, reason) in [
        ("missing", "DIRECTORY_NOT_FOUND"),
        ("missing/below", "DIRECTORY_NOT_FOUND"),
        ("file", "NOT_A_DIRECTORY"),
    ] {
        for request in [marker_shell(), marker_argv()] {
            let request = RunRequest { cwd: Some(cwd.to_owned()), ..request };
            let refusal = daemon.run_failing(request, reason).await;
            assert!(refusal.message.contains(cwd), "{refusal:?}");
        }
    }

    assert!(!daemon.file("ran").exists());
}

#[tokio::test]
async fn unknown_program_is_named_in_the_error() {
    let daemon = Daemon::start().await;
    let refusal =
        daemon.run_failing(argv(&["no-such-program", "argument"]), "COMMAND_NOT_FOUND").await;
    assert!(refusal.message.contains("no-such-program"), "{refusal:?}");
    let response = daemon.run(shell("no-such-program argument")).await;
    assert_eq!(response.exit_code, Some(127), "{response:?}");
}

#[tokio::test]
async fn unknown_workspace_is_rejected() {
    let daemon = Daemon::start().await;
    let mut request = Request::new(marker_shell());
    request.metadata_mut().insert("jig-workspace", "nowhere".parse().unwrap());
    let status = daemon.tools().run(request).await.unwrap_err();
    assert_eq!(Refusal::from_status(&status).reason, "UNKNOWN_WORKSPACE");
    assert!(!daemon.file("ran").exists());
}

#[tokio::test]
async fn rejected_requests_use_no_sandbox() {
    let daemon = Daemon::start().await;

    for _ in 0..20 {
        daemon.run_failing(RunRequest::default(), "INVALID_PARAMS").await;
        daemon.run_failing(argv(&["no-such-program"]), "COMMAND_NOT_FOUND").await;
        let outside = RunRequest { cwd: Some("..".to_owned()), ..marker_shell() };
        daemon.run_failing(outside, "PATH_ESCAPE").await;
    }

    let counts = daemon.info().await.counts.unwrap();
    assert_eq!((counts.runs_active, counts.sandboxes_quarantined), (0, 0));
    assert_eq!(daemon.output(shell("echo after")).await, "after\n");
    assert!(!daemon.file("ran").exists());
}

#[tokio::test]
async fn unknown_enum_values_are_rejected_with_the_valid_ones() {
    let daemon = Daemon::start().await;

    fs::write(daemon.file("f"), "old").unwrap();
    let path = || "f".to_owned();
    let expect_invalid_params = |answer: Result<(), Status>, field: &str, value: &str| {
        let refusal = Refusal::from_status(&answer.unwrap_err());
        assert_eq!(refusal.reason, "INVALID_PARAMS");
        assert_eq!(refusal.invalid_fields(), [field]);
        assert!(refusal.message.contains(value), "{refusal:?}");
    };
    let mut tools = daemon.tools();
    let request = ReadFileRequest { path: path(), encoding: Some(9), ..Default::default() };
    expect_invalid_params(tools.read_file(request).await.map(drop), "encoding", "ENCODING_BASE64");

    let request = WriteFileRequest { path: path(), mode: Some(-1), ..Default::default() };
    expect_invalid_params(tools.write_file(request).await.map(drop), "mode", "WRITE_MODE_APPEND");

    let edit = |occurrence| Edit {
        old_string: "old".to_owned(),
        new_string: "new".to_owned(),
        occurrence,
    };
    let request = EditFileRequest {
        path: path(),
        edits: vec![edit(None), edit(Some(9))],
        ..Default::default()
    };
    let answer = tools.edit_file(request).await.map(drop);
    expect_invalid_params(answer, "edits[1].occurrence", "OCCURRENCE_FIRST");

    let notebook = || EditNotebookRequest {
        path: path(),
        cell_index: Some(0),
        source: Some(String::new()),
        ..Default::default()
    };
    let request = EditNotebookRequest { mode: Some(77), ..notebook() };
    expect_invalid_params(tools.edit_notebook(request).await.map(drop), "mode", "CELL_EDIT_INSERT");

    let request = EditNotebookRequest { cell_type: Some(77), ..notebook() };
    expect_invalid_params(
        tools.edit_notebook(request).await.map(drop),
        "cell_type",
        "CELL_TYPE_RAW",
    );
    assert_eq!(fs::read_to_string(daemon.file("f")).unwrap(), "old");
}
