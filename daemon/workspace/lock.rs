//! One change at a time to each path.

use std::{
    sync::{Condvar, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use super::{path::RelativePath, stop::Stop};
use crate::daemon::error::Error;

/// How often who waits looks whether to go on: a call's end wakes nobody here.
const LOOK: Duration = Duration::from_millis(20);

/// The paths that are being changed.
#[derive(Debug, Default)]
pub(super) struct Locks {
    held: Mutex<Vec<RelativePath>>,
    released: Condvar,
}

/// Paths that nobody else changes until this is dropped.
#[derive(Debug)]
pub(super) struct Held<'a> {
    locks: &'a Locks,
    paths: Vec<RelativePath>,
}

impl Locks {
    /// Waits until none of `paths`, nothing above and nothing below one of them is being changed.
    /// All are taken at once, so two changes cannot wait for each other. Blocks, until `stop` says
    /// that the call must end: then it answers `TIMEOUT`.
    pub(super) fn hold(&self, paths: &[RelativePath], stop: &Stop) -> Result<Held<'_>, Error> {
        let free = |held: &[RelativePath]| {
            !held
                .iter()
                .any(|held| paths.iter().any(|path| path.overlaps(held)))
        };
        let mut held = self.held();
        loop {
            stop.check()?;
            if free(&held) {
                break;
            }
            let woken = self.released.wait_timeout(held, LOOK);
            (held, _) = woken.unwrap_or_else(PoisonError::into_inner);
        }
        held.extend_from_slice(paths);
        Ok(Held {
            locks: self,
            paths: paths.to_vec(),
        })
    }

    fn held(&self) -> MutexGuard<'_, Vec<RelativePath>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        let mut held = self.locks.held();
        for path in &self.paths {
            if let Some(at) = held.iter().position(|held| held == path) {
                held.swap_remove(at);
            }
        }
        drop(held);
        self.locks.released.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::{path::Path, sync::Arc, thread};

    use super::*;
    use crate::daemon::error::Reason;

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
        let locks = Arc::new(Locks::default());
        let inside = Arc::new(Mutex::new(()));
        let threads: Vec<_> = [["a", "b"], ["b", "a"], ["b/c", "a"]]
            .into_iter()
            .map(|names| {
                let (locks, inside) = (Arc::clone(&locks), Arc::clone(&inside));
                thread::spawn(move || {
                    for _ in 0..1000 {
                        let _held = locks.hold(&paths(&names), &Stop::new()).unwrap();
                        drop(inside.try_lock().expect("two at once"));
                    }
                })
            })
            .collect();
        threads
            .into_iter()
            .for_each(|thread| thread.join().unwrap());
        assert!(locks.held().is_empty());
    }

    #[test]
    fn who_waits_ends_with_its_call_and_holds_nothing() {
        let locks = Locks::default();
        let held = locks.hold(&paths(&["a"]), &Stop::new()).unwrap();
        let stop = Stop::new();
        thread::scope(|scope| {
            let (told, waits) = std::sync::mpsc::channel();
            let (locks, stop) = (&locks, &stop);
            scope.spawn(move || {
                let ended = locks.hold(&paths(&["a/b", "c"]), stop);
                told.send(ended.map(drop).unwrap_err().reason).unwrap();
            });
            assert!(waits.recv_timeout(LOOK * 3).is_err(), "it does not wait");
            stop.stop();
            let ended = waits.recv_timeout(Duration::from_secs(10));
            // Whatever was answered, the thread must end for the test to do so.
            drop(held);
            assert_eq!(ended, Ok(Reason::Timeout));
        });
        assert!(locks.held().is_empty());
    }
}
