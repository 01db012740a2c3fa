//! Whether the protected paths of a workspace are still the files that templates have mounted.
//!
//! The kernel lifts a mount in every namespace when a process of another one replaces or removes
//! what it lies on (rename(2), `detach_mounts`). Git replaces its configuration whenever it changes
//! it, and editors do the same. So the daemon compares before each run, and has a new template
//! built where something was replaced.

use std::{
    fs,
    os::unix::fs::MetadataExt as _,
    path::PathBuf,
    sync::{Mutex, MutexGuard, PoisonError},
};

/// What a path was when it was looked at: device, inode and time of the last change, since the
/// number of a removed inode is used again. None where it is missing.
type Stamp = Option<(u64, u64, i64, i64)>;

/// The protected paths of a workspace.
#[derive(Debug, Default)]
pub(crate) struct ProtectedFiles {
    paths: Vec<PathBuf>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// What the newest template has mounted.
    mounted: Vec<Stamp>,
    /// How often that was replaced.
    generation: u64,
}

impl ProtectedFiles {
    /// Those at these absolute paths.
    pub(crate) fn new(paths: Vec<PathBuf>) -> Self {
        Self { paths, state: Mutex::default() }
    }

    /// How often files were found replaced.
    pub(super) fn generation(&self) -> u64 {
        self.state().generation
    }

    /// What the paths are now.
    pub(super) fn find(&self) -> Vec<Stamp> {
        let stamp = |path: &PathBuf| {
            let found = fs::symlink_metadata(path).ok()?;
            Some((found.dev(), found.ino(), found.ctime(), found.ctime_nsec()))
        };
        self.paths.iter().map(stamp).collect()
    }

    /// Records what a new template has mounted: what was found before it was made, and where
    /// nothing was, what it has made. Answers the generation.
    pub(super) fn record(&self, before: Vec<Stamp>) -> u64 {
        let after = self.find();
        let mounted = before.into_iter().zip(after);
        let mounted = mounted.map(|(before, after)| before.or(after)).collect();
        let mut state = self.state();
        state.mounted = mounted;
        state.generation
    }

    /// Compares the paths with what the newest template has mounted. Answers the generation, a new
    /// one if something was replaced, and whether it is new.
    pub(super) fn check(&self) -> (u64, bool) {
        let found = self.find();
        let mut state = self.state();
        let is_new = found != state.mounted;
        if is_new {
            state.mounted = found;
            state.generation += 1;
        }
        (state.generation, is_new)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_replaced_file_begins_a_new_generation() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
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
