//! `ProcessService.Start`: starts a command in a sandbox of its own without waiting for its end.
//! Clients can attach to it, feed its input and read its output while it runs.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;

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

/// `TERM` of commands with a terminal: a type that terminals of clients understand.
const TERMINAL_TYPE: &str = "xterm-256color";

/// The tool `run`, without a wait for the command's end.
#[derive(Debug)]
pub(crate) struct StartCommand;

/// The validated request.
#[derive(Debug)]
pub(crate) struct Params {
    run_params: run::Params,
    stdin: StdinSource,
    terminal: Option<TerminalSize>,
    supervised: SupervisedProcess,
}

impl Params {
    /// The process handle, for clients that attach.
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
    const START_PERMIT_HOLD: Duration = run::COMMAND_START_PERMIT_HOLD;
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
        let ends_with_last_reader = request.on_disconnect() == v1::OnDisconnect::Kill;
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

        let terminal = parse_terminal(pty, workspace_context.isolation.level, violations);
        let request = v1::RunRequest {
            command,
            argv,
            cwd,
            env,
            stdin,
            timeout_sec,
            max_output_bytes,
            limits,
            shell: None,
            restart_shell: false,
        };
        let Some(mut run_params) = RunCommand::validate(request, workspace_context, violations)?
        else {
            return Ok(None);
        };

        let keep_open = stdin_open.unwrap_or(run_params.stdin.is_empty());
        let (stdin, input) = open_stdin(&mut run_params, keep_open, terminal.is_some());
        if terminal.is_some() {
            run_params.environment.set_default("TERM", TERMINAL_TYPE.to_owned());
        }

        let mount_path = workspace_context.workspace.mount_path();
        let info = ProcessInfo {
            id: ulid::Ulid::generate().to_string(),
            command: run_params.program.display(),
            cwd: truncate_for_display(&run_params.cwd.absolute(mount_path).to_string_lossy()),
            has_terminal: terminal.is_some(),
            ends_with_last_reader,
        };
        let max_replay_bytes = workspace_context.run_settings.max_replay_bytes;
        let supervised = ProcessHandle::prepare(info, input, max_replay_bytes);
        Ok(Some(Params { run_params, stdin, terminal, supervised }))
    }

    async fn execute(
        params: Params,
        context: ToolContext,
    ) -> Result<ToolOutput<ProcessExit>, Error> {
        let Params { run_params, stdin, terminal, supervised } = params;
        let io = CommandIo { stdin, terminal, supervised: Some(supervised), shell: None };
        let (timeout, returns_output) = (run_params.timeout, run_params.max_inline_bytes > 0);

        let mut output = run::run_command(run_params, timeout, io, context).await?;
        if !returns_output {
            // The caller requested no output, so the note about omitted output goes too.
            let result = &mut output.response.result;
            result.stdout.text.clear();
            result.stderr.text.clear();
        }
        Ok(output)
    }
}

/// The size of the requested terminal.
fn parse_terminal(
    pty: Option<v1::TerminalSize>,
    level: IsolationLevel,
    violations: &mut Vec<Violation>,
) -> Option<TerminalSize> {
    let pty = pty?;
    let columns = u16::try_from(pty.cols).ok()?;
    let rows = u16::try_from(pty.rows).ok()?;

    if level == IsolationLevel::L1 {
        let text =
            "terminals are not available at isolation L1, where they would belong to the daemon";
        violations.push(Violation::new("pty", text));
    }
    Some(TerminalSize { columns, rows })
}

/// Where the command reads its input from, and the queue that clients write to.
fn open_stdin(
    run_params: &mut run::Params,
    keep_open: bool,
    has_terminal: bool,
) -> (StdinSource, InputQueue) {
    // A terminal is always fed from the queue: a command has no other way to read from it.
    if keep_open || has_terminal {
        let first = std::mem::take(&mut run_params.stdin);
        (StdinSource::Streamed, InputQueue::new(first, !keep_open))
    } else {
        let all = run_params.stdin.clone();
        (StdinSource::Bytes(all), InputQueue::new(Bytes::new(), true))
    }
}
