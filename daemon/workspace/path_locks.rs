//! Locks paths, so that each is changed by one call at a time.

use std::{
    collections::BTreeSet,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
};

use super::{cancel::CancelToken, path::RelativePath};
use crate::daemon::error::Error;

/// The locked paths.
#[derive(Debug, Default)]
pub(super) struct PathLocks(Arc<PathLockState>);

#[derive(Debug, Default)]
struct PathLockState {
    locked: Mutex<BTreeSet<RelativePath>>,
    /// Notified when paths were unlocked or a waiting call was cancelled.
    changed: Condvar,
}

/// Locked paths, until this is dropped.
#[derive(Debug)]
pub(super) struct PathLockGuard<'a> {
    locks: &'a PathLocks,
    paths: Vec<RelativePath>,
}

impl PathLocks {
    /// Locks `paths`. Waits until none of them, and nothing above or below one of them, is locked.
    /// Locks all of them at once, so two calls cannot deadlock. Blocks until then, or until the
    /// call is cancelled (`TIMEOUT`).
    pub(super) fn lock(
        &self,
        paths: &[RelativePath],
        cancel: &CancelToken,
    ) -> Result<PathLockGuard<'_>, Error> {
        let mut locked = self.0.locked();
        let mut subscription = None;
        loop {
            cancel.check()?;
            if paths.iter().all(|path| is_free(path, &locked)) {
                break;
            }
            if subscription.is_none() {
                drop(locked);
                // Other work can use the permit while this call waits.
                cancel.release_permit();
                let state = Arc::clone(&self.0);
                // Takes the lock, so that the notification cannot fall between check and wait.
                subscription = Some(cancel.on_cancel(Arc::new(move || {
                    let _locked = state.locked();
                    state.changed.notify_all();
                })));
                locked = self.0.locked();
                continue;
            }
            locked = self.0.changed.wait(locked).unwrap_or_else(PoisonError::into_inner);
        }
        locked.extend(paths.iter().cloned());
        drop(locked);

        let guard = PathLockGuard { locks: self, paths: paths.to_vec() };
        if subscription.is_some() {
            cancel.reacquire_permit();
        }
        Ok(guard)
    }
}

impl PathLockState {
    fn locked(&self) -> MutexGuard<'_, BTreeSet<RelativePath>> {
        self.locked.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether neither a path nor anything above or below it is locked.
fn is_free(path: &RelativePath, locked: &BTreeSet<RelativePath>) -> bool {
    let at_or_below = locked.range::<RelativePath, _>(path..).next();
    if at_or_below.is_some_and(|other| other.is_at_or_below(path)) {
        return false;
    }
    let mut above = path.split().map(|(directory, _)| directory);
    while let Some(directory) = above {
        if locked.contains(&directory) {
            return false;
        }
        above = directory.split().map(|(directory, _)| directory);
    }
    true
}

impl Drop for PathLockGuard<'_> {
    fn drop(&mut self) {
        let mut locked = self.locks.0.locked();
        for path in &self.paths {
            locked.remove(path);
        }
        drop(locked);
        self.locks.0.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::{path::Path, thread, time::Duration};

    use super::*;
    use crate::daemon::{
        error::Reason,
        queue::{Acquire, Limiter, Permit, PrincipalName, Sharing},
        workspace::BlockingPermit,
    };

    fn paths(texts: &[&str]) -> Vec<RelativePath> {
        let parse = |text: &&str| RelativePath::parse(text, Path::new("/workspace")).unwrap();
        texts.iter().map(parse).collect()
    }

    #[test]
    fn a_path_overlaps_itself_and_paths_above_and_below() {
        for (first, second, overlaps) in [
            ("a", "a", true),
            ("a", "a/b", true),
            ("a/b", "a", true),
            ("a", "ab", false),
            ("a/b", "a/c", false),
            (".", "a", true),
        ] {
            let [first, second] = [first, second].map(|path| paths(&[path]).remove(0));
            assert_eq!(first.overlaps(&second), overlaps, "{first} {second}");
        }
    }

    #[test]
    fn overlapping_locks_exclude_each_other_in_any_order_of_paths() {
        let locks = Arc::new(PathLocks::default());
        let inside = Arc::new(Mutex::new(()));
        let threads: Vec<_> = [["a", "b"], ["b", "a"], ["b/c", "a"]]
            .into_iter()
            .map(|names| {
                let (locks, inside) = (Arc::clone(&locks), Arc::clone(&inside));
                thread::spawn(move || {
                    for _ in 0..1000 {
                        let _guard = locks.lock(&paths(&names), &CancelToken::new()).unwrap();
                        drop(inside.try_lock().expect("two at once"));
                    }
                })
            })
            .collect();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        assert!(locks.0.locked().is_empty());
    }

    #[test]
    fn waiting_call_releases_its_permit() {
        let principal: PrincipalName = "a".into();
        let limiter = Limiter::new(1, Sharing::CapWhenContended(1), usize::MAX);
        let acquire = || -> Permit {
            match limiter.acquire(&principal, usize::MAX) {
                Ok(Acquire::Granted(permit)) => permit,
                other => panic!("{other:?}"),
            }
        };
        let locks = PathLocks::default();
        let guard = locks.lock(&paths(&["a"]), &CancelToken::new()).unwrap();
        let permit = BlockingPermit::new(Arc::clone(&limiter), principal.clone(), acquire(), None);
        let cancel = CancelToken::with_permit(permit);

        thread::scope(|scope| {
            let (sender, locked) = std::sync::mpsc::channel();
            let (locks, cancel) = (&locks, &cancel);
            scope.spawn(move || {
                let guard = locks.lock(&paths(&["a"]), cancel).unwrap();
                sender.send(()).unwrap();
                drop(guard);
            });
            while limiter.in_use() > 0 {
                thread::yield_now();
            }
            let permit = acquire();
            // The thread now gets the lock, and waits for its permit.
            drop(guard);
            while limiter.queued() == 0 {
                thread::yield_now();
            }
            assert!(locked.try_recv().is_err());
            drop(permit);
            assert_eq!(locked.recv_timeout(Duration::from_secs(10)), Ok(()));
        });

        assert_eq!(limiter.in_use(), 1);
        drop(cancel);
        assert_eq!((limiter.in_use(), limiter.queued()), (0, 0));
    }

    #[test]
    fn cancelled_wait_fails_and_locks_nothing() {
        let locks = PathLocks::default();
        let guard = locks.lock(&paths(&["a"]), &CancelToken::new()).unwrap();
        let cancel = CancelToken::new();
        thread::scope(|scope| {
            let (sender, results) = std::sync::mpsc::channel();
            let (locks, cancel) = (&locks, &cancel);
            scope.spawn(move || {
                let result = locks.lock(&paths(&["a/b", "c"]), cancel);
                sender.send(result.map(drop).unwrap_err().reason).unwrap();
            });
            let early = results.recv_timeout(Duration::from_millis(60));
            assert!(early.is_err(), "it does not wait");
            cancel.cancel();
            let result = results.recv_timeout(Duration::from_secs(10));
            // Dropped before the assertion, so that the thread always ends.
            drop(guard);
            assert_eq!(result, Ok(Reason::Timeout));
        });
        assert!(locks.0.locked().is_empty());
    }
}
