//! Staging: what is to come to a place is made beside it, under a temporary name.

use std::{
    os::fd::{AsFd as _, OwnedFd},
    sync::Arc,
};

use rustix::{
    fs::{Mode, OFlags, fsync, openat},
    io::{retry_on_intr, write},
};

use super::{
    super::{
        fault_injection,
        journal::JournalEntry,
        os_error::already_exists,
        parallel::parallel_map,
        path::RelativePath,
        rename_step::{Previous, StagedAction, StagedChange, temporary_name},
        snapshot::{ApplyMetadataError, FileSnapshot, FileVersion, NewContent, NewFileMetadata},
    },
    FileTransaction,
};
use crate::daemon::{error::Error, sys::Errno};

/// Mode of new files.
const NEW_FILE_MODE: u32 = 0o644;

/// A file that is to come to a place.
#[derive(Debug)]
pub(super) struct NewFile<'a> {
    pub(super) path: &'a RelativePath,
    /// What is there before.
    pub(super) previous: Previous,
    pub(super) content: NewContent<'a>,
    /// The file that it is a new version of.
    pub(super) attributes_from: Option<&'a FileSnapshot>,
}

impl FileTransaction<'_> {
    /// Stages a new content. `original` is what was there; without it, nothing may be there.
    /// Directories on the way are made.
    pub(crate) fn write(
        &mut self,
        path: &RelativePath,
        original: Option<&FileSnapshot>,
        content: NewContent<'_>,
    ) -> Result<(), Error> {
        self.write_all(std::iter::once((path, original, content)))
    }

    /// As [`Self::write`], for several files at once.
    pub(crate) fn write_all<'f>(
        &mut self,
        files: impl Iterator<Item = (&'f RelativePath, Option<&'f FileSnapshot>, NewContent<'f>)>,
    ) -> Result<(), Error> {
        let coming = files.map(|(path, original, content)| {
            if let Some(original) = original {
                original.check_writable(path, content.mode)?;
            }
            Ok(NewFile {
                path,
                previous: original
                    .map_or(Previous::Nothing, |original| Previous::File(original.version)),
                content,
                attributes_from: original,
            })
        });
        let coming = coming.collect::<Result<Vec<_>, Error>>()?;
        self.stage_files(coming)
    }

    /// Checks that a new content could be staged, without making anything.
    pub(crate) fn check_write(
        &self,
        path: &RelativePath,
        original: Option<&FileSnapshot>,
        content: NewContent<'_>,
    ) -> Result<(), Error> {
        match original {
            Some(original) => original.check_writable(path, content.mode),
            None => self.check_vacant(path),
        }
    }

    /// Checks that a file that is there could be deleted; answers its directory and its name in it.
    pub(crate) fn check_delete(
        &mut self,
        path: &RelativePath,
    ) -> Result<(Arc<OwnedFd>, String), Error> {
        self.check()?;
        if self.real_paths.get(path).is_some_and(|real| real != path) {
            // What the link leads to is not what the caller has named.
            self.workspace.reject_final_symlink(path)?;
        }
        self.open_parent(path)
    }

    /// Stages the deletion of a file, and of the directories that are empty then.
    pub(crate) fn delete(
        &mut self,
        path: &RelativePath,
        original: &FileSnapshot,
    ) -> Result<(), Error> {
        let (directory, name) = self.check_delete(path)?;
        self.staged.push(StagedChange {
            path: self.real_path(path).clone(),
            directory,
            name,
            temporary: temporary_name(),
            action: StagedAction::Delete,
            previous: Previous::File(original.version),
        });
        Ok(())
    }

    /// Stages files.
    pub(super) fn stage_files(&mut self, coming: Vec<NewFile<'_>>) -> Result<(), Error> {
        let mut files = Vec::with_capacity(coming.len());
        let mut places = Vec::with_capacity(coming.len());
        for NewFile { path, previous: old, content, attributes_from: like } in coming {
            self.check()?;
            let (directory, name) = self.open_parent(path)?;
            if matches!(old, Previous::Nothing)
                && FileVersion::read(directory.as_fd(), &name).is_ok()
            {
                return Err(already_exists(path));
            }
            places.push((path, directory, name, old));
            files.push((path, content, like));
        }
        let first = self.staged.len();
        self.stage(places)?;
        let jobs: Vec<_> = files.iter().zip(self.staged.get(first..).unwrap_or_default()).collect();
        let made = parallel_map(&jobs, |((_, content, like), staged)| {
            self.check()?;
            Ok(self.create_file(&staged.directory, &staged.temporary, *content, *like))
        });
        for (index, (made, (path, content, like))) in (first..).zip(made.into_iter().zip(files)) {
            let made = match made? {
                // Somebody who deleted what was in the directory removed it, too, since it was
                // opened.
                Err(ApplyMetadataError::Os(Errno::NOENT)) if self.creates_directories => {
                    let (directory, temporary) = self.reopen_parent(path, index)?;
                    self.create_file(&directory, &temporary, content, like)
                }
                made => made,
            };
            let stamp = made.map_err(|misfit| misfit.into_error(path.as_str()))?;
            self.finish_staging(index, StagedAction::Put(stamp));
        }
        Ok(())
    }

    /// Writes down that something is made for these places, under temporary names beside them.
    /// Known from here on, it is removed whatever happens.
    pub(super) fn stage<'p>(
        &mut self,
        places: impl IntoIterator<Item = (&'p RelativePath, Arc<OwnedFd>, String, Previous)>,
    ) -> Result<(), Error> {
        let staged = places.into_iter().map(|(path, directory, name, old)| StagedChange {
            path: self.real_path(path).clone(),
            directory,
            name,
            temporary: temporary_name(),
            action: StagedAction::Unfinished,
            previous: old,
        });
        let staged: Vec<_> = staged.collect();
        let entries = staged.iter().map(|staged| JournalEntry::Put {
            path: staged.path.as_str().to_owned(),
            temporary: staged.temporary.clone(),
        });
        let entries: Vec<_> = entries.collect();
        if !entries.is_empty() {
            self.write_journal(&entries)?;
        }
        fault_injection::step();
        self.staged.extend(staged);
        Ok(())
    }

    /// What was staged has been made.
    pub(super) fn finish_staging(&mut self, index: usize, kind: StagedAction) {
        if let Some(staged) = self.staged.get_mut(index) {
            staged.action = kind;
        }
    }

    /// As [`Self::place`], for what was staged, whose directory is gone.
    fn reopen_parent(
        &mut self,
        path: &RelativePath,
        index: usize,
    ) -> Result<(Arc<OwnedFd>, String), Error> {
        self.forget_parent(path)?;
        let (directory, _) = self.open_parent(path)?;
        let staged = self.staged.get_mut(index);
        let staged = staged.ok_or_else(|| Error::internal("a file that was not staged"))?;
        staged.directory = Arc::clone(&directory);
        Ok((directory, staged.temporary.clone()))
    }

    /// Makes a file that nothing names yet but the daemon, and answers which it is.
    pub(super) fn create_file(
        &self,
        directory: &OwnedFd,
        name: &str,
        content: NewContent<'_>,
        like: Option<&FileSnapshot>,
    ) -> Result<FileVersion, ApplyMetadataError> {
        let flags =
            OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let private = Mode::from_raw_mode(0o600);
        let file = retry_on_intr(|| openat(directory, name, flags, private))?;
        fault_injection::step();
        let mut rest = content.bytes;
        while !rest.is_empty() {
            let written = retry_on_intr(|| write(&file, rest))?;
            rest = rest.get(written..).unwrap_or_default();
        }
        let stat = match content.attributes_from.or(like) {
            Some(original) => original.apply_metadata(file.as_fd(), content.mode)?,
            None => NewFileMetadata {
                owner: self.workspace.inherited_owner(directory)?,
                mode: content.mode.unwrap_or(NEW_FILE_MODE),
            }
            .apply(file.as_fd())?,
        };
        self.sync_file(&file)?;
        Ok(FileVersion::from_stat(&stat))
    }

    /// Has the disk write down what was made, if changes wait for the disk.
    pub(super) fn sync_file(&self, made: &OwnedFd) -> Result<(), Errno> {
        match self.workspace.sync {
            true => fsync(made),
            false => Ok(()),
        }
    }
}
