//! `ProcessService.Start`: one command in a sandbox of its own, as [`super::run`] runs them, that is
//! watched and fed while it runs.

use std::{sync::Arc, time::Duration};

use super::{
    Done, Scene, Tool, Work,
    run::{self, Connection, Run},
};
use crate::{
    api::v1,
    daemon::{
        error::{Error, Violation},
        process::{
            input::Input,
            live::{About, Exit, Live, Process},
            spec::{Stdin, shortened},
        },
        sandbox::{image::TerminalSize, level::Level},
        workspace::RelativePath,
    },
};

/// What a terminal of ours is to programs: what clients understand, whatever they run in.
const TERM: &str = "xterm-256color";

/// The tool `run`, started and not waited for.
#[derive(Debug)]
pub(crate) struct Start;

/// A request that was checked.
#[derive(Debug)]
pub(crate) struct Params {
    run: run::Params,
    stdin: Stdin,
    terminal: Option<TerminalSize>,
    live: Live,
}

impl Params {
    /// The command, for those who watch it.
    pub(crate) fn process(&self) -> &Arc<Process> {
        &self.live.process
    }
}

impl Tool for Start {
    const NAME: &'static str = Run::NAME;
    const MESSAGE: Option<&'static str> = Some("jig.v1.StartRequest");
    const NEEDS_SANDBOX: bool = true;
    const IS_WAITED_FOR: bool = false;
    const LIMITS_ITSELF: bool = true;
    const TURN: Duration = run::TURN;
    type Request = v1::StartRequest;
    type Response = Exit;
    type Params = Params;

    fn cwd(params: &Params) -> Option<&RelativePath> {
        Run::cwd(&params.run)
    }

    fn check(
        request: v1::StartRequest,
        scene: &Scene,
        violations: &mut Vec<Violation>,
    ) -> Result<Option<Params>, Error> {
        let ends_alone = request.on_disconnect() == v1::OnDisconnect::Kill;
        let v1::StartRequest {
            command,
            argv,
            cwd,
            env,
            stdin,
            timeout_sec,
            max_output_bytes,
            pty,
            on_disconnect: _,
            stdin_open,
            keep_alive_sec: _,
            limits,
        } = request;
        let terminal = pty.and_then(|pty| {
            Some(TerminalSize {
                columns: u16::try_from(pty.cols).ok()?,
                rows: u16::try_from(pty.rows).ok()?,
            })
        });
        if terminal.is_some() && scene.isolation.level == Level::L1 {
            let text = "no terminals are given at isolation L1, where they would be the daemon's";
            violations.push(Violation::new("pty", text));
        }
        let request = v1::RunRequest {
            command,
            argv,
            cwd,
            env,
            stdin,
            timeout_sec,
            max_output_bytes,
            limits,
        };
        let Some(mut run) = Run::check(request, scene, violations)? else {
            return Ok(None);
        };
        let is_open = stdin_open.unwrap_or(run.stdin.is_empty());
        // A terminal is always fed: it has no other way to be read from.
        let (stdin, input) = if is_open || terminal.is_some() {
            let first = std::mem::take(&mut run.stdin);
            (Stdin::Fed, Input::new(first, !is_open))
        } else {
            let all = run.stdin.clone();
            (Stdin::Whole(all), Input::new(bytes::Bytes::new(), true))
        };
        if terminal.is_some() {
            run.environment.provide("TERM", TERM.to_owned());
        }
        let about = About {
            id: ulid::Ulid::generate().to_string(),
            command: run.program.display(),
            cwd: shortened(&run.cwd.absolute(scene.workspace.mount_path()).to_string_lossy()),
            has_terminal: terminal.is_some(),
            ends_alone,
        };
        let live = Process::prepare(about, input, scene.settings.replay_bytes);
        Ok(Some(Params { run, stdin, terminal, live }))
    }

    async fn execute(params: Params, work: Work) -> Result<Done<Exit>, Error> {
        let Params { run, stdin, terminal, live } = params;
        let connection = Connection { stdin, terminal, live: Some(live) };
        let (timeout, repeats_output) = (run.timeout, run.inline_bytes > 0);
        let mut done = run::perform(run, timeout, connection, work).await?;
        if !repeats_output {
            let finished = &mut done.response.finished;
            // Nobody asked for it: not even for the line that says how much was left out.
            finished.stdout.text.clear();
            finished.stderr.text.clear();
        }
        Ok(done)
    }
}
