//! Undoes changes that a crashed daemon left unfinished, and removes directories that became empty.

use std::{fs, io, os::fd::OwnedFd, path::Path};

use rustix::fs::{AtFlags, unlinkat};

use super::{
    Workspace,
    journal::{JournalDirectory, JournalEntry, JournalStep},
    path::RelativePath,
    rename_step::{remove_leftover, undo},
};
use crate::daemon::sys::Errno;

impl Workspace {
    /// Opens the journals of this workspace in `directory`, and undoes the unfinished changes of
    /// earlier daemons. Returns their number. Must be called before any change. A journal that
    /// cannot be applied is an error and is not removed.
    pub(crate) fn open_journals(&mut self, directory: &Path) -> io::Result<usize> {
        let journals = JournalDirectory::open(directory.join(self.journals_name()))?;
        let orphaned = journals.orphaned()?;
        let count = orphaned.len();
        for journal in orphaned {
            self.undo_orphaned(&journal.entries).map_err(|errno| {
                let path = journal.path().display();
                let workspace = self.path.display();
                io::Error::other(format!(
                    "cannot undo the unfinished change of {workspace} in the journal {path} ({errno}): remove the cause, or repair the files that the journal names and delete it"
                ))
            })?;
            journal.remove()?;
        }
        self.journals = Some(journals);
        Ok(count)
    }

    /// Removes the journals of this workspace, which must have no changes any more. Another directory
    /// could get its inode.
    pub(crate) fn remove_journals(&self, directory: &Path) -> io::Result<()> {
        match fs::remove_dir_all(directory.join(self.journals_name())) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            Ok(()) | Err(_) => Ok(()),
        }
    }

    /// By identity, because another directory can get the same name.
    fn journals_name(&self) -> String {
        let (device, inode) = self.identity;
        format!("{device:x}-{inode:x}")
    }

    fn undo_orphaned(&self, entries: &[JournalEntry]) -> Result<(), Errno> {
        if entries.last() == Some(&JournalEntry::Done) {
            for (path, step) in self.ready_steps(entries) {
                self.with_parent_directory(&path, |directory, _| {
                    remove_leftover(directory, &step.temporary)
                })?;
                if step.new.is_none() {
                    self.remove_empty_parents(&path);
                }
            }
            return Ok(());
        }

        let ready: Vec<_> = self.ready_steps(entries).collect();
        for (path, step) in ready.iter().rev() {
            self.with_parent_directory(path, |directory, name| undo(directory, name, step))?;
        }
        for entry in entries {
            // With `Ready`, the steps above have removed the new contents.
            if let JournalEntry::Put { path, temporary } = entry
                && ready.is_empty()
                && let Ok(path) = self.resolve(path)
            {
                self.with_parent_directory(&path, |directory, _| {
                    remove_leftover(directory, temporary)
                })?;
            }
        }
        // The directories are empty now, in whatever order the journal has them.
        for entry in entries.iter().rev() {
            if let JournalEntry::Make(path) = entry
                && let Ok(path) = self.resolve(path)
            {
                self.remove_if_empty(&path);
            }
        }
        Ok(())
    }

    fn ready_steps<'a>(
        &'a self,
        entries: &'a [JournalEntry],
    ) -> impl Iterator<Item = (RelativePath, &'a JournalStep)> {
        entries
            .iter()
            .filter_map(|entry| match entry {
                JournalEntry::Ready(steps) => Some(steps),
                JournalEntry::Make(_) | JournalEntry::Put { .. } | JournalEntry::Done => None,
            })
            .flatten()
            .filter_map(|step| Some((self.resolve(&step.path).ok()?, step)))
    }

    /// Calls `work` with the parent directory of a path, if that still exists.
    fn with_parent_directory(
        &self,
        path: &RelativePath,
        work: impl FnOnce(&OwnedFd, &str) -> Result<(), Errno>,
    ) -> Result<(), Errno> {
        let Some((directory, name)) = path.split() else {
            return Ok(());
        };
        match self.root.open_directory_handle(directory.as_bytes()) {
            Ok(directory) => work(&directory, name),
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => Ok(()),
            Err(errno) => Err(errno),
        }
    }

    /// Removes empty directories above a path, as git does when it deletes a file. Returns the
    /// directories in which it removed one.
    pub(super) fn remove_empty_parents(&self, path: &RelativePath) -> Vec<RelativePath> {
        let mut changed = Vec::new();
        let mut path = path.clone();
        while let Some((directory, _)) = path.split() {
            if !self.remove_if_empty(&directory) {
                break;
            }
            changed.extend(directory.split().map(|(parent, _)| parent));
            path = directory;
        }
        changed
    }

    /// Removes a directory, unless it has entries. Returns whether it did.
    pub(super) fn remove_if_empty(&self, path: &RelativePath) -> bool {
        let mut removed = false;
        let result = self.with_parent_directory(path, |directory, name| {
            removed = unlinkat(directory, name, AtFlags::REMOVEDIR).is_ok();
            Ok(())
        });
        result.is_ok() && removed
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn created_directories_are_removed_after_the_files_in_them() {
        let directory = tempfile::tempdir().unwrap();
        let mut workspace = Workspace::open("w", directory.path(), "/workspace").unwrap();
        fs::create_dir_all(directory.path().join("d/e")).unwrap();
        fs::write(directory.path().join("d/e/temporary"), "half").unwrap();
        let put = JournalEntry::Put { path: "d/e/f".to_owned(), temporary: "temporary".to_owned() };
        let make = |path: &str| JournalEntry::Make(path.to_owned());
        workspace.undo_orphaned(&[put, make("d"), make("d/e")]).unwrap();
        assert!(!directory.path().join("d").exists());
        workspace.sync_changes(true);
        workspace.undo_orphaned(&[make("none")]).unwrap();
    }
}
