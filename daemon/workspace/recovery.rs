//! Undoing what a daemon that died has left half done, and removing directories that nothing needs.

use std::{io, os::fd::OwnedFd, path::Path};

use rustix::fs::{AtFlags, unlinkat};

use super::{
    Workspace,
    journal::{JournalDirectory, JournalEntry, JournalStep},
    path::RelativePath,
    rename_step::{remove_leftover, undo},
};
use crate::daemon::sys::Errno;

impl Workspace {
    /// Keeps journals of changes in a folder of this workspace's in `folder`, and undoes what the
    /// journals there say was left half done. Answers how many changes that were. To be called
    /// before anything is changed. A journal that cannot be followed stays, and is an error.
    pub(crate) fn open_journals(&mut self, folder: &Path) -> io::Result<usize> {
        // Not by its name, which can be given to another workspace.
        let (device, inode) = self.identity;
        let journals = JournalDirectory::open(folder.join(format!("{device:x}-{inode:x}")))?;
        let left = journals.orphaned()?;
        let count = left.len();
        for journal in left {
            self.undo_orphaned(&journal.entries).map_err(|errno| {
                let path = journal.path().display();
                let workspace = self.path.display();
                io::Error::other(format!(
                    "what {path} says was half done in {workspace} cannot be undone ({errno}): remove the cause, or see to the files that it names and delete it"
                ))
            })?;
            journal.remove()?;
        }
        self.journals = Some(journals);
        Ok(count)
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
            // What was made ready has been seen to.
            if let JournalEntry::Put { path, temporary } = entry
                && ready.is_empty()
                && let Ok(path) = self.resolve(path)
            {
                self.with_parent_directory(&path, |directory, _| {
                    remove_leftover(directory, temporary)
                })?;
            }
        }
        // Then these are empty, whenever they were made.
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
        let steps = entries.iter().filter_map(|entry| match entry {
            JournalEntry::Ready(steps) => Some(steps),
            JournalEntry::Make(_) | JournalEntry::Put { .. } | JournalEntry::Done => None,
        });
        steps.flatten().filter_map(|step| Some((self.resolve(&step.path).ok()?, step)))
    }

    /// Does something in the directory of a path, if that is still there.
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

    /// Removes the directories above a path that are empty, as git does where it deletes a file.
    /// Answers the directories in which one was removed.
    pub(super) fn remove_empty_parents(&self, path: &RelativePath) -> Vec<RelativePath> {
        let mut touched = Vec::new();
        let mut path = path.clone();
        while let Some((directory, _)) = path.split() {
            if !self.remove_if_empty(&directory) {
                break;
            }
            touched.extend(directory.split().map(|(above, _)| above));
            path = directory;
        }
        touched
    }

    /// Removes a directory. Answers whether it could: not if it holds anything.
    pub(super) fn remove_if_empty(&self, path: &RelativePath) -> bool {
        let mut removed = false;
        let looked = self.with_parent_directory(path, |directory, name| {
            removed = unlinkat(directory, name, AtFlags::REMOVEDIR).is_ok();
            Ok(())
        });
        looked.is_ok() && removed
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn directories_go_also_when_they_were_made_after_what_is_in_them() {
        let folder = tempfile::tempdir().unwrap();
        let mut workspace = Workspace::open("w", folder.path(), "/workspace").unwrap();
        fs::create_dir_all(folder.path().join("d/e")).unwrap();
        fs::write(folder.path().join("d/e/temporary"), "half").unwrap();
        let put = JournalEntry::Put { path: "d/e/f".to_owned(), temporary: "temporary".to_owned() };
        let make = |path: &str| JournalEntry::Make(path.to_owned());
        workspace.undo_orphaned(&[put, make("d"), make("d/e")]).unwrap();
        assert!(!folder.path().join("d").exists());
        workspace.sync_changes(true);
        workspace.undo_orphaned(&[make("none")]).unwrap();
    }
}
