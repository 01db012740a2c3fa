//! Ending work whose time is up: the blocking tools ask, the call's deadline answers.

use std::{
    collections::BTreeMap,
    fmt,
    pin::pin,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use tokio::{task::JoinHandle, time::timeout};

use super::occupied::Occupied;
use crate::daemon::{
    error::{Error, Reason},
    task,
};

/// Says whether a call should end. Clones say the same.
#[derive(Debug, Clone, Default)]
pub(crate) struct Stop(Arc<Shared>);

#[derive(Default)]
struct Shared {
    is_stopped: AtomicBool,
    /// Whom to tell, by number.
    listeners: Mutex<BTreeMap<u64, Listener>>,
    /// The place of the work.
    occupied: Option<Occupied>,
}

/// Called when a call should end.
type Listener = Arc<dyn Fn() + Send + Sync>;

/// Somebody who is told when a call should end, until this is dropped.
#[derive(Debug)]
pub(super) struct Told<'a> {
    stop: &'a Stop,
    number: u64,
}

impl Stop {
    /// A call that may go on.
    pub(crate) fn new() -> Self {
        Self::default()
    }

    /// A call that may go on, and has this place until it ends.
    pub(super) fn occupying(occupied: Occupied) -> Self {
        Self(Arc::new(Shared { occupied: Some(occupied), ..Shared::default() }))
    }

    /// Runs `function` on a thread that may block, asks for its end once `end` is there, and waits
    /// for its answer all the same. It has the place `occupied` meanwhile.
    pub(crate) async fn at<R: Send + 'static>(
        occupied: Occupied,
        end: impl Future<Output = ()>,
        function: impl FnOnce(&Self) -> R + Send + 'static,
    ) -> Result<R, Error> {
        let stop = Self::occupying(occupied);
        let mut running = pin!(stop.run(function));
        let answer = tokio::select! {
            answer = &mut running => answer,
            () = end => {
                stop.stop();
                running.await
            }
        };
        answer.map_err(Error::internal)
    }

    /// As [`Self::at`], but does not wait longer than `patience` after the end. Without an answer,
    /// the function is still at work: it ends when it asks next.
    pub(crate) async fn soon_after<R: Send + 'static>(
        occupied: Occupied,
        end: impl Future<Output = ()>,
        patience: Duration,
        function: impl FnOnce(&Self) -> R + Send + 'static,
    ) -> Result<Option<R>, Error> {
        let stop = Self::occupying(occupied);
        let mut running = pin!(stop.run(function));
        let answer = tokio::select! {
            answer = &mut running => Ok(answer),
            () = end => {
                stop.stop();
                timeout(patience, running).await
            }
        };
        answer.ok().transpose().map_err(Error::internal)
    }

    fn run<R: Send + 'static>(
        &self,
        function: impl FnOnce(&Self) -> R + Send + 'static,
    ) -> JoinHandle<R> {
        let told = self.clone();
        task::blocking(move || function(&told))
    }

    /// Gives the place of the work to others for as long as it waits for them.
    pub(super) fn leave_place(&self) {
        if let Some(occupied) = &self.0.occupied {
            occupied.leave();
        }
    }

    /// Waits until the work has a place again. Blocks.
    pub(super) fn come_back(&self) {
        if let Some(occupied) = &self.0.occupied {
            occupied.come_back();
        }
    }

    /// Asks for the end. It comes with the next [`Self::check`].
    pub(crate) fn stop(&self) {
        // Nothing else is published with it.
        self.0.is_stopped.store(true, Ordering::Relaxed);
        let listeners: Vec<_> = self.0.listeners().values().cloned().collect();
        for listener in listeners {
            listener();
        }
    }

    /// Has `listener` called when the end is asked for, who waits for something else. The end may
    /// have been asked for before: that is to be looked at afterwards.
    pub(super) fn tell(&self, listener: Listener) -> Told<'_> {
        let mut listeners = self.0.listeners();
        let number = listeners.last_key_value().map_or(0, |(last, _)| last + 1);
        listeners.insert(number, listener);
        Told { stop: self, number }
    }

    /// Whether the end was asked for.
    pub(crate) fn is_stopped(&self) -> bool {
        self.0.is_stopped.load(Ordering::Relaxed)
    }

    /// The error for work that had no time to end.
    pub(crate) fn late() -> Error {
        let text = "the time for the call has passed: ask for less at once, or allow more time";
        Error::new(Reason::Timeout, text)
    }

    /// An error once the end was asked for.
    pub(crate) fn check(&self) -> Result<(), Error> {
        if self.is_stopped() {
            return Err(Self::late());
        }
        Ok(())
    }
}

impl Shared {
    fn listeners(&self) -> MutexGuard<'_, BTreeMap<u64, Listener>> {
        self.listeners.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared").field("is_stopped", &self.is_stopped).finish_non_exhaustive()
    }
}

impl Drop for Told<'_> {
    fn drop(&mut self) {
        self.stop.0.listeners().remove(&self.number);
    }
}
