//! Looking for jobs, of which few do at one time: the database does one thing after the other, for all, and
//! who looks for jobs must not keep others from having their calls recorded.

use std::sync::Arc;

use crate::daemon::{
    error::{Error, Reason},
    pipeline::access::principal::Principal,
    queue::{Acquire, Limiter, Permit, Sharing},
};

/// Those who look: one, and another whose answer is on its way meanwhile.
const MAX_CONCURRENT_LOOKUPS: usize = 2;
/// Looks of one caller that wait; each takes milliseconds.
const MAX_QUEUED_LOOKUPS_PER_PRINCIPAL: usize = 1024;

/// Those who look.
#[derive(Debug)]
pub(super) struct JobLookupLimiter(Arc<Limiter>);

impl Default for JobLookupLimiter {
    fn default() -> Self {
        Self(Limiter::new(
            MAX_CONCURRENT_LOOKUPS,
            Sharing::Unlimited,
            MAX_QUEUED_LOOKUPS_PER_PRINCIPAL,
        ))
    }
}

impl JobLookupLimiter {
    /// Waits for a turn.
    pub(super) async fn acquire(&self, principal: &Principal) -> Result<Permit, Error> {
        let full = match self.0.acquire(principal.key(), usize::MAX) {
            Ok(Acquire::Granted(place)) => return Ok(place),
            Ok(Acquire::Queued(mut waiting)) => return Ok(waiting.wait().await),
            Err(full) => full,
        };
        let text = format!(
            "{} looks for jobs {} times already: retry after the time given, with fewer at a time",
            principal.name(),
            full.in_use + full.queued
        );
        Err(Error::new(Reason::ResourceExhausted, text)
            .with_metadata("limit", MAX_QUEUED_LOOKUPS_PER_PRINCIPAL.to_string())
            .retry_after(full.retry_after))
    }
}

#[cfg(test)]
mod tests {
    use std::{
        pin::{Pin, pin},
        task::{Context, Poll, Waker},
    };

    use super::*;
    use crate::daemon::pipeline::access::{AccessControl, LocalTrust, PeerOrigin};

    fn now<T>(future: Pin<&mut impl Future<Output = T>>) -> Option<T> {
        match future.poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(value) => Some(value),
            Poll::Pending => None,
        }
    }

    #[test]
    fn who_looks_often_keeps_others_waiting_for_one_look() {
        let access = AccessControl::new(LocalTrust {
            daemon_uid: Some(1000),
            loopback: false,
            commands_are_distinguishable: true,
        });
        let [often, once] =
            [1000, 0].map(|uid| access.authenticate(None, PeerOrigin::Socket { uid }).unwrap());
        let looks = JobLookupLimiter::default();
        let first: Vec<_> = (0..MAX_CONCURRENT_LOOKUPS)
            .map(|_| now(pin!(looks.acquire(&often))).unwrap().unwrap())
            .collect();
        let mut waiting: Vec<_> = (0..MAX_QUEUED_LOOKUPS_PER_PRINCIPAL)
            .map(|_| Box::pin(looks.acquire(&often)))
            .collect();
        assert!(waiting.iter_mut().all(|it| now(it.as_mut()).is_none()));
        let refused = now(pin!(looks.acquire(&often))).unwrap().unwrap_err();
        assert_eq!(refused.reason, Reason::ResourceExhausted);
        assert!(refused.retry_after.is_some());
        let mut other = pin!(looks.acquire(&once));
        assert!(now(other.as_mut()).is_none());
        drop(first);
        let _turn = now(other).expect("it is its turn").unwrap();
        let turns: Vec<_> = waiting.iter_mut().filter_map(|it| now(it.as_mut())).collect();
        assert_eq!(turns.len(), MAX_CONCURRENT_LOOKUPS - 1);
    }
}
