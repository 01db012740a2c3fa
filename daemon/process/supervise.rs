//! One task owns one command from the moment it asks for a sandbox until nothing of it is left.

use std::{
    os::fd::{AsFd as _, OwnedFd},
    sync::Arc,
    time::{Duration, Instant},
};

use rustix::fs::{Gid, Uid, fchown};
use tokio::time::{sleep_until, timeout_at};
use tokio_util::sync::CancellationToken;

use super::{
    outcome::{Ended, Outcome},
    output::{Captured, Stream},
    spec::Spec,
    stop::{Action, Event, Ladder},
};
use crate::daemon::{
    sandbox::{
        pool::Pool,
        running::{End, Running, Streams, sealed_file},
        stage::{Failure, Stage},
    },
    store::artifact::Sink,
    sys::Errno,
};

/// Dead sandboxes that are passed over: more than a pool keeps warm.
const STALE_AT_MOST: usize = 16;

/// How a command may be ended before it ends.
#[derive(Debug, Clone)]
pub(crate) struct Stop {
    /// At once: nobody waits any more.
    pub(crate) abandon: CancellationToken,
    /// By the ladder: the daemon is shutting down.
    pub(crate) drain: CancellationToken,
    /// Time between SIGTERM and SIGKILL.
    pub(crate) grace: Duration,
}

/// Where the two streams go.
#[derive(Debug)]
pub(crate) struct Artifacts {
    /// Artifact of the standard output, with the path under which it can be read.
    pub(crate) stdout: (Sink, String),
    /// Artifact of the standard error, likewise.
    pub(crate) stderr: (Sink, String),
}

/// A command that was run.
#[derive(Debug)]
pub(crate) struct Finished {
    /// How it ended.
    pub(crate) ended: Ended,
    /// What it wrote.
    pub(crate) stdout: Captured,
    /// What it wrote as errors.
    pub(crate) stderr: Captured,
    /// From dispatch until nothing of it was left.
    pub(crate) duration: Duration,
}

/// Why a command was not run, or is not known to have ended.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RunError {
    /// A step of starting it failed: the sandbox's, or the command's own.
    #[error("the command was not started")]
    NotStarted(#[source] Failure),
    /// No sandbox became free in the time that the command had.
    #[error("no sandbox became free in time")]
    NoSandboxInTime,
    /// Nobody waits any more; nothing was started.
    #[error("the call was cancelled before a sandbox was free")]
    Abandoned,
    /// The daemon is shutting down; nothing was started.
    #[error("the daemon was told to end before a sandbox was free")]
    Draining,
    /// The sandbox was lost while the command ran.
    #[error("the sandbox was lost while the command ran")]
    Lost,
}

/// Told once the command is in its sandbox.
pub(crate) trait Observer: Send {
    /// The command's process id in the daemon's namespace, where it is known.
    fn started(&mut self, pid: Option<i32>);
}

/// Runs a command. To be polled to its end: what is to end it early comes through `stop`.
pub(crate) async fn run(
    spec: &Spec,
    pool: &Arc<Pool>,
    artifacts: Artifacts,
    stop: &Stop,
    observer: &mut impl Observer,
) -> Result<Finished, RunError> {
    let deadline = Instant::now() + spec.timeout;
    let prepare = |error: std::io::Error| {
        RunError::NotStarted(Failure::kernel(
            Stage::StandardStreams,
            Errno::from_io_error(&error).unwrap_or(Errno::IO),
            "",
        ))
    };
    let (stdout, stdout_end) =
        Stream::new(spec.inline_bytes, artifacts.stdout.0).map_err(prepare)?;
    let (stderr, stderr_end) =
        Stream::new(spec.inline_bytes, artifacts.stderr.0).map_err(prepare)?;
    let stdin = if spec.stdin.is_empty() {
        None
    } else {
        Some(sealed_file(c"jig-stdin", &spec.stdin).map_err(prepare)?)
    };
    let streams = Streams {
        stdin: stdin.as_ref().map(|fd| fd.as_fd()),
        stdout: stdout_end.as_fd(),
        stderr: stderr_end.as_fd(),
    };
    let command = spec.command();
    let mut stale = 0;
    let (running, dispatched) = loop {
        let warm = tokio::select! {
            biased;
            taken = timeout_at(deadline.into(), pool.take()) => {
                taken.map_err(|_| RunError::NoSandboxInTime)?.map_err(RunError::NotStarted)?
            }
            () = stop.abandon.cancelled() => return Err(RunError::Abandoned),
            () = stop.drain.cancelled() => return Err(RunError::Draining),
        };
        let dispatched = Instant::now();
        give_pipes(pool, [&stdout_end, &stderr_end]);
        match warm.dispatch(&command, &streams) {
            Ok(running) => break (running, dispatched),
            // It died while it was warm, as all do when their launcher dies: it has not seen the
            // command, so another can be asked.
            Err(failure) if failure.is_disconnection() && stale < STALE_AT_MOST => stale += 1,
            Err(failure) => return Err(RunError::NotStarted(failure)),
        }
    };
    drop(stdin);
    observer.started(running.pid());

    let mut watched = Watched {
        running,
        stdout,
        stderr,
        ladder: Ladder::Running { until: deadline },
    };
    let ended = watched.wait(stop).await;
    // Kept until now, so that the daemon is not woken by the pipes' end just before it is by the
    // command's: what ends a command is told by its init, who is not to wait for that.
    drop((stdout_end, stderr_end));
    let duration = dispatched.elapsed();
    let (ended, stdout, stderr) = match ended {
        Waited::Ended(ended) => (ended?, watched.stdout, watched.stderr),
        Waited::ToKill(cause) => {
            let gone = watched.running.kill().await;
            (
                Ended {
                    outcome: Outcome::killed(cause),
                    usage: Default::default(),
                    kill_pending: !gone,
                },
                watched.stdout,
                watched.stderr,
            )
        }
    };
    let (stdout, stderr) = tokio::join!(
        stdout.finish(&artifacts.stdout.1),
        stderr.finish(&artifacts.stderr.1)
    );
    Ok(Finished {
        ended,
        stdout,
        stderr,
        duration: duration.max(dispatched.elapsed()),
    })
}

/// Gives the pipes to the command's user, who could not open them by name (`/dev/stderr`)
/// otherwise: that asks whose they are, also of who has them open.
fn give_pipes(pool: &Pool, pipes: [&OwnedFd; 2]) {
    let Some(identity) = pool.identity() else {
        return;
    };
    for pipe in pipes {
        // They are the daemon's own user's already where it may not give them away.
        let _own = fchown(
            pipe,
            Some(Uid::from_raw(identity.uid)),
            Some(Gid::from_raw(identity.gid)),
        );
    }
}

/// A command that runs, and what is watched meanwhile.
struct Watched {
    running: Running,
    stdout: Stream,
    stderr: Stream,
    ladder: Ladder,
}

enum Waited {
    Ended(Result<Ended, RunError>),
    ToKill(super::outcome::Cause),
}

impl Watched {
    /// Waits until the command ends or has to be killed, reading what it writes.
    async fn wait(&mut self, stop: &Stop) -> Waited {
        loop {
            let draining = self.ladder.cause().is_some();
            let event = tokio::select! {
                biased;
                end = self.running.end() => return self.ended(end),
                () = stop.abandon.cancelled() => Event::Abandoned,
                () = wait_until(self.ladder.next()) => Event::Timer(Instant::now()),
                () = stop.drain.cancelled(), if !draining => Event::Drain(Instant::now()),
                () = advance(&mut self.stdout, &mut self.stderr) => continue,
            };
            let (ladder, action) = self.ladder.on(event, stop.grace);
            self.ladder = ladder;
            match (action, ladder.cause()) {
                (Action::Terminate, _) => self.running.signal(libc::SIGTERM),
                (Action::Kill, Some(cause)) => return Waited::ToKill(cause),
                (Action::Wait | Action::Kill, _) => {}
            }
        }
    }

    fn ended(&self, end: End) -> Waited {
        let cause = self.ladder.cause();
        match (end, cause) {
            (End::Ended { status, usage }, _) => {
                let outcome = Outcome::from_status(status, cause);
                Waited::Ended(Ok(Ended {
                    outcome,
                    usage,
                    kill_pending: false,
                }))
            }
            (End::NotStarted { stage, errno }, _) => {
                Waited::Ended(Err(RunError::NotStarted(Failure::kernel(stage, errno, ""))))
            }
            // It did not say that all is gone, so that must be seen to.
            (End::Gone, Some(cause)) => Waited::ToKill(cause),
            (End::Gone, None) => Waited::Ended(Err(RunError::Lost)),
        }
    }
}

/// Reads whichever of the two has something, neither before the other. May be cancelled.
async fn advance(stdout: &mut Stream, stderr: &mut Stream) {
    tokio::select! {
        () = stdout.advance() => {}
        () = stderr.advance() => {}
    }
}

async fn wait_until(instant: Option<Instant>) {
    match instant {
        Some(instant) => sleep_until(instant.into()).await,
        None => std::future::pending().await,
    }
}
