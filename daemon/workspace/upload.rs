//! Drafts of files that come in parts, in the workspace: begun, found again, and put into their
//! places at once when they are whole.

use std::{
    os::fd::{AsFd as _, BorrowedFd, OwnedFd},
    sync::Arc,
};

use rustix::fs::{AtFlags, FileType, Stat, fstat, fsync, renameat, statat};

use super::{
    Workspace,
    cancel::CancelToken,
    fault_injection,
    file::{RegularFile, hash_file},
    os_error::{ExpectedKind, already_exists, os_error},
    partial_file::{
        PartialFile, PartialFileError, PartialFileLocation, PartialFileState, PartialFileTarget,
        delete_partial_file, not_found_error, tampered_error,
    },
    path::RelativePath,
    rename_step::{
        Previous, StagedAction, StagedChange, apply, exchange, fallback_link_name, remove_leftover,
    },
    resolve::open_entry,
    snapshot::{ApplyMetadataError, FileSnapshot, FileVersion, NewFileMetadata, stale_error},
    temporary::is_temporary,
};
use crate::daemon::{
    error::{Error, Reason},
    sys::Errno,
};

/// Mode of a new file.
const NEW_FILE_MODE: u32 = 0o644;

impl Workspace {
    /// Checks that a draft could be put there now, before it has come.
    pub(crate) fn check_partial_file_target(
        &self,
        target: &PartialFileTarget,
        cancel: &CancelToken,
    ) -> Result<(), Error> {
        self.check_change_allowed(&target.path)?;
        self.existing_version(target, cancel).map(drop)
    }

    /// Begins a draft beside the file that is to be at `path`. `say` writes down where, before and
    /// after it is made.
    pub(crate) fn create_partial_file(
        &self,
        path: &RelativePath,
        say: impl Fn(&PartialFileLocation) -> Result<(), Error>,
    ) -> Result<PartialFile, Error> {
        let (directory, _) = self.open_parent(path)?;
        PartialFile::create(directory, path, say)
    }

    /// Finds a draft again, and hashes what it has.
    pub(crate) fn reopen_partial_file(
        &self,
        place: PartialFileLocation,
        cancel: &CancelToken,
    ) -> Result<PartialFile, PartialFileError> {
        let (directory, name) = self.open_partial_file_parent(&place)?;
        match recover_placement(&directory, &name, &place) {
            Ok(PartialFileState::Partial(_)) => PartialFile::open(directory, place, cancel),
            Ok(PartialFileState::Committed(_) | PartialFileState::Missing) => {
                Err(tampered_error(&place.path))
            }
            Err(errno) => Err(not_found_error(errno, &place.path)),
        }
    }

    /// Checks that a draft is still what has come, where it must be.
    pub(crate) fn check_partial_file(&self, draft: &PartialFile) -> Result<(), PartialFileError> {
        let (directory, _) = self.open_partial_file_parent(draft.location())?;
        draft.verify(directory.as_fd())
    }

    /// Finds what is left of a draft of an earlier daemon, and takes back what that had done by half
    /// of putting it into its place.
    pub(crate) fn recover_partial_file(
        &self,
        place: &PartialFileLocation,
    ) -> Result<PartialFileState, Error> {
        let settled = match self.open_partial_file_parent(place) {
            Ok((directory, name)) => recover_placement(&directory, &name, place),
            Err(PartialFileError::Unusable(_)) => Ok(PartialFileState::Missing),
            Err(PartialFileError::Intact(error)) => return Err(error),
        };
        settled.map_err(|errno| os_error(errno, &place.path, ExpectedKind::File))
    }

    /// Deletes the draft at `place`, unless another file has taken its name. Answers whether it is
    /// gone.
    pub(crate) fn delete_partial_file(&self, place: &PartialFileLocation) -> bool {
        match self.open_partial_file_parent(place) {
            Ok((directory, name)) => {
                recover_placement(&directory, &name, place).is_ok()
                    && delete_partial_file(directory.as_fd(), place)
            }
            Err(PartialFileError::Unusable(_)) => true,
            Err(PartialFileError::Intact(_)) => false,
        }
    }

    /// Puts a draft into its place, whole as it is. Answers whether nothing was there before. When
    /// that fails it is a draft as before.
    ///
    /// `say` writes down that it is about to be put there: should the daemon die half-way, the next
    /// one knows what to look for.
    pub(crate) fn commit_partial_file(
        &self,
        draft: &mut PartialFile,
        target: &PartialFileTarget,
        say: impl FnOnce(&PartialFileLocation) -> Result<(), Error>,
        cancel: &CancelToken,
    ) -> Result<bool, PartialFileError> {
        self.check_change_allowed(&target.path)?;
        let fails = |errno| os_error(errno, target.path.as_str(), ExpectedKind::File);
        // What can take long is done before others must wait.
        let looked_at = self.existing_version(target, cancel)?;
        if self.sync {
            fsync(&*draft).map_err(fails)?;
        }
        let _held = self.locks.lock(std::slice::from_ref(&target.path), cancel)?;
        let (directory, name) = self.open_partial_file_parent(draft.location())?;
        draft.verify(directory.as_fd())?;
        self.check_change_allowed_in(directory.as_fd(), &name)?;
        let existing = find_existing(directory.as_fd(), &name, target)?
            .map(|file| FileSnapshot::stat(&file, &target.path))
            .transpose()?;
        if let Some(existing) = &existing {
            existing.check_writable(&target.path, target.mode)?;
        }
        let old = existing.as_ref().map(|existing| existing.version);
        if target.expected_sha256.is_some() && old != looked_at {
            return Err(stale_error(&target.path).into());
        }
        draft.set_replaces(old.is_some());
        say(draft.location())?;
        fault_injection::step();
        let staged = StagedChange {
            path: target.path.clone(),
            directory: Arc::new(directory),
            name,
            temporary: draft.location().name.clone(),
            action: StagedAction::Put(FileVersion::from_stat(&fstat(&*draft).map_err(fails)?)),
            previous: old.map_or(Previous::Nothing, Previous::File),
        };
        let applied = self
            .apply_target_metadata(draft, &staged.directory, existing.as_ref(), target)
            .map_err(|misfit| misfit.into_error(target.path.as_str()))
            .and_then(|()| {
                fault_injection::step();
                apply(&staged)
            });
        fault_injection::step();
        if let Err(error) = applied {
            // A file system that cannot do it in one step may have gone half-way.
            let left = recover_placement(&staged.directory, &staged.name, draft.location());
            if !matches!(left, Ok(PartialFileState::Committed(_))) {
                draft.make_private();
                return Err(error.into());
            }
        }
        if old.is_some() {
            if let Err(errno) = remove_leftover(&staged.directory, &staged.temporary) {
                tracing::warn!(name = staged.temporary, %errno, "what an upload has replaced cannot be deleted");
            }
            fault_injection::step();
        }
        // It is in its place, and no draft any more.
        self.sync_directories(target.path.split().map(|(directory, _)| directory))
            .map_err(PartialFileError::Unusable)?;
        Ok(old.is_none())
    }

    /// Makes a draft what it is to be but for its name.
    fn apply_target_metadata(
        &self,
        draft: &PartialFile,
        directory: &OwnedFd,
        existing: Option<&FileSnapshot>,
        target: &PartialFileTarget,
    ) -> Result<(), ApplyMetadataError> {
        match existing {
            Some(original) => original.apply_metadata(draft.as_fd(), target.mode)?,
            None => NewFileMetadata {
                owner: self.inherited_owner(directory)?,
                mode: target.mode.unwrap_or(NEW_FILE_MODE),
            }
            .apply(draft.as_fd())?,
        };
        if self.sync {
            fsync(draft)?;
        }
        Ok(())
    }

    /// The file that a draft is to replace, if it may; none where nothing is.
    fn existing_version(
        &self,
        target: &PartialFileTarget,
        cancel: &CancelToken,
    ) -> Result<Option<FileVersion>, Error> {
        let path = target.path.as_str();
        let (directory, name) = self.open_parent(&target.path)?;
        let Some(file) = find_existing(directory.as_fd(), &name, target)? else {
            return match target.expected_sha256 {
                None => Ok(None),
                Some(_) => Err(os_error(Errno::NOENT, path, ExpectedKind::File)),
            };
        };
        let stamp = FileVersion::from_stat(&file.stat()?);
        if let Some(expected) = &target.expected_sha256
            && *expected != hash_file(&file, path, u64::MAX, cancel)?.0.finish()
        {
            let text = format!(
                "{path:?} is not the file of expected_sha256: read it again, and decide anew"
            );
            return Err(Error::new(Reason::StaleFile, text).with_metadata("path", path));
        }
        Ok(Some(stamp))
    }

    /// The directory of a file, as a place to work in, and its name there.
    fn open_parent(&self, path: &RelativePath) -> Result<(OwnedFd, String), Error> {
        let (parent, name) = path.split_file()?;
        let directory = self.root.open_directory_handle(parent.as_bytes());
        let directory =
            directory.map_err(|errno| os_error(errno, parent.as_str(), ExpectedKind::Directory))?;
        self.check_change_allowed_in(directory.as_fd(), name)?;
        Ok((directory, name.to_owned()))
    }

    /// The directory in which a draft must lie, and the name there of what it is to become.
    fn open_partial_file_parent(
        &self,
        place: &PartialFileLocation,
    ) -> Result<(OwnedFd, String), PartialFileError> {
        // One that was not begun has no name; and whatever a record says, other files stay.
        if !is_temporary(place.name.as_bytes()) {
            return Err(tampered_error(&place.path));
        }
        let path = self.resolve(&place.path)?;
        let (parent, name) = path.split_file()?;
        let directory = self.root.open_directory_handle(parent.as_bytes());
        let directory = directory.map_err(|errno| not_found_error(errno, path.as_str()))?;
        Ok((directory, name.to_owned()))
    }
}

/// What is there, if it may be replaced.
fn find_existing(
    directory: BorrowedFd<'_>,
    name: &str,
    target: &PartialFileTarget,
) -> Result<Option<RegularFile>, Error> {
    let path = target.path.as_str();
    let fails = |errno| os_error(errno, path, ExpectedKind::File);
    let found = match open_entry(directory, name.as_bytes()) {
        Ok(found) => found,
        Err(Errno::NOENT) => return Ok(None),
        Err(errno) => return Err(fails(errno)),
    };
    let stat = fstat(&found).map_err(fails)?;
    if FileType::from_raw_mode(stat.st_mode) == FileType::Symlink {
        return Err(fails(Errno::LOOP));
    }
    let file = RegularFile::open(&found, path)?;
    if target.create_new {
        return Err(already_exists(&target.path));
    }
    Ok(Some(file))
}

/// Finds what is left of a draft that was to be put into its place, and takes back what of that was
/// done by half.
fn recover_placement(
    directory: &OwnedFd,
    name: &str,
    place: &PartialFileLocation,
) -> Result<PartialFileState, Errno> {
    let at = |name: &str| match statat(directory, name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(stat) => Ok(Some(stat)),
        Err(Errno::NOENT) => Ok(None),
        Err(errno) => Err(errno),
    };
    let temporary = place.name.as_str();
    // Where a file system cannot swap two files, the old one has a name of its own meanwhile.
    let old_link = fallback_link_name(temporary);
    if at(temporary)?.is_none() && at(&old_link)?.is_some() {
        renameat(directory, &old_link, directory, temporary)?;
    }
    remove_leftover(directory, &old_link)?;
    let (beside, in_place) = (at(temporary)?, at(name)?);
    let size_of_draft = |found: Option<Stat>| {
        let draft = found.filter(|stat| Some((stat.st_dev, stat.st_ino)) == place.identity);
        draft.map(|stat| u64::try_from(stat.st_size).unwrap_or(0))
    };
    match (size_of_draft(beside), size_of_draft(in_place), place.replaces) {
        // Where it cannot rename to a free name alone, both names are there for a moment.
        (Some(_), Some(size), Some(false)) => {
            remove_leftover(directory, temporary)?;
            Ok(PartialFileState::Committed(size))
        }
        (Some(size), _, _) => Ok(PartialFileState::Partial(size)),
        // Swapped; but nobody has looked yet whether the file that came out is the one to replace.
        (None, Some(size), Some(true)) if beside.is_some() => {
            exchange(directory, temporary, name)?;
            if size_of_draft(at(temporary)?).is_some() {
                return Ok(PartialFileState::Partial(size));
            }
            // It was replaced just now: what has come out is somebody else's.
            exchange(directory, temporary, name)?;
            Ok(PartialFileState::Missing)
        }
        (None, Some(size), Some(_)) => Ok(PartialFileState::Committed(size)),
        (None, _, _) => Ok(PartialFileState::Missing),
    }
}

#[cfg(test)]
mod tests;
