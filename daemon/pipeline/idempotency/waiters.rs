//! The waiters for one reply, and their deadlines. A waiter is one call with the request id.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, Ordering},
    },
    time::Instant,
};

use bytes::Bytes;
use tokio::sync::{oneshot, watch};

use super::{claim_state::ClaimState, takeover::TakeoverRequests};
use crate::daemon::store::{database::DatabaseError, requests::RequestIdentity};

/// Counts the waiters by deadline.
#[derive(Debug, Default)]
pub(crate) struct Waiters {
    without_deadline: usize,
    by_deadline: BTreeMap<Instant, usize>,
}

impl Waiters {
    pub(super) fn add(&mut self, deadline: Option<Instant>) {
        match deadline {
            None => self.without_deadline += 1,
            Some(deadline) => *self.by_deadline.entry(deadline).or_default() += 1,
        }
    }

    pub(super) fn remove(&mut self, deadline: Option<Instant>) {
        let Some(deadline) = deadline else {
            self.without_deadline -= 1;
            return;
        };
        if let Some(count) = self.by_deadline.get_mut(&deadline) {
            *count -= 1;
            if *count == 0 {
                self.by_deadline.remove(&deadline);
            }
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.without_deadline == 0 && self.by_deadline.is_empty()
    }

    /// Returns the latest deadline. Returns `None` if a waiter has no deadline, or if there is no
    /// waiter: the client may reconnect.
    pub(crate) fn last_deadline(&self) -> Option<Instant> {
        let last = self.by_deadline.last_key_value().map(|(last, _)| *last);
        last.filter(|_| self.without_deadline == 0)
    }
}

/// A request in progress, shared by its claim `C` and its waiters.
#[derive(Debug)]
pub(super) struct InFlightRequest<C> {
    pub(super) request: RequestIdentity,
    /// Whether the database has the claim.
    pub(super) is_stored: Arc<AtomicBool>,
    pub(super) state: watch::Sender<ClaimState>,
    pub(super) waiters: watch::Sender<Waiters>,
    /// Calls that ask to continue the work in place of its current holder.
    pub(super) takeover_requests: TakeoverRequests<C>,
    /// Why the id cannot be claimed again, though nothing was done.
    pub(super) release_error: OnceLock<DatabaseError>,
}

impl<C> InFlightRequest<C> {
    pub(super) fn is_stored(&self) -> bool {
        self.is_stored.load(Ordering::Acquire)
    }
}

/// A call that waits for the reply. It may ask to take over the claim `C`.
#[derive(Debug)]
pub(in crate::daemon::pipeline) struct Waiter<C> {
    in_flight: Arc<InFlightRequest<C>>,
    deadline: Option<Instant>,
    state: watch::Receiver<ClaimState>,
}

impl<C> Waiter<C> {
    pub(super) fn new(in_flight: &Arc<InFlightRequest<C>>, deadline: Option<Instant>) -> Self {
        in_flight.waiters.send_modify(|waiters| waiters.add(deadline));
        Self { deadline, state: in_flight.state.subscribe(), in_flight: Arc::clone(in_flight) }
    }

    /// Asks to continue the work. The current holder may transfer its claim, or not.
    pub(in crate::daemon::pipeline) fn request_takeover(&self) -> oneshot::Receiver<C> {
        self.in_flight.takeover_requests.request()
    }

    /// Waits for the reply. Returns `None` if nothing was done.
    pub(in crate::daemon::pipeline) async fn wait(mut self) -> Option<Bytes> {
        let state = self.state.wait_for(|state| !matches!(state, ClaimState::InFlight)).await;
        match state.as_deref() {
            Ok(ClaimState::Completed(reply)) => Some(reply.clone()),
            Ok(ClaimState::InFlight | ClaimState::Released) | Err(_) => None,
        }
    }
}

impl<C> Drop for Waiter<C> {
    fn drop(&mut self) {
        let deadline = self.deadline;
        self.in_flight.waiters.send_modify(|waiters| waiters.remove(deadline));
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn last_deadline_requires_that_all_waiters_have_one() {
        let now = Instant::now();
        let at = |sec| Some(now + Duration::from_secs(sec));
        let mut waiters = Waiters::default();
        assert_eq!(waiters.last_deadline(), None);
        for deadline in [at(1), at(3), at(3), at(2)] {
            waiters.add(deadline);
        }

        assert_eq!(waiters.last_deadline(), at(3));
        waiters.add(None);
        assert_eq!(waiters.last_deadline(), None);
        waiters.remove(None);
        waiters.remove(at(3));
        assert_eq!(waiters.last_deadline(), at(3));
        waiters.remove(at(3));
        assert_eq!(waiters.last_deadline(), at(2));
        waiters.remove(at(1));
        waiters.remove(at(2));
        assert!(waiters.is_empty() && waiters.last_deadline().is_none());
    }
}
