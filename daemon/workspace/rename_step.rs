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
    fault_injection,
    journal::JournalStep,
    os_error::{ExpectedKind, already_exists, os_error},
    path::RelativePath,
    snapshot::{FileVersion, stale_error},
    subtree::Subtree,
    tree_removal::remove_entry,
};
use crate::daemon::{error::Error, sys::Errno};

/// What becomes of a place.
#[derive(Debug, Clone, Copy)]
pub(super) enum StagedAction {
    /// What it gets is being written.
    Unfinished,
    /// It gets this.
    Put(FileVersion),
    /// What is there is deleted.
    Delete,
}

/// What is at a place before.
#[derive(Debug)]
pub(super) enum Previous {
    /// Nothing.
    Nothing,
    /// A file.
    File(FileVersion),
    /// A directory with nothing but these files in it.
    Directory(Subtree),
}

/// One step of a change.
#[derive(Debug)]
pub(super) struct StagedChange {
    pub(super) path: RelativePath,
    pub(super) directory: Arc<OwnedFd>,
    pub(super) name: String,
    pub(super) temporary: String,
    pub(super) action: StagedAction,
    pub(super) previous: Previous,
}

/// A name that nothing else has, and that tells whose it is should it ever be left.
pub(super) fn temporary_name() -> String {
    format!(".jig-{}.tmp", Ulid::generate())
}

impl StagedChange {
    /// What a journal says of it.
    pub(super) fn journal_step(&self) -> JournalStep {
        JournalStep {
            path: self.path.as_str().to_owned(),
            temporary: self.temporary.clone(),
            new: match self.action {
                StagedAction::Put(new) => Some(new),
                StagedAction::Unfinished | StagedAction::Delete => None,
            },
            replaces: !matches!(self.previous, Previous::Nothing),
        }
    }
}

impl Previous {
    /// Whether that is what `name` is.
    fn is_at(&self, directory: BorrowedFd<'_>, name: &str) -> bool {
        match self {
            Self::Nothing => false,
            Self::File(old) => FileVersion::read(directory, name) == Ok(*old),
            Self::Directory(old) => old.is_at(directory, name),
        }
    }
}

/// Puts what is new in place, or what is old aside. Fails, with everything as it was, when what is
/// there is not what the change starts from.
pub(super) fn apply(staged: &StagedChange) -> Result<(), Error> {
    let (directory, name, temporary) = (&staged.directory, &staged.name, &staged.temporary);
    let failed = |errno| match (errno, &staged.previous) {
        (Errno::EXIST, Previous::Nothing) => already_exists(&staged.path),
        (Errno::NOENT, Previous::File(_) | Previous::Directory(_)) => stale_error(&staged.path),
        _ => os_error(errno, staged.path.as_str(), ExpectedKind::File),
    };
    let aside = |errno: Result<(), Errno>| errno.map_err(failed);
    match (staged.action, &staged.previous) {
        (StagedAction::Unfinished, _) => {
            Err(Error::internal("a change whose content is not written"))
        }
        (StagedAction::Put(_), Previous::Nothing) => {
            aside(rename_noreplace(directory, temporary, name))
        }
        (StagedAction::Put(new), old) => {
            aside(exchange(directory, temporary, name))?;
            if old.is_at(directory.as_fd(), temporary) {
                return Ok(());
            }
            aside(exchange(directory, temporary, name))?;
            // Replaced once more in between: what comes out now is newer than what went back in.
            if FileVersion::read(directory.as_fd(), temporary) != Ok(new) {
                aside(exchange(directory, temporary, name))?;
            }
            Err(stale_error(&staged.path))
        }
        (StagedAction::Delete, old) => {
            aside(rename_noreplace(directory, name, temporary))?;
            if old.is_at(directory.as_fd(), temporary) {
                return Ok(());
            }
            aside(rename_noreplace(directory, temporary, name))?;
            Err(stale_error(&staged.path))
        }
    }
}

/// Takes back what [`apply`] did, as far as it did it, and removes what was new. Does nothing the
/// second time. What somebody else has put there since, or changed there, is left alone: then what
/// was there before stays aside.
pub(super) fn undo(directory: &OwnedFd, name: &str, step: &JournalStep) -> Result<(), Errno> {
    let at = |name: &str| match FileVersion::read(directory.as_fd(), name) {
        Ok(stamp) => Ok(Some(stamp)),
        Err(Errno::NOENT) => Ok(None),
        Err(errno) => Err(errno),
    };
    let temporary = step.temporary.as_str();
    let old_link = fallback_link_name(temporary);
    if at(temporary)?.is_none() && at(&old_link)?.is_some() {
        renameat(directory, &old_link, directory, temporary)?;
    }
    remove_leftover(directory, &old_link)?;
    let (aside, in_place) = (at(temporary)?, at(name)?);
    let is_one = |one: Option<FileVersion>, other: Option<FileVersion>| {
        one.is_some() && one.map(FileVersion::identity) == other.map(FileVersion::identity)
    };
    match (aside, in_place) {
        // Nothing was put in place, or it has got its second name only.
        (Some(_), _) if is_one(aside, step.new) => {
            if is_one(aside, in_place) && !step.replaces {
                remove_leftover(directory, name)?;
            }
            remove_leftover(directory, temporary)
        }
        // What was there has a second name, and still its own.
        (Some(_), _) if is_one(aside, in_place) => remove_leftover(directory, temporary),
        (Some(_), None) => renameat(directory, temporary, directory, name),
        (Some(_), Some(_)) if in_place == step.new => {
            exchange(directory, temporary, name)?;
            if at(temporary)? == step.new {
                return remove_leftover(directory, temporary);
            }
            // It was replaced just now: what has come out is somebody else's.
            exchange(directory, temporary, name)?;
            warn_left_aside(step);
            Ok(())
        }
        (Some(_), Some(_)) => {
            warn_left_aside(step);
            Ok(())
        }
        (None, Some(_)) if in_place == step.new && !step.replaces => {
            match rename_noreplace(directory, name, temporary) {
                Err(Errno::NOENT) => return Ok(()), // gone just now
                taken => taken?,
            }
            if at(temporary)? == step.new {
                return remove_leftover(directory, temporary);
            }
            rename_noreplace(directory, temporary, name)
        }
        (None, _) => Ok(()),
    }
}

fn warn_left_aside(step: &JournalStep) {
    let (path, temporary) = (&step.path, &step.temporary);
    tracing::warn!(
        path,
        temporary,
        "what a change has put here was changed or replaced since, and is left: what was here before lies beside it under the temporary name"
    );
}

/// Removes what is not needed any more, a directory with all that is in it.
pub(super) fn remove_leftover(directory: &OwnedFd, name: &str) -> Result<(), Errno> {
    match remove_entry(directory, name) {
        Err(Errno::NOENT) => Ok(()), // removed before
        removed => removed,
    }
}

/// Renames `from` to a name that nothing may have.
fn rename_noreplace(directory: &OwnedFd, from: &str, to: &str) -> Result<(), Errno> {
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
            let old_link = fallback_link_name(temporary);
            linkat(directory, name, directory, &old_link, AtFlags::empty())?;
            fault_injection::step();
            renameat(directory, temporary, directory, name)?;
            fault_injection::step();
            renameat(directory, &old_link, directory, temporary)
        }
        swapped => swapped,
    }
}

pub(super) fn fallback_link_name(temporary: &str) -> String {
    format!("{temporary}~")
}
