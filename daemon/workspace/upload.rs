//! Uploads into the workspace: creates, reopens, recovers and commits partial files. The commit is
//! atomic.

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
    file_usage::FileUsage,
    os_error::{ExpectedKind, already_exists_error, os_error},
    partial_file::{
        PartialFile, PartialFileError, PartialFileLocation, PartialFileState, PartialFileTarget,
        delete_partial_file, not_found_error, tampered_error,
    },
    path::RelativePath,
    rename_step::{
        Previous, StagedAction, StagedChange, apply, exchange, fallback_link_name, remove_leftover,
    },
    resolve::open_entry,
    snapshot::{
        ApplyMetadataError, FileSnapshot, FileVersion, NEW_FILE_MODE, NewFileMetadata, stale_error,
    },
    temporary::is_temporary,
};
use crate::daemon::{
    error::{Error, Reason},
    sys::Errno,
};

impl Workspace {
    /// Checks that an upload of `remaining` bytes to the target could be committed now, before it
    /// starts.
    pub(crate) fn check_partial_file_target(
        &self,
        target: &PartialFileTarget,
        remaining: u64,
        cancel: &CancelToken,
    ) -> Result<(), Error> {
        self.check_change_allowed(&target.path)?;
        self.check_room(FileUsage::of_file(remaining), cancel)?;
        self.existing_version(target, cancel).map(drop)
    }

    /// Creates a partial file for the destination `path`. Calls `record` with its location, before
    /// and after it exists.
    pub(crate) fn create_partial_file(
        &self,
        path: &RelativePath,
        record: impl Fn(&PartialFileLocation) -> Result<(), Error>,
    ) -> Result<PartialFile, Error> {
        let (directory, _) = self.open_parent(path)?;
        PartialFile::create(directory, path, self.quota.clone(), record)
    }

    /// Reopens a partial file, and hashes its content.
    pub(crate) fn reopen_partial_file(
        &self,
        location: PartialFileLocation,
        cancel: &CancelToken,
    ) -> Result<PartialFile, PartialFileError> {
        let (directory, name) = self.open_partial_file_parent(&location)?;
        match recover_placement(&directory, &name, &location) {
            Ok(PartialFileState::Partial(_)) => {
                PartialFile::open(directory, location, self.quota.clone(), cancel)
            }
            Ok(PartialFileState::Committed(_) | PartialFileState::Missing) => {
                Err(tampered_error(&location.path))
            }
            Err(errno) => Err(not_found_error(errno, &location.path)),
        }
    }

    /// Checks that no other process has moved or changed a partial file.
    pub(crate) fn check_partial_file(&self, partial: &PartialFile) -> Result<(), PartialFileError> {
        let (directory, _) = self.open_partial_file_parent(partial.location())?;
        partial.verify(directory.as_fd())
    }

    /// Returns the state of a partial file of an earlier daemon, after reverting a commit that a
    /// crash has interrupted.
    pub(crate) fn recover_partial_file(
        &self,
        location: &PartialFileLocation,
    ) -> Result<PartialFileState, Error> {
        match self.open_partial_file_parent(location) {
            Ok((directory, name)) => recover_placement(&directory, &name, location)
                .map_err(|errno| os_error(errno, &location.path, ExpectedKind::File)),
            Err(PartialFileError::Unusable(_)) => Ok(PartialFileState::Missing),
            Err(PartialFileError::Intact(error)) => Err(error),
        }
    }

    /// Deletes a partial file, unless another file has its name. Returns whether it is gone.
    pub(crate) fn delete_partial_file(&self, location: &PartialFileLocation) -> bool {
        match self.open_partial_file_parent(location) {
            Ok((directory, name)) => {
                recover_placement(&directory, &name, location).is_ok()
                    && delete_partial_file(directory.as_fd(), location)
            }
            Err(PartialFileError::Unusable(_)) => true,
            Err(PartialFileError::Intact(_)) => false,
        }
    }

    /// Renames a complete partial file to its destination. Returns whether the destination did not
    /// exist before. After [`PartialFileError::Intact`], the partial file is unchanged.
    ///
    /// Calls `record` before the rename, so that the next daemon can recover from a crash.
    pub(crate) fn commit_partial_file(
        &self,
        partial: &mut PartialFile,
        target: &PartialFileTarget,
        record: impl FnOnce(&PartialFileLocation) -> Result<(), Error>,
        cancel: &CancelToken,
    ) -> Result<bool, PartialFileError> {
        self.check_change_allowed(&target.path)?;
        let to_error = |errno| os_error(errno, target.path.as_str(), ExpectedKind::File);

        // Slow steps come before the lock.
        let checked_version = self.existing_version(target, cancel)?;
        if self.sync {
            fsync(&*partial).map_err(to_error)?;
        }

        let _guard = self.locks.lock(std::slice::from_ref(&target.path), cancel)?;
        let (directory, name) = self.open_partial_file_parent(partial.location())?;
        partial.verify(directory.as_fd())?;
        self.check_change_allowed_in(directory.as_fd(), &name)?;
        let existing = find_existing(directory.as_fd(), &name, target)?
            .map(|file| FileSnapshot::stat(&file, &target.path))
            .transpose()?;
        if let Some(existing) = &existing {
            existing.check_writable(&target.path, target.mode)?;
        }
        let old = existing.as_ref().map(|existing| existing.version);
        if target.expected_sha256.is_some() && old != checked_version {
            return Err(stale_error(&target.path).into());
        }

        partial.set_replaces(old.is_some());
        record(partial.location())?;
        fault_injection::step();
        let staged = StagedChange {
            path: target.path.clone(),
            directory: Arc::new(directory),
            name,
            temporary: partial.location().name.clone(),
            action: StagedAction::Put(FileVersion::from_stat(&fstat(&*partial).map_err(to_error)?)),
            previous: old.map_or(Previous::Nothing, Previous::File),
        };
        self.apply_staged_upload(partial, &staged, existing.as_ref(), target)?;

        if old.is_some() {
            if let Err(errno) = remove_leftover(&staged.directory, &staged.temporary) {
                tracing::warn!(name = staged.temporary, %errno, "cannot delete a file that an upload has replaced");
            }
            fault_injection::step();
        }
        // The upload is committed: the partial file no longer exists.
        self.sync_directories(target.path.split().map(|(directory, _)| directory))
            .map_err(PartialFileError::Unusable)?;
        Ok(old.is_none())
    }

    /// Sets the final metadata and renames the file. Reverts both after an error.
    fn apply_staged_upload(
        &self,
        partial: &mut PartialFile,
        staged: &StagedChange,
        existing: Option<&FileSnapshot>,
        target: &PartialFileTarget,
    ) -> Result<(), PartialFileError> {
        let applied = self
            .apply_target_metadata(partial, &staged.directory, existing, target)
            .map_err(|error| error.into_error(target.path.as_str()))
            .and_then(|()| {
                fault_injection::step();
                apply(staged)
            });
        fault_injection::step();
        if let Err(error) = applied {
            // A file system without atomic exchange may have done a part of the rename.
            let state = recover_placement(&staged.directory, &staged.name, partial.location());
            if !matches!(state, Ok(PartialFileState::Committed(_))) {
                partial.make_private();
                return Err(error.into());
            }
        }
        Ok(())
    }

    /// Gives a partial file the owner, mode and attributes of the destination.
    fn apply_target_metadata(
        &self,
        partial: &PartialFile,
        directory: &OwnedFd,
        existing: Option<&FileSnapshot>,
        target: &PartialFileTarget,
    ) -> Result<(), ApplyMetadataError> {
        match existing {
            Some(original) => original.apply_metadata(partial.as_fd(), target.mode)?,
            None => NewFileMetadata {
                owner: self.inherited_owner(directory)?,
                mode: target.mode.unwrap_or(NEW_FILE_MODE),
            }
            .apply(partial.as_fd())?,
        };
        if self.sync {
            fsync(partial)?;
        }
        Ok(())
    }

    /// Returns the version of the file that an upload may replace. `None` if no file exists.
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
        let version = FileVersion::from_stat(&file.stat()?);
        if let Some(expected) = &target.expected_sha256
            && *expected != hash_file(&file, path, u64::MAX, cancel)?.0.finish()
        {
            let text = format!(
                "{path:?} does not have the hash expected_sha256: read it again before you replace it"
            );
            return Err(Error::new(Reason::StaleFile, text).with_metadata("path", path));
        }
        Ok(Some(version))
    }

    /// Opens a handle to the parent directory of a file. Returns it, and the name of the file in
    /// it.
    fn open_parent(&self, path: &RelativePath) -> Result<(OwnedFd, String), Error> {
        let (parent, name) = path.split_file()?;
        let directory = self
            .root
            .open_directory_handle(parent.as_bytes())
            .map_err(|errno| os_error(errno, parent.as_str(), ExpectedKind::Directory))?;
        self.check_change_allowed_in(directory.as_fd(), name)?;
        Ok((directory, name.to_owned()))
    }

    /// Opens a handle to the directory of a partial file. Returns it, and the name of the
    /// destination.
    fn open_partial_file_parent(
        &self,
        location: &PartialFileLocation,
    ) -> Result<(OwnedFd, String), PartialFileError> {
        // A record without a file has no name. A corrupt record must not name any other file.
        if !is_temporary(location.name.as_bytes()) {
            return Err(tampered_error(&location.path));
        }
        let path = self.resolve(&location.path)?;
        let (parent, name) = path.split_file()?;
        let directory = self
            .root
            .open_directory_handle(parent.as_bytes())
            .map_err(|errno| not_found_error(errno, path.as_str()))?;
        Ok((directory, name.to_owned()))
    }
}

/// Returns the file that exists at the destination, if the upload may replace it.
fn find_existing(
    directory: BorrowedFd<'_>,
    name: &str,
    target: &PartialFileTarget,
) -> Result<Option<RegularFile>, Error> {
    let path = target.path.as_str();
    let to_error = |errno| os_error(errno, path, ExpectedKind::File);
    let handle = match open_entry(directory, name.as_bytes()) {
        Ok(handle) => handle,
        Err(Errno::NOENT) => return Ok(None),
        Err(errno) => return Err(to_error(errno)),
    };
    let stat = fstat(&handle).map_err(to_error)?;
    if FileType::from_raw_mode(stat.st_mode) == FileType::Symlink {
        return Err(to_error(Errno::LOOP));
    }
    let file = RegularFile::open(&handle, path)?;
    if target.create_new {
        return Err(already_exists_error(&target.path));
    }
    Ok(Some(file))
}

/// Returns the state of a partial file after an interrupted commit, and reverts a commit that is
/// only half done.
fn recover_placement(
    directory: &OwnedFd,
    name: &str,
    location: &PartialFileLocation,
) -> Result<PartialFileState, Errno> {
    let stat_at = |name: &str| match statat(directory, name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(stat) => Ok(Some(stat)),
        Err(Errno::NOENT) => Ok(None),
        Err(errno) => Err(errno),
    };
    let temporary = location.name.as_str();
    // On a file system that cannot exchange two files, the old file briefly has a name of its own.
    let old_link = fallback_link_name(temporary);
    if stat_at(temporary)?.is_none() && stat_at(&old_link)?.is_some() {
        renameat(directory, &old_link, directory, temporary)?;
    }
    remove_leftover(directory, &old_link)?;

    let (at_temporary, at_destination) = (stat_at(temporary)?, stat_at(name)?);
    let upload_size = |stat: Option<Stat>| {
        let upload = stat.filter(|stat| Some((stat.st_dev, stat.st_ino)) == location.identity);
        upload.map(|stat| u64::try_from(stat.st_size).unwrap_or(0))
    };
    match (upload_size(at_temporary), upload_size(at_destination), location.replaces) {
        // On a file system without RENAME_NOREPLACE, both names exist briefly.
        (Some(_), Some(size), Some(false)) => {
            remove_leftover(directory, temporary)?;
            Ok(PartialFileState::Committed(size))
        }
        (Some(size), _, _) => Ok(PartialFileState::Partial(size)),
        // The files are exchanged, but the crash came before the check that the replaced file is
        // the expected one.
        (None, Some(size), Some(true)) if at_temporary.is_some() => {
            exchange(directory, temporary, name)?;
            if upload_size(stat_at(temporary)?).is_some() {
                return Ok(PartialFileState::Partial(size));
            }
            // Another process has just replaced the upload: its file goes back.
            exchange(directory, temporary, name)?;
            Ok(PartialFileState::Missing)
        }
        (None, Some(size), Some(_)) => Ok(PartialFileState::Committed(size)),
        (None, _, _) => Ok(PartialFileState::Missing),
    }
}

#[cfg(test)]
mod tests;
