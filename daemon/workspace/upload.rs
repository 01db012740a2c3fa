//! Drafts of files that come in parts, in the workspace: begun, found again, and put into their
//! places at once when they are whole.

use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};

use rustix::fs::{AtFlags, FileType, RenameFlags, fstat, fsync, renameat, renameat_with, statat};

use super::{
    Workspace,
    beneath::{open_child, open_name},
    draft::{Draft, DraftError, DraftPlace, Target, delete, lost},
    failure::{Wanted, exists, failure},
    file::{RegularFile, hash},
    original::{Fresh, Original},
    path::RelativePath,
    stop::Stop,
};
use crate::daemon::{
    error::{Error, Reason},
    sys::Errno,
};

/// Mode of a new file.
const NEW_FILE: u32 = 0o644;

impl Workspace {
    /// Checks that a draft could be put there now, before it has come.
    pub(crate) fn look_at(&self, target: &Target, stop: &Stop) -> Result<(), Error> {
        self.allow_change(&target.path)?;
        let (directory, name) = self.directory_of(&target.path)?;
        find_existing(directory.as_fd(), &name, target, stop).map(drop)
    }

    /// Begins a draft beside the file that is to be at `path`.
    pub(crate) fn begin_draft(&self, path: &RelativePath) -> Result<Draft, Error> {
        let (directory, _) = self.directory_of(path)?;
        Draft::create(directory, path)
    }

    /// Finds a draft again, and hashes what it has.
    pub(crate) fn reopen_draft(&self, place: DraftPlace, stop: &Stop) -> Result<Draft, DraftError> {
        let (directory, _) = self.place_of(&place)?;
        Draft::open(directory, place, stop)
    }

    /// Checks that a draft is still what has come, where it must be.
    pub(crate) fn check_draft(&self, draft: &Draft) -> Result<(), DraftError> {
        let (directory, _) = self.place_of(draft.place())?;
        draft.check(directory.as_fd())
    }

    /// Bytes that the draft at `place` has, if it is still there.
    pub(crate) fn draft_length(&self, place: &DraftPlace) -> Option<u64> {
        let (directory, _) = self.place_of(place).ok()?;
        let stat = statat(&directory, place.name.as_str(), AtFlags::SYMLINK_NOFOLLOW).ok()?;
        let is_it = (stat.st_dev, stat.st_ino) == place.identity;
        u64::try_from(stat.st_size).ok().filter(|_| is_it)
    }

    /// Deletes the draft at `place`, if it is still there and still the same file.
    pub(crate) fn delete_draft(&self, place: &DraftPlace) {
        if let Ok((directory, _)) = self.place_of(place) {
            delete(directory.as_fd(), place);
        }
    }

    /// Puts a draft into its place, whole as it is. Answers whether nothing was there before.
    pub(crate) fn put(
        &self,
        draft: &Draft,
        target: &Target,
        stop: &Stop,
    ) -> Result<bool, DraftError> {
        self.allow_change(&target.path)?;
        let _held = self.locks.hold(std::slice::from_ref(&target.path));
        let fails = |errno| failure(errno, target.path.as_str(), Wanted::File);
        let (directory, name) = self.place_of(draft.place())?;
        draft.check(directory.as_fd())?;
        self.allow_change_in(directory.as_fd(), &name)?;
        let existing = find_existing(directory.as_fd(), &name, target, stop)?;
        match &existing {
            Some(original) => original.dress(draft.as_fd(), target.mode),
            None => Fresh {
                owner: self.owner,
                mode: target.mode.unwrap_or(NEW_FILE),
            }
            .dress(draft.as_fd()),
        }
        .map_err(fails)?;
        if self.sync {
            fsync(draft).map_err(fails)?;
        }
        let from = draft.place().name.as_str();
        let renamed = if target.create_new {
            renameat_with(&directory, from, &directory, &name, RenameFlags::NOREPLACE)
        } else {
            renameat(&directory, from, &directory, &name)
        };
        match renamed {
            Ok(()) if self.sync => open_child(directory.as_fd(), b".")
                .and_then(fsync)
                .map_err(fails)?,
            Ok(()) => {}
            Err(Errno::EXIST) => return Err(exists(&target.path).into()),
            Err(errno) => return Err(fails(errno).into()),
        }
        Ok(existing.is_none())
    }

    /// The directory of a file, as a place to work in, and its name there.
    fn directory_of(&self, path: &RelativePath) -> Result<(OwnedFd, String), Error> {
        let (parent, name) = path.split_file()?;
        let directory = self.root.open_place(parent.as_bytes());
        let directory =
            directory.map_err(|errno| failure(errno, parent.as_str(), Wanted::Directory))?;
        Ok((directory, name.to_owned()))
    }

    /// The directory in which a draft must lie, and the name there of what it is to become.
    fn place_of(&self, place: &DraftPlace) -> Result<(OwnedFd, String), DraftError> {
        let path = self.resolve(&place.path)?;
        let (parent, name) = path.split_file()?;
        let directory = self.root.open_place(parent.as_bytes());
        let directory = directory.map_err(|errno| lost(errno, path.as_str()))?;
        Ok((directory, name.to_owned()))
    }
}

/// What is there, if it may be replaced.
fn find_existing(
    directory: BorrowedFd<'_>,
    name: &str,
    target: &Target,
    stop: &Stop,
) -> Result<Option<Original>, Error> {
    let path = target.path.as_str();
    let fails = |errno| failure(errno, path, Wanted::File);
    let found = match open_name(directory, name.as_bytes()) {
        Ok(found) => found,
        Err(Errno::NOENT) if target.expected_sha256.is_none() => return Ok(None),
        Err(errno) => return Err(fails(errno)),
    };
    let stat = fstat(&found).map_err(fails)?;
    if FileType::from_raw_mode(stat.st_mode) == FileType::Symlink {
        return Err(fails(Errno::LOOP));
    }
    if target.create_new {
        return Err(exists(&target.path));
    }
    let file = RegularFile::open(&found, path)?;
    if let Some(expected) = &target.expected_sha256
        && *expected != hash(&file, path, u64::MAX, stop)?.0.finish()
    {
        let message =
            format!("{path:?} is not the file of expected_sha256: read it again, and decide anew");
        return Err(Error::new(Reason::StaleFile, message).with("path", path));
    }
    Original::look(&file, &target.path).map(Some)
}

#[cfg(test)]
mod tests;
