//! Directories that come in the place of a file, and files that come in that of a directory.
//!
//! Either is one exchange of two names: a directory is built under a temporary name, with all that
//! it will hold; one that goes is set aside as a whole, if it holds what the change deletes and
//! nothing else.

use std::{
    os::fd::{AsFd as _, OwnedFd},
    sync::Arc,
};

use rustix::fs::{Mode, mkdirat};

use super::{
    super::{
        beneath::open_child,
        failure::{Wanted, failure},
        original::{Content, Original, Stamp, give},
        path::RelativePath,
        step::{Kind, Old},
        subtree::Subtree,
    },
    Change,
    place::NEW_DIRECTORY,
    stage::Coming,
};
use crate::daemon::{
    error::{Error, Reason},
    sys::Errno,
};

impl Change<'_> {
    /// Checks that a directory holds the files `gone` and nothing else, so that a file may come in
    /// its place.
    pub(crate) fn check_subtree(
        &mut self,
        path: &RelativePath,
        gone: &[(&RelativePath, &Original)],
    ) -> Result<Subtree, Error> {
        let (directory, name) = self.place(path)?;
        let top = Stamp::at(directory.as_fd(), &name)
            .map_err(|errno| failure(errno, path.as_str(), Wanted::Directory))?;
        let below = gone.iter().filter_map(|(file, original)| {
            let below = file.as_str().strip_prefix(path.as_str())?;
            Some((below.strip_prefix('/')?.to_owned(), original.stamp))
        });
        let subtree = Subtree::new(top, below);
        if subtree.is_at(directory.as_fd(), &name) {
            return Ok(subtree);
        }
        let path = path.as_str();
        let text = format!(
            "{path:?} is a directory that holds more than what is deleted with it: a file cannot come in its place"
        );
        Err(Error::new(Reason::FileExists, text).with("path", path))
    }

    /// Stages a file where a directory is, one that holds the files `gone` and nothing else.
    pub(crate) fn write_over_directory(
        &mut self,
        path: &RelativePath,
        gone: &[(&RelativePath, &Original)],
        content: Content<'_>,
    ) -> Result<(), Error> {
        let subtree = self.check_subtree(path, gone)?;
        self.stage_files(vec![Coming { path, old: Old::Directory(subtree), content, like: None }])
    }

    /// Stages a directory where a file is, with these files below it.
    pub(crate) fn write_directory_over(
        &mut self,
        path: &RelativePath,
        original: &Original,
        files: &[(&RelativePath, Content<'_>)],
    ) -> Result<(), Error> {
        let (directory, name) = self.place(path)?;
        let failed = |errno| failure(errno, path.as_str(), Wanted::Directory);
        let index = self.staged.len();
        let old = Old::File(original.stamp);
        self.stage([(path, Arc::clone(&directory), name, old)])?;
        let temporary = &self.staged[index].temporary;
        let top = self.make_directory(&directory, temporary).map_err(failed)?;
        for (file, content) in files {
            self.check()?;
            let below = file.as_str().strip_prefix(path.as_str());
            let Some(below) = below.and_then(|below| below.strip_prefix('/')) else {
                return Err(Error::internal("a file that is not in its directory"));
            };
            let mut here = open_child(top.as_fd(), b".").map_err(failed)?;
            let (above, name) = below.rsplit_once('/').unwrap_or(("", below));
            for name in above.split('/').filter(|name| !name.is_empty()) {
                here = match open_child(here.as_fd(), name.as_bytes()) {
                    Err(Errno::NOENT) => {
                        let made = self.make_directory(&here, name);
                        made.and_then(|made| self.sync(&here).map(|()| made))
                    }
                    opened => opened,
                }
                .map_err(failed)?;
            }
            self.make_file(&here, name, *content, None)
                .map_err(|misfit| misfit.told(file.as_str()))?;
            self.sync(&here).map_err(failed)?;
        }
        self.sync(&top).map_err(failed)?;
        let stat = rustix::fs::fstat(&top).map_err(failed)?;
        self.finish_staging(index, Kind::Put(Stamp::of(&stat)));
        Ok(())
    }

    fn make_directory(&self, parent: &OwnedFd, name: &str) -> Result<OwnedFd, Errno> {
        mkdirat(parent, name, Mode::from_raw_mode(NEW_DIRECTORY))?;
        let made = open_child(parent.as_fd(), name.as_bytes())?;
        give(made.as_fd(), self.workspace.owner_in(parent)?)?;
        Ok(made)
    }
}
