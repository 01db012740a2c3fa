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

mod content;
mod lines;
mod pattern;
mod ranking;

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

use self::{content::Content, lines::Lines};
pub(crate) use self::{
    lines::Hit,
    pattern::{Pattern, Query, SearchWish},
    ranking::{Finds, Progress},
};
use super::{
    beneath::{Root, open_name},
    failure::{Wanted, failure},
    file::{RegularFile, reopen},
    parallel::cores,
    path::RelativePath,
    stop::Stop,
    walk::{Selection, Walk},
};
use crate::daemon::{error::Error, sys::Errno};

/// Most threads that search at once.
const THREADS: usize = 8;
/// Files that a thread takes at once.
const TOGETHER: usize = 16;
/// Longest line that can be searched, and largest file where matches may span lines, in bytes: each
/// thread holds as much.
const LARGEST: usize = 8 << 20;

/// One search.
#[derive(Debug)]
struct Search<'a> {
    wish: &'a SearchWish,
    stop: &'a Stop,
    files: Mutex<Files<'a>>,
    progress: &'a Progress,
    /// Number of the last file of which matches can still be among the first ones.
    last: AtomicUsize,
    interrupted: AtomicBool,
}

/// Files still to search.
#[derive(Debug)]
struct Files<'a> {
    walk: Walk<'a>,
    /// Path of the walk's directory, with a final slash unless it is empty.
    base: String,
    taken: usize,
    end: Option<Result<(), Error>>,
}

/// A file to search.
#[derive(Debug)]
struct Candidate {
    number: usize,
    directory: Arc<OwnedFd>,
    path: String,
}

/// Searches the files below `base`, or the file that it is. Answers whether it came to its end
/// before it was stopped.
pub(super) fn search(
    root: &Root,
    base: &RelativePath,
    selection: Selection,
    wish: &SearchWish,
    progress: &Progress,
    stop: &Stop,
) -> Result<bool, Error> {
    let wanted = |errno| failure(errno, base.as_str(), Wanted::File);
    let place = root.open_path(base.as_bytes()).map_err(wanted)?;
    let stat = rustix::fs::fstat(&place).map_err(wanted)?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::Directory {
        let file = RegularFile::open(&place, base.as_str())?;
        return Ok(search_one(file, wish, progress, stop));
    }
    let walk = match Walk::start(root, base, selection, None, stop) {
        Ok(walk) => walk,
        Err(_) if stop.is_stopped() => return Ok(false),
        Err(error) => return Err(error),
    };
    let mut above = String::from_utf8_lossy(base.as_bytes()).into_owned();
    if !above.is_empty() {
        above.push('/');
    }
    let search = Search {
        wish,
        stop,
        files: Mutex::new(Files { walk, base: above, taken: 0, end: None }),
        progress,
        last: AtomicUsize::new(usize::MAX),
        interrupted: AtomicBool::new(false),
    };
    thread::scope(|scope| {
        for _ in 1..cores().min(THREADS) {
            // Where no thread can be started, there are fewer.
            let _thread = thread::Builder::new()
                .name("search".to_owned())
                .spawn_scoped(scope, || search.work());
        }
        search.work();
    });
    let Files { end, .. } = search.files.into_inner().unwrap_or_else(PoisonError::into_inner);
    end.unwrap_or(Ok(()))?;
    Ok(!search.interrupted.into_inner())
}

/// Searches one file. Returns whether it was searched to its end before the search was stopped.
pub(crate) fn search_one(
    file: RegularFile,
    wish: &SearchWish,
    progress: &Progress,
    stop: &Stop,
) -> bool {
    let path: Arc<str> = file.path().into();
    let mut lines = Lines::new(wish, stop, true);
    let mut searcher = searcher(wish, true);
    let size = file.size();
    let outcome = lines.read(&mut searcher, Content::new(file.into(), size, stop));
    let mut ranking = progress.lock();
    ranking.searched(outcome.is_ok() || stop.is_stopped());
    ranking.add(0, path, lines.finish());
    !stop.is_stopped()
}

impl Search<'_> {
    /// Searches until no file is left.
    fn work(&self) {
        let mut complete = searcher(self.wish, true);
        let mut counting = searcher(self.wish, false);
        let matcher = self.wish.pattern.clone();
        let mut candidates = Vec::with_capacity(TOGETHER);
        loop {
            if self.stop.is_stopped() {
                self.interrupt();
                return;
            }
            self.take(&mut candidates);
            if candidates.is_empty() {
                return;
            }
            for candidate in candidates.drain(..) {
                let keeps = candidate.number <= self.last.load(Ordering::Relaxed);
                let searcher = if keeps { &mut complete } else { &mut counting };
                if let Err(error) = self.search(candidate, &matcher, searcher, keeps) {
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
    fn take(&self, candidates: &mut Vec<Candidate>) {
        let mut files = locked(&self.files);
        while files.end.is_none() && candidates.len() < TOGETHER {
            match files.next() {
                Ok(Some(candidate)) => candidates.push(candidate),
                Ok(None) => files.end = Some(Ok(())),
                Err(_) if self.stop.is_stopped() => {
                    self.interrupt();
                    files.end = Some(Ok(()));
                }
                Err(error) => files.end = Some(Err(error)),
            }
        }
        let cut = files.walk.ignore_files_cut();
        if cut > 0 {
            self.progress.lock().ignore_files_cut = cut;
        }
    }

    fn search(
        &self,
        candidate: Candidate,
        pattern: &Pattern,
        searcher: &mut Searcher,
        keeps: bool,
    ) -> Result<(), Error> {
        let Candidate { number, directory, path } = candidate;
        let name = path.rsplit_once('/').map_or(path.as_str(), |(_, name)| name);
        let opened =
            open_name(directory.as_fd(), name.as_bytes()).and_then(|place| reopen(place.as_fd()));
        let file = match opened {
            Ok(Ok((file, stat))) => {
                Content::new(file, u64::try_from(stat.st_size).unwrap_or(0), self.stop)
            }
            // Something else by now, or gone.
            Ok(Err(_)) | Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::STALE) => {
                return Ok(());
            }
            Err(errno @ (Errno::MFILE | Errno::NFILE)) => {
                return Err(failure(errno, &path, Wanted::File));
            }
            Err(_) => {
                self.progress.lock().unreadable();
                return Ok(());
            }
        };
        drop(directory);
        let mut lines = Lines::with(self.wish, pattern, self.stop, keeps);
        let outcome = lines.read(searcher, file);
        if self.stop.is_stopped() {
            self.interrupt();
        }
        let complete = outcome.is_ok() || self.stop.is_stopped();
        let found = lines.finish();
        let mut ranking = self.progress.lock();
        ranking.searched(complete);
        if found.total > 0 {
            let last = ranking.add(number, path.into(), found);
            self.last.store(last, Ordering::Relaxed);
        }
        Ok(())
    }

    fn interrupt(&self) {
        self.interrupted.store(true, Ordering::Relaxed);
    }
}

impl Files<'_> {
    fn next(&mut self) -> Result<Option<Candidate>, Error> {
        loop {
            let Some(below) = self.walk.next()? else {
                return Ok(None);
            };
            let path = format!("{}{below}", self.base);
            if let Some(directory) = self.walk.directory()? {
                self.taken += 1;
                return Ok(Some(Candidate { number: self.taken, directory, path }));
            }
        }
    }
}

/// The engine. When only matches are counted, it needs to know nothing about lines.
fn searcher(wish: &SearchWish, keeps: bool) -> Searcher {
    let context = if keeps { wish.context } else { 0 };
    SearcherBuilder::new()
        .binary_detection(BinaryDetection::quit(b'\0'))
        .memory_map(MmapChoice::never())
        .heap_limit(Some(LARGEST))
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
