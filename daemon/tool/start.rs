//! `ProcessService.Start`: one command in a sandbox of its own, as [`super::run`] runs them, that is
//! watched and fed while it runs.

use std::{sync::Arc, time::Duration};

use super::{
    Tool, ToolContext, ToolOutput, WorkspaceContext,
    run::{self, CommandIo, RunCommand},
};
use crate::{
    api::v1,
    daemon::{
        error::{Error, Violation},
        process::{
            handle::{ProcessExit, ProcessHandle, ProcessInfo, SupervisedProcess},
            input::InputQueue,
            spec::{StdinSource, truncate_for_display},
        },
        sandbox::{image::TerminalSize, level::IsolationLevel},
        workspace::RelativePath,
    },
};

/// What a terminal of ours is to programs: what clients understand, whatever they run in.
const TERMINAL_TYPE: &str = "xterm-256color";

/// The tool `run`, started and not waited for.
#[derive(Debug)]
pub(crate) struct StartCommand;

/// A request that was checked.
#[derive(Debug)]
pub(crate) struct Params {
    run_params: run::Params,
    stdin: StdinSource,
    terminal: Option<TerminalSize>,
    supervised: SupervisedProcess,
}

impl Params {
    /// The command, for those who watch it.
    pub(crate) fn process(&self) -> &Arc<ProcessHandle> {
        &self.supervised.process
    }
}

impl Tool for StartCommand {
    const NAME: &'static str = RunCommand::NAME;
    const REQUEST_MESSAGE: Option<&'static str> = Some("jig.v1.StartRequest");
    const NEEDS_SANDBOX: bool = true;
    const CALLER_WAITS: bool = false;
    const ENFORCES_OWN_TIMEOUT: bool = true;
    const START_PERMIT_HOLD: Duration = run::START_PERMIT_HOLD;
    type Request = v1::StartRequest;
    type Response = ProcessExit;
    type Params = Params;

    fn cwd(params: &Params) -> Option<&RelativePath> {
        RunCommand::cwd(&params.run_params)
    }

    fn validate(
        request: v1::StartRequest,
        workspace_context: &WorkspaceContext,
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
        if terminal.is_some() && workspace_context.isolation.level == IsolationLevel::L1 {
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
        let Some(mut run) = RunCommand::validate(request, workspace_context, violations)? else {
            return Ok(None);
        };
        let is_open = stdin_open.unwrap_or(run.stdin.is_empty());
        // A terminal is always fed: it has no other way to be read from.
        let (stdin, input) = if is_open || terminal.is_some() {
            let first = std::mem::take(&mut run.stdin);
            (StdinSource::Streamed, InputQueue::new(first, !is_open))
        } else {
            let all = run.stdin.clone();
            (StdinSource::Bytes(all), InputQueue::new(bytes::Bytes::new(), true))
        };
        if terminal.is_some() {
            run.environment.set_default("TERM", TERMINAL_TYPE.to_owned());
        }
        let about = ProcessInfo {
            id: ulid::Ulid::generate().to_string(),
            command: run.program.display(),
            cwd: truncate_for_display(
                &run.cwd.absolute(workspace_context.workspace.mount_path()).to_string_lossy(),
            ),
            has_terminal: terminal.is_some(),
            ends_with_last_reader: ends_alone,
        };
        let live =
            ProcessHandle::prepare(about, input, workspace_context.run_settings.max_replay_bytes);
        Ok(Some(Params { run_params: run, stdin, terminal, supervised: live }))
    }

    async fn execute(
        params: Params,
        context: ToolContext,
    ) -> Result<ToolOutput<ProcessExit>, Error> {
        let Params { run_params: run, stdin, terminal, supervised: live } = params;
        let connection = CommandIo { stdin, terminal, supervised: Some(live) };
        let (timeout, repeats_output) = (run.timeout, run.max_inline_bytes > 0);
        let mut done = run::run_command(run, timeout, connection, context).await?;
        if !repeats_output {
            let finished = &mut done.response.result;
            // Nobody asked for it: not even for the line that says how much was left out.
            finished.stdout.text.clear();
            finished.stderr.text.clear();
        }
        Ok(done)
    }
}
