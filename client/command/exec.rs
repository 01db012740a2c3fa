//! `jig exec` and `jig attach`: run a command in a sandbox interactively, or attach to a running
//! one.

mod escape_keys;
mod followed_process;
mod follower;
mod forward_stdin;
mod notes;
mod outcome;
mod printer;
mod reconnect;
mod session;
mod stdin;
mod terminal;

use std::process::ExitCode;

use clap::Args;
use jig::{
    api::v1::{AttachRequest, OnDisconnect, StartRequest},
    client::Client,
};

use self::{
    follower::FollowStart,
    outcome::{FollowOutcome, exit_code_of},
    session::ExecSession,
    terminal::terminal_size,
};
use super::command_line::CommandLine;
use crate::{
    cli_error::CliError, connection, global::GlobalArgs, isolation_hint::with_isolation_hint,
};

/// Shell for -t without a command.
const DEFAULT_SHELL_COMMAND: &str = "command -v bash > /dev/null && exec bash; exec sh";

/// Run a command in a sandbox, stream its output, and optionally its input.
///
/// Example: `jig exec -it -- bash`.
///
/// COMMAND is given as for `jig run`. With -t it is optional: the default is a shell. `jig exec
/// -it` works like `ssh -t`: keys, Ctrl-C and window size reach the command. At the start of a
/// line, `~.` detaches from the command, `~^Z` suspends jig, and `~?` lists these keys. Without
/// -t, the first Ctrl-C sends SIGINT to the command, and the second one ends it.
///
/// Exit codes: that of the command; 128+n after signal n, 124 after a timeout, 130 if cancelled,
/// 141 if standard output is closed. 125 if jig failed, if a lost connection ended the command, or
/// if the command succeeded but a part of its output is missing. `jig artifact` prints the output
/// that the daemon stored.
#[derive(Debug, Args)]
pub(crate) struct ExecArgs {
    /// Pass standard input to the command. Default: the standard input of the command is empty.
    #[arg(short, long)]
    interactive: bool,
    /// Run the command in a terminal of the size of this one.
    #[arg(short, long)]
    tty: bool,
    /// Let the command continue if this client ends or loses its connection. `jig attach`
    /// reconnects.
    #[arg(long)]
    keep: bool,
    /// Start the command, print its process id, and leave it running.
    #[arg(short, long, conflicts_with_all = ["interactive"])]
    detach: bool,
    /// Timeout of the command in seconds. Default: none.
    #[arg(long, value_name = "SEC")]
    timeout: Option<u32>,
    #[command(flatten)]
    pub(crate) command_line: CommandLine,
}

impl ExecArgs {
    /// Returns whether the command may outlive this call, which a daemon started for it cannot.
    pub(crate) fn needs_daemon(&self) -> bool {
        self.keep || self.detach
    }
}

/// Attach to a process that `jig ps --all` lists.
///
/// Prints the stored output and then new output. Without -i, Ctrl-C detaches from the command and
/// does not affect it. With -i, it works as in `jig exec`. Exit codes are those of `jig exec`, such
/// as 125 if the command succeeded but early output was dropped.
#[derive(Debug, Args)]
pub(crate) struct AttachArgs {
    /// Pass standard input to the command.
    #[arg(short, long)]
    interactive: bool,
    /// Print only output after the chunk with this sequence number.
    #[arg(long, value_name = "SEQUENCE", default_value_t = 0)]
    after: u64,
    /// Id of the process, as `jig ps` lists it.
    #[arg(value_name = "PROCESS")]
    process: String,
}

pub(crate) fn exec(global: &GlobalArgs, args: ExecArgs) -> ExitCode {
    let keeps = args.needs_daemon();
    let result = request(&args).and_then(|request| {
        let session = ExecSession {
            start: FollowStart::Start(Box::new(request)),
            forwards_stdin: args.interactive,
            has_terminal: args.tty,
            detaches: args.detach,
            keeps_running: keeps,
            reconnects: global.address().is_some(),
            forwards_interrupts: true,
            as_json: global.json,
        };
        follow(global, session)
    });
    finish_with_code(global, result)
}

/// Runs a command for `jig run`, without input and with the default timeout of a run. Ctrl-C
/// cancels the command.
pub(super) fn run(global: &GlobalArgs, request: StartRequest) -> u8 {
    let session = ExecSession {
        start: FollowStart::Run(Box::new(request)),
        forwards_stdin: false,
        has_terminal: false,
        detaches: false,
        keeps_running: false,
        reconnects: false,
        forwards_interrupts: false,
        as_json: false,
    };
    report_and_code(global, follow(global, session))
}

pub(crate) fn attach(global: &GlobalArgs, args: AttachArgs) -> ExitCode {
    let result = global.require_address().and_then(|address| {
        let id = args.process.clone();
        // The list says whether the process has a terminal, and whether it outlives its readers.
        let listed = connection::call_address(address, global, async |client: Client| {
            Ok(client.list_processes().await?)
        })?;

        let process = listed.processes.into_iter().find(|process| process.process_id == id);
        // With a terminal, keys are forwarded one by one.
        let has_terminal = process.as_ref().is_some_and(|process| process.has_terminal);
        let keeps = process.is_some_and(|process| process.on_disconnect() == OnDisconnect::Keep);

        let session = ExecSession {
            start: FollowStart::Attach(AttachRequest {
                process_id: args.process,
                after_sequence: args.after,
                ..AttachRequest::default()
            }),
            forwards_stdin: args.interactive,
            has_terminal: has_terminal && args.interactive,
            detaches: false,
            keeps_running: keeps,
            reconnects: true,
            // Without input, this side only watches the process.
            forwards_interrupts: args.interactive,
            as_json: global.json,
        };
        follow(global, session)
    });
    finish_with_code(global, result)
}

fn request(args: &ExecArgs) -> Result<StartRequest, CliError> {
    let (command, argv) = match (args.command_line.is_empty(), args.tty) {
        (false, _) => args.command_line.command(),
        (true, true) => (Some(DEFAULT_SHELL_COMMAND.to_owned()), Vec::new()),
        (true, false) => {
            return Err(CliError::Usage("no command given; only -t starts a shell".to_owned()));
        }
    };

    let mut env = args.command_line.env();
    if args.tty
        && let Ok(term) = std::env::var("TERM")
        && !term.is_empty()
    {
        env.entry("TERM".to_owned()).or_insert(term);
    }

    let on_disconnect =
        if args.keep || args.detach { OnDisconnect::Keep } else { OnDisconnect::Kill };

    Ok(StartRequest {
        command,
        argv,
        cwd: args.command_line.cwd.clone(),
        env,
        timeout_sec: args.timeout,
        limits: args.command_line.limits(),
        pty: args.tty.then(terminal_size),
        on_disconnect: Some(on_disconnect.into()),
        stdin_open: Some(args.interactive || (args.tty && args.detach)),
        ..StartRequest::default()
    })
}

fn follow(global: &GlobalArgs, session: ExecSession) -> Result<FollowOutcome, CliError> {
    let mut outcome =
        connection::call_with_signals(global, |connecting, mut signals| async move {
            let outcome = session.follow(connecting, &mut signals).await;
            (outcome, signals)
        })?;
    outcome.end = outcome.end.map_err(|failure| with_isolation_hint(global, failure));
    Ok(outcome)
}

fn finish_with_code(global: &GlobalArgs, result: Result<FollowOutcome, CliError>) -> ExitCode {
    ExitCode::from(report_and_code(global, result))
}

fn report_and_code(global: &GlobalArgs, result: Result<FollowOutcome, CliError>) -> u8 {
    match result {
        Ok(outcome) => outcome.report(global),
        Err(failure) => {
            failure.report(global.json);
            exit_code_of(&failure)
        }
    }
}
