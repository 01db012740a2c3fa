//! Broadcasts the results of calls by name to the watchers of a session. In memory, and only while
//! there are watchers.

use std::{
    collections::HashMap,
    future,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
};

use tokio::sync::broadcast::{
    self, Receiver, Sender,
    error::{RecvError, TryRecvError},
};

use crate::{
    api::v1::{CallResult, ResultAbsence},
    daemon::{dialect::Dialect, store::session::SessionId},
};

pub(super) const MAX_CONTENT_BYTES: usize = 32 << 10;
/// Limit on the content that is held for all watchers.
const MAX_HELD_BYTES: usize = 16 << 20;
/// Limit on the results that are held for the watchers of one session.
const MAX_RESULTS_PER_SESSION: usize = 1024;

/// Workspace and session.
type WatchedSessionKey = (String, SessionId);

/// A result, or the number of results that a slow watcher has missed.
pub(crate) type ReceivedResult = Result<Arc<PublishedResult>, u64>;

/// The watched sessions, and the results that their watchers have yet to receive.
#[derive(Debug, Default)]
pub(crate) struct ResultBroadcaster {
    /// Number of streams that receive results.
    watchers: AtomicUsize,
    sessions: Mutex<HashMap<WatchedSessionKey, Sender<Arc<PublishedResult>>>>,
    held_bytes: AtomicUsize,
}

/// A result that watchers have yet to receive. Counts against the limit until it is dropped.
#[derive(Debug)]
pub(crate) struct PublishedResult {
    /// Sequence number of the last record before the result.
    last_sequence: u64,
    /// The dialect that defines the tool; `None` for contract tools and custom tools.
    pub(crate) dialect: Option<&'static Dialect>,
    pub(crate) result: CallResult,
    broadcaster: Arc<ResultBroadcaster>,
}

/// One watcher's subscription to the results of a session.
#[derive(Debug)]
pub(crate) struct ResultSubscription {
    broadcaster: Arc<ResultBroadcaster>,
    key: WatchedSessionKey,
    receiver: Receiver<Arc<PublishedResult>>,
    /// Received, but not due yet.
    next: Option<ReceivedResult>,
}

// === impl ResultBroadcaster ===

impl ResultBroadcaster {
    /// Subscribes to the results of a session.
    pub(crate) fn subscribe(
        self: &Arc<Self>,
        workspace: &str,
        session: &SessionId,
    ) -> ResultSubscription {
        let key = (workspace.to_owned(), session.clone());
        let mut sessions = self.sessions();
        let sender = sessions
            .entry(key.clone())
            .or_insert_with(|| broadcast::channel(MAX_RESULTS_PER_SESSION).0);
        let receiver = sender.subscribe();
        drop(sessions);
        self.watchers.fetch_add(1, Ordering::Relaxed);
        ResultSubscription { broadcaster: Arc::clone(self), key, receiver, next: None }
    }

    pub(super) fn is_watched(&self) -> bool {
        self.watchers.load(Ordering::Relaxed) > 0
    }

    /// Returns the channel to the watchers of a session, if it has any.
    pub(super) fn sender(
        &self,
        workspace: &str,
        session: &SessionId,
    ) -> Option<Sender<Arc<PublishedResult>>> {
        let key = (workspace.to_owned(), session.clone());
        self.sessions().get(&key).cloned()
    }

    /// Counts a result against the memory limit. Drops its content if the limit is reached.
    pub(super) fn hold(
        self: &Arc<Self>,
        last_sequence: u64,
        dialect: Option<&'static Dialect>,
        mut result: CallResult,
    ) -> PublishedResult {
        let add_content = |held: usize| {
            let held = held + result.content.len();
            (held <= MAX_HELD_BYTES).then_some(held)
        };
        let added = self.held_bytes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add_content);
        if added.is_err() {
            result.content = String::new();
            result.absence = ResultAbsence::Memory.into();
        }
        PublishedResult { last_sequence, dialect, result, broadcaster: Arc::clone(self) }
    }

    fn sessions(&self) -> MutexGuard<'_, HashMap<WatchedSessionKey, Sender<Arc<PublishedResult>>>> {
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for PublishedResult {
    fn drop(&mut self) {
        let bytes = self.result.content.len();
        self.broadcaster.held_bytes.fetch_sub(bytes, Ordering::Relaxed);
    }
}

// === impl ResultSubscription ===

impl ResultSubscription {
    /// Returns the next result if all records before it are sent: those up to `last_sequence`.
    pub(crate) fn take_due(&mut self, last_sequence: u64) -> Option<ReceivedResult> {
        if self.next.is_none() {
            self.next = match self.receiver.try_recv() {
                Ok(published) => Some(Ok(published)),
                Err(TryRecvError::Lagged(dropped)) => Some(Err(dropped)),
                Err(TryRecvError::Empty | TryRecvError::Closed) => None,
            };
        }

        self.next.take_if(|next| match next {
            Ok(published) => published.last_sequence <= last_sequence,
            Err(_) => true,
        })
    }

    /// Waits for a result. Never returns while a received one is not due. Cancel safe.
    pub(crate) async fn wait_for_next(&mut self) {
        if self.next.is_none() {
            match self.receiver.recv().await {
                Ok(published) => return self.next = Some(Ok(published)),
                Err(RecvError::Lagged(dropped)) => return self.next = Some(Err(dropped)),
                Err(RecvError::Closed) => {}
            }
        }
        future::pending().await
    }
}

impl Drop for ResultSubscription {
    fn drop(&mut self) {
        self.broadcaster.watchers.fetch_sub(1, Ordering::Relaxed);
        let mut sessions = self.broadcaster.sessions();
        // The count includes this receiver.
        if sessions.get(&self.key).is_some_and(|sender| sender.receiver_count() <= 1) {
            sessions.remove(&self.key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn send(results: &Arc<ResultBroadcaster>, last_sequence: u64, content: &str) {
        let sender = results.sender("w", &SessionId::default()).unwrap();
        let result = CallResult { content: content.to_owned(), ..CallResult::default() };
        let published = results.hold(last_sequence, None, result);
        sender.send(Arc::new(published)).unwrap();
    }

    fn taken(received: Option<ReceivedResult>) -> Option<Result<CallResult, u64>> {
        received.map(|received| received.map(|published| published.result.clone()))
    }

    #[test]
    fn results_are_held_only_for_watchers() {
        let results = Arc::new(ResultBroadcaster::default());
        let (watched, other) = (SessionId::default(), SessionId::parse("other").unwrap());
        assert!(!results.is_watched());
        let first = results.subscribe("w", &watched);
        let mut second = results.subscribe("w", &watched);
        assert!(results.sender("w", &other).is_none());
        assert!(results.sender("v", &watched).is_none());

        send(&results, 1, "content");
        assert_eq!(results.held_bytes.load(Ordering::Relaxed), 7);
        drop(first);
        assert_eq!(taken(second.take_due(1)).unwrap().unwrap().content, "content");
        assert_eq!(results.held_bytes.load(Ordering::Relaxed), 0);
        send(&results, 1, "content");
        drop(second);
        assert_eq!(results.held_bytes.load(Ordering::Relaxed), 0);
        assert!(!results.is_watched() && results.sessions().is_empty());
    }

    #[test]
    fn result_follows_its_records() {
        let results = Arc::new(ResultBroadcaster::default());
        let mut watcher = results.subscribe("w", &SessionId::default());
        assert!(watcher.take_due(9).is_none());
        send(&results, 4, "a");
        send(&results, 2, "b");
        assert!(watcher.take_due(3).is_none());
        assert_eq!(taken(watcher.take_due(4)).unwrap().unwrap().content, "a");
        assert_eq!(taken(watcher.take_due(4)).unwrap().unwrap().content, "b");
        assert!(watcher.take_due(4).is_none());
    }

    #[test]
    fn memory_is_limited_and_omissions_are_reported() {
        let results = Arc::new(ResultBroadcaster::default());
        let mut watcher = results.subscribe("w", &SessionId::default());
        let content = "x".repeat(MAX_CONTENT_BYTES);
        let max_results = MAX_HELD_BYTES / MAX_CONTENT_BYTES;
        for _ in 0..=max_results {
            send(&results, 0, &content);
        }

        assert_eq!(results.held_bytes.load(Ordering::Relaxed), MAX_HELD_BYTES);
        for _ in 0..max_results {
            let result = taken(watcher.take_due(0)).unwrap().unwrap();
            assert_eq!(result.content.len(), content.len());
        }

        let result = taken(watcher.take_due(0)).unwrap().unwrap();
        assert_eq!((result.content.as_str(), result.absence()), ("", ResultAbsence::Memory));
        for _ in 0..MAX_RESULTS_PER_SESSION + 5 {
            send(&results, 0, "y");
        }

        let held = results.held_bytes.load(Ordering::Relaxed);
        assert_eq!(held, MAX_RESULTS_PER_SESSION);
        assert_eq!(taken(watcher.take_due(0)), Some(Err(5)));
        assert_eq!(taken(watcher.take_due(0)).unwrap().unwrap().content, "y");
    }
}
