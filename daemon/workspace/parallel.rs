//! Does the same work on many files, on several threads.

use std::{
    panic::resume_unwind,
    thread::{self, Builder},
};

use crate::daemon::task::available_cores;

/// Threads of one call.
const MAX_THREADS_PER_CALL: usize = 8;
/// Fewer files do not get a thread of their own: starting one takes about as long as the work on
/// one or two files.
const MIN_FILES_PER_THREAD: usize = 16;

/// Calls `work` for each of `items`. Returns the results in their order. A panic is passed on.
pub(crate) fn parallel_map<'t, T: Sync, R: Send>(
    items: &'t [T],
    work: impl Fn(&'t T) -> R + Sync,
) -> Vec<R> {
    let threads =
        available_cores().min(MAX_THREADS_PER_CALL).min(items.len() / MIN_FILES_PER_THREAD).max(1);
    let share_size = items.len().div_ceil(threads).max(1);
    let work = &work;

    thread::scope(|scope| {
        let mut shares = items.chunks(share_size);
        let own = shares.next().unwrap_or_default();
        let others: Vec<_> = shares
            .map(|share| {
                let work = move || share.iter().map(work).collect::<Vec<R>>();
                let started = Builder::new().name("files".to_owned()).spawn_scoped(scope, work);
                (share, started)
            })
            .collect();

        let mut results: Vec<R> = own.iter().map(work).collect();
        for (share, started) in others {
            match started {
                Ok(thread) => {
                    results.extend(thread.join().unwrap_or_else(|panic| resume_unwind(panic)))
                }
                // No more threads can be started.
                Err(_) => results.extend(share.iter().map(work)),
            }
        }
        results
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_are_in_the_order_of_items() {
        for length in [
            0,
            1,
            MIN_FILES_PER_THREAD - 1,
            2 * MIN_FILES_PER_THREAD,
            2 * MIN_FILES_PER_THREAD + 1,
            1000,
        ] {
            let items: Vec<usize> = (0..length).collect();
            let doubled: Vec<usize> = items.iter().map(|item| 2 * item).collect();
            assert_eq!(parallel_map(&items, |item| 2 * item), doubled);
        }
    }

    #[test]
    #[should_panic(expected = "item 99")]
    fn a_panic_is_passed_on_to_the_caller() {
        let items: Vec<usize> = (0..100).collect();
        parallel_map(&items, |item| assert!(*item < 99, "item {item}"));
    }
}
