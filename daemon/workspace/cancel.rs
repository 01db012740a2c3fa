//! Cancellation of blocking work. The work polls a token, which the call's deadline cancels.

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

/// Cancels a call. Clones share one state.
#[derive(Debug, Clone, Default)]
pub(crate) struct CancelToken(Arc<CancelState>);

#[derive(Default)]
struct CancelState {
    is_cancelled: AtomicBool,
    /// Functions to call on cancellation, by id.
    callbacks: Mutex<BTreeMap<u64, CancelCallback>>,
    /// The permit of the work.
    permit: Option<BlockingPermit>,
}

/// Called on cancellation.
type CancelCallback = Arc<dyn Fn() + Send + Sync>;

/// A registered callback, until it is dropped.
#[derive(Debug)]
pub(super) struct CancelSubscription<'a> {
    cancel: &'a CancelToken,
    id: u64,
}

impl CancelToken {
    /// Creates a token that is not cancelled.
    pub(crate) fn new() -> Self {
        Self::default()
    }

    /// Creates a token for work that has this permit until it ends.
    pub(super) fn with_permit(permit: BlockingPermit) -> Self {
        Self(Arc::new(CancelState { permit: Some(permit), ..CancelState::default() }))
    }

    /// Runs `function` on a blocking thread with `permit`. Cancels it when `end` completes, and
    /// still waits for its result.
    pub(crate) async fn run_blocking<R: Send + 'static>(
        permit: BlockingPermit,
        end: impl Future<Output = ()>,
        function: impl FnOnce(&Self) -> R + Send + 'static,
    ) -> Result<R, Error> {
        let cancel = Self::with_permit(permit);
        let mut work = pin!(cancel.spawn_blocking(function));
        let result = tokio::select! {
            result = &mut work => result,
            () = end => {
                cancel.cancel();
                work.await
            }
        };
        result.map_err(Error::internal)
    }

    /// Like [`Self::run_blocking`], but waits at most `grace` after the cancellation. Returns
    /// `None` if the function is still running then: it ends at its next check.
    pub(crate) async fn run_blocking_with_grace<R: Send + 'static>(
        permit: BlockingPermit,
        end: impl Future<Output = ()>,
        grace: Duration,
        function: impl FnOnce(&Self) -> R + Send + 'static,
    ) -> Result<Option<R>, Error> {
        let cancel = Self::with_permit(permit);
        let mut work = pin!(cancel.spawn_blocking(function));
        let result = tokio::select! {
            result = &mut work => Ok(result),
            () = end => {
                cancel.cancel();
                timeout(grace, work).await
            }
        };
        result.ok().transpose().map_err(Error::internal)
    }

    fn spawn_blocking<R: Send + 'static>(
        &self,
        function: impl FnOnce(&Self) -> R + Send + 'static,
    ) -> JoinHandle<R> {
        let cancel = self.clone();
        task::spawn_blocking(move || function(&cancel))
    }

    /// Releases the permit of the work, before it waits for other work.
    pub(super) fn release_permit(&self) {
        if let Some(permit) = &self.0.permit {
            permit.release();
        }
    }

    /// Acquires a permit for the work again. Blocks until one is free.
    pub(super) fn reacquire_permit(&self) {
        if let Some(permit) = &self.0.permit {
            permit.reacquire();
        }
    }

    /// Cancels the work. It ends at its next [`Self::check`].
    pub(crate) fn cancel(&self) {
        // Relaxed: no other data is published with the flag.
        self.0.is_cancelled.store(true, Ordering::Relaxed);
        let callbacks: Vec<_> = self.0.callbacks().values().cloned().collect();
        for callback in callbacks {
            callback();
        }
    }

    /// Registers a callback for work that waits for something else. The token may already be
    /// cancelled: the caller must check it afterwards.
    pub(super) fn on_cancel(&self, callback: CancelCallback) -> CancelSubscription<'_> {
        let mut callbacks = self.0.callbacks();
        let id = callbacks.last_key_value().map_or(0, |(last, _)| last + 1);
        callbacks.insert(id, callback);
        CancelSubscription { cancel: self, id }
    }

    pub(crate) fn is_cancelled(&self) -> bool {
        self.0.is_cancelled.load(Ordering::Relaxed)
    }

    /// Builds the error for work that was cancelled before it was complete.
    pub(crate) fn timeout_error() -> Error {
        let text = "the call has reached its deadline: request less at once, or allow more time";
        Error::new(Reason::Timeout, text)
    }

    /// Fails with [`Self::timeout_error`] once the work is cancelled.
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
        f.debug_struct("CancelState")
            .field("is_cancelled", &self.is_cancelled)
            .finish_non_exhaustive()
    }
}

impl Drop for CancelSubscription<'_> {
    fn drop(&mut self) {
        self.cancel.0.callbacks().remove(&self.id);
    }
}
