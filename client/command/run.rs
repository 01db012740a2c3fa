//! `jig run`: runs one command in a sandbox.

use std::{
    io::{self, Read as _},
    process::ExitCode,
};

use clap::Args;
use jig::{
    api::v1::{ReadArtifactRequest, RunRequest, RunResponse, StartRequest},
    client::Client,
};

use super::{command_line::CommandLine, exec, exit_note, report_run_failure};
use crate::{
    cli_error::CliError, connection, exit, global::GlobalArgs, json, local_error::LocalError,
    output,
};

/// Maximum size of standard input in a request.
const MAX_STDIN_BYTES: usize = 8 << 20;

/// Run a command in a sandbox.
///
/// `jig run 'make && ./test'` and `jig run make test` join their words with spaces and pass them to
/// a shell. `jig run -- make test` runs the program without a shell. Flags of jig precede the
/// command.
///
/// Prints the output of the command completely and as it arrives. With --json, --max-output, --shell
/// or --request-id, prints it at the end.
///
/// Exit codes: that of the command; 128+n after signal n, 124 after a timeout, 130 if cancelled,
/// 141 if standard output is closed early, which ends the command. 125 if jig failed, or if the
/// command succeeded but a part of its output is lost.
#[derive(Debug, Args)]
pub(crate) struct RunArgs {
    /// Timeout of the command in seconds. Default: that of the daemon, which `jig info` prints; 120
    /// unless the operator sets another.
    #[arg(long, value_name = "SEC")]
    timeout: Option<u32>,
    /// Print at most this many bytes of each stream, its start and its end, up to 10,485,760.
    /// Default with --json: 102,400.
    #[arg(long, value_name = "BYTES")]
    max_output: Option<u32>,
    /// Read standard input to its end, up to 8 MiB, and pass it to the command. Default: the
    /// standard input of the command is empty.
    #[arg(long)]
    stdin: bool,
    /// Run the command in the shell of this name, which remembers the directory, variables, functions,
    /// aliases and options for the next command. Needs bash on the daemon's host.
    #[arg(long, value_name = "NAME")]
    shell: Option<String>,
    /// Forget what the shell remembers before the command.
    #[arg(long, requires = "shell")]
    restart_shell: bool,
    #[command(flatten)]
    pub(crate) command_line: CommandLine,
}

pub(crate) fn run(global: &GlobalArgs, args: RunArgs) -> ExitCode {
    let is_limited = global.json || args.max_output.is_some();
    let is_streamed = !is_limited && !global.has_request_id() && args.shell.is_none();
    let result = request(args).and_then(|request| {
        if is_streamed {
            return Ok(exec::run(global, to_start_request(request)));
        }

        let response =
            connection::call(global, async move |client: Client| Ok(client.run(request).await?))?;

        if is_limited {
            print(&response, global)?;
            return Ok(exit::of_run(&response));
        }
        print_full_output(&response, global)
    });
    ExitCode::from(match result {
        Ok(code) => code,
        Err(failure) => report_run_failure(&failure, global.json),
    })
}

fn request(args: RunArgs) -> Result<RunRequest, CliError> {
    let stdin = if args.stdin { read_stdin(io::stdin().lock())? } else { Vec::new() };
    let (command, argv) = args.command_line.command();
    Ok(RunRequest {
        command,
        argv,
        env: args.command_line.env(),
        limits: args.command_line.limits(),
        cwd: args.command_line.cwd,
        stdin: stdin.into(),
        timeout_sec: args.timeout,
        max_output_bytes: args.max_output,
        shell: args.shell,
        restart_shell: args.restart_shell,
    })
}

/// Converts to a request whose output is streamed. Not for calls with a request id.
///
/// The daemon stores a stream in memory only, but a response survives a restart, so that only `Run`
/// can repeat a call safely. `Start` has no default timeout, so [`exec::run`] adds that of `Run`.
fn to_start_request(request: RunRequest) -> StartRequest {
    StartRequest {
        command: request.command,
        argv: request.argv,
        cwd: request.cwd,
        env: request.env,
        stdin: request.stdin,
        stdin_open: Some(false),
        timeout_sec: request.timeout_sec,
        limits: request.limits,
        ..StartRequest::default()
    }
}

fn read_stdin(stdin: impl io::Read) -> Result<Vec<u8>, CliError> {
    let mut bytes = Vec::new();
    stdin
        .take(MAX_STDIN_BYTES as u64 + 1)
        .read_to_end(&mut bytes)
        .map_err(|error| LocalError::new("cannot read standard input", &error))?;
    if bytes.len() > MAX_STDIN_BYTES {
        return Err(CliError::Usage(
            "standard input is larger than 8 MiB; put it in a file of the workspace".to_owned(),
        ));
    }
    Ok(bytes)
}

fn print(response: &RunResponse, global: &GlobalArgs) -> Result<(), CliError> {
    let printed = if global.json {
        output::write_json(&json::run(response))
    } else {
        output::write_stdout(response.stdout.as_bytes())
    };

    match printed {
        // The exit code does not depend on whether the reader takes all output.
        Err(CliError::Output(error)) if error.kind() == io::ErrorKind::BrokenPipe => {}
        other => other?,
    }

    if !global.json {
        output::write_stderr(response.stderr.as_bytes());
        for line in run_notes(response, global.address().is_some(), global.session()) {
            output::note(&line);
        }
    }
    Ok(())
}

/// Prints the complete output of the command. Returns the exit code.
///
/// Reads it from the artifacts if the response is truncated or had to replace bytes.
fn print_full_output(response: &RunResponse, global: &GlobalArgs) -> Result<u8, CliError> {
    let mut is_complete = true;
    for (name, text, is_truncated, bytes, path) in [
        (
            "standard output",
            &response.stdout,
            response.stdout_truncated,
            response.stdout_bytes,
            &response.stdout_path,
        ),
        (
            "standard error",
            &response.stderr,
            response.stderr_truncated,
            response.stderr_bytes,
            &response.stderr_path,
        ),
    ] {
        let is_stdout = name == "standard output";
        // U+FFFD stands for bytes that are not UTF-8.
        let printed = if is_truncated || text.contains('\u{fffd}') {
            copy_artifact(global, path, is_stdout)
        } else if is_stdout {
            output::write_stdout(text.as_bytes()).map(|()| bytes)
        } else {
            output::write_stderr(text.as_bytes());
            Ok(bytes)
        };

        match printed {
            Ok(printed) if printed < bytes => {
                is_complete = false;
                output::note(&format!("only {printed} of {bytes} bytes of {name} were stored"));
            }
            Ok(_) => {}
            Err(CliError::Output(error)) if error.kind() == io::ErrorKind::BrokenPipe => {}
            Err(failure @ CliError::Call(_)) => {
                is_complete = false;
                output::note(&format!("{bytes} bytes of {name} are lost: {}", failure.summary()));
            }
            Err(failure) => return Err(failure),
        }
    }

    for line in outcome_notes(response) {
        output::note(&line);
    }

    Ok(match exit::of_run(response) {
        // Reports the loss to a caller that would take the output as complete.
        exit::SUCCESS if !is_complete => exit::RUN_FAILED,
        code => code,
    })
}

/// Prints an artifact. Returns its size in bytes.
fn copy_artifact(global: &GlobalArgs, path: &str, to_stdout: bool) -> Result<u64, CliError> {
    let request = ReadArtifactRequest { path: path.to_owned(), ..ReadArtifactRequest::default() };
    connection::call(global, async move |client: Client| {
        let client = client.without_request_id();
        Ok(if to_stdout {
            client.copy_artifact(request, io::stdout()).await?
        } else {
            client.copy_artifact(request, io::stderr()).await?
        })
    })
}

/// Returns notes on what the output does not show. `has_artifacts`: whether the daemon outlives the
/// call.
fn run_notes(response: &RunResponse, has_artifacts: bool, session: Option<&str>) -> Vec<String> {
    let mut notes = Vec::new();
    for (name, is_truncated, bytes, path) in [
        (
            "standard output",
            response.stdout_truncated,
            response.stdout_bytes,
            &response.stdout_path,
        ),
        ("standard error", response.stderr_truncated, response.stderr_bytes, &response.stderr_path),
    ] {
        if !is_truncated {
            continue;
        }

        let session = session.map_or_else(String::new, |name| format!(" --session {name}"));
        notes.push(if has_artifacts {
            format!("{name} has {bytes} bytes; print all of it with: jig artifact{session} {path}")
        } else {
            format!("{name} has {bytes} bytes; raise --max-output to see more")
        });
    }

    if !response.artifact_error.is_empty() {
        notes.push(format!("the complete output was not stored: {}", response.artifact_error));
    }
    notes.extend(outcome_notes(response));
    notes
}

/// Describes how the command ended, if the exit code does not.
fn outcome_notes(response: &RunResponse) -> Vec<String> {
    let mut notes = Vec::new();
    notes.extend(exit_note::exit_note(response.outcome, &response.signal, &response.limit));
    if response.kill_pending {
        notes.push(exit_note::KILL_PENDING_NOTE.to_owned());
    }
    notes
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;

    use jig::api::v1::Outcome;

    use super::*;
    use crate::cli::{Cli, CliCommand};

    fn parse(line: &[&str]) -> RunRequest {
        let words: Vec<OsString> = ["jig", "run"].iter().chain(line).map(OsString::from).collect();
        let CliCommand::Run(args) = Cli::parse_from(&words).unwrap().command else {
            panic!("not run");
        };
        request(args).unwrap()
    }

    #[test]
    fn words_are_a_command_or_after_dashes_a_program() {
        for (line, command) in [
            (&["ls -l | wc"][..], "ls -l | wc"),
            (&["ls", "-l", "--json"], "ls -l --json"),
            (&["echo", "--", "x"], "echo -- x"),
            (&["--cwd", "a", "ls"], "ls"),
        ] {
            let request = parse(line);
            assert_eq!(request.command.as_deref(), Some(command), "{line:?}");
            assert!(request.argv.is_empty());
        }
        for (line, argv) in [
            (&["--", "ls"][..], &["ls"][..]),
            (&["--timeout", "3", "--", "ls", "-l"], &["ls", "-l"]),
            (&["--", "echo", "--", "x"], &["echo", "--", "x"]),
            (&["--", "--", "x"], &["--", "x"]),
            (&["--", "a b"], &["a b"]),
        ] {
            let request = parse(line);
            assert_eq!(request.argv, argv, "{line:?}");
            assert_eq!(request.command, None);
        }
    }

    #[test]
    fn flags_reach_the_request() {
        let request = parse(&[
            "--env",
            "A=1=2",
            "--env",
            "B=",
            "--timeout",
            "9",
            "--max-output",
            "0",
            "true",
        ]);
        assert_eq!(request.env["A"], "1=2");
        assert_eq!(request.env["B"], "");
        assert_eq!(request.timeout_sec, Some(9));
        assert_eq!(request.max_output_bytes, Some(0));
        assert_eq!(request.cwd, None);
    }

    #[test]
    fn standard_input_is_limited() {
        let largest = vec![7; MAX_STDIN_BYTES];
        assert_eq!(read_stdin(&largest[..]).unwrap().len(), MAX_STDIN_BYTES);
        assert!(read_stdin(io::repeat(7)).is_err());
    }

    #[test]
    fn notes_report_truncation_and_limits() {
        let response = RunResponse {
            outcome: Outcome::OomKilled.into(),
            stdout_truncated: true,
            stdout_bytes: 5_000_000,
            stdout_path: "logs/x.txt".into(),
            limit: "memory".into(),
            ..RunResponse::default()
        };
        assert_eq!(
            run_notes(&response, true, Some("s")),
            [
                "standard output has 5000000 bytes; print all of it with: jig artifact --session s logs/x.txt",
                "ended: out of memory (limit: memory)",
            ]
        );
        assert!(run_notes(&response, false, None)[0].contains("--max-output"));
        let quiet = RunResponse { outcome: Outcome::Exited.into(), ..RunResponse::default() };
        assert!(run_notes(&quiet, true, None).is_empty());
    }
}
