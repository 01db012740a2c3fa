//! The ladder by which a command is ended: SIGTERM, a grace, SIGKILL. Pure: it knows no clock and
//! sends nothing.

use std::time::{Duration, Instant};

use super::outcome::{Cause, Limit};

/// Where on the ladder a command is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ladder {
    /// It runs, until its time is up.
    Running {
        /// When that is, if ever.
        until: Option<Instant>,
    },
    /// It was asked to end.
    Ending {
        /// Why.
        cause: Cause,
        /// When the grace is over.
        until: Instant,
    },
    /// It is being killed.
    Killing {
        /// Why.
        cause: Cause,
    },
}

/// What has happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Event {
    /// The time that [`Ladder::next`] named has come.
    Timer(Instant),
    /// The daemon is shutting down.
    Drain(Instant),
    /// Nobody waits any more.
    Abandoned,
    /// It is over a limit.
    Over(Limit),
}

/// What to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Action {
    /// Nothing.
    Wait,
    /// Send SIGTERM.
    Terminate,
    /// Kill everything.
    Kill,
}

impl Ladder {
    /// When the next step is due.
    pub(super) fn next(self) -> Option<Instant> {
        match self {
            Self::Running { until } => until,
            Self::Ending { until, .. } => Some(until),
            Self::Killing { .. } => None,
        }
    }

    /// Why the command is being ended, if it is.
    pub(super) fn cause(self) -> Option<Cause> {
        match self {
            Self::Running { .. } => None,
            Self::Ending { cause, .. } | Self::Killing { cause } => Some(cause),
        }
    }

    /// Takes the step that `event` asks for.
    pub(super) fn on(self, event: Event, grace: Duration) -> (Self, Action) {
        match (self, event) {
            (Self::Running { until }, Event::Timer(now))
                if until.is_none_or(|until| now < until) =>
            {
                (self, Action::Wait)
            }
            (Self::Running { .. }, Event::Timer(now)) => {
                (Self::Ending { cause: Cause::TimeUp, until: now + grace }, Action::Terminate)
            }
            (Self::Running { .. }, Event::Drain(now)) => {
                (Self::Ending { cause: Cause::Cancelled, until: now + grace }, Action::Terminate)
            }
            (Self::Ending { until, .. }, Event::Timer(now)) if now < until => (self, Action::Wait),
            (Self::Ending { cause, .. }, Event::Timer(_)) => {
                (Self::Killing { cause }, Action::Kill)
            }
            (Self::Running { .. }, Event::Abandoned) => {
                (Self::Killing { cause: Cause::Cancelled }, Action::Kill)
            }
            (Self::Running { .. }, Event::Over(limit)) => {
                (Self::Killing { cause: Cause::Limit(limit) }, Action::Kill)
            }
            (Self::Ending { cause, .. }, Event::Abandoned | Event::Over(_)) => {
                (Self::Killing { cause }, Action::Kill)
            }
            (Self::Ending { .. }, Event::Drain(_)) | (Self::Killing { .. }, _) => {
                (self, Action::Wait)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::{Action, Cause, Event, Ladder, Limit};

    #[test]
    fn the_ladder_goes_down_only() {
        let now = Instant::now();
        let (second, grace) = (Duration::from_secs(1), Duration::from_secs(2));
        let running = Ladder::Running { until: Some(now + second) };
        let endless = Ladder::Running { until: None };
        let ending = |cause| Ladder::Ending { cause, until: now + second + grace };
        let killing = |cause| Ladder::Killing { cause };
        let (time, cancelled) = (Cause::TimeUp, Cause::Cancelled);
        for (from, event, to, action) in [
            (running, Event::Timer(now), running, Action::Wait),
            (running, Event::Timer(now + second), ending(time), Action::Terminate),
            (running, Event::Drain(now + second), ending(cancelled), Action::Terminate),
            (running, Event::Abandoned, killing(cancelled), Action::Kill),
            (endless, Event::Timer(now + 9 * second), endless, Action::Wait),
            (endless, Event::Drain(now + second), ending(cancelled), Action::Terminate),
            (ending(time), Event::Timer(now + second), ending(time), Action::Wait),
            (ending(time), Event::Drain(now + second), ending(time), Action::Wait),
            (ending(time), Event::Timer(now + 4 * second), killing(time), Action::Kill),
            (ending(time), Event::Abandoned, killing(time), Action::Kill),
            (ending(cancelled), Event::Abandoned, killing(cancelled), Action::Kill),
            (
                running,
                Event::Over(Limit::Memory),
                killing(Cause::Limit(Limit::Memory)),
                Action::Kill,
            ),
            (ending(time), Event::Over(Limit::Output), killing(time), Action::Kill),
            (killing(time), Event::Abandoned, killing(time), Action::Wait),
            (killing(time), Event::Drain(now), killing(time), Action::Wait),
            (killing(time), Event::Timer(now + 9 * second), killing(time), Action::Wait),
        ] {
            assert_eq!(from.on(event, grace), (to, action), "{from:?} {event:?}");
        }
    }
}
