//! Undoing what a daemon that died has left half done, and removing directories that nothing needs.

use std::{fs, io, path::PathBuf};

use rustix::fs::{AtFlags, unlinkat};

use super::{
    Workspace,
    journal::{Entry, Journals, Step},
    path::RelativePath,
    step::{finish, undo},
};

impl Workspace {
    /// Keeps journals of changes in a folder of this workspace's in `folder`, and undoes what the
    /// journals there say was left half done. Answers how many changes that were. To be called
    /// before anything is changed.
    pub(crate) fn keep_journals(&mut self, folder: PathBuf) -> io::Result<usize> {
        // Not by its name, which can be given to another workspace.
        let (device, inode) = self.identity;
        let journals = Journals::open(folder.join(format!("{device:x}-{inode:x}")))?;
        let left = journals.left()?;
        for (path, entries) in &left {
            self.mend(entries);
            fs::remove_file(path)?;
        }
        self.journals = Some(journals);
        Ok(left.len())
    }

    fn mend(&self, entries: &[Entry]) {
        if entries.last() == Some(&Entry::Done) {
            self.ready_steps(entries).for_each(|(path, step)| {
                self.in_directory_of(&path, |directory, _| finish(directory, &step.temporary));
                if step.new.is_none() {
                    self.prune(&path);
                }
            });
            return;
        }
        let ready: Vec<_> = self.ready_steps(entries).collect();
        for (path, step) in ready.iter().rev() {
            self.in_directory_of(path, |directory, name| undo(directory, name, step));
        }
        for entry in entries.iter().rev() {
            match entry {
                // What was made ready has been seen to.
                Entry::Put { path, temporary } if ready.is_empty() => {
                    if let Ok(path) = self.resolve(path) {
                        self.in_directory_of(&path, |directory, _| finish(directory, temporary));
                    }
                }
                Entry::Make(path) => {
                    if let Ok(path) = self.resolve(path) {
                        self.remove_if_empty(&path);
                    }
                }
                Entry::Put { .. } | Entry::Ready(_) | Entry::Done => {}
            }
        }
    }

    fn ready_steps<'a>(
        &'a self,
        entries: &'a [Entry],
    ) -> impl Iterator<Item = (RelativePath, &'a Step)> {
        let steps = entries.iter().filter_map(|entry| match entry {
            Entry::Ready(steps) => Some(steps),
            Entry::Make(_) | Entry::Put { .. } | Entry::Done => None,
        });
        steps
            .flatten()
            .filter_map(|step| Some((self.resolve(&step.path).ok()?, step)))
    }

    fn in_directory_of(&self, path: &RelativePath, work: impl FnOnce(&std::os::fd::OwnedFd, &str)) {
        if let Some((directory, name)) = path.split()
            && let Ok(directory) = self.root.open_place(directory.as_bytes())
        {
            work(&directory, name);
        }
    }

    /// Removes the directories above a path that are empty, as git does where it deletes a file.
    pub(super) fn prune(&self, path: &RelativePath) {
        let mut path = path.clone();
        while let Some((directory, _)) = path.split() {
            if !self.remove_if_empty(&directory) {
                break;
            }
            path = directory;
        }
    }

    /// Removes a directory. Answers whether it could: not if it holds anything.
    pub(super) fn remove_if_empty(&self, path: &RelativePath) -> bool {
        let mut removed = false;
        self.in_directory_of(path, |directory, name| {
            removed = unlinkat(directory, name, AtFlags::REMOVEDIR).is_ok();
        });
        removed
    }
}
