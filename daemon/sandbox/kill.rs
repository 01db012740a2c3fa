//! Killing a sandbox, and waiting until it is gone.

use std::{
    os::fd::{AsFd as _, OwnedFd},
    time::{Duration, Instant},
};

use tokio::{
    io::unix::AsyncFd,
    sync::oneshot,
    time::{sleep, timeout},
};

use super::level::IsolationLevel;
use crate::daemon::sys::{readiness::try_watch_readable, signal};

/// How long a killed sandbox may take to be gone before it is set aside: killing a thousand
/// processes takes 54 ms on a slow machine.
const KILL_TIMEOUT: Duration = Duration::from_secs(5);
/// Pause between attempts to watch a killed sandbox.
const WATCH_RETRY_INTERVAL: Duration = Duration::from_millis(20);

/// What becomes of a sandbox's slot.
#[derive(Debug)]
pub(super) enum SlotOutcome {
    /// Everything in the sandbox is gone: the slot can make another.
    Free,
    /// Something in it could not be killed: the slot must not be used again. What is watched, where
    /// it can be, is ready once it is gone all the same.
    Quarantined(Option<AsyncFd<OwnedFd>>),
}

/// Kills what is in a sandbox: its init, with which all of its namespace ends, or, where there is
/// none, all but the supervisor, which ends when the others are gone.
pub(super) fn kill_sandbox(first: &OwnedFd, level: IsolationLevel) {
    let _dead = if level.has_namespaces() {
        signal::send(first.as_fd(), libc::SIGKILL)
    } else {
        signal::send_through_init(first.as_fd(), libc::SIGKILL)
    };
}

pub(super) async fn kill_and_wait(
    pidfd: OwnedFd,
    slot_outcome: oneshot::Sender<SlotOutcome>,
    level: IsolationLevel,
) -> bool {
    kill_sandbox(&pidfd, level);
    let Some(pidfd) = watch_killed_sandbox(pidfd).await else {
        let _dropped = slot_outcome.send(SlotOutcome::Quarantined(None));
        return false;
    };
    let gone = timeout(KILL_TIMEOUT, pidfd.readable()).await.is_ok();
    let _dropped = slot_outcome.send(if gone {
        SlotOutcome::Free
    } else {
        SlotOutcome::Quarantined(Some(pidfd))
    });
    gone
}

/// Has the runtime watch a sandbox that was killed. The run may have taken all epoll watches of this
/// user, and gives them back as its processes end.
async fn watch_killed_sandbox(mut pidfd: OwnedFd) -> Option<AsyncFd<OwnedFd>> {
    let began = Instant::now();
    loop {
        pidfd = match try_watch_readable(pidfd) {
            Ok(pidfd) => return Some(pidfd),
            Err((pidfd, _)) => pidfd,
        };
        if began.elapsed() > KILL_TIMEOUT {
            return None;
        }
        sleep(WATCH_RETRY_INTERVAL).await;
    }
}
