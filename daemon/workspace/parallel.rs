//! The same work on many files, on several threads where there are enough of them.

use std::{
    num::NonZeroUsize,
    panic::resume_unwind,
    sync::OnceLock,
    thread::{self, Builder},
};

/// Most threads for one call.
const MAX_THREADS: usize = 8;
/// Files, at least, for each thread: starting one takes about as long as work on one or two.
const MIN_FILES_PER_THREAD: usize = 16;

/// Does `work` for each of `items` and answers what came of it, in their order.
pub(crate) fn parallel_map<'t, T: Sync, R: Send>(
    items: &'t [T],
    work: impl Fn(&'t T) -> R + Sync,
) -> Vec<R> {
    let threads = available_cores().min(MAX_THREADS).min(items.len() / MIN_FILES_PER_THREAD).max(1);
    let share = items.len().div_ceil(threads).max(1);
    let work = &work;
    thread::scope(|scope| {
        let mut shares = items.chunks(share);
        let own = shares.next().unwrap_or_default();
        let others: Vec<_> = shares
            .map(|share| {
                let work = move || share.iter().map(work).collect::<Vec<R>>();
                let started = Builder::new().name("files".to_owned()).spawn_scoped(scope, work);
                (share, started)
            })
            .collect();
        let mut done: Vec<R> = own.iter().map(work).collect();
        for (share, started) in others {
            match started {
                Ok(other) => done.extend(other.join().unwrap_or_else(|panic| resume_unwind(panic))),
                // There are too many threads already.
                Err(_) => done.extend(share.iter().map(work)),
            }
        }
        done
    })
}

/// Threads that can run at once. Asked for once: the answer is in several files.
pub(crate) fn available_cores() -> usize {
    static CORES: OnceLock<usize> = OnceLock::new();
    *CORES.get_or_init(|| thread::available_parallelism().map_or(1, NonZeroUsize::get))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_item_has_its_answer() {
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
    fn a_panic_is_the_callers() {
        let items: Vec<usize> = (0..100).collect();
        parallel_map(&items, |item| assert!(*item < 99, "item {item}"));
    }
}
