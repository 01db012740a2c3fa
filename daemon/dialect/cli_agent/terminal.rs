//! Commands.

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

/// What a shell exits with that does not know a command.
const EXIT_COMMAND_NOT_FOUND: i64 = 127;

pub(super) fn run(
    params: DialectParams,
    tools: &mut dyn CanonicalTools,
) -> DialectResponseFuture<'_> {
    Box::pin(async move {
        let since = Instant::now();
        let (command, limit) = (params.str("command"), params.seconds("timeout_seconds"));
        let call = CanonicalCall::new("run", json!({ "command": command }));
        let call = call.in_default_shell().with_timeout(limit);
        let ran = tools.call(call).await?;
        let (stdout, stderr) = (ran.text("stdout"), ran.text("stderr"));
        let mut metadata = json!({
            "exit_code": ran.number("exit_code"),
            "stdout_lines": ran.count("stdout_lines"),
            "stderr_lines": ran.count("stderr_lines"),
        });
        let warnings: Vec<_> = ["stdout", "stderr"]
            .into_iter()
            .filter_map(|stream| truncation_warning(&ran, stream))
            .collect();
        if !stderr.is_empty() {
            metadata["stderr"] = stderr.into();
        }
        if ran.number("exit_code") == Some(0) {
            let newline = if stdout.ends_with('\n') { "" } else { "\n" };
            let output = CliOutput {
                output: format!("Command output:\n{stdout}{newline}"),
                metadata,
                warnings,
                ..CliOutput::default()
            };
            return Ok(output.into_response(since));
        }
        if !stdout.is_empty() {
            metadata["stdout"] = stdout.into();
        }
        let (code, output, suggestion) = explain_failure(&ran, command, limit);
        let mut answer = failure_response(since, code, &output, suggestion, metadata);
        if let Some(data) = answer.data.as_mut().filter(|_| !warnings.is_empty()) {
            data.insert("warnings".to_owned(), warnings.into());
        }
        Ok(answer)
    })
}

/// As [`run`] answers a command that did not exit with 0.
pub(super) fn failure_code(facts: &Map<String, Json>) -> Option<&'static str> {
    let outcome = facts.get("outcome").and_then(Json::as_str)?;
    match (outcome, facts.get("exit_code").and_then(Json::as_i64)) {
        ("TIMED_OUT", _) => Some("timeout"),
        (_, Some(0)) => None,
        (_, Some(_)) => Some("command_failed"),
        (_, None) => Some("command_ended"),
    }
}

/// What is to be known of a stream that is not there as a whole.
fn truncation_warning(ran: &ResponseData, stream: &str) -> Option<String> {
    let bytes = ran.count(&format!("{stream}_bytes"));
    ran.flag(&format!("{stream}_truncated"))
        .then(|| format!("Warning: {stream} is {bytes} bytes, showing its beginning and its end"))
}

fn explain_failure(
    ran: &ResponseData,
    command: &str,
    limit: Duration,
) -> (&'static str, String, &'static str) {
    let stderr = ran.text("stderr");
    match (ran.text("outcome"), ran.number("exit_code")) {
        ("OUTCOME_TIMED_OUT", _) => (
            "timeout",
            format!("Command timed out after {} seconds", limit.as_secs()),
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
            let outcome = ran.enum_name("outcome", "OUTCOME_");
            let signal = match ran.text("signal") {
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

/// The command that a shell did not find: `sh: 1: NAME: not found`.
fn missing_command<'a>(stderr: &'a str, command: &'a str) -> &'a str {
    let of_shell = stderr.lines().find_map(|line| {
        let line = line
            .strip_suffix(": not found")
            .or_else(|| line.strip_suffix(": command not found"))?;
        line.rsplit(": ").next()
    });
    let first = || command.split_whitespace().next().unwrap_or(command);
    of_shell.unwrap_or_else(first)
}

pub(super) fn last_command(
    _params: DialectParams,
    tools: &mut dyn CanonicalTools,
) -> DialectResponseFuture<'_> {
    Box::pin(async move {
        let since = Instant::now();
        let last = tools.call(CanonicalCall::new("last_command", json!({}))).await?;
        let command = match last.text("command") {
            "" => last.texts("argv").collect::<Vec<_>>().join(" "),
            command => command.to_owned(),
        };
        let written = format!("{}{}", last.text("stdout"), last.text("stderr"));
        // To the second.
        let time = last.text("start_time");
        let time = time.get(..19).map(|time| Json::from(format!("{time}Z")));
        let output = CliOutput {
            output: format!("Last command: {command}\nOutput: {written}"),
            metadata: json!({
                "command": command,
                "exit_code": last.number("exit_code"),
                "executed_at": time,
            }),
            ..CliOutput::default()
        };
        Ok(output.into_response(since))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_shell_did_not_find_is_named() {
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
