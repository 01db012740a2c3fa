//! `jig call`: calls a tool by its name, in any dialect.

use std::{
    io,
    path::{Path, PathBuf},
    process::ExitCode,
};

use clap::Args;
use jig::{
    api::{
        json_struct::struct_to_json,
        v1::{InvokeRequest, InvokeResponse, InvokeStatus},
    },
    client::Client,
};
use serde_json::Value;

use super::{exit_note, params::ToolParameters, report_run_failure};
use crate::{
    cli_error::CliError, connection, envelope, exit, global::GlobalArgs, local_error::LocalError,
    output, style::Style,
};

/// Dialect whose specification defines how responses are shown to people.
const CLI_AGENT: &str = "cli_agent";

/// Call a tool by its name, and print the text that the model gets.
///
/// Example: `jig call read_file path=README.md end_line=3`. `jig tools` lists the tools, and `jig
/// tools --format json-schema` their parameters. With --json, print the whole response, even if the
/// tool failed. Dialects with a result object of their own (`agentbench`, `cli_agent`) print
/// that object.
///
/// Exit codes: 0, or the exit code of the command that the tool ran; 128+n after signal n, 124
/// after a timeout, 130 if cancelled, 125 if the tool or jig failed.
#[derive(Debug, Args)]
pub(crate) struct CallArgs {
    /// Dialect of the tool name: `agentbench`, `anthropic`, `claude`, `cli_agent`, `dracode`,
    /// `openai` or `rauskuclaw`. Default: jig's own names.
    #[arg(long, value_name = "NAME")]
    dialect: Option<String>,
    /// Name of the tool, for example `read_file`.
    tool: String,
    #[command(flatten)]
    parameters: ToolParameters,
}

pub(crate) fn call(global: &GlobalArgs, args: CallArgs) -> ExitCode {
    let code = invoke_tool(global, args)
        .unwrap_or_else(|failure| report_run_failure(&failure, global.json));
    ExitCode::from(code)
}

fn invoke_tool(global: &GlobalArgs, args: CallArgs) -> Result<u8, CliError> {
    let is_cli_agent = args.dialect.as_deref() == Some(CLI_AGENT) && !global.json;
    let is_embedded = global.address().is_none();
    let workspace = global.client_options().workspace;
    let request = InvokeRequest {
        tool: args.tool,
        params_json: args.parameters.into_json()?,
        dialect: args.dialect.unwrap_or_default(),
        with_result_json: global.json,
        ..InvokeRequest::default()
    };

    let (response, workspace_path) = connection::call(global, async move |client: Client| {
        let response = client.invoke(request).await?;
        let needs_path = is_cli_agent && !changed_files(&response).is_empty();
        let workspace_path = if !needs_path {
            PathBuf::new()
        } else if is_embedded {
            current_directory()?
        } else {
            mount_path(&client.without_request_id(), workspace.as_deref()).await?
        };
        Ok((response, workspace_path))
    })?;

    let printed = if global.json {
        match response.result_json.as_str() {
            "" => output::write_json(&envelope::to_json(&response)),
            result => match serde_json::from_str::<Value>(result) {
                Ok(result) => output::write_json(&result),
                Err(error) => {
                    let text = format!("the result is not JSON: {error}");
                    Err(CliError::Daemon(text))
                }
            },
        }
    } else {
        let text = if is_cli_agent {
            cli_agent_text(&response, &workspace_path)
        } else {
            model_text(&response).to_owned()
        };
        output::write_stdout(Style::of_stdout().escape_text(&with_newline(text)).as_bytes())
    };

    match printed {
        // The exit code does not depend on whether the reader takes all output.
        Err(CliError::Output(error)) if error.kind() == io::ErrorKind::BrokenPipe => {}
        other => other?,
    }

    if !global.json {
        for note in notes(&response) {
            output::note(&note);
        }
    }
    Ok(exit_code(&response))
}

/// Returns the workspace of a daemon that runs for this call.
fn current_directory() -> Result<PathBuf, CliError> {
    let to_error = |error| LocalError::new("cannot find the current directory", &error);
    Ok(std::env::current_dir().map_err(to_error)?)
}

/// Returns the path at which commands see the workspace of the call.
async fn mount_path(client: &Client, workspace: Option<&str>) -> Result<PathBuf, CliError> {
    let info = client.get_info().await?;
    let mut workspaces = info.workspaces.into_iter();
    let workspace = match workspace {
        Some(name) => workspaces.find(|workspace| workspace.name == name),
        None => workspaces.next(),
    };
    Ok(workspace.map_or_else(PathBuf::new, |workspace| workspace.mount_path.into()))
}

fn is_success(response: &InvokeResponse) -> bool {
    response.status() == InvokeStatus::Success
}

/// Returns the text for the model. Empty if it only repeats the error, which a note reports.
fn model_text(response: &InvokeResponse) -> &str {
    let message = response.error.as_ref().map_or("", |error| &error.message);
    let repeats_error = response.data.is_none() && response.text.contains(message);
    if is_success(response) || !repeats_error { &response.text } else { "" }
}

/// Formats a successful response as the specification of `cli_agent` shows it.
fn cli_agent_text(response: &InvokeResponse, workspace_path: &Path) -> String {
    let Some(data) = response.data.clone().filter(|_| is_success(response)) else {
        return String::new();
    };
    let data = Value::Object(struct_to_json(data));

    let output = data["output"].as_str().unwrap_or(&response.text);
    let mut text = format!("✓ {}\n", output.trim_end());
    for file in changed_files(response) {
        text += &format!("  Location: {}\n", workspace_path.join(file).display());
    }
    if let Some(milliseconds) = data["execution_time_ms"].as_u64() {
        text += &format!("  Time: {milliseconds}ms\n");
    }
    text
}

/// Returns the files that a tool of `cli_agent` has changed.
fn changed_files(response: &InvokeResponse) -> Vec<String> {
    let data = Value::Object(struct_to_json(response.data.clone().unwrap_or_default()));
    let files = data["files_affected"].as_array().into_iter().flatten();
    files.filter_map(Value::as_str).map(str::to_owned).collect()
}

fn with_newline(mut text: String) -> String {
    if !text.is_empty() && !text.ends_with('\n') {
        text.push('\n');
    }
    text
}

/// Returns notes beside the text: the error and its remedy, truncation, and a pending job.
fn notes(response: &InvokeResponse) -> Vec<String> {
    let mut notes = Vec::new();
    if let (Some(error), false) = (&response.error, is_success(response)) {
        notes.push(format!("{}: {}", error.error_type, error.message.trim_end()));
        if !error.suggestion.is_empty() && !error.message.contains(&error.suggestion) {
            notes.push(format!("  {}", error.suggestion));
        }
    }

    if let Some(command) = envelope::command_result(response) {
        notes.extend(exit_note::exit_note(command.outcome, &command.signal, &command.limit));
    }

    if response.truncated {
        notes.push("truncated: the response was too long".to_owned());
    }
    if response.pending {
        notes.push(format!("the call continues: jig job watch {}", response.job_id));
    }
    notes
}

/// Returns the exit code for a response.
fn exit_code(response: &InvokeResponse) -> u8 {
    let command_code = envelope::command_result(response).map(|command| exit::of_run(&command));
    // A tool can fail after its command succeeded.
    let command_code = command_code.filter(|code| *code != exit::SUCCESS || is_success(response));
    let error = response.error.as_ref().map(|error| error.error_type.as_str());

    match (command_code, error) {
        (Some(code), _) => code,
        (None, _) if is_success(response) => exit::SUCCESS,
        (None, Some("timeout")) => exit::TIMED_OUT,
        (None, _) => exit::RUN_FAILED,
    }
}

#[cfg(test)]
mod tests {
    use jig::api::v1::{Outcome, ToolError};
    use prost_types::{Struct, Value as WireValue, value::Kind};

    use super::*;

    fn wire(kind: Kind) -> WireValue {
        WireValue { kind: Some(kind) }
    }

    fn created() -> InvokeResponse {
        let files =
            prost_types::ListValue { values: vec![wire(Kind::StringValue("hello.py".into()))] };
        let output = "Created file: hello.py (125 bytes)".to_owned();
        InvokeResponse {
            status: InvokeStatus::Success.into(),
            data: Some(Struct {
                fields: [
                    ("output".to_owned(), wire(Kind::StringValue(output))),
                    ("files_affected".to_owned(), wire(Kind::ListValue(files))),
                    ("execution_time_ms".to_owned(), wire(Kind::NumberValue(5.0))),
                ]
                .into(),
            }),
            ..InvokeResponse::default()
        }
    }

    fn failed(error_type: &str) -> InvokeResponse {
        InvokeResponse {
            status: InvokeStatus::Error.into(),
            error: Some(ToolError {
                error_type: error_type.to_owned(),
                message: "no file".into(),
                suggestion: "Look.".into(),
                details: None,
            }),
            text: "Error: no file".into(),
            ..InvokeResponse::default()
        }
    }

    #[test]
    fn cli_agent_matches_its_specification() {
        assert_eq!(
            cli_agent_text(&created(), "/home/user/project".as_ref()),
            "✓ Created file: hello.py (125 bytes)\n  Location: /home/user/project/hello.py\n  Time: 5ms\n"
        );
    }

    #[test]
    fn notes_report_errors_jobs_and_limits() {
        let failed = failed("file_not_found");
        assert_eq!(notes(&failed), ["file_not_found: no file", "  Look."]);
        assert_eq!(model_text(&failed), "");
        let with_output = InvokeResponse { text: "[exit 1]\n".into(), ..failed };
        assert_eq!(model_text(&with_output), "[exit 1]\n");
        let pending = InvokeResponse { pending: true, job_id: "01A".into(), ..created() };
        assert_eq!(notes(&pending), ["the call continues: jig job watch 01A"]);
        let killed = InvokeResponse {
            outcome: Outcome::OomKilled.into(),
            limit: "memory".into(),
            ..created()
        };
        assert_eq!(notes(&killed), ["ended: out of memory (limit: memory)"]);
    }

    #[test]
    fn exit_code_follows_the_command_or_the_error() {
        let with_code = |exit_code, response| InvokeResponse {
            outcome: Outcome::Exited.into(),
            exit_code: Some(exit_code),
            ..response
        };
        let ended = |outcome: Outcome, response| InvokeResponse {
            outcome: outcome.into(),
            signal: "SIGKILL".to_owned(),
            ..response
        };
        for (response, expected) in [
            (created(), 0),
            (with_code(3, created()), 3),
            (with_code(1, failed("command_failed")), 1),
            (with_code(0, failed("file_not_found")), 125),
            (ended(Outcome::Signaled, created()), 137),
            (ended(Outcome::OomKilled, failed("command_failed")), 137),
            (ended(Outcome::TimedOut, created()), 124),
            (ended(Outcome::Cancelled, created()), 130),
            (ended(Outcome::DaemonLost, created()), 125),
            (failed("file_not_found"), 125),
            (failed("timeout"), 124),
            (InvokeResponse::default(), 125),
        ] {
            assert_eq!(exit_code(&response), expected, "{response:?}");
        }
    }
}
