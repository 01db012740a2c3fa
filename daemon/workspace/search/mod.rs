//! Searching the files below a directory, with ripgrep's engine.
//!
//! Threads take turns at one [`Walk`], a few files at a time, and search what they took: files are
//! numbered in the order of their paths, so that nothing needs to wait for its turn to be answered.
//! A file is opened in its directory's descriptor and handed to the engine open; no path is
//! followed, and what is no regular file is not opened. Nothing is mapped into memory: whoever
//! shortens a mapped file kills who reads it.
//!
//! | file | holds |
//! |---|---|
//! | [`pattern`] | what to look for |
//! | [`content`] | what is read of a file |
//! | [`lines`] | the matches of one file, with the lines around them |
//! | [`ranking`] | the first matches of all files |

mod cancellable_reader;
mod match_collector;
mod pattern;
mod top_matches;

use std::{
    os::fd::{AsFd as _, OwnedFd},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    thread,
};

use grep_searcher::{BinaryDetection, MmapChoice, Searcher, SearcherBuilder};
use rustix::fs::FileType;

use self::{cancellable_reader::CancellableReader, match_collector::MatchCollector};
pub(crate) use self::{
    match_collector::Match,
    pattern::{SearchOptions, SearchPattern, SearchQuery},
    top_matches::{SearchProgress, SearchResults},
};
use super::{
    cancel::CancelToken,
    file::{RegularFile, reopen},
    os_error::{ExpectedKind, os_error},
    parallel::available_cores,
    path::RelativePath,
    resolve::{Root, open_entry},
    walk::{FileWalk, WalkFilter},
};
use crate::daemon::{error::Error, sys::Errno};

/// Most threads that search at once.
const MAX_THREADS: usize = 8;
/// Files that a thread takes at once.
const FILES_PER_BATCH: usize = 16;
/// Longest line that can be searched, and largest file where matches may span lines, in bytes: each
/// thread holds as much.
const MAX_SEARCH_BUFFER_BYTES: usize = 8 << 20;

/// One search.
#[derive(Debug)]
struct SearchRun<'a> {
    options: &'a SearchOptions,
    cancel: &'a CancelToken,
    files: Mutex<PendingFiles<'a>>,
    progress: &'a SearchProgress,
    /// Number of the last file of which matches can still be among the first ones.
    last_relevant_file: AtomicUsize,
    interrupted: AtomicBool,
}

/// Files still to search.
#[derive(Debug)]
struct PendingFiles<'a> {
    walk: FileWalk<'a>,
    /// Path of the walk's directory, with a final slash unless it is empty.
    base: String,
    next_number: usize,
    end: Option<Result<(), Error>>,
}

/// A file to search.
#[derive(Debug)]
struct SearchCandidate {
    number: usize,
    directory: Arc<OwnedFd>,
    path: String,
}

/// Searches the files below `base`, or the file that it is. Answers whether it came to its end
/// before it was stopped.
pub(super) fn search(
    root: &Root,
    base: &RelativePath,
    selection: WalkFilter,
    wish: &SearchOptions,
    progress: &SearchProgress,
    cancel: &CancelToken,
) -> Result<bool, Error> {
    let wanted = |errno| os_error(errno, base.as_str(), ExpectedKind::File);
    let place = root.open_path(base.as_bytes()).map_err(wanted)?;
    let stat = rustix::fs::fstat(&place).map_err(wanted)?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::Directory {
        let file = RegularFile::open(&place, base.as_str())?;
        return Ok(search_file(file, wish, progress, cancel));
    }
    let walk = match FileWalk::start(root, base, selection, None, cancel) {
        Ok(walk) => walk,
        Err(_) if cancel.is_cancelled() => return Ok(false),
        Err(error) => return Err(error),
    };
    let mut above = String::from_utf8_lossy(base.as_bytes()).into_owned();
    if !above.is_empty() {
        above.push('/');
    }
    let search = SearchRun {
        options: wish,
        cancel,
        files: Mutex::new(PendingFiles { walk, base: above, next_number: 0, end: None }),
        progress,
        last_relevant_file: AtomicUsize::new(usize::MAX),
        interrupted: AtomicBool::new(false),
    };
    thread::scope(|scope| {
        for _ in 1..available_cores().min(MAX_THREADS) {
            // Where no thread can be started, there are fewer.
            let _thread = thread::Builder::new()
                .name("search".to_owned())
                .spawn_scoped(scope, || search.run_worker());
        }
        search.run_worker();
    });
    let PendingFiles { end, .. } =
        search.files.into_inner().unwrap_or_else(PoisonError::into_inner);
    end.unwrap_or(Ok(()))?;
    Ok(!search.interrupted.into_inner())
}

/// Searches one file. Returns whether it was searched to its end before the search was stopped.
pub(crate) fn search_file(
    file: RegularFile,
    wish: &SearchOptions,
    progress: &SearchProgress,
    cancel: &CancelToken,
) -> bool {
    let path: Arc<str> = file.path().into();
    let mut lines = MatchCollector::new(wish, cancel, true);
    let mut searcher = build_searcher(wish, true);
    let size = file.size();
    let outcome = lines.search(&mut searcher, CancellableReader::new(file.into(), size, cancel));
    let mut ranking = progress.lock();
    ranking.record_searched(outcome.is_ok() || cancel.is_cancelled());
    ranking.add(0, path, lines.finish());
    !cancel.is_cancelled()
}

impl SearchRun<'_> {
    /// Searches until no file is left.
    fn run_worker(&self) {
        let mut complete = build_searcher(self.options, true);
        let mut counting = build_searcher(self.options, false);
        let matcher = self.options.pattern.clone();
        let mut candidates = Vec::with_capacity(FILES_PER_BATCH);
        loop {
            if self.cancel.is_cancelled() {
                self.mark_interrupted();
                return;
            }
            self.take_batch(&mut candidates);
            if candidates.is_empty() {
                return;
            }
            for candidate in candidates.drain(..) {
                let keeps = candidate.number <= self.last_relevant_file.load(Ordering::Relaxed);
                let searcher = if keeps { &mut complete } else { &mut counting };
                if let Err(error) = self.search_candidate(candidate, &matcher, searcher, keeps) {
                    let mut files = locked(&self.files);
                    // Also where the walk has come to its end: not all of it was searched.
                    if !matches!(files.end, Some(Err(_))) {
                        files.end = Some(Err(error));
                    }
                    return;
                }
            }
        }
    }

    /// Takes the next files.
    fn take_batch(&self, candidates: &mut Vec<SearchCandidate>) {
        let mut files = locked(&self.files);
        while files.end.is_none() && candidates.len() < FILES_PER_BATCH {
            match files.next() {
                Ok(Some(candidate)) => candidates.push(candidate),
                Ok(None) => files.end = Some(Ok(())),
                Err(_) if self.cancel.is_cancelled() => {
                    self.mark_interrupted();
                    files.end = Some(Ok(()));
                }
                Err(error) => files.end = Some(Err(error)),
            }
        }
        let cut = files.walk.truncated_ignore_files();
        if cut > 0 {
            self.progress.lock().truncated_ignore_files = cut;
        }
    }

    fn search_candidate(
        &self,
        candidate: SearchCandidate,
        pattern: &SearchPattern,
        searcher: &mut Searcher,
        keeps: bool,
    ) -> Result<(), Error> {
        let SearchCandidate { number, directory, path } = candidate;
        let name = path.rsplit_once('/').map_or(path.as_str(), |(_, name)| name);
        let opened =
            open_entry(directory.as_fd(), name.as_bytes()).and_then(|place| reopen(place.as_fd()));
        let file = match opened {
            Ok(Ok((file, stat))) => {
                CancellableReader::new(file, u64::try_from(stat.st_size).unwrap_or(0), self.cancel)
            }
            // Something else by now, or gone.
            Ok(Err(_)) | Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::STALE) => {
                return Ok(());
            }
            Err(errno @ (Errno::MFILE | Errno::NFILE)) => {
                return Err(os_error(errno, &path, ExpectedKind::File));
            }
            Err(_) => {
                self.progress.lock().record_unreadable();
                return Ok(());
            }
        };
        drop(directory);
        let mut lines = MatchCollector::with_pattern(self.options, pattern, self.cancel, keeps);
        let outcome = lines.search(searcher, file);
        if self.cancel.is_cancelled() {
            self.mark_interrupted();
        }
        let complete = outcome.is_ok() || self.cancel.is_cancelled();
        let found = lines.finish();
        let mut ranking = self.progress.lock();
        ranking.record_searched(complete);
        if found.total > 0 {
            let last = ranking.add(number, path.into(), found);
            self.last_relevant_file.store(last, Ordering::Relaxed);
        }
        Ok(())
    }

    fn mark_interrupted(&self) {
        self.interrupted.store(true, Ordering::Relaxed);
    }
}

impl PendingFiles<'_> {
    fn next(&mut self) -> Result<Option<SearchCandidate>, Error> {
        loop {
            let Some(below) = self.walk.next()? else {
                return Ok(None);
            };
            let path = format!("{}{below}", self.base);
            if let Some(directory) = self.walk.directory()? {
                self.next_number += 1;
                return Ok(Some(SearchCandidate { number: self.next_number, directory, path }));
            }
        }
    }
}

/// The engine. When only matches are counted, it needs to know nothing about lines.
fn build_searcher(wish: &SearchOptions, keeps: bool) -> Searcher {
    let context = if keeps { wish.context_lines } else { 0 };
    SearcherBuilder::new()
        .binary_detection(BinaryDetection::quit(b'\0'))
        .memory_map(MmapChoice::never())
        .heap_limit(Some(MAX_SEARCH_BUFFER_BYTES))
        .multi_line(wish.pattern.is_multiline())
        .line_number(keeps)
        .before_context(context)
        .after_context(context)
        .build()
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests;
