//! Staging: writes new files beside their destinations, under temporary names.

use std::{
    os::fd::{AsFd as _, OwnedFd},
    sync::Arc,
};

use rustix::{
    fs::{Mode, OFlags, fsync, futimens, openat},
    io::{retry_on_intr, write},
};

use super::{
    super::{
        fault_injection,
        file_usage::FileUsage,
        journal::JournalEntry,
        os_error::already_exists_error,
        parallel::parallel_map,
        path::RelativePath,
        rename_step::{Previous, StagedAction, StagedChange, temporary_name},
        snapshot::{
            ApplyMetadataError, FileSnapshot, FileVersion, NEW_FILE_MODE, NewContent,
            NewFileMetadata, timestamps,
        },
    },
    FileTransaction,
};
use crate::daemon::{error::Error, sys::Errno};

/// A new file for a path.
#[derive(Debug)]
pub(super) struct NewFile<'a> {
    pub(super) path: &'a RelativePath,
    /// What exists at the path before.
    pub(super) previous: Previous,
    pub(super) content: NewContent<'a>,
    /// The file that it replaces, which supplies owner and attributes.
    pub(super) attributes_from: Option<&'a FileSnapshot>,
}

impl FileTransaction<'_> {
    /// Stages a new content for a file. `original` is the existing file. Without one, nothing may
    /// exist at the path. Creates missing parent directories.
    pub(crate) fn write(
        &mut self,
        path: &RelativePath,
        original: Option<&FileSnapshot>,
        content: NewContent<'_>,
    ) -> Result<(), Error> {
        self.write_all(std::iter::once((path, original, content)))
    }

    /// Like [`Self::write`], for several files, in parallel.
    pub(crate) fn write_all<'f>(
        &mut self,
        files: impl Iterator<Item = (&'f RelativePath, Option<&'f FileSnapshot>, NewContent<'f>)>,
    ) -> Result<(), Error> {
        let new_files: Vec<_> = files
            .map(|(path, original, content)| {
                if let Some(original) = original {
                    original.check_writable(path, content.mode)?;
                }
                let previous =
                    original.map_or(Previous::Nothing, |file| Previous::File(file.version));
                Ok(NewFile { path, previous, content, attributes_from: original })
            })
            .collect::<Result<_, Error>>()?;
        self.stage_files(new_files)
    }

    /// Checks that a new content could be staged, without writing anything.
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

    /// Checks that an existing file could be deleted. Returns its directory and its name in it.
    pub(crate) fn check_delete(
        &mut self,
        path: &RelativePath,
    ) -> Result<(Arc<OwnedFd>, String), Error> {
        self.check()?;
        if self.real_paths.get(path).is_some_and(|real| real != path) {
            // The caller has named the link, not its target.
            self.workspace.reject_final_symlink(path)?;
        }
        self.open_parent(path)
    }

    /// Stages the deletion of a file, and of parent directories that become empty.
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

    /// Writes new files beside their destinations, in parallel.
    pub(super) fn stage_files(&mut self, new_files: Vec<NewFile<'_>>) -> Result<(), Error> {
        let mut files = Vec::with_capacity(new_files.len());
        let mut entries = Vec::with_capacity(new_files.len());
        for NewFile { path, previous, content, attributes_from } in new_files {
            self.check()?;
            let (directory, name) = self.open_parent(path)?;
            if matches!(previous, Previous::Nothing)
                && FileVersion::read(directory.as_fd(), &name).is_ok()
            {
                return Err(already_exists_error(path));
            }
            entries.push((path, directory, name, previous));
            files.push((path, content, attributes_from));
        }

        let growth = files.iter().fold(FileUsage::default(), |growth, (_, content, _)| {
            growth + FileUsage::of_file(content.bytes.len() as u64)
        });
        self.reserve(growth)?;

        let first = self.staged.len();
        self.stage(entries)?;
        let jobs: Vec<_> = files.iter().zip(self.staged.get(first..).unwrap_or_default()).collect();
        let results = parallel_map(&jobs, |((_, content, attributes_from), staged)| {
            self.check()?;
            let StagedChange { directory, temporary, .. } = staged;
            Ok::<_, Error>(self.create_file(directory, temporary, *content, *attributes_from))
        });

        for (index, (result, (path, content, attributes_from))) in
            (first..).zip(results.into_iter().zip(files))
        {
            let created = match result? {
                // Another process has emptied and removed the directory since it was opened.
                Err(ApplyMetadataError::Os(Errno::NOENT)) if self.creates_directories => {
                    let (directory, temporary) = self.reopen_parent(path, index)?;
                    self.create_file(&directory, &temporary, content, attributes_from)
                }
                created => created,
            };
            let version = created.map_err(|error| error.into_error(path.as_str()))?;
            self.finish_staging(index, StagedAction::Put(version));
        }
        Ok(())
    }

    /// Records in the journal that files will be written beside these paths, under temporary names.
    /// From here on they are removed if the change fails.
    pub(super) fn stage<'p>(
        &mut self,
        entries: impl IntoIterator<Item = (&'p RelativePath, Arc<OwnedFd>, String, Previous)>,
    ) -> Result<(), Error> {
        let staged: Vec<_> = entries
            .into_iter()
            .map(|(path, directory, name, previous)| StagedChange {
                path: self.real_path(path).clone(),
                directory,
                name,
                temporary: temporary_name(),
                action: StagedAction::Unfinished,
                previous,
            })
            .collect();

        let records: Vec<_> = staged
            .iter()
            .map(|staged| JournalEntry::Put {
                path: staged.path.as_str().to_owned(),
                temporary: staged.temporary.clone(),
            })
            .collect();

        if !records.is_empty() {
            self.write_journal(&records)?;
        }
        fault_injection::step();
        self.staged.extend(staged);
        Ok(())
    }

    /// Sets the action of a staged change, whose file is now complete.
    pub(super) fn finish_staging(&mut self, index: usize, action: StagedAction) {
        if let Some(staged) = self.staged.get_mut(index) {
            staged.action = action;
        }
    }

    /// Opens or creates the parent directory of a staged file again, after it was removed.
    fn reopen_parent(
        &mut self,
        path: &RelativePath,
        index: usize,
    ) -> Result<(Arc<OwnedFd>, String), Error> {
        self.forget_parent(path)?;
        let (directory, _) = self.open_parent(path)?;
        let staged = self
            .staged
            .get_mut(index)
            .ok_or_else(|| Error::internal("a file that was not staged"))?;
        staged.directory = Arc::clone(&directory);
        Ok((directory, staged.temporary.clone()))
    }

    /// Creates a file under a temporary name. Returns its version.
    pub(super) fn create_file(
        &self,
        directory: &OwnedFd,
        name: &str,
        content: NewContent<'_>,
        attributes_from: Option<&FileSnapshot>,
    ) -> Result<FileVersion, ApplyMetadataError> {
        let flags =
            OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mode = Mode::from_raw_mode(0o600);
        let file = retry_on_intr(|| openat(directory, name, flags, mode))?;
        fault_injection::step();

        let mut rest = content.bytes;
        while !rest.is_empty() {
            let written = retry_on_intr(|| write(&file, rest))?;
            rest = rest.get(written..).unwrap_or_default();
        }

        if let Some(modified) = content.modified {
            futimens(&file, &timestamps(modified))?;
        }
        let stat = match content.attributes_from.or(attributes_from) {
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

    /// Writes a file to disk, if changes must be durable.
    pub(super) fn sync_file(&self, file: &OwnedFd) -> Result<(), Errno> {
        if self.workspace.sync { fsync(file) } else { Ok(()) }
    }
}
