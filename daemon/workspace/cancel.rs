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

use super::blocking_permit::BlockingPermit;
use crate::daemon::{
    error::{Error, Reason},
    task,
};

/// Says whether a call should end. Clones say the same.
#[derive(Debug, Clone, Default)]
pub(crate) struct CancelToken(Arc<CancelState>);

#[derive(Default)]
struct CancelState {
    is_cancelled: AtomicBool,
    /// Whom to tell, by number.
    callbacks: Mutex<BTreeMap<u64, CancelCallback>>,
    /// The place of the work.
    permit: Option<BlockingPermit>,
}

/// Called when a call should end.
type CancelCallback = Arc<dyn Fn() + Send + Sync>;

/// Somebody who is told when a call should end, until this is dropped.
#[derive(Debug)]
pub(super) struct CancelSubscription<'a> {
    cancel: &'a CancelToken,
    number: u64,
}

impl CancelToken {
    /// A call that may go on.
    pub(crate) fn new() -> Self {
        Self::default()
    }

    /// A call that may go on, and has this place until it ends.
    pub(super) fn with_permit(occupied: BlockingPermit) -> Self {
        Self(Arc::new(CancelState { permit: Some(occupied), ..CancelState::default() }))
    }

    /// Runs `function` on a thread that may block, asks for its end once `end` is there, and waits
    /// for its answer all the same. It has the place `occupied` meanwhile.
    pub(crate) async fn run_blocking<R: Send + 'static>(
        occupied: BlockingPermit,
        end: impl Future<Output = ()>,
        function: impl FnOnce(&Self) -> R + Send + 'static,
    ) -> Result<R, Error> {
        let stop = Self::with_permit(occupied);
        let mut running = pin!(stop.spawn_blocking(function));
        let answer = tokio::select! {
            answer = &mut running => answer,
            () = end => {
                stop.cancel();
                running.await
            }
        };
        answer.map_err(Error::internal)
    }

    /// As [`Self::at`], but does not wait longer than `patience` after the end. Without an answer,
    /// the function is still at work: it ends when it asks next.
    pub(crate) async fn run_blocking_with_grace<R: Send + 'static>(
        occupied: BlockingPermit,
        end: impl Future<Output = ()>,
        patience: Duration,
        function: impl FnOnce(&Self) -> R + Send + 'static,
    ) -> Result<Option<R>, Error> {
        let stop = Self::with_permit(occupied);
        let mut running = pin!(stop.spawn_blocking(function));
        let answer = tokio::select! {
            answer = &mut running => Ok(answer),
            () = end => {
                stop.cancel();
                timeout(patience, running).await
            }
        };
        answer.ok().transpose().map_err(Error::internal)
    }

    fn spawn_blocking<R: Send + 'static>(
        &self,
        function: impl FnOnce(&Self) -> R + Send + 'static,
    ) -> JoinHandle<R> {
        let told = self.clone();
        task::spawn_blocking(move || function(&told))
    }

    /// Gives the place of the work to others for as long as it waits for them.
    pub(super) fn release_permit(&self) {
        if let Some(occupied) = &self.0.permit {
            occupied.release();
        }
    }

    /// Waits until the work has a place again. Blocks.
    pub(super) fn reacquire_permit(&self) {
        if let Some(occupied) = &self.0.permit {
            occupied.reacquire();
        }
    }

    /// Asks for the end. It comes with the next [`Self::check`].
    pub(crate) fn cancel(&self) {
        // Nothing else is published with it.
        self.0.is_cancelled.store(true, Ordering::Relaxed);
        let listeners: Vec<_> = self.0.callbacks().values().cloned().collect();
        for listener in listeners {
            listener();
        }
    }

    /// Has `listener` called when the end is asked for, who waits for something else. The end may
    /// have been asked for before: that is to be looked at afterwards.
    pub(super) fn on_cancel(&self, listener: CancelCallback) -> CancelSubscription<'_> {
        let mut listeners = self.0.callbacks();
        let number = listeners.last_key_value().map_or(0, |(last, _)| last + 1);
        listeners.insert(number, listener);
        CancelSubscription { cancel: self, number }
    }

    /// Whether the end was asked for.
    pub(crate) fn is_cancelled(&self) -> bool {
        self.0.is_cancelled.load(Ordering::Relaxed)
    }

    /// The error for work that had no time to end.
    pub(crate) fn timeout_error() -> Error {
        let text = "the time for the call has passed: ask for less at once, or allow more time";
        Error::new(Reason::Timeout, text)
    }

    /// An error once the end was asked for.
    pub(crate) fn check(&self) -> Result<(), Error> {
        if self.is_cancelled() {
            return Err(Self::timeout_error());
        }
        Ok(())
    }
}

impl CancelState {
    fn callbacks(&self) -> MutexGuard<'_, BTreeMap<u64, CancelCallback>> {
        self.callbacks.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for CancelState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared").field("is_stopped", &self.is_cancelled).finish_non_exhaustive()
    }
}

impl Drop for CancelSubscription<'_> {
    fn drop(&mut self) {
        self.cancel.0.callbacks().remove(&self.number);
    }
}
