//! Searches the files below a directory, with ripgrep's engine.
//!
//! Several threads share one [`FileWalk`]. Each takes a batch of files from it and searches them.
//! Files are numbered in the order of their paths, so the order of the results does not depend on
//! the threads. A file is opened relative to its directory's descriptor. The engine gets the open
//! file, so it resolves no path. Only regular files are opened. Files are never memory-mapped: a
//! process that shortens a mapped file would kill the daemon (SIGBUS).
//!
//! | module | contents |
//! |---|---|
//! | [`cancellable_reader`] | reads a file until the search is cancelled |
//! | [`match_collector`] | the matches of one file, with their context |
//! | [`pattern`] | compiled queries |
//! | [`top_matches`] | the first matches of all files |

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
    path::RelativePath,
    resolve::{Root, open_entry},
    walk::{FileWalk, WalkFilter},
};
use crate::daemon::{error::Error, sys::Errno, task::available_cores};

/// Threads of one search.
const MAX_THREADS_PER_SEARCH: usize = 8;
/// Files that a thread takes at once.
const FILES_PER_BATCH: usize = 16;
/// Buffer of a thread: the limit for a line and, if matches may span lines, for a file.
const MAX_SEARCH_BUFFER_BYTES: usize = 8 << 20;

/// A search in progress.
#[derive(Debug)]
struct SearchRun<'a> {
    options: &'a SearchOptions,
    cancel: &'a CancelToken,
    files: Mutex<PendingFiles<'a>>,
    progress: &'a SearchProgress,
    /// Number of the last file whose matches can still be among the first ones.
    last_relevant_file: AtomicUsize,
    interrupted: AtomicBool,
}

/// The files still to search.
#[derive(Debug)]
struct PendingFiles<'a> {
    walk: FileWalk<'a>,
    /// Path of the walk's directory, with a final slash unless the path is empty.
    base: String,
    next_number: usize,
    /// The end of the walk, or the first error.
    end: Option<Result<(), Error>>,
}

/// A file to search.
#[derive(Debug)]
struct SearchCandidate {
    number: usize,
    directory: Arc<OwnedFd>,
    path: String,
}

/// Searches the file `base`, or the files below the directory `base`. Returns whether the search
/// was complete.
pub(super) fn search(
    root: &Root,
    base: &RelativePath,
    filter: WalkFilter,
    options: &SearchOptions,
    progress: &SearchProgress,
    cancel: &CancelToken,
) -> Result<bool, Error> {
    let to_error = |errno| os_error(errno, base.as_str(), ExpectedKind::File);
    let handle = root.open_path(base.as_bytes()).map_err(to_error)?;
    let stat = rustix::fs::fstat(&handle).map_err(to_error)?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::Directory {
        let file = RegularFile::open(&handle, base.as_str())?;
        return Ok(search_file(file, options, progress, cancel));
    }

    let walk = match FileWalk::start(root, base, filter, None, cancel) {
        Ok(walk) => walk,
        Err(_) if cancel.is_cancelled() => return Ok(false),
        Err(error) => return Err(error),
    };
    let mut prefix = String::from_utf8_lossy(base.as_bytes()).into_owned();
    if !prefix.is_empty() {
        prefix.push('/');
    }

    let search = SearchRun {
        options,
        cancel,
        files: Mutex::new(PendingFiles { walk, base: prefix, next_number: 0, end: None }),
        progress,
        last_relevant_file: AtomicUsize::new(usize::MAX),
        interrupted: AtomicBool::new(false),
    };
    thread::scope(|scope| {
        for _ in 1..available_cores().min(MAX_THREADS_PER_SEARCH) {
            // If no more threads can be started, the search has fewer.
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

/// Searches one file. Returns whether the search was complete.
pub(crate) fn search_file(
    file: RegularFile,
    options: &SearchOptions,
    progress: &SearchProgress,
    cancel: &CancelToken,
) -> bool {
    let (path, size): (Arc<str>, u64) = (file.path().into(), file.size());
    let mut collector = MatchCollector::new(options, cancel, true);
    let mut searcher = build_searcher(options, true);
    let reader = CancellableReader::new(file.into(), size, cancel);
    let result = collector.search(&mut searcher, reader);

    let mut matches = progress.lock();
    matches.record_searched(result.is_ok() || cancel.is_cancelled());
    matches.add(0, path, collector.finish());
    !cancel.is_cancelled()
}

impl SearchRun<'_> {
    /// Searches batches of files until none is left.
    fn run_worker(&self) {
        let mut collecting = build_searcher(self.options, true);
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
                let collects = candidate.number <= self.last_relevant_file.load(Ordering::Relaxed);
                let searcher = if collects { &mut collecting } else { &mut counting };
                if let Err(error) = self.search_candidate(candidate, &matcher, searcher, collects) {
                    let mut files = locked(&self.files);
                    // Even if the walk has ended: the search is not complete.
                    if !matches!(files.end, Some(Err(_))) {
                        files.end = Some(Err(error));
                    }
                    return;
                }
            }
        }
    }

    /// Takes the next batch of files.
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
        let truncated = files.walk.truncated_ignore_files();
        if truncated > 0 {
            self.progress.lock().truncated_ignore_files = truncated;
        }
    }

    fn search_candidate(
        &self,
        candidate: SearchCandidate,
        pattern: &SearchPattern,
        searcher: &mut Searcher,
        collects: bool,
    ) -> Result<(), Error> {
        let SearchCandidate { number, directory, path } = candidate;
        let name = path.rsplit_once('/').map_or(path.as_str(), |(_, name)| name);
        let opened = open_entry(directory.as_fd(), name.as_bytes())
            .and_then(|handle| reopen(handle.as_fd()));
        let file = match opened {
            Ok(Ok((file, stat))) => {
                CancellableReader::new(file, u64::try_from(stat.st_size).unwrap_or(0), self.cancel)
            }
            // The file was replaced or removed.
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
        let mut collector =
            MatchCollector::with_pattern(self.options, pattern, self.cancel, collects);
        let result = collector.search(searcher, file);
        if self.cancel.is_cancelled() {
            self.mark_interrupted();
        }

        let is_complete = result.is_ok() || self.cancel.is_cancelled();
        let found = collector.finish();
        let mut matches = self.progress.lock();
        matches.record_searched(is_complete);
        if found.total > 0 {
            let last = matches.add(number, path.into(), found);
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
            let Some(relative) = self.walk.next()? else {
                return Ok(None);
            };
            let path = format!("{}{relative}", self.base);
            if let Some(directory) = self.walk.directory()? {
                self.next_number += 1;
                return Ok(Some(SearchCandidate { number: self.next_number, directory, path }));
            }
        }
    }
}

/// Builds the engine. If matches are only counted, it does not track lines.
fn build_searcher(options: &SearchOptions, collects: bool) -> Searcher {
    let context = if collects { options.context_lines } else { 0 };
    SearcherBuilder::new()
        .binary_detection(BinaryDetection::quit(b'\0'))
        .memory_map(MmapChoice::never())
        .heap_limit(Some(MAX_SEARCH_BUFFER_BYTES))
        .multi_line(options.pattern.is_multiline())
        .line_number(collects)
        .before_context(context)
        .after_context(context)
        .build()
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests;
