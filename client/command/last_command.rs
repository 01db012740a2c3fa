//! `jig last-command` prints the last command of a session, and `jig artifacts` lists its artifacts.

use std::process::ExitCode;

use clap::Args;
use jig::{
    api::v1::{
        ArtifactInfo, LastCommandRequest, LastCommandResponse, ListArtifactsRequest, Outcome,
    },
    client::Client,
};
use serde_json::json;

use super::report_and_exit;
use crate::{cli_error::CliError, connection, escape, global::GlobalArgs, json::enum_name, output};

/// Show the last command of a session (--session), its outcome, and the start of its output.
#[derive(Debug, Args)]
pub(crate) struct LastCommandArgs {}

/// List the artifacts of a session (--session): outputs of commands, and patches.
#[derive(Debug, Args)]
pub(crate) struct ArtifactsArgs {
    /// List only the artifacts of this step.
    #[arg(long)]
    step: Option<u64>,
}

pub(crate) fn last_command(global: &GlobalArgs, LastCommandArgs {}: LastCommandArgs) -> ExitCode {
    let result = global.require_address().and_then(|address| {
        let last = connection::call_address(address, global, async |client: Client| {
            Ok(client.last_command(LastCommandRequest {}).await?)
        })?;
        if global.json {
            output::write_json(&to_json(&last))
        } else {
            output::write_stdout(last_command_text(&last).as_bytes())
        }
    });
    report_and_exit(result, global.json)
}

pub(crate) fn artifacts(global: &GlobalArgs, args: ArtifactsArgs) -> ExitCode {
    let result = global.require_address().and_then(|address| {
        connection::call_address(address, global, async |client: Client| {
            let mut request =
                ListArtifactsRequest { step: args.step, ..ListArtifactsRequest::default() };
            loop {
                let page = client.list_artifacts(request.clone()).await?;
                for artifact in &page.artifacts {
                    print(artifact, global.json)?;
                }
                if page.next_page_token.is_empty() {
                    return Ok(());
                }
                request.page_token = Some(page.next_page_token);
            }
        })
    });
    report_and_exit(result, global.json)
}

fn print(artifact: &ArtifactInfo, as_json: bool) -> Result<(), CliError> {
    if as_json {
        return output::write_json(&json!({
            "path": artifact.path,
            "size_bytes": artifact.size_bytes,
            "modify_time": artifact.modify_time.map(|time| time.to_string()),
            "step": artifact.step,
        }));
    }
    let line = format!("{:>12}  {}\n", artifact.size_bytes, escape::name(&artifact.path));
    output::write_stdout(line.as_bytes())
}

fn last_command_text(last: &LastCommandResponse) -> String {
    let mut text = format!("$ {}\n", escape::text(&last.command).trim_end());
    text += &format!("{}, step {}\n", escape::text(&outcome_text(last)), last.step);
    for (stream, head, is_truncated, path) in [
        ("stdout", &last.stdout, last.stdout_truncated, &last.stdout_path),
        ("stderr", &last.stderr, last.stderr_truncated, &last.stderr_path),
    ] {
        if head.is_empty() {
            continue;
        }
        text += &format!("--- {stream}\n{}", escape::text(head));
        if !head.ends_with('\n') {
            text.push('\n');
        }
        if is_truncated {
            text += &format!("--- truncated; all of it: jig artifact {}\n", escape::name(path));
        }
    }
    text
}

/// Describes the outcome in a few words.
fn outcome_text(last: &LastCommandResponse) -> String {
    match (last.outcome(), last.exit_code) {
        (_, _) if last.running => "running".to_owned(),
        (Outcome::Exited, Some(code)) => format!("exit {code}"),
        (Outcome::Unspecified, _) => format!("not started: {}", last.error_message),
        (outcome, _) => {
            let outcome = outcome.as_str_name().trim_start_matches("OUTCOME_");
            let words = outcome.to_lowercase().replace('_', " ");
            match last.signal.as_str() {
                "" => words,
                signal => format!("{words} ({signal})"),
            }
        }
    }
}

fn to_json(last: &LastCommandResponse) -> serde_json::Value {
    let outcome = Outcome::try_from(last.outcome).map(|outcome| outcome.as_str_name());
    json!({
        "command": last.command,
        "argv": last.argv,
        "outcome": enum_name(outcome, last.outcome),
        "exit_code": last.exit_code,
        "signal": last.signal,
        "running": last.running,
        "start_time": last.start_time.map(|time| time.to_string()),
        "end_time": last.end_time.map(|time| time.to_string()),
        "stdout": last.stdout,
        "stderr": last.stderr,
        "stdout_truncated": last.stdout_truncated,
        "stderr_truncated": last.stderr_truncated,
        "stdout_path": last.stdout_path,
        "stderr_path": last.stderr_path,
        "step": last.step,
        "error_type": last.error_type,
        "error_message": last.error_message,
        "limit": last.limit,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn last_command_is_described_in_words() {
        let last = LastCommandResponse {
            command: "make\x1b[2J".into(),
            outcome: Outcome::Signaled.into(),
            signal: "SIGKILL".into(),
            stdout: "text".into(),
            stdout_truncated: true,
            stdout_path: "logs/tool_step_0002_stdout.txt".into(),
            step: 2,
            ..LastCommandResponse::default()
        };
        assert_eq!(
            last_command_text(&last),
            "$ make\\033[2J\nsignaled (SIGKILL), step 2\n--- stdout\ntext\n--- truncated; all of it: jig artifact logs/tool_step_0002_stdout.txt\n"
        );
    }
}
