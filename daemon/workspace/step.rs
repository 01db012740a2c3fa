//! One file of a change: putting its new content in place, and taking it back.
//!
//! Both work on names in one directory, whose descriptor is held: beside the file lies another name,
//! the temporary one, that holds the new content before and the old one after.

use std::os::fd::{AsFd as _, OwnedFd};

use rustix::{
    fs::{AtFlags, RenameFlags, fsync, linkat, renameat, renameat_with, unlinkat},
    io::retry_on_intr,
};
use ulid::Ulid;

use super::{
    beneath::open_child,
    failure::{Wanted, exists, failure},
    fault,
    journal::Step,
    original::{Stamp, stale},
    path::RelativePath,
};
use crate::daemon::{error::Error, sys::Errno};

/// What becomes of a file.
#[derive(Debug, Clone, Copy)]
pub(super) enum Kind {
    /// Its new content is being written.
    Unfinished,
    /// It gets this content.
    Put(Stamp),
    /// It is deleted.
    Delete,
}

/// One file of a change.
#[derive(Debug)]
pub(super) struct Staged {
    pub(super) path: RelativePath,
    pub(super) directory: OwnedFd,
    pub(super) name: String,
    pub(super) temporary: String,
    pub(super) kind: Kind,
    /// The old one; none where there is nothing.
    pub(super) old: Option<Stamp>,
}

/// A name that nothing else has, and that tells whose it is should it ever be left.
pub(super) fn temporary_name() -> String {
    format!(".jig-{}.tmp", Ulid::generate())
}

impl Staged {
    /// What a journal says of it.
    pub(super) fn step(&self) -> Step {
        Step {
            path: self.path.as_str().to_owned(),
            temporary: self.temporary.clone(),
            new: match self.kind {
                Kind::Put(new) => Some(new.identity()),
                Kind::Unfinished | Kind::Delete => None,
            },
            replaces: self.old.is_some(),
        }
    }
}

/// Puts a new content in place, or the file aside. Fails, with everything as it was, when what is
/// there is not what the change starts from.
pub(super) fn apply(staged: &Staged) -> Result<(), Error> {
    let (directory, name, temporary) = (&staged.directory, &staged.name, &staged.temporary);
    let failed = |errno| match (errno, staged.old) {
        (Errno::NOENT, Some(_)) => stale(&staged.path),
        (Errno::EXIST, None) => exists(&staged.path),
        _ => failure(errno, staged.path.as_str(), Wanted::File),
    };
    match (staged.kind, staged.old) {
        (Kind::Unfinished, _) => Err(Error::internal("a change whose content is not written")),
        (Kind::Put(_), None) => put_new(directory, temporary, name).map_err(failed),
        (Kind::Put(_), Some(old)) => {
            exchange(directory, temporary, name).map_err(failed)?;
            if Stamp::at(directory.as_fd(), temporary) == Ok(old) {
                return Ok(());
            }
            exchange(directory, temporary, name).map_err(failed)?;
            Err(stale(&staged.path))
        }
        (Kind::Delete, old) => {
            put_new(directory, name, temporary).map_err(failed)?;
            if Stamp::at(directory.as_fd(), temporary).ok() == old {
                return Ok(());
            }
            put_new(directory, temporary, name).map_err(failed)?;
            Err(stale(&staged.path))
        }
    }
}

/// Takes back what [`apply`] did, as far as it did it, and removes the new content. Does nothing
/// the second time.
pub(super) fn undo(directory: &OwnedFd, name: &str, step: &Step) {
    let identity = |name: &str| Stamp::at(directory.as_fd(), name).ok().map(Stamp::identity);
    let temporary = step.temporary.as_str();
    let old_link = old_link(temporary);
    if identity(temporary).is_none() && identity(&old_link).is_some() {
        let _moved = renameat(directory, &old_link, directory, temporary);
    }
    finish(directory, &old_link);
    match (identity(temporary), step.new) {
        // Nothing was put in place.
        (Some(found), Some(new)) if found == new => finish(directory, temporary),
        // The old content was set aside: whatever is in its place is replaced.
        (Some(_), _) => {
            let _restored = renameat(directory, temporary, directory, name);
        }
        (None, Some(new)) if !step.replaces && identity(name) == Some(new) => {
            finish(directory, name);
        }
        (None, _) => {}
    }
}

/// Removes a file that is not needed any more.
pub(super) fn finish(directory: &OwnedFd, name: &str) {
    // One that is gone was removed before.
    let _removed = unlinkat(directory, name, AtFlags::empty());
}

/// Has the disk write down what names the directory of a file holds.
pub(super) fn sync_directory(staged: &Staged) -> Result<(), Error> {
    open_child(staged.directory.as_fd(), b".")
        .and_then(fsync)
        .map_err(|errno| failure(errno, staged.path.as_str(), Wanted::Directory))
}

/// Renames `from` to a name that nothing may have.
fn put_new(directory: &OwnedFd, from: &str, to: &str) -> Result<(), Errno> {
    match retry_on_intr(|| renameat_with(directory, from, directory, to, RenameFlags::NOREPLACE)) {
        // A file system that cannot: a link, too, is made only where nothing is.
        Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => {
            linkat(directory, from, directory, to, AtFlags::empty())?;
            unlinkat(directory, from, AtFlags::empty())
        }
        renamed => renamed,
    }
}

/// Swaps two files.
fn exchange(directory: &OwnedFd, temporary: &str, name: &str) -> Result<(), Errno> {
    match retry_on_intr(|| {
        renameat_with(directory, temporary, directory, name, RenameFlags::EXCHANGE)
    }) {
        // A file system that cannot: the old file gets a second name first.
        Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => {
            let old_link = old_link(temporary);
            linkat(directory, name, directory, &old_link, AtFlags::empty())?;
            fault::step();
            renameat(directory, temporary, directory, name)?;
            fault::step();
            renameat(directory, &old_link, directory, temporary)
        }
        swapped => swapped,
    }
}

fn old_link(temporary: &str) -> String {
    format!("{temporary}~")
}
