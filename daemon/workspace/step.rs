//! One step of a change: putting what is new in place, and taking it back.
//!
//! Both work on names in one directory, whose descriptor is held: beside the place lies another
//! name, the temporary one, that holds what is new before and what was old after.

use std::{
    os::fd::{AsFd as _, BorrowedFd, OwnedFd},
    sync::Arc,
};

use rustix::{
    fs::{AtFlags, RenameFlags, linkat, renameat, renameat_with, unlinkat},
    io::retry_on_intr,
};
use ulid::Ulid;

use super::{
    failure::{Wanted, exists, failure},
    fault,
    journal::Step,
    original::{Stamp, stale},
    path::RelativePath,
    subtree::Subtree,
    tree::remove_entry,
};
use crate::daemon::{error::Error, sys::Errno};

/// What becomes of a place.
#[derive(Debug, Clone, Copy)]
pub(super) enum Kind {
    /// What it gets is being written.
    Unfinished,
    /// It gets this.
    Put(Stamp),
    /// What is there is deleted.
    Delete,
}

/// What is at a place before.
#[derive(Debug)]
pub(super) enum Old {
    /// Nothing.
    Nothing,
    /// A file.
    File(Stamp),
    /// A directory with nothing but these files in it.
    Directory(Subtree),
}

/// One step of a change.
#[derive(Debug)]
pub(super) struct Staged {
    pub(super) path: RelativePath,
    pub(super) directory: Arc<OwnedFd>,
    pub(super) name: String,
    pub(super) temporary: String,
    pub(super) kind: Kind,
    pub(super) old: Old,
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
                Kind::Put(new) => Some(new),
                Kind::Unfinished | Kind::Delete => None,
            },
            replaces: !matches!(self.old, Old::Nothing),
        }
    }
}

impl Old {
    /// Whether that is what `name` is.
    fn is_at(&self, directory: BorrowedFd<'_>, name: &str) -> bool {
        match self {
            Self::Nothing => false,
            Self::File(old) => Stamp::at(directory, name) == Ok(*old),
            Self::Directory(old) => old.is_at(directory, name),
        }
    }
}

/// Puts what is new in place, or what is old aside. Fails, with everything as it was, when what is
/// there is not what the change starts from.
pub(super) fn apply(staged: &Staged) -> Result<(), Error> {
    let (directory, name, temporary) = (&staged.directory, &staged.name, &staged.temporary);
    let failed = |errno| match (errno, &staged.old) {
        (Errno::EXIST, Old::Nothing) => exists(&staged.path),
        (Errno::NOENT, Old::File(_) | Old::Directory(_)) => stale(&staged.path),
        _ => failure(errno, staged.path.as_str(), Wanted::File),
    };
    let aside = |errno: Result<(), Errno>| errno.map_err(failed);
    match (staged.kind, &staged.old) {
        (Kind::Unfinished, _) => Err(Error::internal("a change whose content is not written")),
        (Kind::Put(_), Old::Nothing) => aside(put_new(directory, temporary, name)),
        (Kind::Put(new), old) => {
            aside(exchange(directory, temporary, name))?;
            if old.is_at(directory.as_fd(), temporary) {
                return Ok(());
            }
            aside(exchange(directory, temporary, name))?;
            // Replaced once more in between: what comes out now is newer than what went back in.
            if Stamp::at(directory.as_fd(), temporary) != Ok(new) {
                aside(exchange(directory, temporary, name))?;
            }
            Err(stale(&staged.path))
        }
        (Kind::Delete, old) => {
            aside(put_new(directory, name, temporary))?;
            if old.is_at(directory.as_fd(), temporary) {
                return Ok(());
            }
            aside(put_new(directory, temporary, name))?;
            Err(stale(&staged.path))
        }
    }
}

/// Takes back what [`apply`] did, as far as it did it, and removes what was new. Does nothing the
/// second time. What somebody else has put there since, or changed there, is left alone: then what
/// was there before stays aside.
pub(super) fn undo(directory: &OwnedFd, name: &str, step: &Step) -> Result<(), Errno> {
    let at = |name: &str| match Stamp::at(directory.as_fd(), name) {
        Ok(stamp) => Ok(Some(stamp)),
        Err(Errno::NOENT) => Ok(None),
        Err(errno) => Err(errno),
    };
    let temporary = step.temporary.as_str();
    let old_link = old_link(temporary);
    if at(temporary)?.is_none() && at(&old_link)?.is_some() {
        renameat(directory, &old_link, directory, temporary)?;
    }
    finish(directory, &old_link)?;
    let (aside, in_place) = (at(temporary)?, at(name)?);
    let is_one = |one: Option<Stamp>, other: Option<Stamp>| {
        one.is_some() && one.map(Stamp::identity) == other.map(Stamp::identity)
    };
    match (aside, in_place) {
        // Nothing was put in place, or it has got its second name only.
        (Some(_), _) if is_one(aside, step.new) => {
            if is_one(aside, in_place) && !step.replaces {
                finish(directory, name)?;
            }
            finish(directory, temporary)
        }
        // What was there has a second name, and still its own.
        (Some(_), _) if is_one(aside, in_place) => finish(directory, temporary),
        (Some(_), None) => renameat(directory, temporary, directory, name),
        (Some(_), Some(_)) if in_place == step.new => {
            exchange(directory, temporary, name)?;
            if at(temporary)? == step.new {
                return finish(directory, temporary);
            }
            // It was replaced just now: what has come out is somebody else's.
            exchange(directory, temporary, name)?;
            leave(step);
            Ok(())
        }
        (Some(_), Some(_)) => {
            leave(step);
            Ok(())
        }
        (None, Some(_)) if in_place == step.new && !step.replaces => {
            match put_new(directory, name, temporary) {
                Err(Errno::NOENT) => return Ok(()), // gone just now
                taken => taken?,
            }
            if at(temporary)? == step.new {
                return finish(directory, temporary);
            }
            put_new(directory, temporary, name)
        }
        (None, _) => Ok(()),
    }
}

fn leave(step: &Step) {
    let (path, temporary) = (&step.path, &step.temporary);
    tracing::warn!(
        path,
        temporary,
        "what a change has put here was changed or replaced since, and is left: what was here before lies beside it under the temporary name"
    );
}

/// Removes what is not needed any more, a directory with all that is in it.
pub(super) fn finish(directory: &OwnedFd, name: &str) -> Result<(), Errno> {
    match remove_entry(directory, name) {
        Err(Errno::NOENT) => Ok(()), // removed before
        removed => removed,
    }
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
pub(super) fn exchange(directory: &OwnedFd, temporary: &str, name: &str) -> Result<(), Errno> {
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

pub(super) fn old_link(temporary: &str) -> String {
    format!("{temporary}~")
}
