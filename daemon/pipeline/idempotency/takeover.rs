//! Requests to take over work from its current holder.

use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::{Notify, oneshot};

/// The calls that ask for `T`, the right to do the work.
#[derive(Debug)]
pub(super) struct TakeoverRequests<T> {
    requests: Mutex<Vec<oneshot::Sender<T>>>,
    notify: Notify,
}

impl<T> Default for TakeoverRequests<T> {
    fn default() -> Self {
        Self { requests: Mutex::default(), notify: Notify::new() }
    }
}

impl<T> TakeoverRequests<T> {
    /// Adds a request. The receiver gets `T` if the holder transfers it.
    pub(super) fn request(&self) -> oneshot::Receiver<T> {
        let (sender, receiver) = oneshot::channel();
        {
            let mut requests = self.lock();
            // Removing those whose call has gone bounds the list by the number of calls.
            requests.retain(|request| !request.is_closed());
            requests.push(sender);
        }
        self.notify.notify_one();
        receiver
    }

    /// Waits until there is a request. Supports one waiting task at a time. Cancel safe.
    pub(super) async fn wait_for_any(&self) {
        while self.lock().iter().all(oneshot::Sender::is_closed) {
            self.notify.notified().await;
        }
    }

    /// Removes and returns all requests, the latest at the end.
    pub(super) fn take_all(&self) -> Vec<oneshot::Sender<T>> {
        std::mem::take(&mut *self.lock())
    }

    fn lock(&self) -> MutexGuard<'_, Vec<oneshot::Sender<T>>> {
        self.requests.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
