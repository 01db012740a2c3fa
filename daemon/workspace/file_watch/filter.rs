//! Which entries a watch reports, and which directories it enters.

use std::{ffi::OsStr, os::unix::ffi::OsStrExt as _, path::Path};

use ignore::{Match, overrides::Override};

use crate::daemon::workspace::{temporary::is_temporary, walk::MAX_DIRECTORY_PATH_BYTES};

/// The filter of a watch.
#[derive(Debug)]
pub(crate) struct WatchFilter {
    /// Globs that paths, relative to the watched directory, must match; see [`Override`].
    pub(crate) globs: Override,
    /// Whether to include names that begin with a dot, besides those that match a glob.
    pub(crate) include_hidden: bool,
    /// Levels of directories; 1 reports only the entries of the watched directory itself.
    pub(crate) max_depth: Option<usize>,
}

/// What happens to an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum EntrySelection {
    Reported,
    Omitted,
    /// Counted, because it has no path in the contract.
    Skipped,
}

impl WatchFilter {
    /// Selects the entry `name` at `path`, which begins at `base_length` below the watched directory.
    pub(super) fn select(
        &self,
        path: &[u8],
        base_length: usize,
        is_directory: bool,
    ) -> EntrySelection {
        let name = path.rsplit(|byte| *byte == b'/').next().unwrap_or(path);
        if is_temporary(name) || is_directory && name == b".git" {
            return EntrySelection::Omitted;
        }
        let relative = Path::new(OsStr::from_bytes(&path[base_length..]));
        let selection = match self.globs.matched(relative, is_directory) {
            Match::Ignore(_) => EntrySelection::Omitted,
            Match::Whitelist(_) => EntrySelection::Reported,
            Match::None if self.include_hidden || !name.starts_with(b".") => {
                EntrySelection::Reported
            }
            Match::None => EntrySelection::Omitted,
        };
        let has_no_path =
            str::from_utf8(name).is_err() || is_directory && path.len() >= MAX_DIRECTORY_PATH_BYTES;
        if has_no_path && selection == EntrySelection::Reported {
            return EntrySelection::Skipped;
        }
        selection
    }

    /// Whether directories this many levels below the watched one are entered.
    pub(super) fn enters(&self, depth: usize) -> bool {
        self.max_depth.is_none_or(|levels| depth < levels)
    }
}
