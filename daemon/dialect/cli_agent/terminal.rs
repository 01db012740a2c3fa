//! The tools that run commands.

use std::time::{Duration, Instant};

use serde_json::{Map, Value as Json, json};

use super::{
    super::{
        definition::{CanonicalCall, CanonicalTools, DialectResponseFuture},
        parameter::DialectParams,
        response::ResponseData,
    },
    output::{CliOutput, failure_response},
};

/// Exit code of a shell for an unknown command.
const EXIT_COMMAND_NOT_FOUND: i64 = 127;

pub(super) fn run(
    params: DialectParams,
    tools: &mut dyn CanonicalTools,
) -> DialectResponseFuture<'_> {
    Box::pin(async move {
        let started = Instant::now();
        let (command, timeout) = (params.str("command"), params.seconds("timeout_seconds"));
        let call = CanonicalCall::new("run", json!({ "command": command }))
            .in_default_shell()
            .with_timeout(timeout);
        let result = tools.call(call).await?;

        let (stdout, stderr) = (result.text("stdout"), result.text("stderr"));
        let mut metadata = json!({
            "exit_code": result.number("exit_code"),
            "stdout_lines": result.count("stdout_lines"),
            "stderr_lines": result.count("stderr_lines"),
        });

        let warnings: Vec<_> = ["stdout", "stderr"]
            .into_iter()
            .filter_map(|stream| truncation_warning(&result, stream))
            .collect();
        if !stderr.is_empty() {
            metadata["stderr"] = stderr.into();
        }

        if result.number("exit_code") == Some(0) {
            let newline = if stdout.ends_with('\n') { "" } else { "\n" };
            let output = CliOutput {
                output: format!("Command output:\n{stdout}{newline}"),
                metadata,
                warnings,
                ..CliOutput::default()
            };
            return Ok(output.into_response(started));
        }

        if !stdout.is_empty() {
            metadata["stdout"] = stdout.into();
        }
        let (code, output, suggestion) = explain_failure(&result, command, timeout);
        let mut response = failure_response(started, code, &output, suggestion, metadata);
        if let Some(data) = response.data.as_mut().filter(|_| !warnings.is_empty()) {
            data.insert("warnings".to_owned(), warnings.into());
        }
        Ok(response)
    })
}

/// The error code that [`run`] gives to a command that did not exit with 0.
pub(super) fn failure_code(record: &Map<String, Json>) -> Option<&'static str> {
    let outcome = record.get("outcome").and_then(Json::as_str)?;
    match (outcome, record.get("exit_code").and_then(Json::as_i64)) {
        ("TIMED_OUT", _) => Some("timeout"),
        (_, Some(0)) => None,
        (_, Some(_)) => Some("command_failed"),
        (_, None) => Some("command_ended"),
    }
}

/// The warning about a stream whose middle was omitted.
fn truncation_warning(result: &ResponseData, stream: &str) -> Option<String> {
    let bytes = result.count(&format!("{stream}_bytes"));
    result
        .flag(&format!("{stream}_truncated"))
        .then(|| format!("Warning: {stream} is {bytes} bytes, showing its beginning and its end"))
}

fn explain_failure(
    result: &ResponseData,
    command: &str,
    timeout: Duration,
) -> (&'static str, String, &'static str) {
    let stderr = result.text("stderr");
    match (result.text("outcome"), result.number("exit_code")) {
        ("OUTCOME_TIMED_OUT", _) => (
            "timeout",
            format!("Command timed out after {} seconds", timeout.as_secs()),
            "Allow more time with timeout_seconds, or do less",
        ),
        (_, Some(EXIT_COMMAND_NOT_FOUND)) if stderr.contains("not found") => (
            "command_not_found",
            format!("Command '{}' not found", missing_command(stderr, command)),
            "Check the name of the command, or install it",
        ),
        (_, Some(exit_code)) => (
            "command_failed",
            format!("Command failed with exit code {exit_code}:\n{stderr}"),
            "Look at what it wrote, and mend the command",
        ),
        (_, None) => {
            let outcome = result.enum_name("outcome", "OUTCOME_");
            let signal = match result.text("signal") {
                "" => String::new(),
                signal => format!(" by {signal}"),
            };
            (
                "command_ended",
                format!("Command was ended{signal} ({outcome}):\n{stderr}"),
                "Look at what it wrote, and mend the command",
            )
        }
    }
}

/// The command that a shell did not find, from its message `sh: 1: NAME: not found`.
fn missing_command<'a>(stderr: &'a str, command: &'a str) -> &'a str {
    let named_by_shell = stderr.lines().find_map(|line| {
        let line = line
            .strip_suffix(": not found")
            .or_else(|| line.strip_suffix(": command not found"))?;
        line.rsplit(": ").next()
    });
    let first_word = || command.split_whitespace().next().unwrap_or(command);
    named_by_shell.unwrap_or_else(first_word)
}

pub(super) fn last_command(
    _params: DialectParams,
    tools: &mut dyn CanonicalTools,
) -> DialectResponseFuture<'_> {
    Box::pin(async move {
        let started = Instant::now();
        let last = tools.call(CanonicalCall::new("last_command", json!({}))).await?;

        let command = match last.text("command") {
            "" => last.texts("argv").collect::<Vec<_>>().join(" "),
            command => command.to_owned(),
        };

        let output = format!("{}{}", last.text("stdout"), last.text("stderr"));
        // Truncated to whole seconds.
        let time = last.text("start_time").get(..19).map(|time| Json::from(format!("{time}Z")));
        let output = CliOutput {
            output: format!("Last command: {command}\nOutput: {output}"),
            metadata: json!({
                "command": command,
                "exit_code": last.number("exit_code"),
                "executed_at": time,
            }),
            ..CliOutput::default()
        };
        Ok(output.into_response(started))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_command_is_taken_from_the_shell_message() {
        for (stderr, command, name) in [
            ("/bin/sh: 1: invalid_cmd: not found\n", "invalid_cmd -x", "invalid_cmd"),
            ("a\nbash: line 1: b: command not found\n", "a; b", "b"),
            ("something else", "first second", "first"),
            ("", "", ""),
        ] {
            assert_eq!(missing_command(stderr, command), name);
        }
    }
}
