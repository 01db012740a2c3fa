//! Kills a sandbox and waits until it is gone.

use std::{
    os::fd::{AsFd as _, OwnedFd},
    time::{Duration, Instant},
};

use rustix::process::{Signal, pidfd_send_signal};
use tokio::{
    io::unix::AsyncFd,
    sync::oneshot,
    time::{sleep, timeout},
};

use super::{level::IsolationLevel, recycle::UsedSandbox};
use crate::daemon::sys::{
    readiness::try_watch_readable,
    signal::{RelayedSignal, send_through_init},
};

/// Time that a killed sandbox may take to be gone before it is quarantined. Killing a thousand
/// processes takes 54 ms on a slow machine.
const KILL_TIMEOUT: Duration = Duration::from_secs(5);
const WATCH_RETRY_INTERVAL: Duration = Duration::from_millis(20);

/// What becomes of a slot once its sandbox has been used.
#[derive(Debug)]
pub(super) enum SlotOutcome {
    /// No process of the run is left: the slot can make another sandbox, or recycle this one.
    Free(Option<UsedSandbox>),
    /// A process of the sandbox could not be killed: the slot must not be reused. The descriptor,
    /// if it can be watched, becomes readable when the process is gone after all.
    Quarantined(Option<AsyncFd<OwnedFd>>),
}

/// Kills the processes of a sandbox.
///
/// With namespaces, it kills the init, which takes its process namespace along. At L1 it signals
/// the L1 init, which kills all others and ends when they are gone.
pub(super) fn kill_sandbox(init: &OwnedFd, level: IsolationLevel) {
    let _dead = if level.has_namespaces() {
        pidfd_send_signal(init, Signal::KILL)
    } else {
        // The L1 init takes this signal as one for all processes.
        send_through_init(init.as_fd(), RelayedSignal { signal: libc::SIGKILL, group: 0 })
    };
}

/// Kills a sandbox, waits until it is gone, and reports the outcome to its slot.
///
/// Returns false if it is not gone within [`KILL_TIMEOUT`].
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

    let is_gone = timeout(KILL_TIMEOUT, pidfd.readable()).await.is_ok();
    let _dropped = slot_outcome.send(if is_gone {
        SlotOutcome::Free(None)
    } else {
        SlotOutcome::Quarantined(Some(pidfd))
    });
    is_gone
}

/// Registers a killed sandbox's pidfd with the runtime.
///
/// Registering can fail while the run holds all epoll watches of this user. They are freed as its
/// processes end, so this retries.
async fn watch_killed_sandbox(mut pidfd: OwnedFd) -> Option<AsyncFd<OwnedFd>> {
    let started = Instant::now();
    loop {
        pidfd = match try_watch_readable(pidfd) {
            Ok(pidfd) => return Some(pidfd),
            Err((pidfd, _)) => pidfd,
        };
        if started.elapsed() > KILL_TIMEOUT {
            return None;
        }
        sleep(WATCH_RETRY_INTERVAL).await;
    }
}
