//! How many calls may go on at once. A permit belongs to the work and not to the RPC: it is given
//! back when the work is done.

use std::{sync::Arc, time::Duration};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::drain::Drain;
use crate::daemon::error::{Error, Reason};

/// How long a caller is told to wait: the time of a short call.
const RETRY_AFTER: Duration = Duration::from_millis(200);

/// The places for calls.
#[derive(Debug)]
pub(crate) struct Admission {
    places: Arc<Semaphore>,
    at_most: usize,
    /// What takes them, and what makes room.
    what: &'static str,
}

impl Admission {
    /// Admits `at_most` calls at a time.
    pub(crate) fn new(at_most: usize) -> Self {
        Self::of(
            "calls are going on, and no more are taken at a time: retry after the time given",
            at_most,
        )
    }

    /// Admits `at_most` started processes at a time. They last long, so they do not take the places
    /// of calls.
    pub(crate) fn of_processes(at_most: usize) -> Self {
        Self::of(
            "processes were started and have not ended, and no more are started at a time: end some (ListProcesses, SendSignal), or retry later",
            at_most,
        )
    }

    fn of(what: &'static str, at_most: usize) -> Self {
        Self {
            places: Arc::new(Semaphore::new(at_most)),
            at_most,
            what,
        }
    }

    /// Takes a place, if there is one and the daemon is not shutting down.
    pub(crate) fn enter(&self, drain: &Drain) -> Result<OwnedSemaphorePermit, Error> {
        drain.refuse_new()?;
        Arc::clone(&self.places).try_acquire_owned().map_err(|_| {
            let text = format!("{} {}", self.at_most, self.what);
            Error::new(Reason::ResourceExhausted, text)
                .with("limit", self.at_most.to_string())
                .retry_after(RETRY_AFTER)
        })
    }

    /// Calls going on.
    pub(crate) fn active(&self) -> usize {
        self.at_most - self.places.available_permits()
    }
}
