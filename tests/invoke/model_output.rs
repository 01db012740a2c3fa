//! Truncated outputs as a model reads them: the texts alone lead to the whole output.

use jig::api::v1::{InvokeStatus, ListToolsRequest, catalog_service_client::CatalogServiceClient};
use serde_json::{Value, json};

use super::{
    batch::{batch_request, invoke_batch, tool_messages},
    call, invoke, json_of,
};
use crate::support::{Daemon, KeyFile, Refusal, Setup, with_key, with_metadata};

/// Writes 308,050 bytes in 5,050 lines.
const LONG_OUTPUT_COMMAND: &str = "seq -f %060g 1 5050";

/// A dialect, its tool that runs commands, and the parameters for a command line.
pub(super) type CommandTool = (&'static str, &'static str, fn(&str) -> Value);

/// The command tool of every dialect.
pub(super) const COMMAND_TOOLS: [CommandTool; 8] = [
    ("", "run", |command| json!({ "command": command })),
    ("agentbench", "run", |command| json!({ "command": command })),
    (
        "dracode",
        "run_command",
        |command| json!({"command": "sh", "arguments": format!("-c \"{command}\"")}),
    ),
    ("claude", "Bash", |command| json!({ "command": command })),
    ("cli_agent", "run_in_terminal", |command| json!({ "command": command })),
    ("rauskuclaw", "tool_exec", |command| json!({ "command": command })),
    ("openai", "shell", |command| json!({ "commands": [command] })),
    ("anthropic", "bash", |command| json!({ "command": command })),
];

fn long_output() -> String {
    (1..=5050).map(|number| format!("{number:060}\n")).collect()
}

/// The path of the whole output and the tool that reads it, as a text names them.
fn continuation(text: &str) -> (&str, &str) {
    let (_, path) = text.split_once("the whole output is in ").unwrap();
    let (path, reader) = path.split_once(": read it with ").unwrap();
    (path, reader.split_once(',').unwrap().0)
}

/// The content of a file, read with the tool `tool`.
async fn read_content(daemon: &Daemon, dialect: &str, tool: &str, path: &str) -> String {
    let params = match dialect {
        "dracode" => json!({ "file_path": path }),
        "anthropic" => json!({"command": "view", "path": path}),
        _ => json!({ "path": path }),
    };
    let response = invoke(daemon, call(dialect, tool, params)).await;
    assert_eq!(response.status(), InvokeStatus::Success, "{dialect}");

    let field = match dialect {
        "dracode" => return response.text,
        "anthropic" => {
            let lines = response.text.split_inclusive('\n');
            return lines.map(|line| line.split_once('\t').unwrap().1).collect::<String>();
        }
        "cli_agent" => "output",
        "rauskuclaw" => "content_text",
        _ => "content",
    };
    let data: Value = serde_json::from_str(&response.text).unwrap();
    let content = data[field].as_str().unwrap();

    if let Some(next) = data["next_path"].as_str() {
        return format!("{content}[jig: the output continues in {next}]");
    }

    if dialect == "cli_agent" {
        content.split_once(":\n").unwrap().1.to_owned()
    } else {
        content.to_owned()
    }
}

/// Reads a whole output part by part: each part names the next one.
async fn read_all_parts(daemon: &Daemon, dialect: &str, tool: &str, path: &str) -> String {
    let mut output = String::new();
    let mut path = path.to_owned();
    loop {
        let part = read_content(daemon, dialect, tool, &path).await;
        let Some((content, next)) = part.split_once("[jig: the output continues in ") else {
            return output + &part;
        };
        output.push_str(content);
        next.trim_end().strip_suffix(']').unwrap().clone_into(&mut path);
    }
}

#[tokio::test]
async fn model_can_follow_text_to_the_whole_output() {
    let daemon = Daemon::start().await;
    // Many lines, more lines than fit into a message, and one line longer than a part.
    check_continuations(&daemon, LONG_OUTPUT_COMMAND, &long_output()).await;
    let lines: String = (1..=250_000).map(|number| format!("{number:09}\n")).collect();
    check_continuations(&daemon, "seq -f %09g 1 250000", &lines).await;
    check_continuations(&daemon, "printf %01500000d 0", &"0".repeat(1_500_000)).await;
}

async fn check_continuations(daemon: &Daemon, command: &str, written: &str) {
    for (dialect, tool, params) in COMMAND_TOOLS {
        let response = invoke(daemon, call(dialect, tool, params(command))).await;
        let (path, reader) = match dialect {
            // Its document has only the path.
            "agentbench" => {
                let data: Value = serde_json::from_str(&response.text).unwrap();
                (data["stdout_path"].as_str().unwrap().to_owned(), "read_file")
            }
            _ => {
                assert!(response.text.len() < 120_000, "{dialect}");
                assert!(response.text.contains("commands cannot see it"));
                let (path, reader) = continuation(&response.text);
                (path.to_owned(), reader)
            }
        };
        let content = read_all_parts(daemon, dialect, reader, &path).await;

        // A part that ends within a line has a line ending before what names the next part.
        let is_one_line = !written.contains('\n');
        let content = content.replace('\n', if is_one_line { "" } else { "\n" });
        assert!(
            content.trim_end() == written.trim_end(),
            "{dialect}: {} of {} bytes",
            content.len(),
            written.len()
        );
    }
}

/// In this dialect, results of a batch are previews of 12,000 characters.
#[tokio::test]
async fn model_can_follow_preview_to_the_whole_output() {
    let daemon = Daemon::start().await;

    let dialect = "rauskuclaw";
    let params = json!({"command": "seq -f %09g 1 3000"});
    let ran = invoke_batch(&daemon, batch_request(dialect, &[("a", "tool_exec", params)])).await;
    let preview_message: Value =
        serde_json::from_str(tool_messages(&ran)[0]["content"].as_str().unwrap()).unwrap();
    let note = preview_message["result"]["rest"].as_str().unwrap();
    let path = note.strip_prefix("the output is in ").unwrap();
    let mut path = path.split_once(" and ").unwrap().0.to_owned();
    assert!(note.contains("read it with data_file_read, at most 6000 bytes (max_bytes)"));

    let mut output = String::new();
    loop {
        let params = json!({"path": path, "max_bytes": 6000});
        let read =
            invoke_batch(&daemon, batch_request(dialect, &[("b", "data_file_read", params)])).await;
        let part_message: Value =
            serde_json::from_str(tool_messages(&read)[0]["content"].as_str().unwrap()).unwrap();
        let part = part_message["result"]["content_text"].as_str().unwrap();
        let Some((content, next)) = part.split_once("[jig: the output continues in ") else {
            output.push_str(part);
            break;
        };
        output.push_str(content);

        next.strip_suffix(']').unwrap().clone_into(&mut path);
    }

    let written: String = (1..=3000).map(|number| format!("{number:09}\n")).collect();
    assert!(output == written, "{} of {} bytes", output.len(), written.len());
}

#[tokio::test]
async fn command_output_is_searchable() {
    let daemon = Daemon::start().await;

    let command = format!("{LONG_OUTPUT_COMMAND}; printf 'a\\377b' >&2");
    let params = json!({ "command": command });
    let (stdout, stderr) = {
        let ran = invoke(&daemon, call("", "run", params)).await;
        (ran.stdout_path, ran.stderr_path)
    };

    for (dialect, tool, params) in [
        ("", "search", json!({"query": "05049", "path": stdout})),
        ("", "search", json!({"query": "05049", "globs": [stdout]})),
        ("agentbench", "search", json!({"query": "05049", "glob": stdout})),
        ("dracode", "search_code", json!({"query": "05049", "pattern": stdout})),
        ("dracode", "search_code", json!({"query": "05049", "directory": stdout})),
        ("claude", "Grep", json!({"pattern": "05049", "path": stdout})),
        ("cli_agent", "grep_search", json!({"pattern": "05049", "file_pattern": stdout})),
    ] {
        let found = invoke(&daemon, call(dialect, tool, params)).await;
        assert!(found.text.contains("5049"), "{dialect}: {}", found.text);
        assert!(found.text.contains(&stdout), "{dialect}: {}", found.text);
        assert!(!found.text.contains("5051"), "{dialect}: {}", found.text);
    }

    std::fs::write(daemon.file("bytes"), b"a\xff").unwrap();
    let params = json!({"path": "bytes"});
    let refused = invoke(&daemon, call("openai", "read_file", params)).await;
    assert!(refused.text.contains("set encoding to ENCODING_BASE64"), "{}", refused.text);

    // Bytes that are not UTF-8 are replaced as in the response of the command.
    assert_eq!(read_content(&daemon, "", "read_file", &stderr).await, "a\u{fffd}b");

    let params = json!({"path": stderr, "encoding": "ENCODING_BASE64"});
    let raw = invoke(&daemon, call("", "read_file", params)).await;
    assert_eq!(json_of(&raw.data.unwrap())["content"], "Yf9i");
}

#[tokio::test]
async fn workspace_file_shadows_artifact_of_same_name() {
    let daemon = Daemon::start().await;

    let echo = || call("", "run", json!({"command": "echo artifact"}));
    let path = invoke(&daemon, echo()).await.stdout_path;
    assert_eq!(read_content(&daemon, "", "read_file", &path).await, "artifact\n");

    std::fs::create_dir(daemon.file("logs")).unwrap();
    assert_eq!(read_content(&daemon, "", "read_file", &path).await, "artifact\n");

    std::fs::write(daemon.file(&path), "file\n").unwrap();
    for path in [path.clone(), format!("/workspace/{path}")] {
        assert_eq!(read_content(&daemon, "", "read_file", &path).await, "file\n");
        let params = json!({"query": "i", "path": path});
        let found = invoke(&daemon, call("", "search", params)).await;
        assert!(found.text.contains("\"file\""), "{}", found.text);
        assert!(!found.text.contains("artifact"), "{}", found.text);
    }

    std::fs::remove_file(daemon.file(&path)).unwrap();
    assert_eq!(read_content(&daemon, "", "read_file", &path).await, "artifact\n");

    // A symbolic link is not followed and does not shadow the artifact.
    std::fs::remove_dir(daemon.file("logs")).unwrap();
    std::os::unix::fs::symlink("/etc", daemon.file("logs")).unwrap();
    assert_eq!(read_content(&daemon, "", "read_file", &path).await, "artifact\n");

    let params = json!({"path": "logs/passwd"});
    let refused = invoke(&daemon, call("", "read_file", params)).await;
    assert_eq!(refused.error.unwrap().error_type, "symlink_blocked");

    std::fs::remove_file(daemon.file("logs")).unwrap();

    // No tool lists artifacts, so the message suggests none.
    let params = json!({"path": "logs/none.txt"});
    let refused = invoke(&daemon, call("", "read_file", params)).await;
    let message = refused.error.unwrap().message;
    assert!(message.contains("no output of this session"), "{message}");
    assert!(!message.contains("list its directory"), "{message}");

    // Commands cannot see an artifact, and tools cannot change it.
    let params = json!({"command": format!("cat {path}")});
    let ran = invoke(&daemon, call("", "run", params)).await;
    assert_eq!(ran.exit_code, Some(1));

    let params = json!({"path": path, "edits": [{"old_string": "artifact", "new_string": "x"}]});
    let refused = invoke(&daemon, call("", "edit_file", params)).await;
    assert_eq!(refused.error.unwrap().error_type, "file_not_found");

    let params = json!({ "path": path });
    let request = with_metadata("jig-session", "other", call("", "read_file", params));
    let refused = invoke(&daemon, request).await;
    assert_eq!(refused.error.unwrap().error_type, "file_not_found");
}

#[tokio::test]
async fn key_reads_only_artifacts_of_its_tools() {
    let keys = KeyFile::new();
    let unlimited_key = keys.add_key("all", "invoke", &[]);
    let file_key =
        keys.add_key("reads", "invoke", &["--for-tool", "read_file", "--for-tool", "search"]);
    let run_key = keys.add_key("runs", "invoke", &["--for-tool", "run"]);
    let path = keys.path().display().to_string();
    let daemon = Setup::new().arguments(&["--keys", &path]).start().await;

    let run = || call("", "run", json!({ "command": LONG_OUTPUT_COMMAND }));
    let path = invoke(&daemon, with_key(&unlimited_key, run())).await.stdout_path;
    let read = || call("", "read_file", json!({ "path": path }));
    let whole = invoke(&daemon, with_key(&unlimited_key, read())).await;
    assert_eq!(whole.status(), InvokeStatus::Success);

    for tool in ["read_file", "search"] {
        let request = if tool == "read_file" {
            read()
        } else {
            call("", tool, json!({"path": path, "query": "1"}))
        };
        let refused = invoke(&daemon, with_key(&file_key, request)).await;
        let error = refused.error.unwrap();
        assert_eq!(error.error_type, "file_not_found", "{tool}");
    }

    // A key that may not read files gets no advice to read one.
    let ran = invoke(&daemon, with_key(&run_key, run())).await;
    assert!(ran.text.contains("; the whole output is in logs/"));
    assert!(!ran.text.contains("read it with"));
}

#[tokio::test]
async fn models_get_compact_results() {
    let daemon = Setup::new().workspace_file("a.txt", "x\n").start().await;
    for (tool, params, text) in [
        ("run", json!({"command": "echo hi"}), r#"{"exit_code":0,"stdout":"hi\n"}"#),
        (
            "read_file",
            json!({"path": "a.txt"}),
            r#"{"content":"x\n","end_line":1,"size_bytes":2,"start_line":1,"total_lines":1}"#,
        ),
        ("search", json!({"query": "nothing"}), r#"{"matches":[]}"#),
    ] {
        let response = invoke(&daemon, call("", tool, params.clone())).await;
        assert_eq!(response.text, text);
        let response = invoke_batch(&daemon, batch_request("", &[("a", tool, params)])).await;
        let sent_messages: Value = serde_json::from_str(&response.messages_json).unwrap();
        assert_eq!(sent_messages[0]["content"], text);
        // Programs get the whole result.
        let output = json_of(response.results[0].output.as_ref().unwrap());
        assert!(output.to_string().len() > text.len() + 20, "{output}");
    }
}

/// Truncated results of a batch keep head and tail and stay valid JSON.
#[tokio::test]
async fn long_batch_results_keep_head_and_tail() {
    let daemon = Daemon::start().await;

    let params = json!({"command": LONG_OUTPUT_COMMAND, "max_output_bytes": 1_000_000});
    let calls = ["a", "b", "c"].map(|id| (id, "run", params.clone()));
    let response = invoke_batch(&daemon, batch_request("", &calls)).await;
    let sent_messages: Value = serde_json::from_str(&response.messages_json).unwrap();

    for (number, result) in response.results.iter().enumerate() {
        let text = sent_messages[number]["content"].as_str().unwrap();
        let message_json: Value = serde_json::from_str(text).unwrap();
        let whole: Value = serde_json::from_str(&response.tool_messages[number].content).unwrap();
        let output = json_of(result.output.as_ref().unwrap());

        for data in [&message_json, &whole["result"], &output] {
            assert!(data.to_string().len() <= (640 << 10) / 3);
            assert_eq!((&data["exit_code"], &data["truncated"]), (&0.into(), &true.into()));
            let stdout = data["stdout"].as_str().unwrap();
            assert!(stdout.starts_with("0000") && stdout.ends_with("5050\n"));
            let (_, rest) = stdout.split_once("what the command wrote is in ").unwrap();
            let path = rest.split_once(' ').unwrap().0;
            assert_eq!(read_content(&daemon, "", "read_file", path).await, long_output());
        }
    }

    // Two results fit in full.
    let response = invoke_batch(&daemon, batch_request("", &calls[..2])).await;
    let output = json_of(response.results[0].output.as_ref().unwrap());
    assert_eq!(output["stdout"], long_output());
}

#[tokio::test]
async fn list_tools_filters_by_name() {
    let daemon = Daemon::start().await;
    let list = async |dialect: &str, names: &[&str]| {
        let request = ListToolsRequest {
            dialect: dialect.to_owned(),
            names: names.iter().map(|name| (*name).to_owned()).collect(),
            ..ListToolsRequest::default()
        };
        let mut client = CatalogServiceClient::new(daemon.channel());
        let listed = client.list_tools(request).await;
        listed.map(|listed| listed.into_inner().names)
    };
    for (dialect, names, listed) in [
        ("", &["run", "read_file", "run"][..], &["read_file", "run"][..]),
        ("claude", &["Read", "wait_job"], &["Read", "wait_job"]),
        ("openai", &[], &["shell", "apply_patch", "read_file", "wait_job"]),
        ("anthropic", &[], &["bash", "str_replace_based_edit_tool", "wait_job"]),
    ] {
        assert_eq!(list(dialect, names).await.unwrap(), listed, "{dialect}");
    }

    for (dialect, name, expected) in
        [("", "raed_file", "did you mean read_file?"), ("claude", "read_file", "Known: Read, ")]
    {
        let refusal = Refusal::from_status(&list(dialect, &["run", name]).await.unwrap_err());
        assert_eq!(refusal.reason, "INVALID_PARAMS");
        assert!(refusal.invalid_fields().contains(&"names[1]"), "{refusal:?}");
        assert!(refusal.message.contains(expected), "{}", refusal.message);
    }
}
