//! The first matches of all files, while files are searched in any order. No more of them is kept
//! than will be answered, and those of the file that goes beyond.

use std::{
    collections::BTreeMap,
    mem,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use super::lines::{Found, Hit};

/// What a search has found.
#[derive(Debug, Default)]
pub(crate) struct Finds {
    /// Matches with the paths of their files, relative to the workspace: the first ones, in order.
    pub(crate) hits: Vec<(Arc<str>, Hit)>,
    /// Matches in all files.
    pub(crate) total: u64,
    /// Files searched.
    pub(crate) searched: u64,
    /// Files of these that could not be searched to their end, and files that could not be read.
    pub(crate) left_out: u64,
    /// Ignore files of which a part did not count.
    pub(crate) ignore_files_cut: u32,
}

/// What a search has found so far, for whoever cannot wait for its end.
#[derive(Debug)]
pub(crate) struct Progress(Mutex<Ranking>);

/// The matches so far.
#[derive(Debug)]
pub(super) struct Ranking {
    most: usize,
    most_bytes: usize,
    kept: BTreeMap<usize, File>,
    count: usize,
    bytes: usize,
    total: u64,
    searched: u64,
    left_out: u64,
    pub(super) ignore_files_cut: u32,
}

#[derive(Debug)]
struct File {
    path: Arc<str>,
    hits: Vec<Hit>,
    bytes: usize,
}

impl Progress {
    /// Nothing yet; it will keep the first `most` matches, of not many more than `most_bytes`.
    pub(crate) fn new(most: usize, most_bytes: usize) -> Self {
        Self(Mutex::new(Ranking::new(most, most_bytes)))
    }

    /// Takes what there is.
    pub(crate) fn take(&self) -> Finds {
        let mut ranking = self.lock();
        let empty = Ranking::new(ranking.most, ranking.most_bytes);
        mem::replace(&mut *ranking, empty).finish()
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Ranking> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Ranking {
    /// Keeps the first `most` matches, of not many more than `most_bytes`.
    fn new(most: usize, most_bytes: usize) -> Self {
        Self {
            most,
            most_bytes,
            kept: BTreeMap::new(),
            count: 0,
            bytes: 0,
            total: 0,
            searched: 0,
            left_out: 0,
            ignore_files_cut: 0,
        }
    }

    /// A file was searched.
    pub(super) fn searched(&mut self, to_its_end: bool) {
        self.searched += 1;
        self.left_out += u64::from(!to_its_end);
    }

    /// A file could not be read.
    pub(super) fn unreadable(&mut self) {
        self.left_out += 1;
    }

    /// Adds what was found in the file with this number. Answers the number of the last file of
    /// which matches can still be among the first ones.
    pub(super) fn add(&mut self, number: usize, path: Arc<str>, found: Found) -> usize {
        self.total += found.total;
        if !found.hits.is_empty() {
            self.count += found.hits.len();
            self.bytes += found.bytes;
            let file = File { path, hits: found.hits, bytes: found.bytes };
            self.kept.insert(number, file);
        }
        while let Some((_, last)) = self.kept.last_key_value() {
            let (count, bytes) = (last.hits.len(), last.bytes);
            if !self.is_full(self.count - count, self.bytes - bytes) {
                break;
            }
            self.count -= count;
            self.bytes -= bytes;
            self.kept.pop_last();
        }
        match self.kept.last_key_value() {
            Some((number, _)) if self.is_full(self.count, self.bytes) => *number,
            _ => usize::MAX,
        }
    }

    /// The answer.
    fn finish(self) -> Finds {
        let mut finds = Finds {
            total: self.total,
            searched: self.searched,
            left_out: self.left_out,
            ignore_files_cut: self.ignore_files_cut,
            ..Finds::default()
        };
        let mut bytes = 0;
        let files = self.kept.into_values();
        let hits = files.flat_map(|file| {
            let path = file.path;
            file.hits.into_iter().map(move |hit| (Arc::clone(&path), hit))
        });
        for (path, hit) in hits.take(self.most) {
            bytes += path.len() + hit.size();
            if !finds.hits.is_empty() && bytes > self.most_bytes {
                break;
            }
            finds.hits.push((path, hit));
        }
        finds
    }

    fn is_full(&self, count: usize, bytes: usize) -> bool {
        count >= self.most || bytes > self.most_bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Lines 1 to `count` of a file, each of `size` bytes.
    fn found(count: u64, size: usize) -> Found {
        let hits: Vec<Hit> = (1..=count)
            .map(|line| Hit {
                line,
                column: 1,
                content: "x".repeat(size),
                before: Vec::new(),
                after: Vec::new(),
            })
            .collect();
        Found { total: count + 1, bytes: hits.iter().map(Hit::size).sum(), hits }
    }

    #[test]
    fn whatever_the_order_the_first_ones_are_kept() {
        let orders = [[1, 2, 3, 4], [4, 3, 2, 1], [3, 1, 4, 2], [2, 4, 1, 3]];
        for order in orders {
            let mut ranking = Ranking::new(5, 1 << 20);
            let mut last = 0;
            for number in order {
                last = ranking.add(number, number.to_string().into(), found(2, 1));
                let kept: usize = ranking.kept.values().map(|file| file.hits.len()).sum();
                assert_eq!(kept, ranking.count);
                assert!(kept <= 6);
            }
            assert_eq!(last, 3);
            let finds = ranking.finish();
            let hits: Vec<_> = finds.hits.iter().map(|(path, hit)| (&**path, hit.line)).collect();
            let expected = [("1", 1), ("1", 2), ("2", 1), ("2", 2), ("3", 1)];
            assert_eq!(hits, expected, "{order:?}");
            assert_eq!(finds.total, 12);
        }
    }

    #[test]
    fn bytes_are_bounded_too_but_for_one_match() {
        for (size, expected) in [(10_000, 1), (400, 2), (100, 8)] {
            for order in [[1, 2, 3], [3, 2, 1]] {
                let mut ranking = Ranking::new(9, 1000);
                for number in order {
                    ranking.add(number, "p".into(), found(3, size));
                }
                assert!(ranking.bytes <= 3 * (size + 200) + 1000);
                let finds = ranking.finish();
                assert_eq!(finds.hits.len(), expected, "{size}");
            }
        }
    }
}
