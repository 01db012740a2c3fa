//! B9: tools of the configuration, which are registered without touching the daemon's code.

/// What becomes of their parameters.
mod arguments;
/// Who may call them, and who decides.
mod authorization;
/// As models are told of them.
mod catalog;
/// Tables that are wrong.
mod invalid_tables;

use std::fs;

use jig::api::v1::{InvokeResponse, InvokeStatus};
use serde_json::Value;

use crate::{
    invoke::{call, invoke, json_of},
    support::{Daemon, Setup},
};

/// A tool that says which arguments it was given, a line each; and others.
const TOOLS: &str = r#"
[[tools]]
name = "say_arguments"
description = "Says its arguments, a line each."
argv = ["printf", "<%s>\n", "first={word}", "--", "{word}", "{rest...}", "n{number}", "{{word}}"]
risk = "read_only"
[tools.schema]
required = ["word"]
[tools.schema.properties]
word = { type = "string", description = "A word.", maxLength = 100 }
rest = { type = "array", items = { type = "string" }, description = "More." }
number = { type = "integer", minimum = 0, default = 7, description = "A number." }

[[tools]]
name = "grep_word"
description = "Finds a word in files."
argv = ["grep", "-n", "{word}", "{file}"]
risk = "read_only"
[tools.schema]
required = ["word", "file"]
[tools.schema.properties]
word = { type = "string", description = "What to find." }
file = { type = "string", description = "Where." }

[[tools]]
name = "take_long"
description = "Takes longer than it may."
argv = ["sleep", "1000"]
timeout = "300ms"

[[tools]]
name = "leave_note"
description = "Leaves a note in the workspace."
argv = ["sh", "-c", "printf %s \"$1\" >> note; id -u; test ! -e /etc/shadow || test ! -r /etc/shadow", "leave_note", "{note}", "{key}"]
risk = "safe_write"
allow_options = true
[tools.schema]
required = ["note"]
properties.note = { type = "string", description = "The note." }
properties.key = { type = "string", writeOnly = true, description = "Not used much." }
"#;

/// A daemon with these tools.
async fn start_with_tools() -> Daemon {
    start_with_config("").await
}

/// A daemon with these tools, and more in its configuration.
async fn start_with_config(more: &str) -> Daemon {
    let setup = Setup::new().workspace_table(&format!("{TOOLS}\n{more}"));
    setup.start().await
}

/// What a call says that a command does: its standard output.
async fn invoke_stdout(daemon: &Daemon, tool: &str, params: Value) -> String {
    let response = invoke(daemon, call("", tool, params)).await;
    assert_eq!(response.status(), InvokeStatus::Success, "{response:?}");
    stdout(&response)
}

fn stdout(response: &InvokeResponse) -> String {
    let data = json_of(response.data.as_ref().unwrap());
    data["stdout"].as_str().unwrap().to_owned()
}

/// What a call is refused with: its reason, and what is wrong with which fields.
async fn invoke_failing(
    daemon: &Daemon,
    tool: &str,
    params: Value,
) -> (String, Vec<(String, String)>) {
    let response = invoke(daemon, call("", tool, params)).await;
    assert_eq!(response.status(), InvokeStatus::Error, "{response:?}");
    let error = response.error.unwrap();
    let details = error.details.as_ref().map(json_of).unwrap_or_default();
    let fields = details["fields"].as_array().cloned().unwrap_or_default();
    let fields = fields.iter().map(|field| {
        let text = |name: &str| field[name].as_str().unwrap().to_owned();
        (text("field"), text("description"))
    });
    (error.error_type, fields.collect())
}

/// The note that was left.
fn read_note(daemon: &Daemon) -> String {
    fs::read_to_string(daemon.file("note")).unwrap()
}
