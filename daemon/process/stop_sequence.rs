//! The ladder by which a command is ended: SIGTERM, a grace, SIGKILL. Pure: it knows no clock and
//! sends nothing.

use std::time::{Duration, Instant};

use super::outcome::{ResourceLimit, StopReason};

/// Where on the ladder a command is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum StopSequence {
    /// It runs, until its time is up.
    Running {
        /// When that is, if ever.
        deadline: Option<Instant>,
    },
    /// It was asked to end.
    Terminating {
        /// Why.
        reason: StopReason,
        /// When the grace is over.
        kill_at: Instant,
    },
    /// It is being killed.
    Killing {
        /// Why.
        reason: StopReason,
    },
}

/// What has happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum StopEvent {
    /// The time that [`Ladder::next`] named has come.
    DeadlineReached(Instant),
    /// The daemon is shutting down.
    Terminate(Instant),
    /// Nobody waits any more.
    Abandoned,
    /// It is over a limit.
    LimitExceeded(ResourceLimit),
}

/// What to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum StopAction {
    /// Nothing.
    Wait,
    /// Send SIGTERM.
    Terminate,
    /// Kill everything.
    Kill,
}

impl StopSequence {
    /// When the next step is due.
    pub(super) fn next_deadline(self) -> Option<Instant> {
        match self {
            Self::Running { deadline: until } => until,
            Self::Terminating { kill_at: until, .. } => Some(until),
            Self::Killing { .. } => None,
        }
    }

    /// Why the command is being ended, if it is.
    pub(super) fn reason(self) -> Option<StopReason> {
        match self {
            Self::Running { .. } => None,
            Self::Terminating { reason: cause, .. } | Self::Killing { reason: cause } => {
                Some(cause)
            }
        }
    }

    /// Takes the step that `event` asks for.
    pub(super) fn on_event(self, event: StopEvent, grace: Duration) -> (Self, StopAction) {
        match (self, event) {
            (Self::Running { deadline: until }, StopEvent::DeadlineReached(now))
                if until.is_none_or(|until| now < until) =>
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
            (Self::Terminating { kill_at: until, .. }, StopEvent::DeadlineReached(now))
                if now < until =>
            {
                (self, StopAction::Wait)
            }
            (Self::Terminating { reason: cause, .. }, StopEvent::DeadlineReached(_)) => {
                (Self::Killing { reason: cause }, StopAction::Kill)
            }
            (Self::Running { .. }, StopEvent::Abandoned) => {
                (Self::Killing { reason: StopReason::Cancelled }, StopAction::Kill)
            }
            (Self::Running { .. }, StopEvent::LimitExceeded(limit)) => {
                (Self::Killing { reason: StopReason::Limit(limit) }, StopAction::Kill)
            }
            (
                Self::Terminating { reason: cause, .. },
                StopEvent::Abandoned | StopEvent::LimitExceeded(_),
            ) => (Self::Killing { reason: cause }, StopAction::Kill),
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
    fn the_ladder_goes_down_only() {
        let now = Instant::now();
        let (second, grace) = (Duration::from_secs(1), Duration::from_secs(2));
        let running = StopSequence::Running { deadline: Some(now + second) };
        let endless = StopSequence::Running { deadline: None };
        let ending =
            |cause| StopSequence::Terminating { reason: cause, kill_at: now + second + grace };
        let killing = |cause| StopSequence::Killing { reason: cause };
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
