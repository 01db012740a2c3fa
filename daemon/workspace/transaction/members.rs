//! Members of an archive that are not written as a whole: links, and files received in parts.

use std::os::fd::{AsFd as _, OwnedFd};

use rustix::fs::{AtFlags, FileType, fstat, futimens, linkat, statat, symlinkat, utimensat};

use super::{
    super::{
        file_usage::FileUsage,
        journal::TransactionJournal,
        os_error::{ExpectedKind, already_exists_error, os_error},
        partial_file::{PartialFile, PartialFileError},
        path::RelativePath,
        rename_step::{Previous, StagedAction, StagedChange},
        resolve::open_entry,
        snapshot::{
            FileSnapshot, FileVersion, NewFileMetadata, ReceivedMetadata, chown, stale_error,
            timestamps,
        },
    },
    FileTransaction,
};
use crate::{
    archive::ModifyTime,
    daemon::{error::Error, sys::Errno},
};

impl FileTransaction<'_> {
    /// Device and inode of each staged file, by path.
    pub(crate) fn staged_files(&self) -> impl Iterator<Item = (&RelativePath, (u64, u64))> {
        self.staged.iter().filter_map(|staged| match staged.action {
            StagedAction::Put(version) => Some((&staged.path, version.identity())),
            StagedAction::Unfinished | StagedAction::Delete => None,
        })
    }

    /// Stages a symbolic link. With `replaces`, another link may exist at the path.
    pub(crate) fn write_symlink(
        &mut self,
        path: &RelativePath,
        target: &str,
        modified: Option<ModifyTime>,
        replaces: bool,
    ) -> Result<(), Error> {
        self.check()?;
        let to_error = |errno| os_error(errno, path.as_str(), ExpectedKind::File);
        let (directory, name) = self.open_parent(path)?;
        let previous = match statat(&directory, &name, AtFlags::SYMLINK_NOFOLLOW) {
            Err(Errno::NOENT) => Previous::Nothing,
            Ok(stat) if replaces && FileType::from_raw_mode(stat.st_mode) == FileType::Symlink => {
                Previous::File(FileVersion::from_stat(&stat))
            }
            Ok(_) => return Err(already_exists_error(path)),
            Err(errno) => return Err(to_error(errno)),
        };
        self.stage_link(path, previous, |directory, temporary| {
            symlinkat(target, directory, temporary)?;
            let link = open_entry(directory.as_fd(), temporary.as_bytes())?;
            if let Some(modified) = modified {
                let flags = AtFlags::SYMLINK_NOFOLLOW;
                utimensat(directory, temporary, &timestamps(modified), flags)?;
            }
            Ok(link)
        })
    }

    /// Stages another name of the file `target`, which must have this device and inode. With
    /// `replaces`, a regular file may exist at the path.
    pub(crate) fn write_hard_link(
        &mut self,
        path: &RelativePath,
        target: &RelativePath,
        identity: (u64, u64),
        replaces: bool,
    ) -> Result<(), Error> {
        self.check()?;
        let existing = self.stat(path)?;
        if existing.is_some() && !replaces {
            return Err(already_exists_error(path));
        }
        let previous = existing.map_or(Previous::Nothing, |file| Previous::File(file.version));

        let (parent, name) = target.split_file()?;
        let opened = self.root().open_directory_handle(parent.as_bytes());
        let target_directory =
            opened.map_err(|errno| os_error(errno, parent.as_str(), ExpectedKind::Directory))?;
        self.stage_link(path, previous, |directory, temporary| {
            linkat(&target_directory, name, directory, temporary, AtFlags::empty())?;
            open_entry(directory.as_fd(), temporary.as_bytes())
        })?;
        // Another process may have replaced the target in the meantime.
        match self.staged_files().last() {
            Some((_, linked)) if linked == identity => Ok(()),
            _ => Err(stale_error(target)),
        }
    }

    /// Stages a link that `create` makes under a temporary name and opens as a handle.
    fn stage_link(
        &mut self,
        path: &RelativePath,
        previous: Previous,
        create: impl FnOnce(&OwnedFd, &str) -> Result<OwnedFd, Errno>,
    ) -> Result<(), Error> {
        let to_error = |errno| os_error(errno, path.as_str(), ExpectedKind::File);
        let (directory, name) = self.open_parent(path)?;
        // A long target of a symbolic link takes a block of its own.
        self.reserve(FileUsage::of_file(1))?;
        let index = self.staged.len();
        self.stage([(path, directory, name, previous)])?;
        let Some(StagedChange { directory, temporary, .. }) = self.staged.get(index) else {
            return Err(Error::internal("a link that was not staged"));
        };

        let link = create(directory, temporary).map_err(to_error)?;
        let owner = self.workspace.inherited_owner(directory).map_err(to_error)?;
        let stat = chown(link.as_fd(), owner).map_err(to_error)?;
        self.finish_staging(index, StagedAction::Put(FileVersion::from_stat(&stat)));
        Ok(())
    }

    /// Stages a complete file that was received beside its destination, with the journal that names
    /// it. `original` is the existing file. Without one, nothing may exist at the path.
    ///
    /// The transaction must be new.
    pub(in super::super) fn adopt(
        &mut self,
        path: &RelativePath,
        (partial, journal): (&PartialFile, Option<TransactionJournal>),
        original: Option<&FileSnapshot>,
        metadata: ReceivedMetadata,
    ) -> Result<(), Error> {
        self.journal = journal;
        self.require_parent_directories();
        let to_error = |errno| os_error(errno, path.as_str(), ExpectedKind::File);
        let (directory, name) = self.open_parent(path)?;
        partial.verify(directory.as_fd()).map_err(|error| match error {
            PartialFileError::Intact(error) | PartialFileError::Unusable(error) => error,
        })?;

        let mode = metadata.mode;
        let applied = match original {
            Some(original) => original.apply_metadata(partial.as_fd(), Some(mode)),
            None => self
                .workspace
                .inherited_owner(&directory)
                .and_then(|owner| NewFileMetadata { owner, mode }.apply(partial.as_fd()))
                .map_err(Into::into),
        };
        applied.map_err(|error| error.into_error(path.as_str()))?;
        if let Some(modified) = metadata.modified {
            futimens(partial, &timestamps(modified)).map_err(to_error)?;
        }
        if self.workspace.sync {
            rustix::fs::fsync(partial).map_err(to_error)?;
        }

        let version = FileVersion::from_stat(&fstat(partial).map_err(to_error)?);
        self.staged.push(StagedChange {
            path: path.clone(),
            directory,
            name,
            temporary: partial.location().name.clone(),
            action: StagedAction::Put(version),
            previous: original.map_or(Previous::Nothing, |file| Previous::File(file.version)),
        });
        Ok(())
    }
}
