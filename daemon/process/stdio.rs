//! The standard streams between a command and the daemon: pipes or a terminal, and a pipe that
//! signals when the command is executed.

use std::{
    io,
    os::fd::{AsFd, OwnedFd},
    sync::Arc,
};

use rustix::{
    fs::{Gid, Uid, fchown},
    io::fcntl_dupfd_cloexec,
    pipe::{PipeFlags, pipe_with},
    termios::{Winsize, tcsetwinsize},
};
use tokio::io::unix::AsyncFd;

use super::{
    handle::ProcessHandle,
    input::InputFeed,
    output::{OutputStream, ReplayTap},
    shell_state::file::StateFile,
    spec::{CommandSpec, StdinSource},
};
use crate::daemon::{
    sandbox::{
        image::TerminalSize,
        pool::{SandboxPool, command_pipes::CommandPipe},
        running::{StdioStreams, sealed_memory_file},
    },
    store::{artifact_writer::ArtifactWriter, session::StreamName},
};

/// The daemon's ends.
#[derive(Debug)]
pub(super) struct DaemonEnds {
    pub(super) stdout: OutputStream,
    pub(super) stderr: OutputStream,
    /// `None` if the command's input is not streamed, or its terminal is not open yet.
    input_feed: Option<InputFeed>,
    /// Signals that the command was executed. `None` once that is known, or if it is not needed.
    exec_pipe: Option<AsyncFd<OwnedFd>>,
    /// The daemon's end of the terminal, once it is open.
    terminal: Option<OwnedFd>,
    /// A size requested before the terminal was open.
    pending_size: Option<TerminalSize>,
    /// The file that a named shell writes its state to.
    pub(super) shell_output: Option<StateFile>,
}

/// The command's ends, to be sent into its sandbox.
#[derive(Debug)]
pub(super) struct CommandEnds {
    stdin: Option<OwnedFd>,
    /// `None` if it gets a terminal.
    outputs: Option<[OwnedFd; 2]>,
    /// The files that a named shell reads its state from and writes it to.
    shell_files: Option<[OwnedFd; 2]>,
    pub(super) exec_pipe: Option<OwnedFd>,
}

/// Opens the standard streams of a command. With `process`, clients can attach to it.
pub(super) fn open_stdio(
    spec: &CommandSpec,
    pool: &SandboxPool,
    [stdout, stderr]: [ArtifactWriter; 2],
    process: Option<&Arc<ProcessHandle>>,
) -> io::Result<(DaemonEnds, CommandEnds)> {
    let tap = |stream| process.map(|process| ReplayTap { process: Arc::clone(process), stream });
    let mut daemon_ends = DaemonEnds {
        stdout: OutputStream::new(spec.max_inline_bytes, stdout, tap(StreamName::Stdout)),
        stderr: OutputStream::new(spec.max_inline_bytes, stderr, tap(StreamName::Stderr)),
        input_feed: None,
        exec_pipe: None,
        terminal: None,
        pending_size: None,
        shell_output: None,
    };
    let mut command_ends =
        CommandEnds { stdin: None, outputs: None, shell_files: None, exec_pipe: None };

    if process.is_some() {
        let pipe = CommandPipe::new()?;
        daemon_ends.exec_pipe = Some(pipe.reader);
        command_ends.exec_pipe = Some(pipe.writer);
    }

    if spec.terminal.is_some() {
        return Ok((daemon_ends, command_ends));
    }

    let (stdout, stderr) = (pool.take_pipe()?, pool.take_pipe()?);
    command_ends.outputs =
        Some([daemon_ends.stdout.read_from(stdout), daemon_ends.stderr.read_from(stderr)]);
    match &spec.stdin {
        StdinSource::Streamed => {
            let (reader, writer) = pipe_with(PipeFlags::CLOEXEC)?;
            daemon_ends.input_feed = Some(InputFeed::to_pipe(writer)?);
            command_ends.stdin = Some(reader);
        }
        StdinSource::Bytes(bytes) if bytes.is_empty() => {}
        StdinSource::Bytes(bytes) => {
            command_ends.stdin = Some(sealed_memory_file(c"jig-stdin", bytes)?);
        }
    }
    if let Some(script) = &spec.restore_script {
        let (output, command_end) = StateFile::new()?;
        let script = sealed_memory_file(c"jig-shell", script)?;
        command_ends.shell_files = Some([script, command_end]);
        daemon_ends.shell_output = Some(output);
    }
    Ok((daemon_ends, command_ends))
}

impl CommandEnds {
    /// Returns the streams to send into the sandbox.
    pub(super) fn stdio_streams(&self, spec: &CommandSpec) -> StdioStreams<'_> {
        match (&self.outputs, spec.terminal) {
            (Some([stdout, stderr]), _) => StdioStreams::Descriptors {
                stdin: self.stdin.as_ref().map(AsFd::as_fd),
                stdout: stdout.as_fd(),
                stderr: stderr.as_fd(),
                shell_files: self
                    .shell_files
                    .as_ref()
                    .map(|files| files.each_ref().map(AsFd::as_fd)),
            },
            (None, size) => StdioStreams::Terminal(size.unwrap_or_default()),
        }
    }

    /// Whether a warm shell can connect them: it opens no terminal, cannot tell that a command is
    /// executed, and has the standard streams alone.
    pub(super) fn suit_warm_shell(&self) -> bool {
        self.outputs.is_some() && self.exec_pipe.is_none() && self.shell_files.is_none()
    }

    /// Makes the command's user the owner of the pipes. Without that it could not open them by name
    /// (`/dev/stderr`), since opening checks the owner even if the process has them open.
    pub(super) fn chown_to_sandbox_user(&self, pool: &SandboxPool) {
        let Some(identity) = pool.identity() else {
            return;
        };
        for pipe in self.outputs.iter().flatten() {
            // Fails if the daemon may not change owners; the pipes then belong to the right user.
            let _chowned = fchown(
                pipe,
                Some(Uid::from_raw(identity.host_ids.0)),
                Some(Gid::from_raw(identity.host_ids.1)),
            );
        }
    }

    /// Closes the ends that the daemon must not hold while the command runs; returns the others.
    pub(super) fn into_outputs(self) -> Option<[OwnedFd; 2]> {
        self.outputs
    }
}

impl DaemonEnds {
    /// Whether the execution of the command has succeeded or failed, or is not tracked.
    pub(super) fn is_start_known(&self) -> bool {
        self.exec_pipe.is_none()
    }

    /// Returns the bytes of output read so far.
    pub(super) fn total_bytes(&self) -> u64 {
        self.stdout.total_bytes() + self.stderr.total_bytes()
    }

    /// Takes the daemon's end of the command's terminal.
    pub(super) fn attach_terminal(&mut self, end: OwnedFd) -> io::Result<()> {
        let copy = || Ok::<_, io::Error>(fcntl_dupfd_cloexec(&end, 0)?);
        self.stdout.read_from_terminal(copy()?)?;
        self.input_feed = Some(InputFeed::to_terminal(copy()?)?);
        self.terminal = Some(end);
        if let Some(size) = self.pending_size.take() {
            self.resize(size);
        }
        Ok(())
    }

    /// Resizes the command's terminal. Its foreground processes receive SIGWINCH.
    pub(super) fn resize(&mut self, size: TerminalSize) {
        let Some(terminal) = &self.terminal else {
            self.pending_size = Some(size);
            return;
        };
        let size = Winsize { ws_row: size.rows, ws_col: size.columns, ws_xpixel: 0, ws_ypixel: 0 };
        // Fails if all processes have closed the terminal.
        let _resized = tcsetwinsize(terminal, size);
    }

    /// Waits until one of the streams is ready and serves it: reads output, writes input, or detects
    /// the execution. In random order. Cancel safe.
    pub(super) async fn drive(&mut self, process: Option<&ProcessHandle>) {
        tokio::select! {
            () = self.stdout.read_some() => {}
            () = self.stderr.read_some() => {}
            () = feed_input(&mut self.input_feed, process) => {}
            () = wait_for_exec(&mut self.exec_pipe, process) => {}
        }
    }
}

async fn feed_input(feed: &mut Option<InputFeed>, process: Option<&ProcessHandle>) {
    match (feed, process) {
        (Some(feed), Some(process)) => feed.write_some(&process.input).await,
        (None, _) | (_, None) => std::future::pending().await,
    }
}

/// Waits until the execution of the command has succeeded or failed. Marks the process as started
/// if it succeeded.
async fn wait_for_exec(exec_pipe: &mut Option<AsyncFd<OwnedFd>>, process: Option<&ProcessHandle>) {
    let (Some(pipe), Some(process)) = (exec_pipe.as_ref(), process) else {
        return std::future::pending().await;
    };
    let read = match pipe.readable().await {
        Ok(mut guard) => guard.try_io(|pipe| Ok(rustix::io::read(pipe, &mut [0_u8; 4])?)),
        Err(error) => Ok(Err(error)),
    };

    match read {
        Err(_would_block) => {}
        Ok(Err(error)) if error.kind() == io::ErrorKind::Interrupted => {}
        // Closed by the execution, or by the process's end, which is reported next.
        Ok(Ok(0)) => {
            process.mark_started();
            *exec_pipe = None;
        }
        // The execution failed; the sandbox reports why.
        Ok(Ok(_) | Err(_)) => *exec_pipe = None,
    }
}
