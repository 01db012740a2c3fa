//! The stop sequence of a command: SIGTERM, a grace, SIGKILL. Pure state: no clock, sends nothing.

use std::time::{Duration, Instant};

use super::outcome::{ResourceLimit, StopReason};

/// The state of the sequence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum StopSequence {
    Running {
        /// When the timeout of the command expires.
        deadline: Option<Instant>,
    },
    /// SIGTERM was sent.
    Terminating {
        reason: StopReason,
        /// End of the grace.
        kill_at: Instant,
    },
    /// SIGKILL was sent.
    Killing { reason: StopReason },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum StopEvent {
    /// The time of [`StopSequence::next_deadline`] has come.
    DeadlineReached(Instant),
    /// The daemon is shutting down.
    Terminate(Instant),
    /// The call was abandoned: all clients have disconnected, the call timed out, or the shutdown
    /// is forced.
    Abandoned,
    /// The daemon cannot attach the command's terminal, so it would lose the command's output.
    TerminalLost,
    LimitExceeded(ResourceLimit),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum StopAction {
    /// Nothing to do.
    Wait,
    /// Send SIGTERM.
    Terminate,
    /// Kill all processes of the run.
    Kill,
}

impl StopSequence {
    /// Returns when to send [`StopEvent::DeadlineReached`].
    pub(super) fn next_deadline(self) -> Option<Instant> {
        match self {
            Self::Running { deadline } => deadline,
            Self::Terminating { kill_at, .. } => Some(kill_at),
            Self::Killing { .. } => None,
        }
    }

    /// Returns why the command is being stopped, if it is.
    pub(super) fn reason(self) -> Option<StopReason> {
        match self {
            Self::Running { .. } => None,
            Self::Terminating { reason, .. } | Self::Killing { reason } => Some(reason),
        }
    }

    /// Returns the next state and what to do.
    pub(super) fn on_event(self, event: StopEvent, grace: Duration) -> (Self, StopAction) {
        match (self, event) {
            (Self::Running { deadline }, StopEvent::DeadlineReached(now))
                if deadline.is_none_or(|deadline| now < deadline) =>
            {
                (self, StopAction::Wait)
            }
            (Self::Running { .. }, StopEvent::DeadlineReached(now)) => (
                Self::Terminating { reason: StopReason::TimedOut, kill_at: now + grace },
                StopAction::Terminate,
            ),
            (Self::Running { .. }, StopEvent::Terminate(now)) => (
                Self::Terminating { reason: StopReason::Cancelled, kill_at: now + grace },
                StopAction::Terminate,
            ),
            (Self::Terminating { kill_at, .. }, StopEvent::DeadlineReached(now))
                if now < kill_at =>
            {
                (self, StopAction::Wait)
            }
            (Self::Terminating { reason, .. }, StopEvent::DeadlineReached(_)) => {
                (Self::Killing { reason }, StopAction::Kill)
            }
            (Self::Running { .. }, StopEvent::Abandoned | StopEvent::TerminalLost) => {
                (Self::Killing { reason: StopReason::Cancelled }, StopAction::Kill)
            }
            (Self::Running { .. }, StopEvent::LimitExceeded(limit)) => {
                (Self::Killing { reason: StopReason::Limit(limit) }, StopAction::Kill)
            }
            (
                Self::Terminating { reason, .. },
                StopEvent::Abandoned | StopEvent::TerminalLost | StopEvent::LimitExceeded(_),
            ) => (Self::Killing { reason }, StopAction::Kill),
            (Self::Terminating { .. }, StopEvent::Terminate(_)) | (Self::Killing { .. }, _) => {
                (self, StopAction::Wait)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::{ResourceLimit, StopAction, StopEvent, StopReason, StopSequence};

    #[test]
    fn sequence_never_goes_back() {
        let now = Instant::now();
        let (second, grace) = (Duration::from_secs(1), Duration::from_secs(2));
        let running = StopSequence::Running { deadline: Some(now + second) };
        let endless = StopSequence::Running { deadline: None };
        let ending = |reason| StopSequence::Terminating { reason, kill_at: now + second + grace };
        let killing = |reason| StopSequence::Killing { reason };
        let (time, cancelled) = (StopReason::TimedOut, StopReason::Cancelled);
        for (from, event, to, action) in [
            (running, StopEvent::DeadlineReached(now), running, StopAction::Wait),
            (
                running,
                StopEvent::DeadlineReached(now + second),
                ending(time),
                StopAction::Terminate,
            ),
            (running, StopEvent::Terminate(now + second), ending(cancelled), StopAction::Terminate),
            (running, StopEvent::Abandoned, killing(cancelled), StopAction::Kill),
            (endless, StopEvent::DeadlineReached(now + 9 * second), endless, StopAction::Wait),
            (endless, StopEvent::Terminate(now + second), ending(cancelled), StopAction::Terminate),
            (
                ending(time),
                StopEvent::DeadlineReached(now + second),
                ending(time),
                StopAction::Wait,
            ),
            (ending(time), StopEvent::Terminate(now + second), ending(time), StopAction::Wait),
            (
                ending(time),
                StopEvent::DeadlineReached(now + 4 * second),
                killing(time),
                StopAction::Kill,
            ),
            (ending(time), StopEvent::Abandoned, killing(time), StopAction::Kill),
            (ending(cancelled), StopEvent::Abandoned, killing(cancelled), StopAction::Kill),
            (
                running,
                StopEvent::LimitExceeded(ResourceLimit::Memory),
                killing(StopReason::Limit(ResourceLimit::Memory)),
                StopAction::Kill,
            ),
            (
                ending(time),
                StopEvent::LimitExceeded(ResourceLimit::Output),
                killing(time),
                StopAction::Kill,
            ),
            (killing(time), StopEvent::Abandoned, killing(time), StopAction::Wait),
            (killing(time), StopEvent::Terminate(now), killing(time), StopAction::Wait),
            (
                killing(time),
                StopEvent::DeadlineReached(now + 9 * second),
                killing(time),
                StopAction::Wait,
            ),
        ] {
            assert_eq!(from.on_event(event, grace), (to, action), "{from:?} {event:?}");
        }
    }
}
