//! Detects whether the protected paths of a workspace are still the files that its template has
//! mounted.
//!
//! The kernel detaches a mount in every namespace when a process of another one replaces or removes
//! its mount point (rename(2), `detach_mounts`). Git replaces its configuration on each change, and
//! so do editors. So the daemon compares before each run, and builds a new template if a file was
//! replaced.

use std::{
    fs,
    os::unix::fs::MetadataExt as _,
    path::PathBuf,
    sync::{Mutex, MutexGuard, PoisonError},
};

/// Identity of the file at a path: device, inode and ctime, because inode numbers are reused. `None`
/// if it is missing.
type FileStamp = Option<(u64, u64, i64, i64)>;

/// The protected paths of a workspace, and what was mounted at them.
#[derive(Debug, Default)]
pub(crate) struct ProtectedFiles {
    paths: Vec<PathBuf>,
    state: Mutex<MountedFiles>,
}

#[derive(Debug, Default)]
struct MountedFiles {
    stamps: Vec<FileStamp>,
    /// Number of times that files were found replaced.
    generation: u64,
}

impl ProtectedFiles {
    pub(crate) fn new(paths: Vec<PathBuf>) -> Self {
        Self { paths, state: Mutex::default() }
    }

    /// The current generation: the number of times that files were found replaced.
    pub(super) fn generation(&self) -> u64 {
        self.state().generation
    }

    /// Reads what is at the paths now.
    pub(super) fn find(&self) -> Vec<FileStamp> {
        let stamp = |path: &PathBuf| {
            let metadata = fs::symlink_metadata(path).ok()?;
            Some((metadata.dev(), metadata.ino(), metadata.ctime(), metadata.ctime_nsec()))
        };
        self.paths.iter().map(stamp).collect()
    }

    /// Records what a new template has mounted: the files found before it was built, or, for
    /// missing ones, the files that it created. Returns the generation.
    pub(super) fn record(&self, before: Vec<FileStamp>) -> u64 {
        let after = self.find();

        let mut state = self.state();
        state.stamps =
            before.into_iter().zip(after).map(|(before, after)| before.or(after)).collect();
        state.generation
    }

    /// Compares the paths with what the newest template has mounted. Returns the generation, and
    /// whether it is new because a file was replaced.
    pub(super) fn check(&self) -> (u64, bool) {
        let current = self.find();
        let mut state = self.state();
        let is_new = current != state.stamps;
        if is_new {
            state.stamps = current;
            state.generation += 1;
        }
        (state.generation, is_new)
    }

    fn state(&self) -> MutexGuard<'_, MountedFiles> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_replaced_file_begins_a_new_generation() {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        fs::write(at("there"), "").unwrap();
        let files = ProtectedFiles::new(vec![at("there"), at("missing")]);
        let before = files.find();
        fs::write(at("missing"), "").unwrap();
        assert_eq!(files.record(before), 0);
        assert_eq!(files.check(), (0, false), "what was missing was made");

        for (generation, name) in [(1, "there"), (2, "missing"), (3, "there")] {
            fs::write(at("new"), "").unwrap();
            fs::rename(at("new"), at(name)).unwrap();
            assert_eq!(files.check(), (generation, true));
            assert_eq!(files.check(), (generation, false));
        }

        let before = files.find();
        fs::write(at("new"), "").unwrap();
        fs::rename(at("new"), at("there")).unwrap();
        assert_eq!(files.record(before), 3);
        assert_eq!(files.check(), (4, true), "replaced while it was mounted");
    }
}
