//! Custom tools, which the configuration registers without a change of the daemon's code: row B9 of
//! tests/seeds/README.md.

/// Parameters as command arguments.
mod arguments;
/// Keys, policy, approvals and events of custom tools.
mod authorization;
/// Custom tools in the catalog and in every dialect.
mod catalog;
/// Invalid `[[tools]]` tables.
mod invalid_tables;

use std::fs;

use jig::api::v1::{InvokeResponse, InvokeStatus};
use serde_json::Value;

use crate::{
    invoke::{call, invoke, json_of},
    support::{Daemon, Setup},
};

/// Custom tools: `say_arguments` prints its arguments, one per line.
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

async fn start_with_tools() -> Daemon {
    start_with_config("").await
}

/// Starts a daemon with [`TOOLS`] and `tables` in its configuration.
async fn start_with_config(tables: &str) -> Daemon {
    let setup = Setup::new().workspace_table(&format!("{TOOLS}\n{tables}"));
    setup.start().await
}

/// Calls a tool, which must succeed. Returns its standard output.
async fn invoke_stdout(daemon: &Daemon, tool: &str, params: Value) -> String {
    let response = invoke(daemon, call("", tool, params)).await;
    assert_eq!(response.status(), InvokeStatus::Success, "{response:?}");
    stdout(&response)
}

fn stdout(response: &InvokeResponse) -> String {
    let data = json_of(response.data.as_ref().unwrap());
    data["stdout"].as_str().unwrap().to_owned()
}

/// Calls a tool, which must fail. Returns the reason and the invalid fields with their descriptions.
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

fn read_note(daemon: &Daemon) -> String {
    fs::read_to_string(daemon.file("note")).unwrap()
}
