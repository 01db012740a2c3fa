//! The dialects that vendors train their models on: `openai` and `anthropic`.

use jig::api::v1::{InvokeResponse, InvokeStatus};
use serde_json::{Value, json};

use super::{call, invoke, json_of};
use crate::support::{Daemon, Setup};

const APP_SOURCE: &str = "def hello():\n    return 1\n\ndef bye():\n    return 1\n";

async fn start_with_app() -> Daemon {
    Setup::new().workspace_file("app.py", APP_SOURCE).start().await
}

fn file_content(daemon: &Daemon, name: &str) -> String {
    std::fs::read_to_string(daemon.file(name)).unwrap()
}

fn response_data(response: &InvokeResponse) -> Value {
    json_of(response.data.as_ref().unwrap_or_else(|| panic!("{response:?}")))
}

#[tokio::test]
async fn openai_shell_returns_shell_call_output() {
    let daemon = Daemon::start().await;

    let params = json!({"commands": ["echo a; echo b >&2", "exit 3", "sleep 1000; true"], "timeout_ms": 700, "max_output_length": 4096});
    let response = invoke(&daemon, call("openai", "shell", params)).await;
    assert_eq!(response.status(), InvokeStatus::Success, "{response:?}");
    assert_eq!(
        response_data(&response),
        json!({
            "max_output_length": 4096,
            "output": [
                {"stdout": "a\n", "stderr": "b\n", "outcome": {"type": "exit", "exit_code": 0}},
                {"stdout": "", "stderr": "", "outcome": {"type": "exit", "exit_code": 3}},
                {"stdout": "", "stderr": "", "outcome": {"type": "timeout"}},
            ],
        })
    );

    for params in
        [json!({}), json!({"commands": []}), json!({"commands": "ls"}), json!({"commands": [1]})]
    {
        let response = invoke(&daemon, call("openai", "shell", params)).await;
        assert_eq!(response.error.unwrap().error_type, "invalid_params");
    }
}

#[tokio::test]
async fn openai_apply_patch_takes_one_operation() {
    let daemon = start_with_app().await;
    for (operation, file, expected) in [
        (
            json!({"type": "create_file", "path": "new/a.txt", "diff": "+one\n+two"}),
            "new/a.txt",
            Some("one\ntwo\n"),
        ),
        (
            json!({"type": "update_file", "path": "app.py", "diff": "@@ def bye():\n-    return 1\n+    return 2\n"}),
            "app.py",
            Some("def hello():\n    return 1\n\ndef bye():\n    return 2\n"),
        ),
        (json!({"type": "delete_file", "path": "new/a.txt"}), "new/a.txt", None),
        (json!({"type": "create_file", "path": "empty", "diff": ""}), "empty", Some("")),
        (json!({"type": "delete_file", "path": "empty"}), "empty", None),
    ] {
        let response =
            invoke(&daemon, call("openai", "apply_patch", json!({"operation": operation}))).await;
        assert_eq!(response_data(&response)["status"], "completed", "{response:?}");
        let change = match operation["type"].as_str().unwrap() {
            "create_file" => "added",
            "update_file" => "modified",
            _ => "deleted",
        };
        assert_eq!(response_data(&response)["output"], format!("{change} {file}"));
        match expected {
            Some(expected) => assert_eq!(file_content(&daemon, file), expected),
            None => assert!(!daemon.file(file).exists()),
        }
    }
    for (operation, error_type) in [
        (json!({"type": "create_file", "path": "app.py", "diff": "+x"}), "file_exists"),
        (json!({"type": "create_file", "path": "b", "diff": "x"}), "patch_parse_error"),
        (
            json!({"type": "update_file", "path": "app.py", "diff": "-nothing\n+x"}),
            "patch_hunk_fail",
        ),
        (json!({"type": "update_file", "path": "missing", "diff": "-a\n+b"}), "file_not_found"),
        (json!({"type": "delete_file", "path": "missing"}), "file_not_found"),
        (json!({"type": "update_file", "path": "../a", "diff": "-a\n+b"}), "path_escape"),
        (json!({"type": "create_file", "path": "/etc/a", "diff": "+b"}), "invalid_params"),
        (json!({"type": "rename_file", "path": "a"}), "invalid_params"),
        (json!({"path": "a"}), "invalid_params"),
    ] {
        let response =
            invoke(&daemon, call("openai", "apply_patch", json!({"operation": operation}))).await;
        let error = response.error.as_ref().unwrap_or_else(|| panic!("{operation}"));
        assert_eq!(error.error_type, error_type, "{operation}: {error:?}");
        assert_eq!(response_data(&response)["status"], "failed");
    }
}

#[tokio::test]
async fn openai_apply_patch_is_atomic() {
    let daemon = start_with_app().await;

    let patch = "*** Begin Patch\n*** Add File: a.txt\n+a\n*** Update File: app.py\n*** Move to: lib/app.py\n@@ def hello():\n-    return 1\n+    return 7\n*** End Patch\n";
    let broken = patch.replace("-    return 1", "-    return 9");
    let response = invoke(&daemon, call("openai", "apply_patch", json!({"patch": broken}))).await;
    assert_eq!(response.error.unwrap().error_type, "patch_hunk_fail");
    assert!(!daemon.file("a.txt").exists());
    assert_eq!(file_content(&daemon, "app.py"), APP_SOURCE);

    let response = invoke(&daemon, call("openai", "apply_patch", json!({"patch": patch}))).await;
    assert_eq!(response_data(&response)["status"], "completed", "{response:?}");
    assert_eq!(file_content(&daemon, "a.txt"), "a\n");
    assert_eq!(file_content(&daemon, "lib/app.py"), APP_SOURCE.replacen("return 1", "return 7", 1));
    assert!(!daemon.file("app.py").exists());
}

#[tokio::test]
async fn anthropic_bash_returns_text() {
    let daemon = Daemon::start().await;
    for (params, text, error_type) in [
        (json!({"command": "echo a; echo b >&2"}), "a\nb\n", None),
        (json!({"command": "printf a; printf b >&2; exit 3"}), "a\nb", Some("abnormal_exit")),
        (json!({"command": "exit 4"}), "the command exited with 4", Some("abnormal_exit")),
        (
            json!({"command": "kill -9 $$"}),
            "the command was ended by SIGKILL (signaled)",
            Some("abnormal_exit"),
        ),
        (json!({"restart": true}), "tool has been restarted.", None),
        (json!({}), "command: is required", Some("invalid_params")),
    ] {
        let response = invoke(&daemon, call("anthropic", "bash", params)).await;
        assert_eq!(response.text, text);
        // A command that exits abnormally is no failure of the call.
        let is_success = error_type != Some("invalid_params");
        assert_eq!(response.status() == InvokeStatus::Success, is_success);
        let reported_type = response.error.map(|error| error.error_type);
        assert_eq!(reported_type.as_deref(), error_type, "{text}");
    }
}

#[tokio::test]
async fn anthropic_text_editor_shows_and_changes_files() {
    let daemon = start_with_app().await;
    for (params, text) in [
        (
            json!({"command": "view", "path": "app.py", "view_range": [1, 2]}),
            "     1\tdef hello():\n     2\t    return 1",
        ),
        (
            json!({"command": "view", "path": "app.py", "view_range": [5, -1]}),
            "     5\t    return 1",
        ),
        (
            json!({"command": "create", "path": "lib/b.py", "file_text": "x = 1\n"}),
            "File created successfully at: lib/b.py",
        ),
        (
            json!({"command": "view", "path": "."}),
            "Here're the files and directories up to 2 levels deep in ., excluding hidden items:\napp.py\nlib/b.py",
        ),
        (
            json!({"command": "str_replace", "path": "lib/b.py", "old_str": "x", "new_str": "y"}),
            "The file lib/b.py has been edited. Here's the result around line 1:\n     1\ty = 1",
        ),
        (
            json!({"command": "insert", "path": "lib/b.py", "insert_line": 1, "insert_text": "z = 2"}),
            "The file lib/b.py has been edited. Here's the result around line 2:\n     1\ty = 1\n     2\tz = 2",
        ),
        (
            json!({"command": "insert", "path": "lib/b.py", "insert_line": 0, "insert_text": "# first"}),
            "The file lib/b.py has been edited. Here's the result around line 1:\n     1\t# first\n     2\ty = 1\n     3\tz = 2",
        ),
    ] {
        let response =
            invoke(&daemon, call("anthropic", "str_replace_based_edit_tool", params)).await;
        assert_eq!(response.text, text, "{response:?}");
    }

    assert_eq!(file_content(&daemon, "lib/b.py"), "# first\ny = 1\nz = 2");
    check_text_editor_errors(&daemon).await;
    assert_eq!(file_content(&daemon, "app.py"), APP_SOURCE);
}

async fn check_text_editor_errors(daemon: &Daemon) {
    for (params, text, error_type) in [
        (
            json!({"command": "str_replace", "path": "app.py", "old_str": "nothing", "new_str": ""}),
            "No replacement was performed, old_str `nothing` did not appear verbatim in app.py.",
            "string_not_found",
        ),
        (
            json!({"command": "str_replace", "path": "app.py", "old_str": "return 1", "new_str": ""}),
            "No replacement was performed. Multiple occurrences of old_str `return 1` in app.py. Please ensure it is unique",
            "string_not_unique",
        ),
        (
            json!({"command": "view", "path": "missing"}),
            "The path missing does not exist. Please provide a valid path.",
            "file_not_found",
        ),
        (
            json!({"command": "insert", "path": "app.py", "insert_line": 99, "insert_text": ""}),
            "Invalid `insert_line` parameter: 99. It should be within the range of lines of the file: [0, 5]",
            "line_range_invalid",
        ),
        (
            json!({"command": "str_replace", "path": "app.py", "old_str": "a", "new_str": "a"}),
            "new_str: must differ from old_str: the edit would change nothing",
            "invalid_params",
        ),
        (
            json!({"command": "view", "path": "app.py", "view_range": [9, 10]}),
            "view_range is 9, but \"app.py\" has 5 lines: ask for one of those",
            "line_range_invalid",
        ),
        (
            json!({"command": "create", "path": "x"}),
            "file_text: is required for this command",
            "invalid_params",
        ),
    ] {
        let response =
            invoke(daemon, call("anthropic", "str_replace_based_edit_tool", params)).await;
        assert_eq!(response.text, text);
        assert_eq!(response.error.unwrap().error_type, error_type);
    }
}
