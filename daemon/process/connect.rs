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
    input::Feed,
    live::Process,
    output::{Stream, Tap},
    spec::{Spec, Stdin},
};
use crate::daemon::{
    sandbox::{
        image::TerminalSize,
        pool::Pool,
        running::{Streams, sealed_file},
    },
    store::{artifact::Sink, session::StreamName},
    sys::readiness::watch,
};

/// The daemon's side.
#[derive(Debug)]
pub(super) struct Connections {
    pub(super) stdout: Stream,
    pub(super) stderr: Stream,
    /// What feeds it; nothing for a command that is not fed, or whose terminal is not there yet.
    feed: Option<Feed>,
    /// Tells that it was executed; nothing once that is known, or where nobody asks.
    start: Option<AsyncFd<OwnedFd>>,
    /// Its terminal's other end, once it is there.
    terminal: Option<OwnedFd>,
    /// Size that its terminal was told to have before it was there.
    size: Option<TerminalSize>,
}

/// The command's side, to be sent into its sandbox.
#[derive(Debug)]
pub(super) struct Ends {
    stdin: Option<OwnedFd>,
    /// None where it gets a terminal.
    outputs: Option<[OwnedFd; 2]>,
    pub(super) start: Option<OwnedFd>,
}

/// Makes what connects a command with the daemon.
pub(super) fn connect(
    spec: &Spec,
    stdout: Sink,
    stderr: Sink,
    process: Option<&Arc<Process>>,
) -> io::Result<(Connections, Ends)> {
    let tap = |stream| process.map(|process| Tap { process: Arc::clone(process), stream });
    let mut connections = Connections {
        stdout: Stream::new(spec.inline_bytes, stdout, tap(StreamName::Stdout)),
        stderr: Stream::new(spec.inline_bytes, stderr, tap(StreamName::Stderr)),
        feed: None,
        start: None,
        terminal: None,
        size: None,
    };
    let mut ends = Ends { stdin: None, outputs: None, start: None };
    if process.is_some() {
        let (reader, writer) = pipe_with(PipeFlags::CLOEXEC)?;
        ioctl_fionbio(&reader, true)?;
        connections.start = Some(watch(reader)?);
        ends.start = Some(writer);
    }
    if spec.terminal.is_some() {
        return Ok((connections, ends));
    }
    ends.outputs = Some([connections.stdout.pipe()?, connections.stderr.pipe()?]);
    match &spec.stdin {
        Stdin::Fed => {
            let (reader, writer) = pipe_with(PipeFlags::CLOEXEC)?;
            connections.feed = Some(Feed::to_pipe(writer)?);
            ends.stdin = Some(reader);
        }
        Stdin::Whole(bytes) if bytes.is_empty() => {}
        Stdin::Whole(bytes) => ends.stdin = Some(sealed_file(c"jig-stdin", bytes)?),
    }
    Ok((connections, ends))
}

impl Ends {
    /// The streams to be sent into the sandbox.
    pub(super) fn streams(&self, spec: &Spec) -> Streams<'_> {
        match (&self.outputs, spec.terminal) {
            (Some([stdout, stderr]), _) => Streams::Descriptors {
                stdin: self.stdin.as_ref().map(AsFd::as_fd),
                stdout: stdout.as_fd(),
                stderr: stderr.as_fd(),
            },
            (None, size) => Streams::Terminal(size.unwrap_or_default()),
        }
    }

    /// Gives the pipes to the command's user, who could not open them by name (`/dev/stderr`)
    /// otherwise: that asks whose they are, also of who has them open.
    pub(super) fn give_to(&self, pool: &Pool) {
        let Some(identity) = pool.identity() else {
            return;
        };
        for pipe in self.outputs.iter().flatten() {
            // They are the daemon's own user's already where it may not give them away.
            let _own = fchown(
                pipe,
                Some(Uid::from_raw(identity.outside.0)),
                Some(Gid::from_raw(identity.outside.1)),
            );
        }
    }

    /// Closes what the daemon must not hold while the command runs; answers what it may.
    pub(super) fn dispatched(self) -> Option<[OwnedFd; 2]> {
        self.outputs
    }
}

impl Connections {
    /// Whether it is known what has become of the command's execution, or nobody asks.
    pub(super) fn know_the_start(&self) -> bool {
        self.start.is_none()
    }

    /// All bytes that the command wrote, as far as they were read.
    pub(super) fn bytes(&self) -> u64 {
        self.stdout.bytes() + self.stderr.bytes()
    }

    /// Takes the other end of the command's terminal.
    pub(super) fn connect_terminal(&mut self, end: OwnedFd) -> io::Result<()> {
        let copy = || Ok::<_, io::Error>(fcntl_dupfd_cloexec(&end, 0)?);
        self.stdout.read_from_terminal(copy()?)?;
        self.feed = Some(Feed::to_terminal(copy()?)?);
        self.terminal = Some(end);
        if let Some(size) = self.size.take() {
            self.resize(size);
        }
        Ok(())
    }

    /// Gives the command's terminal another size; its foreground processes get SIGWINCH.
    pub(super) fn resize(&mut self, size: TerminalSize) {
        let Some(terminal) = &self.terminal else {
            self.size = Some(size);
            return;
        };
        let size = Winsize { ws_row: size.rows, ws_col: size.columns, ws_xpixel: 0, ws_ypixel: 0 };
        // A terminal that nobody has open any more has no size.
        let _gone = tcsetwinsize(terminal, size);
    }

    /// Waits until something can be done for the command, and does it: reads what it writes, feeds
    /// it, learns that it was executed. No one of these before another. May be cancelled.
    pub(super) async fn advance(&mut self, process: Option<&Process>) {
        tokio::select! {
            () = self.stdout.advance() => {}
            () = self.stderr.advance() => {}
            () = feed(&mut self.feed, process) => {}
            () = start(&mut self.start, process) => {}
        }
    }
}

async fn feed(feed: &mut Option<Feed>, process: Option<&Process>) {
    match (feed, process) {
        (Some(feed), Some(process)) => feed.advance(&process.input).await,
        (None, _) | (_, None) => std::future::pending().await,
    }
}

/// Waits until it is known whether the command was executed, and tells it if it was.
async fn start(start: &mut Option<AsyncFd<OwnedFd>>, process: Option<&Process>) {
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
            process.start();
            *start = None;
        }
        // It was not executed; the sandbox tells why.
        Ok(Ok(_) | Err(_)) => *start = None,
    }
}
