//! Limits on concurrent lookups of jobs and on streams that watch jobs.

use std::sync::Arc;

use crate::daemon::{
    error::{Error, Reason},
    pipeline::access::principal::Principal,
    queue::{Acquire, Limiter, Permit, Saturated, Sharing},
};

/// Concurrent lookups: one in the database, and one whose response is on its way.
///
/// The database executes one statement at a time, for all callers. Job lookups must not delay the
/// records of other callers' calls.
const MAX_CONCURRENT_JOB_LOOKUPS: usize = 2;
/// Queued lookups of one caller. Each takes milliseconds.
const MAX_QUEUED_JOB_LOOKUPS_PER_PRINCIPAL: usize = 1024;
/// Watch streams of one caller.
const MAX_JOB_WATCHERS_PER_PRINCIPAL: usize = 64;
/// Watch streams of all callers. Each has two open files, and buffers a few messages of 64 KiB.
const MAX_JOB_WATCHERS: usize = 512;

#[derive(Debug)]
pub(super) struct JobLimits {
    lookups: Arc<Limiter>,
    watchers: Arc<Limiter>,
}

impl Default for JobLimits {
    fn default() -> Self {
        Self {
            lookups: Limiter::new(
                MAX_CONCURRENT_JOB_LOOKUPS,
                Sharing::Unlimited,
                MAX_QUEUED_JOB_LOOKUPS_PER_PRINCIPAL,
            ),
            watchers: Limiter::new(MAX_JOB_WATCHERS, Sharing::KeepHeadroom, 0),
        }
    }
}

impl JobLimits {
    /// Waits for a permit to look up jobs. Fails if the caller has too many lookups queued.
    pub(super) async fn acquire_lookup(&self, principal: &Principal) -> Result<Permit, Error> {
        match self.lookups.acquire(principal.shared_name(), usize::MAX) {
            Ok(Acquire::Granted(permit)) => Ok(permit),
            Ok(Acquire::Queued(mut pending)) => Ok(pending.wait().await),
            Err(saturated) => {
                let text = format!(
                    "{} has {} lookups of jobs queued or running: retry after the delay in RetryInfo, with fewer at a time",
                    principal.name(),
                    saturated.in_use + saturated.queued
                );
                Err(limit_error(text, MAX_QUEUED_JOB_LOOKUPS_PER_PRINCIPAL, saturated))
            }
        }
    }

    /// Acquires a permit for a watch stream, without waiting.
    pub(super) fn acquire_watch(&self, principal: &Principal) -> Result<Permit, Error> {
        self.watchers.try_acquire(principal.shared_name(), MAX_JOB_WATCHERS_PER_PRINCIPAL).map_err(|saturated| {
            let text = format!(
                "{} watches {} jobs already, of at most {MAX_JOB_WATCHERS_PER_PRINCIPAL} of one caller and {MAX_JOB_WATCHERS} of all: end one of these streams, or retry after the delay in RetryInfo",
                principal.name(),
                saturated.in_use
            );
            limit_error(text, MAX_JOB_WATCHERS_PER_PRINCIPAL, saturated)
        })
    }
}

fn limit_error(text: String, limit: usize, saturated: Saturated) -> Error {
    Error::new(Reason::ResourceExhausted, text)
        .with_metadata("limit", limit.to_string())
        .with_retry_after(saturated.retry_after)
}

#[cfg(test)]
mod tests {
    use std::{
        pin::{Pin, pin},
        task::{Context, Poll, Waker},
    };

    use super::*;
    use crate::daemon::pipeline::access::{
        AccessControl, LocalTrust, PeerOrigin, credentials::Credentials,
    };

    fn poll_once<T>(future: Pin<&mut impl Future<Output = T>>) -> Option<T> {
        match future.poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(value) => Some(value),
            Poll::Pending => None,
        }
    }

    #[test]
    fn busy_caller_delays_others_by_one_lookup_only() {
        let access = AccessControl::new(LocalTrust {
            daemon_uid: Some(1000),
            loopback: false,
            commands_are_distinguishable: true,
        });
        let [busy, other] = [1000, 0].map(|uid| {
            access.authenticate(Credentials::default(), PeerOrigin::Socket { uid }).unwrap()
        });
        let limits = JobLimits::default();
        let running: Vec<_> = (0..MAX_CONCURRENT_JOB_LOOKUPS)
            .map(|_| poll_once(pin!(limits.acquire_lookup(&busy))).unwrap().unwrap())
            .collect();
        let mut queued: Vec<_> = (0..MAX_QUEUED_JOB_LOOKUPS_PER_PRINCIPAL)
            .map(|_| Box::pin(limits.acquire_lookup(&busy)))
            .collect();
        assert!(queued.iter_mut().all(|it| poll_once(it.as_mut()).is_none()));
        let error = poll_once(pin!(limits.acquire_lookup(&busy))).unwrap().unwrap_err();
        assert_eq!(error.reason, Reason::ResourceExhausted);
        assert!(error.retry_after.is_some());

        let mut acquiring = pin!(limits.acquire_lookup(&other));
        assert!(poll_once(acquiring.as_mut()).is_none());
        drop(running);
        let _permit = poll_once(acquiring).expect("the other caller is next").unwrap();
        let granted: Vec<_> = queued.iter_mut().filter_map(|it| poll_once(it.as_mut())).collect();
        assert_eq!(granted.len(), MAX_CONCURRENT_JOB_LOOKUPS - 1);
    }
}
