//! `jig exec` and `jig attach`: a command in a sandbox that is watched, and talked to, while it runs.

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

/// What runs in a terminal when nothing is named.
const DEFAULT_SHELL_COMMAND: &str = "command -v bash > /dev/null && exec bash; exec sh";

/// Run a command in a sandbox of its own, watch it and talk to it while it runs.
///
/// The words are as for `jig run`; with -t none are needed: then it is a shell. `jig exec -it` is to
/// a sandbox what `ssh -t` is to a machine: keys, Ctrl-C and the size of the window reach the
/// command, and `~.` at the beginning of a line leaves it; `~^Z` suspends jig, `~?` tells what there
/// is. Without -t, Ctrl-C sends SIGINT to the command, and a second one ends it.
///
/// Exits with the command's exit code; 128+n when signal n ended it, 124 when its time was up, 130
/// when it was cancelled, 141 when nobody reads standard output any more. 125 when jig failed, the
/// connection was lost and the command ended by that, or the command exited with 0 and some of its
/// output did not come: `jig artifact` has it then.
#[derive(Debug, Args)]
pub(crate) struct ExecArgs {
    /// Give the command what is typed or piped in here. Without it, it reads nothing.
    #[arg(short, long)]
    interactive: bool,
    /// Give the command a terminal of the size of this one.
    #[arg(short, long)]
    tty: bool,
    /// Let the command go on when this jig ends or loses its connection: `jig attach` comes back to
    /// it.
    #[arg(long)]
    keep: bool,
    /// Start the command, print its process id, and leave it running.
    #[arg(short, long, conflicts_with_all = ["interactive"])]
    detach: bool,
    /// Seconds that the command may run; as long as it wants by default.
    #[arg(long, value_name = "SEC")]
    timeout: Option<u32>,
    #[command(flatten)]
    pub(crate) command_line: CommandLine,
}

impl ExecArgs {
    /// Whether the command goes on: a daemon of our own would end with this call.
    pub(crate) fn needs_daemon(&self) -> bool {
        self.keep || self.detach
    }
}

/// Come back to a command that `jig exec --keep` or `--detach` started.
///
/// Prints what it has written so far, as far as it is kept, and what it writes from now on. Without
/// -i, Ctrl-C leaves it and does nothing to it; with -i it is as in `jig exec`. Exits as `jig exec`:
/// with 125 also when the command exited with 0 and what it wrote first is not kept any more.
#[derive(Debug, Args)]
pub(crate) struct AttachArgs {
    /// Give the command what is typed or piped in here.
    #[arg(short, long)]
    interactive: bool,
    /// Print only what comes behind the chunk with this number.
    #[arg(long, value_name = "SEQUENCE", default_value_t = 0)]
    after: u64,
    /// The process, by its id.
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

/// Runs a command for `jig run`: nothing is given to it, and Ctrl-C cancels it.
pub(super) fn run(global: &GlobalArgs, request: StartRequest) -> u8 {
    let session = ExecSession {
        start: FollowStart::Start(Box::new(request)),
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
        // What it is says whether keys are to reach it one by one.
        let listed = connection::call_address(address, global, async |client: Client| {
            Ok(client.list_processes().await?)
        })?;
        let process = listed.processes.into_iter().find(|known| known.process_id == id);
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
            // Without input, somebody else's process is only looked at.
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
            return Err(CliError::Usage(
                "there is no command to run; only with -t there is a shell".to_owned(),
            ));
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
    let mut followed =
        connection::call_with_signals(global, |connecting, mut signals| async move {
            let followed = session.follow(connecting, &mut signals).await;
            (followed, signals)
        })?;
    followed.end = followed.end.map_err(|failure| with_isolation_hint(global, failure));
    Ok(followed)
}

fn finish_with_code(global: &GlobalArgs, result: Result<FollowOutcome, CliError>) -> ExitCode {
    ExitCode::from(report_and_code(global, result))
}

fn report_and_code(global: &GlobalArgs, result: Result<FollowOutcome, CliError>) -> u8 {
    match result {
        Ok(followed) => followed.report(global),
        Err(failure) => {
            failure.report(global.json);
            exit_code_of(&failure)
        }
    }
}
