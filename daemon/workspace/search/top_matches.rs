//! Keeps the first matches of all files, while threads search the files in any order. Holds only
//! the matches that can be returned, and all of the file that exceeds the limit.

use std::{
    collections::BTreeMap,
    mem,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use super::match_collector::{FileMatches, Match};

/// Results of a search.
#[derive(Debug, Default)]
pub(crate) struct SearchResults {
    /// The first matches, in order, with the paths of their files relative to the workspace.
    pub(crate) matches: Vec<(Arc<str>, Match)>,
    /// Number of matches in all files.
    pub(crate) total: u64,
    pub(crate) files_searched: u64,
    /// Files that could not be read, or not to their end.
    pub(crate) files_incomplete: u64,
    /// Ignore files that were applied only in part.
    pub(crate) truncated_ignore_files: u32,
}

/// Results of a search so far, shared by its threads. They are available before the search ends.
#[derive(Debug)]
pub(crate) struct SearchProgress(Mutex<TopMatches>);

/// The first matches so far, and counts.
#[derive(Debug)]
pub(super) struct TopMatches {
    max_matches: usize,
    max_bytes: usize,
    files: BTreeMap<usize, RankedFile>,
    count: usize,
    bytes: usize,
    total: u64,
    files_searched: u64,
    files_incomplete: u64,
    pub(super) truncated_ignore_files: u32,
}

#[derive(Debug)]
struct RankedFile {
    path: Arc<str>,
    matches: Vec<Match>,
    bytes: usize,
}

impl SearchProgress {
    /// Creates an empty result for the first `max_matches` matches of about `max_bytes`.
    pub(crate) fn new(max_matches: usize, max_bytes: usize) -> Self {
        Self(Mutex::new(TopMatches::new(max_matches, max_bytes)))
    }

    /// Takes the results so far.
    pub(crate) fn take(&self) -> SearchResults {
        let mut matches = self.lock();
        let empty = TopMatches::new(matches.max_matches, matches.max_bytes);
        mem::replace(&mut *matches, empty).finish()
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, TopMatches> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl TopMatches {
    fn new(max_matches: usize, max_bytes: usize) -> Self {
        Self {
            max_matches,
            max_bytes,
            files: BTreeMap::new(),
            count: 0,
            bytes: 0,
            total: 0,
            files_searched: 0,
            files_incomplete: 0,
            truncated_ignore_files: 0,
        }
    }

    /// Counts a searched file.
    pub(super) fn record_searched(&mut self, is_complete: bool) {
        self.files_searched += 1;
        self.files_incomplete += u64::from(!is_complete);
    }

    /// Counts an unreadable file.
    pub(super) fn record_unreadable(&mut self) {
        self.files_incomplete += 1;
    }

    /// Adds the matches of the file with this number. Returns the number of the last file whose
    /// matches can still be among the first ones.
    pub(super) fn add(&mut self, number: usize, path: Arc<str>, found: FileMatches) -> usize {
        self.total += found.total;
        if !found.matches.is_empty() {
            self.count += found.matches.len();
            self.bytes += found.bytes;
            let file = RankedFile { path, matches: found.matches, bytes: found.bytes };
            self.files.insert(number, file);
        }

        while let Some((_, last)) = self.files.last_key_value() {
            let (count, bytes) = (last.matches.len(), last.bytes);
            if !self.is_full(self.count - count, self.bytes - bytes) {
                break;
            }
            self.count -= count;
            self.bytes -= bytes;
            self.files.pop_last();
        }
        match self.files.last_key_value() {
            Some((number, _)) if self.is_full(self.count, self.bytes) => *number,
            _ => usize::MAX,
        }
    }

    fn finish(self) -> SearchResults {
        let mut results = SearchResults {
            total: self.total,
            files_searched: self.files_searched,
            files_incomplete: self.files_incomplete,
            truncated_ignore_files: self.truncated_ignore_files,
            ..SearchResults::default()
        };

        let mut bytes = 0;
        let matches = self.files.into_values().flat_map(|file| {
            let path = file.path;
            file.matches.into_iter().map(move |item| (Arc::clone(&path), item))
        });
        for (path, item) in matches.take(self.max_matches) {
            bytes += path.len() + item.encoded_size();
            if !results.matches.is_empty() && bytes > self.max_bytes {
                break;
            }
            results.matches.push((path, item));
        }
        results
    }

    fn is_full(&self, count: usize, bytes: usize) -> bool {
        count >= self.max_matches || bytes > self.max_bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns matches in lines 1 to `count` of a file, each with `size` bytes.
    fn found(count: u64, size: usize) -> FileMatches {
        let matches: Vec<Match> = (1..=count)
            .map(|line| Match {
                line,
                column: 1,
                content: "x".repeat(size),
                before: Vec::new(),
                after: Vec::new(),
            })
            .collect();
        FileMatches {
            total: count + 1,
            bytes: matches.iter().map(Match::encoded_size).sum(),
            matches,
        }
    }

    #[test]
    fn first_matches_do_not_depend_on_the_order_of_files() {
        let orders = [[1, 2, 3, 4], [4, 3, 2, 1], [3, 1, 4, 2], [2, 4, 1, 3]];
        for order in orders {
            let mut top = TopMatches::new(5, 1 << 20);
            let mut last = 0;
            for number in order {
                last = top.add(number, number.to_string().into(), found(2, 1));
                let count: usize = top.files.values().map(|file| file.matches.len()).sum();
                assert_eq!(count, top.count);
                assert!(count <= 6);
            }
            assert_eq!(last, 3);
            let results = top.finish();
            let lines: Vec<_> =
                results.matches.iter().map(|(path, item)| (&**path, item.line)).collect();
            let expected = [("1", 1), ("1", 2), ("2", 1), ("2", 2), ("3", 1)];
            assert_eq!(lines, expected, "{order:?}");
            assert_eq!(results.total, 12);
        }
    }

    #[test]
    fn bytes_are_limited_except_for_one_match() {
        for (size, expected) in [(10_000, 1), (400, 2), (100, 8)] {
            for order in [[1, 2, 3], [3, 2, 1]] {
                let mut top = TopMatches::new(9, 1000);
                for number in order {
                    top.add(number, "p".into(), found(3, size));
                }
                assert!(top.bytes <= 3 * (size + 200) + 1000);
                let results = top.finish();
                assert_eq!(results.matches.len(), expected, "{size}");
            }
        }
    }
}
