//! The first matches of all files, while files are searched in any order. No more of them is kept
//! than will be answered, and those of the file that goes beyond.

use std::{
    collections::BTreeMap,
    mem,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use super::match_collector::{FileMatches, Match};

/// What a search has found.
#[derive(Debug, Default)]
pub(crate) struct SearchResults {
    /// Matches with the paths of their files, relative to the workspace: the first ones, in order.
    pub(crate) matches: Vec<(Arc<str>, Match)>,
    /// Matches in all files.
    pub(crate) total: u64,
    /// Files searched.
    pub(crate) files_searched: u64,
    /// Files of these that could not be searched to their end, and files that could not be read.
    pub(crate) files_incomplete: u64,
    /// Ignore files of which a part did not count.
    pub(crate) truncated_ignore_files: u32,
}

/// What a search has found so far, for whoever cannot wait for its end.
#[derive(Debug)]
pub(crate) struct SearchProgress(Mutex<TopMatches>);

/// The matches so far.
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
    /// Nothing yet; it will keep the first `most` matches, of not many more than `most_bytes`.
    pub(crate) fn new(most: usize, most_bytes: usize) -> Self {
        Self(Mutex::new(TopMatches::new(most, most_bytes)))
    }

    /// Takes what there is.
    pub(crate) fn take(&self) -> SearchResults {
        let mut ranking = self.lock();
        let empty = TopMatches::new(ranking.max_matches, ranking.max_bytes);
        mem::replace(&mut *ranking, empty).finish()
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, TopMatches> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl TopMatches {
    /// Keeps the first `most` matches, of not many more than `most_bytes`.
    fn new(most: usize, most_bytes: usize) -> Self {
        Self {
            max_matches: most,
            max_bytes: most_bytes,
            files: BTreeMap::new(),
            count: 0,
            bytes: 0,
            total: 0,
            files_searched: 0,
            files_incomplete: 0,
            truncated_ignore_files: 0,
        }
    }

    /// A file was searched.
    pub(super) fn record_searched(&mut self, to_its_end: bool) {
        self.files_searched += 1;
        self.files_incomplete += u64::from(!to_its_end);
    }

    /// A file could not be read.
    pub(super) fn record_unreadable(&mut self) {
        self.files_incomplete += 1;
    }

    /// Adds what was found in the file with this number. Answers the number of the last file of
    /// which matches can still be among the first ones.
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

    /// The answer.
    fn finish(self) -> SearchResults {
        let mut finds = SearchResults {
            total: self.total,
            files_searched: self.files_searched,
            files_incomplete: self.files_incomplete,
            truncated_ignore_files: self.truncated_ignore_files,
            ..SearchResults::default()
        };
        let mut bytes = 0;
        let files = self.files.into_values();
        let hits = files.flat_map(|file| {
            let path = file.path;
            file.matches.into_iter().map(move |hit| (Arc::clone(&path), hit))
        });
        for (path, hit) in hits.take(self.max_matches) {
            bytes += path.len() + hit.encoded_size();
            if !finds.matches.is_empty() && bytes > self.max_bytes {
                break;
            }
            finds.matches.push((path, hit));
        }
        finds
    }

    fn is_full(&self, count: usize, bytes: usize) -> bool {
        count >= self.max_matches || bytes > self.max_bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Lines 1 to `count` of a file, each of `size` bytes.
    fn found(count: u64, size: usize) -> FileMatches {
        let hits: Vec<Match> = (1..=count)
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
            bytes: hits.iter().map(Match::encoded_size).sum(),
            matches: hits,
        }
    }

    #[test]
    fn whatever_the_order_the_first_ones_are_kept() {
        let orders = [[1, 2, 3, 4], [4, 3, 2, 1], [3, 1, 4, 2], [2, 4, 1, 3]];
        for order in orders {
            let mut ranking = TopMatches::new(5, 1 << 20);
            let mut last = 0;
            for number in order {
                last = ranking.add(number, number.to_string().into(), found(2, 1));
                let kept: usize = ranking.files.values().map(|file| file.matches.len()).sum();
                assert_eq!(kept, ranking.count);
                assert!(kept <= 6);
            }
            assert_eq!(last, 3);
            let finds = ranking.finish();
            let hits: Vec<_> =
                finds.matches.iter().map(|(path, hit)| (&**path, hit.line)).collect();
            let expected = [("1", 1), ("1", 2), ("2", 1), ("2", 2), ("3", 1)];
            assert_eq!(hits, expected, "{order:?}");
            assert_eq!(finds.total, 12);
        }
    }

    #[test]
    fn bytes_are_bounded_too_but_for_one_match() {
        for (size, expected) in [(10_000, 1), (400, 2), (100, 8)] {
            for order in [[1, 2, 3], [3, 2, 1]] {
                let mut ranking = TopMatches::new(9, 1000);
                for number in order {
                    ranking.add(number, "p".into(), found(3, size));
                }
                assert!(ranking.bytes <= 3 * (size + 200) + 1000);
                let finds = ranking.finish();
                assert_eq!(finds.matches.len(), expected, "{size}");
            }
        }
    }
}
