//! The commands `jig tools`, `jig call` and `jig batch`.

use std::{
    fs,
    io::Write as _,
    process::{Child, Command, Output, Stdio},
};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::support::{Daemon, eventually};

/// Runs `jig` against the daemon with the given standard input.
fn run_jig(daemon: &Daemon, arguments: &[&str], input: &str) -> Output {
    spawn_jig(daemon, arguments, input).wait_with_output().unwrap()
}

/// Starts `jig`, as [`run_jig`].
fn spawn_jig(daemon: &Daemon, arguments: &[&str], input: &str) -> Child {
    let mut child = Command::new(env!("CARGO_BIN_EXE_jig"))
        .args(arguments)
        .env_clear()
        .env("JIG_ADDRESS", format!("unix:{}", daemon.socket().display()))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();

    // A command that does not read its input may exit before all is written.
    let _may_fail = stdin.write_all(input.as_bytes());
    drop(stdin);
    child
}

/// Runs `jig`, which must exit with `code`. Returns its standard output and standard error.
fn run_expecting_exit(daemon: &Daemon, arguments: &[&str], code: i32) -> (String, String) {
    let output = run_jig(daemon, arguments, "");
    let text = format!("{arguments:?}: {output:?}");
    assert_eq!(output.status.code(), Some(code), "{text}");
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (text(output.stdout), text(output.stderr))
}

fn parse_json(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

#[tokio::test]
async fn tools_are_listed_for_people_and_for_every_vendor() {
    let daemon = Daemon::start().await;

    let (list, _) = run_expecting_exit(&daemon, &["tools"], 0);
    assert!(
        list.contains("\nread_file         Read a text file, whole or a range of lines.\n"),
        "{list}"
    );

    let (list, _) = run_expecting_exit(&daemon, &["tools", "--dialect", "agentbench"], 0);
    assert!(list.starts_with("list_files  "), "{list}");

    for (format, pointer) in [
        ("json-schema", "/0/name"),
        ("openai-chat", "/0/function/name"),
        ("openai-responses", "/0/name"),
        ("anthropic", "/0/name"),
        ("gemini", "/0/functionDeclarations/0/name"),
        ("mcp", "/0/name"),
    ] {
        let (text, _) = run_expecting_exit(&daemon, &["tools", "--format", format], 0);
        assert_eq!(parse_json(&text).pointer(pointer).unwrap(), "apply_patch", "{text}");
        let arguments = ["tools", "--dialect", "cli_agent", "--format", format];
        let (text, _) = run_expecting_exit(&daemon, &arguments, 0);
        assert_eq!(parse_json(&text).pointer(pointer).unwrap(), "create_file", "{text}");
    }

    let (text, _) = run_expecting_exit(&daemon, &["tools", "--format", "mcp", "--json"], 0);
    let listing = parse_json(&text);
    let tools = parse_json(listing["tools_json"].as_str().unwrap());
    let names: Vec<_> = tools.as_array().unwrap().iter().map(|tool| &tool["name"]).collect();
    let listed_names: Vec<_> = listing["names"].as_array().unwrap().iter().collect();
    assert_eq!(names, listed_names);

    let (_, errors) = run_expecting_exit(&daemon, &["tools", "--dialect", "zulu"], 1);
    assert!(errors.contains("INVALID_PARAMS") && errors.contains("agentbench"), "{errors}");
}

#[tokio::test]
async fn jig_call_takes_parameters_by_name() {
    let daemon = Daemon::start().await;

    fs::write(daemon.file("lines"), "one\ntwo\nthree\n").unwrap();
    let by_name = ["call", "read_file", "path=lines", "start_line=2", "end_line:=2"];
    let (text, _) = run_expecting_exit(&daemon, &by_name, 0);
    assert_eq!(parse_json(&text)["content"], "two\n", "{text}");

    let as_list = ["call", "run", r#"argv:=["echo", "a  b"]"#];
    let (text, _) = run_expecting_exit(&daemon, &as_list, 0);
    assert_eq!(parse_json(&text)["stdout"], "a  b\n", "{text}");

    let as_json = ["call", "--params", "-", "--json", "stat"];
    let output = run_jig(&daemon, &as_json, r#"{"path": "lines"}"#);
    let envelope: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(
        (&envelope["status"], &envelope["data"]["size_bytes"]),
        (&"INVOKE_STATUS_SUCCESS".into(), &14.into()),
        "{envelope}"
    );

    // Invalid parameters are not sent.
    for (invalid, expected) in [
        (&["path=a", "path:=1"][..], "path is given twice"),
        (&["path:=x"], "not JSON"),
        (&["path"], "not a parameter"),
        (&["path=a", "--params", "{}"], "cannot be used with"),
    ] {
        let arguments = [&["call", "stat"], invalid].concat();
        let (_, errors) = run_expecting_exit(&daemon, &arguments, 125);
        assert!(errors.contains(expected), "{errors}");
    }
}

#[tokio::test]
async fn failed_call_reports_reason_and_remedy() {
    let daemon = Daemon::start().await;

    let (output, errors) = run_expecting_exit(&daemon, &["call", "read_file", "paht=lines"], 125);
    assert_eq!(output, "");
    assert!(
        errors.starts_with("jig: invalid_params: paht: is unknown: did you mean path?"),
        "{errors}"
    );
    assert_eq!(errors.lines().count(), 2, "{errors}");

    let (output, errors) =
        run_expecting_exit(&daemon, &["call", "--json", "read_file", "path=none"], 125);
    assert_eq!(parse_json(&output)["error"]["error_type"], "file_not_found");
    assert_eq!(errors, "");

    let (_, errors) = run_expecting_exit(&daemon, &["call", "dance"], 125);
    assert!(errors.contains("unknown_tool"), "{errors}");

    // An error of the call itself, not of the tool.
    let (_, errors) = run_expecting_exit(&daemon, &["call", "--dialect", "zulu", "read_file"], 125);
    assert!(errors.starts_with("jig: INVALID_PARAMS: dialect: "), "{errors}");
}

#[tokio::test]
async fn jig_call_exits_like_its_command() {
    let daemon = Daemon::start().await;

    for (line, code, expected) in [
        (&["command=exit 3"][..], 3, ""),
        (&["command=kill -9 $$"], 137, ""),
        (&["command=sleep 1000", "timeout_sec=1"], 124, "jig: ended: timed out\n"),
    ] {
        let arguments = [&["call", "run"], line].concat();
        assert_eq!(run_expecting_exit(&daemon, &arguments, code).1, expected, "{line:?}");
    }

    for (dialect, tool) in [
        ("agentbench", "run"),
        ("claude", "Bash"),
        ("cli_agent", "run_in_terminal"),
        ("dracode", "run_command"),
    ] {
        let arguments = ["call", "--dialect", dialect, tool, "command=false"];
        run_expecting_exit(&daemon, &arguments, 1);
    }

    // In every dialect, also where the outcome is an error.
    for (arguments, parameters, code, expected) in [
        (&["agentbench", "run"][..], &["command=kill -9 $$"][..], 137, ""),
        (&["anthropic", "bash"], &["command=kill -9 $$"], 137, ""),
        (&["claude", "Bash"], &["command=kill -9 $$"], 137, ""),
        (
            &["claude", "Bash"],
            &["command=sleep 1000", "timeout=300"],
            124,
            "jig: ended: timed out\n",
        ),
        (&["cli_agent", "run_in_terminal"], &["command=kill -TERM $$"], 143, ""),
        (&["dracode", "run_command"], &["command=sh", r#"arguments=-c "kill -9 $$""#], 137, ""),
        (
            &["openai", "shell"],
            &[r#"commands:=["sleep 1000"]"#, "timeout_ms=300"],
            124,
            "jig: ended: timed out\n",
        ),
        (&["rauskuclaw", "tool_exec"], &["command=kill -9 $$"], 137, ""),
    ] {
        let call = [&["call", "--dialect"], arguments, parameters].concat();
        let (_, errors) = run_expecting_exit(&daemon, &call, code);
        assert!(errors.ends_with(expected), "{call:?}: {errors}");
        let job = ["job", "submit", "--wait", "--dialect"];
        run_expecting_exit(&daemon, &[&job[..], arguments, parameters].concat(), code);
    }

    // `last_command` does not exit with the code of the command it reports.
    run_expecting_exit(&daemon, &["call", "run", "command=exit 3"], 3);
    run_expecting_exit(&daemon, &["call", "last_command"], 0);
}

#[tokio::test]
async fn cli_agent_output_matches_its_document() {
    let daemon = Daemon::start().await;

    let content = format!("content={}", "x".repeat(125));
    let create = ["call", "--dialect", "cli_agent", "create_file", "path=hello.py", &content];
    let (output, errors) = run_expecting_exit(&daemon, &create, 0);
    let lines: Vec<_> = output.lines().collect();
    let [created, location, time] = lines[..] else {
        panic!("{output}");
    };
    assert_eq!(
        (created, location, errors.as_str()),
        ("✓ Created file: hello.py (125 bytes)", "  Location: /workspace/hello.py", "")
    );
    assert!(time.starts_with("  Time: ") && time.ends_with("ms"), "{time}");

    let (output, errors) = run_expecting_exit(&daemon, &create, 125);
    assert_eq!(output, "");
    assert!(
        errors.contains("File 'hello.py' already exists. Use replace_string_in_file to modify"),
        "{errors}"
    );

    let (output, _) = run_expecting_exit(&daemon, &[&["--json"], &create[..]].concat(), 125);
    let failed = parse_json(&output);
    assert_eq!(failed["success"], false, "{failed}");
    assert_eq!(failed["error"]["code"], "file_exists", "{failed}");

    // The form of the document.
    let arguments =
        ["call", "--json", "--dialect", "cli_agent", "create_directory", "path=src/models"];
    let (output, _) = run_expecting_exit(&daemon, &arguments, 0);
    let flat = parse_json(&output);
    let time = flat["execution_time_ms"].as_u64();
    let expected = serde_json::json!({
        "tool": "create_directory",
        "success": true,
        "output": "Created directory: src/models",
        "files_affected": ["src/models"],
        "execution_time_ms": time.unwrap(),
        "metadata": { "created_parents": ["src"] },
    });

    assert_eq!(flat, expected);

    let of_agentbench = ["call", "--json", "--dialect", "agentbench", "list_files", "root=src"];
    let (output, _) = run_expecting_exit(&daemon, &of_agentbench, 0);
    let result = parse_json(&output);
    assert_eq!(result["status"], "success", "{result}");
    assert_eq!(result["data"], serde_json::json!({ "files": [] }));
    assert!(result["error"].is_null() && result["exit_code"].is_null());
}

#[tokio::test]
async fn request_id_runs_call_once() {
    let daemon = Daemon::start().await;
    let arguments = ["call", "--request-id", "once", "run", "command=echo x >>file; wc -l <file"];
    for _ in 0..2 {
        let (output, _) = run_expecting_exit(&daemon, &arguments, 0);
        assert_eq!(parse_json(&output)["stdout"], "1\n");
    }
}

#[tokio::test]
async fn dialect_tool_runs_as_a_job() {
    let daemon = Daemon::start().await;
    fs::write(daemon.file("README.md"), "# My Project\n").unwrap();
    let arguments = ["job", "submit", "--wait", "--dialect", "claude", "Read", "path=README.md"];
    let (output, _) = run_expecting_exit(&daemon, &arguments, 0);
    assert!(output.contains("# My Project"), "{output}");
}

/// The batch of the document of `rauskuclaw`, with an unknown tool and a slow call.
const BATCH_JSON: &str = r#"{
  "calls": [
    {"call_id": "call-abc-123", "name": "data_file_read", "arguments": {"path": "README.md"}},
    {"call_id": "call-def-456", "name": "no_such_tool"},
    {"call_id": "call-ghi-789", "name": "tool_exec", "arguments": {"command": "sleep 1000"}}
  ],
  "mode": "sync",
  "wait_ms": 500,
  "queue": "default",
  "dialect": "rauskuclaw"
}"#;

#[tokio::test]
async fn jig_batch_runs_several_calls() {
    let daemon = Daemon::start().await;

    fs::write(daemon.file("README.md"), "# My Project\n").unwrap();
    let output = run_jig(&daemon, &["batch", "-"], BATCH_JSON);
    assert_eq!(output.status.code(), Some(1), "{output:?}");

    let lines = String::from_utf8(output.stdout).unwrap();
    let lines: Vec<_> = lines.lines().collect();
    let [read, unknown, pending] = lines[..] else {
        panic!("{lines:?}");
    };
    assert!(
        read.starts_with("call-abc-123  data_file_read  ok       {")
            && read.contains("# My Project"),
        "{read}"
    );
    assert!(
        unknown.starts_with("call-def-456  no_such_tool    failed   UNKNOWN_TOOL: "),
        "{unknown}"
    );

    let (call, job) = pending.split_at("call-ghi-789  tool_exec       pending  ".len());
    assert!(call.ends_with("pending  "), "{pending}");

    run_expecting_exit(&daemon, &["job", "cancel", job], 0);

    // With --async, jobs are reported, and the command succeeds if all calls are accepted.
    let file = daemon.file("batch.json");
    let batch = BATCH_JSON.replace(
        r#""name": "no_such_tool""#,
        r#""name": "tools_file_search", "arguments": {"query": "READ"}"#,
    );
    fs::write(&file, batch).unwrap();
    let arguments = ["batch", "--json", "--async", file.to_str().unwrap()];
    let (output, _) = run_expecting_exit(&daemon, &arguments, 0);

    let response = parse_json(&output);
    let results = response["results"].as_array().unwrap();
    assert_eq!(results.len(), 3, "{response}");

    for result in results {
        let job = result["job_id"].as_str().unwrap();
        assert!(result["ok"] == true && !job.is_empty(), "{response}");
        run_expecting_exit(&daemon, &["job", "cancel", job], 0);
    }
    assert_eq!(response["messages_json"], "[]", "{response}");
}

#[tokio::test]
async fn invalid_batch_is_reported() {
    let daemon = Daemon::start().await;
    for (text, expected) in [
        ("", "not JSON"),
        (r#"{"calls": 1, "mod": "sync"}"#, "calls must be an array; unknown field mod"),
        // An error that only the daemon detects.
        (r#"{"calls": []}"#, "INVALID_PARAMS"),
    ] {
        let output = run_jig(&daemon, &["batch", "-"], text);
        assert!(!output.status.success());
        let errors = String::from_utf8(output.stderr).unwrap();
        assert!(errors.contains(expected), "{errors}");
    }
}

#[tokio::test]
async fn interrupted_batch_reports_that_its_calls_continue() {
    let daemon = Daemon::start().await;

    let batch = r#"{"calls": [{"call_id": "a", "name": "run", "arguments": {"command": "touch begun; sleep 1000; true"}}]}"#;
    let child = spawn_jig(&daemon, &["batch", "-"], batch);
    eventually("the command runs", async || daemon.file("begun").exists()).await;

    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130), "{output:?}");

    let errors = String::from_utf8(output.stderr).unwrap();
    assert!(errors.contains("jig job ls lists them"), "{errors}");

    let (listed, _) = run_expecting_exit(&daemon, &["--json", "job", "ls"], 0);
    let listed = parse_json(&listed);
    let jobs = listed["jobs"].as_array().unwrap_or_else(|| panic!("{listed}"));
    let id = jobs[0]["job_id"].as_str().unwrap();
    run_expecting_exit(&daemon, &["job", "cancel", id], 0);
}

#[tokio::test]
async fn invalid_parameters_are_reported_before_sending() {
    let daemon = Daemon::start().await;

    for (arguments, expected) in [
        (&["call", "run", "=x"][..], "has no name"),
        (&["call", "run", "--params", "file.json"], "--params - reads one from standard input"),
        (&["call", "run", "--params", "[]"], "--params is not a JSON object"),
        (&["call", "run", "--params", "-"], "standard input is not a JSON object"),
    ] {
        let (_, errors) = run_expecting_exit(&daemon, arguments, 125);
        assert!(errors.contains(expected), "{errors}");
    }

    let (_, errors) = run_expecting_exit(&daemon, &["call", "raed_file", "path=x"], 125);
    assert!(errors.contains("did you mean read_file?"), "{errors}");

    let (_, errors) =
        run_expecting_exit(&daemon, &["call", "run", "command=true", "timeout_sec=0"], 125);
    assert_eq!(errors.matches("it must be from 1").count(), 1, "{errors}");
}
