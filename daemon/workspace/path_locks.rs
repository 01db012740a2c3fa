//! One change at a time to each path.

use std::{
    collections::BTreeSet,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
};

use super::{cancel::CancelToken, path::RelativePath};
use crate::daemon::error::Error;

/// The paths that are being changed.
#[derive(Debug, Default)]
pub(super) struct PathLocks(Arc<PathLockState>);

#[derive(Debug, Default)]
struct PathLockState {
    locked: Mutex<BTreeSet<RelativePath>>,
    /// Something was released, or a call that waits must end.
    changed: Condvar,
}

/// Paths that nobody else changes until this is dropped.
#[derive(Debug)]
pub(super) struct PathLockGuard<'a> {
    locks: &'a PathLocks,
    paths: Vec<RelativePath>,
}

impl PathLocks {
    /// Waits until none of `paths`, nothing above and nothing below one of them is being changed.
    /// All are taken at once, so two changes cannot wait for each other. Blocks, until `stop` says
    /// that the call must end: then it answers `TIMEOUT`.
    pub(super) fn lock(
        &self,
        paths: &[RelativePath],
        cancel: &CancelToken,
    ) -> Result<PathLockGuard<'_>, Error> {
        let mut held = self.0.locked();
        let mut told = None;
        loop {
            cancel.check()?;
            if paths.iter().all(|path| is_free(path, &held)) {
                break;
            }
            if told.is_none() {
                drop(held);
                // Who waits for others is not to keep them from their work.
                cancel.release_permit();
                let shared = Arc::clone(&self.0);
                // With the lock, or it might come between the look and the wait.
                told = Some(cancel.on_cancel(Arc::new(move || {
                    let _held = shared.locked();
                    shared.changed.notify_all();
                })));
                held = self.0.locked();
                continue;
            }
            held = (self.0.changed.wait(held)).unwrap_or_else(PoisonError::into_inner);
        }
        held.extend(paths.iter().cloned());
        drop(held);
        let held = PathLockGuard { locks: self, paths: paths.to_vec() };
        if told.is_some() {
            cancel.reacquire_permit();
        }
        Ok(held)
    }
}

impl PathLockState {
    fn locked(&self) -> MutexGuard<'_, BTreeSet<RelativePath>> {
        self.locked.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether neither a path nor what is above or below it is held.
fn is_free(path: &RelativePath, held: &BTreeSet<RelativePath>) -> bool {
    let at_or_below = held.range::<RelativePath, _>(path..).next();
    if at_or_below.is_some_and(|held| held.is_at_or_below(path)) {
        return false;
    }
    let mut above = path.split().map(|(directory, _)| directory);
    while let Some(directory) = above {
        if held.contains(&directory) {
            return false;
        }
        above = directory.split().map(|(directory, _)| directory);
    }
    true
}

impl Drop for PathLockGuard<'_> {
    fn drop(&mut self) {
        let mut held = self.locks.0.locked();
        for path in &self.paths {
            held.remove(path);
        }
        drop(held);
        self.locks.0.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::{path::Path, thread, time::Duration};

    use super::*;
    use crate::daemon::{
        error::Reason,
        queue::{Acquire, Limiter, Permit, PrincipalKey, Sharing},
        workspace::BlockingPermit,
    };

    fn paths(texts: &[&str]) -> Vec<RelativePath> {
        let parse = |text: &&str| RelativePath::parse(text, Path::new("/workspace")).unwrap();
        texts.iter().map(parse).collect()
    }

    #[test]
    fn a_path_excludes_itself_and_what_is_above_and_below() {
        for (first, second, excludes) in [
            ("a", "a", true),
            ("a", "a/b", true),
            ("a/b", "a", true),
            ("a", "ab", false),
            ("a/b", "a/c", false),
            (".", "a", true),
        ] {
            let [first, second] = [first, second].map(|path| paths(&[path]).remove(0));
            assert_eq!(first.overlaps(&second), excludes, "{first} {second}");
        }
    }

    #[test]
    fn changes_of_the_same_paths_take_turns_in_whatever_order_they_name_them() {
        let locks = Arc::new(PathLocks::default());
        let inside = Arc::new(Mutex::new(()));
        let threads: Vec<_> = [["a", "b"], ["b", "a"], ["b/c", "a"]]
            .into_iter()
            .map(|names| {
                let (locks, inside) = (Arc::clone(&locks), Arc::clone(&inside));
                thread::spawn(move || {
                    for _ in 0..1000 {
                        let _held = locks.lock(&paths(&names), &CancelToken::new()).unwrap();
                        drop(inside.try_lock().expect("two at once"));
                    }
                })
            })
            .collect();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        assert!(locks.0.locked().is_empty());
    }

    #[test]
    fn who_waits_has_no_place_among_work_with_files_meanwhile() {
        let name: PrincipalKey = "a".into();
        let queue = Limiter::new(1, Sharing::CapWhenContended(1), usize::MAX);
        let take = || -> Permit {
            match queue.acquire(&name, usize::MAX) {
                Ok(Acquire::Granted(place)) => place,
                other => panic!("{other:?}"),
            }
        };
        let locks = PathLocks::default();
        let held = locks.lock(&paths(&["a"]), &CancelToken::new()).unwrap();
        let occupied = BlockingPermit::new(Arc::clone(&queue), name.clone(), take(), None);
        let stop = CancelToken::with_permit(occupied);
        thread::scope(|scope| {
            let (told, waits) = std::sync::mpsc::channel();
            let (locks, stop) = (&locks, &stop);
            scope.spawn(move || {
                let held = locks.lock(&paths(&["a"]), stop).unwrap();
                told.send(()).unwrap();
                drop(held);
            });
            while queue.in_use() > 0 {
                thread::yield_now();
            }
            let place = take();
            // It has the lock now, and waits for its place.
            drop(held);
            while queue.queued() == 0 {
                thread::yield_now();
            }
            assert!(waits.try_recv().is_err());
            drop(place);
            assert_eq!(waits.recv_timeout(Duration::from_secs(10)), Ok(()));
        });
        assert_eq!(queue.in_use(), 1);
        drop(stop);
        assert_eq!((queue.in_use(), queue.queued()), (0, 0));
    }

    #[test]
    fn who_waits_ends_with_its_call_and_holds_nothing() {
        let locks = PathLocks::default();
        let held = locks.lock(&paths(&["a"]), &CancelToken::new()).unwrap();
        let stop = CancelToken::new();
        thread::scope(|scope| {
            let (told, waits) = std::sync::mpsc::channel();
            let (locks, stop) = (&locks, &stop);
            scope.spawn(move || {
                let ended = locks.lock(&paths(&["a/b", "c"]), stop);
                told.send(ended.map(drop).unwrap_err().reason).unwrap();
            });
            assert!(waits.recv_timeout(Duration::from_millis(60)).is_err(), "it does not wait");
            stop.cancel();
            let ended = waits.recv_timeout(Duration::from_secs(10));
            // Whatever was answered, the thread must end for the test to do so.
            drop(held);
            assert_eq!(ended, Ok(Reason::Timeout));
        });
        assert!(locks.0.locked().is_empty());
    }
}
