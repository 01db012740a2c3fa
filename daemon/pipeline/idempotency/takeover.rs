//! Those who would go on with work in place of the one who does it.

use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::{Notify, oneshot};

/// Those who ask for `T`, the right to do the work.
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
    /// Asks for it.
    pub(super) fn request(&self) -> oneshot::Receiver<T> {
        let (sender, receiver) = oneshot::channel();
        {
            let mut asks = self.lock();
            // Those who are there: each is a call.
            asks.retain(|heir| !heir.is_closed());
            asks.push(sender);
        }
        self.notify.notify_one();
        receiver
    }

    /// Waits until there is one. For one who waits at a time; may be cancelled.
    pub(super) async fn wait_for_any(&self) {
        while self.lock().iter().all(oneshot::Sender::is_closed) {
            self.notify.notified().await;
        }
    }

    /// All of them, the last who asked at the end; they ask no more then.
    pub(super) fn take_all(&self) -> Vec<oneshot::Sender<T>> {
        std::mem::take(&mut *self.lock())
    }

    fn lock(&self) -> MutexGuard<'_, Vec<oneshot::Sender<T>>> {
        self.requests.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
