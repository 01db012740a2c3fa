//! `jig run`: one command in a sandbox, as if it had been run here.

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

/// Most bytes of standard input that a request takes.
const MAX_STDIN_BYTES: usize = 8 << 20;
/// Seconds that a command may run by default: those of `ToolService.Run`, as `Start` has none.
const DEFAULT_TIMEOUT_SEC: u32 = 120;

/// Run a command in a sandbox of its own.
///
/// `jig run 'make && ./test'` and `jig run make test` give their words, joined by spaces, to a
/// shell; `jig run -- make test` runs the program with its arguments as they are. Flags of jig
/// stand before the command.
///
/// Prints what the command writes, all of it and as it comes. With --json, --max-output or
/// --request-id it is printed at the end.
///
/// Exits with the command's exit code; 128+n when signal n ended it, 124 when its time was up, 130
/// when it was cancelled, 141 when standard output is closed early, which ends the command. 125 when
/// jig failed, or the command exited with 0 and a part of its output is lost.
#[derive(Debug, Args)]
pub(crate) struct RunArgs {
    /// Seconds that the command may run; 120 by default.
    #[arg(long, value_name = "SEC")]
    timeout: Option<u32>,
    /// Print at most so many bytes of each stream, beginning and end, up to 10,485,760. With --json
    /// the default is 102,400.
    #[arg(long, value_name = "BYTES")]
    max_output: Option<u32>,
    /// Read standard input to its end, up to 8 MiB, and give it to the command. Without it the
    /// command reads nothing.
    #[arg(long)]
    stdin: bool,
    #[command(flatten)]
    pub(crate) command_line: CommandLine,
}

pub(crate) fn run(global: &GlobalArgs, args: RunArgs) -> ExitCode {
    let is_cut = global.json || args.max_output.is_some();
    let result = request(args).and_then(|request| {
        if !is_cut && !global.has_request_id() {
            return Ok(exec::run(global, to_start_request(request)));
        }
        let response =
            connection::call(global, async move |client: Client| Ok(client.run(request).await?))?;
        if is_cut {
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
    })
}

/// The same command, to be watched while it runs. Not where the call has a request id: a stream can
/// be repeated as long as the daemon keeps it in memory, an answer also after it was restarted.
fn to_start_request(request: RunRequest) -> StartRequest {
    StartRequest {
        command: request.command,
        argv: request.argv,
        cwd: request.cwd,
        env: request.env,
        stdin: request.stdin,
        stdin_open: Some(false),
        timeout_sec: Some(request.timeout_sec.unwrap_or(DEFAULT_TIMEOUT_SEC)),
        limits: request.limits,
        ..StartRequest::default()
    }
}

fn read_stdin(stdin: impl io::Read) -> Result<Vec<u8>, CliError> {
    let mut bytes = Vec::new();
    stdin
        .take(MAX_STDIN_BYTES as u64 + 1)
        .read_to_end(&mut bytes)
        .map_err(|error| LocalError::new("standard input cannot be read", &error))?;
    if bytes.len() > MAX_STDIN_BYTES {
        return Err(CliError::Usage(
            "standard input has more than 8 MiB; put it in a file of the workspace".to_owned(),
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
        // The command's result does not depend on whether somebody reads on.
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

/// Prints all that the command wrote: from the artifacts, where the answer does not hold the bytes as
/// they were. Answers the exit code.
fn print_full_output(response: &RunResponse, global: &GlobalArgs) -> Result<u8, CliError> {
    let mut is_whole = true;
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
        // What is not UTF-8 was replaced by this character.
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
                is_whole = false;
                output::note(&format!("only {printed} of {bytes} bytes of {name} were kept"));
            }
            Ok(_) => {}
            Err(CliError::Output(error)) if error.kind() == io::ErrorKind::BrokenPipe => {}
            Err(failure @ CliError::Call(_)) => {
                is_whole = false;
                output::note(&format!("{bytes} bytes of {name} are lost: {}", failure.summary()));
            }
            Err(failure) => return Err(failure),
        }
    }
    for line in outcome_notes(response) {
        output::note(&line);
    }
    Ok(match exit::of_run(response) {
        // All is not well for who takes what came for the whole.
        exit::SUCCESS if !is_whole => exit::RUN_FAILED,
        code => code,
    })
}

/// Prints an artifact. Answers how many bytes it has.
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

/// What the output alone does not tell.
fn run_notes(response: &RunResponse, is_kept: bool, session: Option<&str>) -> Vec<String> {
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
        notes.push(if is_kept {
            format!("{bytes} bytes of {name} are in: jig artifact{session} {path}")
        } else {
            format!("{name} has {bytes} bytes; to see more of them raise --max-output")
        });
    }
    if !response.artifact_error.is_empty() {
        notes.push(format!("the whole output was not kept: {}", response.artifact_error));
    }
    notes.extend(outcome_notes(response));
    notes
}

/// How it ended, where the exit code does not tell.
fn outcome_notes(response: &RunResponse) -> Vec<String> {
    let mut notes = Vec::new();
    notes.extend(exit_note::exit_note(response.outcome, &response.signal, &response.limit));
    if response.kill_pending {
        notes.push("a process of it could not be killed yet".to_owned());
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
    fn words_are_a_command_and_after_dashes_a_program() {
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
    fn standard_input_is_read_up_to_its_limit() {
        let most = vec![7; MAX_STDIN_BYTES];
        assert_eq!(read_stdin(&most[..]).unwrap().len(), MAX_STDIN_BYTES);
        assert!(read_stdin(io::repeat(7)).is_err());
    }

    #[test]
    fn notes_tell_what_the_output_does_not() {
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
                "5000000 bytes of standard output are in: jig artifact --session s logs/x.txt",
                "ended: it took too much memory (limit: memory)",
            ]
        );
        assert!(run_notes(&response, false, None)[0].contains("--max-output"));
        let quiet = RunResponse { outcome: Outcome::Exited.into(), ..RunResponse::default() };
        assert!(run_notes(&quiet, true, None).is_empty());
    }
}
