//! What connects a command with the daemon: pipes or a terminal, the stream that feeds it, and the
//! word that it was executed.

use std::{
    io,
    os::fd::{AsFd, OwnedFd},
    sync::Arc,
};

use rustix::{
    fs::{Gid, Uid, fchown},
    io::{fcntl_dupfd_cloexec, ioctl_fionbio},
    pipe::{PipeFlags, pipe_with},
    termios::{Winsize, tcsetwinsize},
};
use tokio::io::unix::AsyncFd;

use super::{
    handle::ProcessHandle,
    input::InputFeed,
    output::{OutputStream, ReplayTap},
    spec::{CommandSpec, StdinSource},
};
use crate::daemon::{
    sandbox::{
        image::TerminalSize,
        pool::SandboxPool,
        running::{StdioStreams, sealed_memory_file},
    },
    store::{artifact_writer::ArtifactWriter, session::StreamName},
    sys::readiness::watch_readable,
};

/// The daemon's side.
#[derive(Debug)]
pub(super) struct DaemonEnds {
    pub(super) stdout: OutputStream,
    pub(super) stderr: OutputStream,
    /// What feeds it; nothing for a command that is not fed, or whose terminal is not there yet.
    input_feed: Option<InputFeed>,
    /// Tells that it was executed; nothing once that is known, or where nobody asks.
    exec_pipe: Option<AsyncFd<OwnedFd>>,
    /// Its terminal's other end, once it is there.
    terminal: Option<OwnedFd>,
    /// Size that its terminal was told to have before it was there.
    pending_size: Option<TerminalSize>,
}

/// The command's side, to be sent into its sandbox.
#[derive(Debug)]
pub(super) struct CommandEnds {
    stdin: Option<OwnedFd>,
    /// None where it gets a terminal.
    outputs: Option<[OwnedFd; 2]>,
    pub(super) exec_pipe: Option<OwnedFd>,
}

/// Makes what connects a command with the daemon.
pub(super) fn open_stdio(
    spec: &CommandSpec,
    stdout: ArtifactWriter,
    stderr: ArtifactWriter,
    process: Option<&Arc<ProcessHandle>>,
) -> io::Result<(DaemonEnds, CommandEnds)> {
    let tap = |stream| process.map(|process| ReplayTap { process: Arc::clone(process), stream });
    let mut connections = DaemonEnds {
        stdout: OutputStream::new(spec.max_inline_bytes, stdout, tap(StreamName::Stdout)),
        stderr: OutputStream::new(spec.max_inline_bytes, stderr, tap(StreamName::Stderr)),
        input_feed: None,
        exec_pipe: None,
        terminal: None,
        pending_size: None,
    };
    let mut ends = CommandEnds { stdin: None, outputs: None, exec_pipe: None };
    if process.is_some() {
        let (reader, writer) = pipe_with(PipeFlags::CLOEXEC)?;
        ioctl_fionbio(&reader, true)?;
        connections.exec_pipe = Some(watch_readable(reader)?);
        ends.exec_pipe = Some(writer);
    }
    if spec.terminal.is_some() {
        return Ok((connections, ends));
    }
    ends.outputs = Some([connections.stdout.open_pipe()?, connections.stderr.open_pipe()?]);
    match &spec.stdin {
        StdinSource::Streamed => {
            let (reader, writer) = pipe_with(PipeFlags::CLOEXEC)?;
            connections.input_feed = Some(InputFeed::to_pipe(writer)?);
            ends.stdin = Some(reader);
        }
        StdinSource::Bytes(bytes) if bytes.is_empty() => {}
        StdinSource::Bytes(bytes) => ends.stdin = Some(sealed_memory_file(c"jig-stdin", bytes)?),
    }
    Ok((connections, ends))
}

impl CommandEnds {
    /// The streams to be sent into the sandbox.
    pub(super) fn stdio_streams(&self, spec: &CommandSpec) -> StdioStreams<'_> {
        match (&self.outputs, spec.terminal) {
            (Some([stdout, stderr]), _) => StdioStreams::Descriptors {
                stdin: self.stdin.as_ref().map(AsFd::as_fd),
                stdout: stdout.as_fd(),
                stderr: stderr.as_fd(),
            },
            (None, size) => StdioStreams::Terminal(size.unwrap_or_default()),
        }
    }

    /// Gives the pipes to the command's user, who could not open them by name (`/dev/stderr`)
    /// otherwise: that asks whose they are, also of who has them open.
    pub(super) fn chown_to_sandbox_user(&self, pool: &SandboxPool) {
        let Some(identity) = pool.identity() else {
            return;
        };
        for pipe in self.outputs.iter().flatten() {
            // They are the daemon's own user's already where it may not give them away.
            let _own = fchown(
                pipe,
                Some(Uid::from_raw(identity.host_ids.0)),
                Some(Gid::from_raw(identity.host_ids.1)),
            );
        }
    }

    /// Closes what the daemon must not hold while the command runs; answers what it may.
    pub(super) fn into_outputs(self) -> Option<[OwnedFd; 2]> {
        self.outputs
    }
}

impl DaemonEnds {
    /// Whether it is known what has become of the command's execution, or nobody asks.
    pub(super) fn is_start_known(&self) -> bool {
        self.exec_pipe.is_none()
    }

    /// All bytes that the command wrote, as far as they were read.
    pub(super) fn total_bytes(&self) -> u64 {
        self.stdout.total_bytes() + self.stderr.total_bytes()
    }

    /// Takes the other end of the command's terminal.
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

    /// Gives the command's terminal another size; its foreground processes get SIGWINCH.
    pub(super) fn resize(&mut self, size: TerminalSize) {
        let Some(terminal) = &self.terminal else {
            self.pending_size = Some(size);
            return;
        };
        let size = Winsize { ws_row: size.rows, ws_col: size.columns, ws_xpixel: 0, ws_ypixel: 0 };
        // A terminal that nobody has open any more has no size.
        let _gone = tcsetwinsize(terminal, size);
    }

    /// Waits until something can be done for the command, and does it: reads what it writes, feeds
    /// it, learns that it was executed. No one of these before another. May be cancelled.
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

/// Waits until it is known whether the command was executed, and tells it if it was.
async fn wait_for_exec(start: &mut Option<AsyncFd<OwnedFd>>, process: Option<&ProcessHandle>) {
    let (Some(pipe), Some(process)) = (start.as_ref(), process) else {
        return std::future::pending().await;
    };
    let read = match pipe.readable().await {
        Ok(mut guard) => guard.try_io(|pipe| Ok(rustix::io::read(pipe, &mut [0_u8; 4])?)),
        Err(error) => Ok(Err(error)),
    };
    match read {
        Err(_would_block) => {}
        Ok(Err(error)) if error.kind() == io::ErrorKind::Interrupted => {}
        // It was closed by the execution, or with the process: then its end is told next.
        Ok(Ok(0)) => {
            process.mark_started();
            *start = None;
        }
        // It was not executed; the sandbox tells why.
        Ok(Ok(_) | Err(_)) => *start = None,
    }
}
