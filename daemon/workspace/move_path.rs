//! Moves a file or directory with one rename.

use std::os::fd::{AsFd as _, OwnedFd};

use rustix::{
    fs::{AtFlags, FileType, RenameFlags, Stat, fstat, renameat, renameat_with, statat, unlinkat},
    io::retry_on_intr,
};

use super::{
    Workspace,
    cancel::CancelToken,
    os_error::{ExpectedKind, already_exists_error, os_error},
    path::RelativePath,
};
use crate::daemon::{
    error::{Error, Reason},
    sys::Errno,
};

impl Workspace {
    /// Moves `source` to `destination`. A symbolic link is moved itself. Replaces an existing
    /// destination only with `overwrite`. Returns whether it has replaced one.
    pub(crate) fn move_path(
        &self,
        source: &RelativePath,
        destination: &RelativePath,
        overwrite: bool,
        cancel: &CancelToken,
    ) -> Result<bool, Error> {
        self.check_removal_allowed(source)?;
        self.check_change_allowed(destination)?;
        let _guard = self.locks.lock(&[source.clone(), destination.clone()], cancel)?;
        if destination != source && destination.is_at_or_below(source) {
            return Err(destination_in_source_error(source));
        }

        let (from, from_name) = self.parent_for_field(source, "source", ExpectedKind::File)?;
        let (to, to_name) =
            self.parent_for_field(destination, "destination", ExpectedKind::Directory)?;
        let from = EntryLocation { directory: &from, name: &from_name };
        let to = EntryLocation { directory: &to, name: &to_name };
        let to_error = |errno| os_error(errno, source.as_str(), ExpectedKind::File);
        let moved = from.stat().map_err(to_error)?;
        if source == destination {
            return Ok(false);
        }

        let replacement = loop {
            cancel.check()?;
            let existing = match to.stat() {
                Ok(existing) => Some(existing),
                Err(Errno::NOENT) => None,
                Err(errno) => {
                    return Err(os_error(errno, destination.as_str(), ExpectedKind::File));
                }
            };

            let replacement = Replacement::of(&moved, existing, &from, &to).map_err(to_error)?;
            if replacement.is_other_entry() && !overwrite {
                return Err(already_exists_error(destination));
            }
            match replacement.rename(&from, &to) {
                Ok(()) => break replacement,
                // Another process has just created the destination.
                Err(Errno::EXIST) if replacement == Replacement::Nothing => {}
                Err(errno) => return Err(move_error(errno, source, destination)),
            }
        };
        if replacement == Replacement::SameEntry {
            return Ok(false);
        }

        if replacement != Replacement::Nothing
            && let Some(quota) = self.file_quota()
        {
            quota.note_removal();
        }
        let parents = [source.split(), destination.split()];
        self.sync_directories(parents.into_iter().flatten().map(|(directory, _)| directory))?;
        Ok(replacement != Replacement::Nothing)
    }

    /// Opens a handle to the parent directory of a path. Returns it, and the name in it. Fails for
    /// the workspace itself; `field` is the field of the request that contains the path.
    pub(super) fn parent_for_field(
        &self,
        path: &RelativePath,
        field: &'static str,
        expected: ExpectedKind,
    ) -> Result<(OwnedFd, String), Error> {
        let Some((parent, name)) = path.split() else {
            return Err(Error::invalid_field(
                field,
                "is the workspace itself: name something in it",
            ));
        };
        let directory =
            self.root.open_directory_handle(parent.as_bytes()).map_err(|errno| match expected {
                ExpectedKind::File => os_error(errno, path.as_str(), expected),
                ExpectedKind::Directory => os_error(errno, parent.as_str(), expected),
            })?;
        self.check_change_allowed_in(directory.as_fd(), name)?;
        Ok((directory, name.to_owned()))
    }
}

/// What exists at the destination of a move.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Replacement {
    Nothing,
    /// The source itself, spelled in two ways: through a link, or on a case-insensitive file
    /// system. rename(2) knows the difference, and changes the case if necessary.
    SameEntry,
    /// Another hard link to the source.
    HardLink,
    Other,
}

impl Replacement {
    fn of(
        moved: &Stat,
        existing: Option<Stat>,
        from: &EntryLocation<'_>,
        to: &EntryLocation<'_>,
    ) -> Result<Self, Errno> {
        let Some(existing) = existing else {
            return Ok(Self::Nothing);
        };
        if !is_same_file(&existing, moved) {
            return Ok(Self::Other);
        }
        let is_same_entry =
            existing.st_nlink == 1 || is_directory(&existing) || from.is_same_entry(to)?;
        Ok(if is_same_entry { Self::SameEntry } else { Self::HardLink })
    }

    /// Whether the destination is an entry of its own, which a move removes.
    fn is_other_entry(self) -> bool {
        matches!(self, Self::HardLink | Self::Other)
    }

    /// Renames `from` to `to`, where this exists.
    fn rename(self, from: &EntryLocation<'_>, to: &EntryLocation<'_>) -> Result<(), Errno> {
        match self {
            Self::Nothing => from.rename_noreplace(to),
            // rename(2) would keep both names.
            Self::HardLink => unlinkat(from.directory, from.name, AtFlags::empty()),
            Self::SameEntry | Self::Other => from.rename(to),
        }
    }
}

/// A name in an open directory.
#[derive(Debug, Clone, Copy)]
struct EntryLocation<'a> {
    directory: &'a OwnedFd,
    name: &'a str,
}

impl EntryLocation<'_> {
    fn stat(&self) -> Result<Stat, Errno> {
        statat(self.directory, self.name, AtFlags::SYMLINK_NOFOLLOW)
    }

    /// Whether both names may be one entry: equal except for case, in the same directory.
    fn is_same_entry(&self, other: &Self) -> Result<bool, Errno> {
        let is_same_directory = is_same_file(&fstat(self.directory)?, &fstat(other.directory)?);
        Ok(is_same_directory && self.name.eq_ignore_ascii_case(other.name))
    }

    fn rename(&self, to: &Self) -> Result<(), Errno> {
        retry_on_intr(|| renameat(self.directory, self.name, to.directory, to.name))
    }

    /// Renames to a name that must not exist.
    fn rename_noreplace(&self, to: &Self) -> Result<(), Errno> {
        let flags = RenameFlags::NOREPLACE;
        match retry_on_intr(|| {
            renameat_with(self.directory, self.name, to.directory, to.name, flags)
        }) {
            // The file system cannot check and rename in one step. The caller has just checked.
            Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => self.rename(to),
            renamed => renamed,
        }
    }
}

fn is_same_file(a: &Stat, b: &Stat) -> bool {
    (a.st_dev, a.st_ino) == (b.st_dev, b.st_ino)
}
fn is_directory(stat: &Stat) -> bool {
    FileType::from_raw_mode(stat.st_mode) == FileType::Directory
}

/// Builds the error for a failed rename of `source` to `destination`.
fn move_error(errno: Errno, source: &RelativePath, destination: &RelativePath) -> Error {
    let path = destination.as_str();
    let (reason, text) = match errno {
        Errno::ISDIR | Errno::NOTDIR => (
            Reason::FileExists,
            format!(
                "one of {:?} and {path:?} is a directory and the other is not: delete {path:?} first",
                source.as_str()
            ),
        ),
        Errno::NOTEMPTY | Errno::EXIST => (
            Reason::DirectoryNotEmpty,
            format!("the directory {path:?} is not empty: delete it first"),
        ),
        Errno::XDEV => (
            Reason::PermissionDenied,
            format!("{path:?} lies on another file system: copy instead"),
        ),
        // Only through a symbolic link: otherwise the paths have shown it before.
        Errno::INVAL => return destination_in_source_error(source),
        errno => return os_error(errno, source.as_str(), ExpectedKind::File),
    };
    Error::new(reason, text).with_metadata("path", path)
}

fn destination_in_source_error(source: &RelativePath) -> Error {
    let problem = format!("is below {:?}, which would be moved", source.as_str());
    Error::invalid_field("destination", problem)
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::symlink};

    use super::*;

    #[test]
    fn moves_are_allowed_or_rejected_by_type() {
        use Reason as R;
        for (source, destination, overwrite, expected) in [
            ("file", "new", false, Ok(false)),
            ("file", "dir/new", false, Ok(false)),
            ("file", "other", false, Err(R::FileExists)),
            ("file", "other", true, Ok(true)),
            ("file", "twin", true, Ok(true)),
            ("file", "file", false, Ok(false)),
            ("file", "dir", true, Err(R::FileExists)),
            ("file", "none/new", false, Err(R::DirectoryNotFound)),
            ("file", "link/new", false, Err(R::SymlinkBlocked)),
            ("file", "other/new", false, Err(R::NotADirectory)),
            ("none", "new", false, Err(R::FileNotFound)),
            ("link/x", "new", false, Err(R::SymlinkBlocked)),
            ("link", "new", false, Ok(false)),
            ("dir", "new", false, Ok(false)),
            ("dir", "empty", true, Ok(true)),
            ("dir", "full", true, Err(R::DirectoryNotEmpty)),
            ("dir", "other", true, Err(R::FileExists)),
            ("full", "full/in", false, Err(R::InvalidParams)),
            (".", "new", false, Err(R::InvalidParams)),
            ("file", ".", true, Err(R::InvalidParams)),
            ("safe/x", "new", false, Err(R::PolicyDenied)),
            ("file", "safe", false, Err(R::PolicyDenied)),
        ] {
            let directory = tempfile::tempdir().unwrap();
            let at = |name: &str| directory.path().join(name);
            fs::write(at("file"), "file").unwrap();
            fs::hard_link(at("file"), at("twin")).unwrap();
            fs::write(at("other"), "other").unwrap();
            fs::create_dir_all(at("full/entry")).unwrap();
            fs::create_dir(at("dir")).unwrap();
            fs::create_dir(at("empty")).unwrap();
            symlink("dir", at("link")).unwrap();
            let mut workspace = Workspace::open("w", directory.path(), "/workspace").unwrap();
            workspace.protect(&["safe".to_owned()]).unwrap();
            let [from, to] = [source, destination].map(|path| workspace.resolve(path).unwrap());
            let before = fs::symlink_metadata(at(source)).ok();
            let moved = workspace
                .move_path(&from, &to, overwrite, &CancelToken::new())
                .map_err(|error| error.reason);
            assert_eq!(moved, expected, "{source} to {destination}");
            if moved.is_ok() && source != destination {
                use std::os::unix::fs::MetadataExt as _;
                assert!(fs::symlink_metadata(at(source)).is_err());
                let after = fs::symlink_metadata(at(destination)).unwrap();
                assert_eq!(after.ino(), before.unwrap().ino());
            }
        }
    }

    #[test]
    fn renaming_a_file_to_another_spelling_keeps_it() {
        for other_names in [0, 1] {
            let directory = tempfile::tempdir().unwrap();
            let at = |name: &str| directory.path().join(name);
            fs::create_dir(at("real")).unwrap();
            fs::write(at("real/x"), "kept").unwrap();
            for name in 0..other_names {
                fs::hard_link(at("real/x"), at(&format!("{name}"))).unwrap();
            }
            symlink("real", at("link")).unwrap();
            let mut workspace = Workspace::open("w", directory.path(), "/workspace").unwrap();
            workspace.follow_links().unwrap();
            for (source, destination) in [("link/x", "real/x"), ("real/x", "link/x")] {
                for overwrite in [true, false] {
                    let [from, to] = [source, destination].map(|path| workspace.resolve(path));
                    let moved = workspace.move_path(
                        &from.unwrap(),
                        &to.unwrap(),
                        overwrite,
                        &CancelToken::new(),
                    );
                    assert!(!moved.unwrap());
                    assert_eq!(fs::read_to_string(at("real/x")).unwrap(), "kept");
                }
            }
        }
    }

    #[test]
    fn errors_name_the_actual_problem() {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        fs::create_dir_all(at("dir/below")).unwrap();
        fs::write(at("file"), "").unwrap();
        symlink("dir/below", at("link")).unwrap();
        let mut workspace = Workspace::open("w", directory.path(), "/workspace").unwrap();
        workspace.follow_links().unwrap();
        let error = |source: &str, destination: &str, overwrite| {
            let [from, to] = [source, destination].map(|path| workspace.resolve(path).unwrap());
            let moved = workspace.move_path(&from, &to, overwrite, &CancelToken::new());
            moved.unwrap_err()
        };
        for (source, destination) in [("file", "dir"), ("dir", "file")] {
            let replacing = error(source, destination, true);
            assert_eq!(replacing.reason, Reason::FileExists);
            assert!(!replacing.message.contains("replaced"), "{replacing}");
            assert!(error(source, destination, false).message.contains("replaced"));
        }
        let nested = error("dir", "link/x", false);
        assert_eq!(nested.reason, Reason::InvalidParams, "{nested}");
        assert_eq!(nested.violations.first().unwrap().field, "destination");
        // The error is about the destination's name.
        let too_long = error("file", &"n".repeat(256), false);
        assert!(too_long.message.contains("nnn"), "{too_long}");
    }
}
