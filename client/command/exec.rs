//! `jig exec` and `jig attach`: a command in a sandbox that is watched, and talked to, while it runs.

mod leave;
mod session;
mod terminal;
mod typed;

use std::process::ExitCode;

use clap::Args;
use jig::{
    api::v1::{AttachRequest, OnDisconnect, ProcessExited, StartRequest},
    client::Client,
};

use self::{
    session::{Begin, Followed, Session},
    terminal::{LocalTerminal, size_of_terminal},
};
use super::{processes::of_a_daemon, words::Words};
use crate::{connection, exit, failure::Failure, global::Global, output};

/// What runs in a terminal when nothing is named.
const SHELL: &str = "command -v bash > /dev/null && exec bash; exec sh";

/// Run a command in a sandbox of its own, watch it and talk to it while it runs.
///
/// The words are as for `jig run`; with -t none are needed: then it is a shell. `jig exec -it` is to
/// a sandbox what `ssh -t` is to a machine: keys, Ctrl-C and the size of the window reach the
/// command, and `~.` on a line of its own leaves it. Without -t, Ctrl-C sends SIGINT to the command,
/// and a second one ends it.
///
/// Exits with the command's exit code; 128+n when signal n ended it, 124 when its time was up, 130
/// when it was cancelled, 125 when jig failed.
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
    pub(crate) words: Words,
}

/// Come back to a command that `jig exec --keep` or `--detach` started.
///
/// Prints what it has written so far, as far as it is kept, and what it writes from now on. Exits as
/// `jig exec`.
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

pub(crate) fn exec(global: &Global, args: ExecArgs) -> ExitCode {
    let keeps = args.keep || args.detach;
    let result = request(&args).and_then(|request| {
        if keeps {
            // One of our own ends with this call.
            of_a_daemon(global)?;
        }
        let session = Session {
            begin: Begin::Start(Box::new(request)),
            is_fed: args.interactive,
            detaches: args.detach,
            keeps,
            comes_back: global.address().is_some(),
            as_json: global.json,
        };
        follow(global, session, args.tty)
    });
    finish(global, result)
}

pub(crate) fn attach(global: &Global, args: AttachArgs) -> ExitCode {
    let result = of_a_daemon(global).and_then(|address| {
        let id = args.process.clone();
        // What it is says whether keys are to reach it one by one.
        let listed = connection::call_at(address, global, async |client: Client| {
            Ok(client.list_processes().await?)
        })?;
        let process = listed
            .processes
            .into_iter()
            .find(|known| known.process_id == id);
        let has_terminal = process.as_ref().is_some_and(|process| process.has_terminal);
        let keeps = process.is_some_and(|process| process.on_disconnect() == OnDisconnect::Keep);
        let session = Session {
            begin: Begin::Attach(AttachRequest {
                process_id: args.process,
                after_sequence: args.after,
                ..AttachRequest::default()
            }),
            is_fed: args.interactive,
            detaches: false,
            keeps,
            comes_back: true,
            as_json: global.json,
        };
        follow(global, session, has_terminal && args.interactive)
    });
    finish(global, result)
}

fn request(args: &ExecArgs) -> Result<StartRequest, Failure> {
    let (command, argv) = match (args.words.are_none(), args.tty) {
        (false, _) => args.words.command(),
        (true, true) => (Some(SHELL.to_owned()), Vec::new()),
        (true, false) => {
            return Err(Failure::Usage(
                "there is no command to run; only with -t there is a shell".to_owned(),
            ));
        }
    };
    let mut env = args.words.env();
    if args.tty
        && let Ok(term) = std::env::var("TERM")
        && !term.is_empty()
    {
        env.entry("TERM".to_owned()).or_insert(term);
    }
    let on_disconnect = if args.keep || args.detach {
        OnDisconnect::Keep
    } else {
        OnDisconnect::Kill
    };
    Ok(StartRequest {
        command,
        argv,
        cwd: args.words.cwd.clone(),
        env,
        timeout_sec: args.timeout,
        limits: args.words.limits(),
        pty: args.tty.then(size_of_terminal),
        on_disconnect: Some(on_disconnect.into()),
        stdin_open: Some(args.interactive || (args.tty && args.detach)),
        ..StartRequest::default()
    })
}

/// Follows the command to its end, with this terminal handed over to it where both have one.
fn follow(global: &Global, session: Session, has_terminal: bool) -> Result<Followed, Failure> {
    let terminal = if has_terminal && session.is_fed && !session.detaches {
        LocalTerminal::hand_over()?
    } else {
        None
    };
    let is_raw = terminal.is_some();
    let result = connection::call_minding_signals(global, move |client, signals| {
        session.follow(client, signals, has_terminal, is_raw)
    });
    // Before anything is told: lines end as they always do again.
    drop(terminal);
    result
}

fn finish(global: &Global, result: Result<Followed, Failure>) -> ExitCode {
    ExitCode::from(match result {
        Ok(Followed::Exited(exited)) => {
            tell(&exited);
            exit::of_process(&exited)
        }
        Ok(Followed::Detached(id)) => {
            let printed = output::stdout(format!("{id}\n").as_bytes());
            printed.map_or(exit::RUN_FAILED, |()| exit::SUCCESS)
        }
        Ok(Followed::Left { id, keeps: true }) => {
            output::note(&format!(
                "left; it goes on, come back with: jig attach -i {id}"
            ));
            exit::SUCCESS
        }
        Ok(Followed::Left { keeps: false, .. }) => {
            output::note("left; the command was ended with its last reader");
            exit::CANCELLED
        }
        Err(failure) => {
            failure.report(global.json);
            if let Failure::Interrupted(code) = failure {
                code
            } else {
                exit::RUN_FAILED
            }
        }
    })
}

/// Says what the exit code alone does not.
fn tell(exited: &ProcessExited) {
    if !exited.limit.is_empty() {
        output::note(&format!("ended by its limit: {}", exited.limit));
    }
    if !exited.artifact_error.is_empty() {
        output::note(&format!(
            "the whole output was not kept: {}",
            exited.artifact_error
        ));
    }
    if exited.kill_pending {
        output::note("a process of it could not be killed yet");
    }
}
