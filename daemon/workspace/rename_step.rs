//! One step of a change: puts a new file in place, or reverts that.
//!
//! A step renames names in one directory, through its descriptor. Beside the destination, a
//! temporary name holds the new file before the step and the old one after it.

use std::{
    os::fd::{AsFd as _, BorrowedFd, OwnedFd},
    sync::Arc,
    thread,
    time::Duration,
};

use rustix::{
    fs::{AtFlags, RenameFlags, fstat, linkat, renameat, renameat_with, unlinkat},
    io::retry_on_intr,
};
use ulid::Ulid;

use super::{
    fault_injection,
    journal::JournalStep,
    os_error::{ExpectedKind, already_exists_error, os_error},
    path::RelativePath,
    resolve::open_entry,
    snapshot::{FileVersion, stale_error},
    subtree::Subtree,
    tree_removal::remove_entry,
};
use crate::daemon::{error::Error, sys::Errno};

/// Exchanges after which a step gives up against a process that renames its files all the time.
const MAX_EXCHANGES: usize = 100;
/// Those after which it waits between them: the other process may have been interrupted, so that only
/// its next rename brings the new file back.
const IMMEDIATE_EXCHANGES: usize = 10;
const EXCHANGE_DELAY: Duration = Duration::from_millis(1);

/// What a step does with its path.
#[derive(Debug, Clone, Copy)]
pub(super) enum StagedAction {
    /// The new file is still being written.
    Unfinished,
    /// The new file, which is complete, is put in place.
    Put(FileVersion),
    Delete,
}

/// What exists at a path before a step.
#[derive(Debug)]
pub(super) enum Previous {
    Nothing,
    File(FileVersion),
    /// A directory that contains exactly these files.
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

/// Returns a unique name, which also marks the file as the daemon's if a crash leaves it behind.
pub(super) fn temporary_name() -> String {
    format!(".jig-{}.tmp", Ulid::generate())
}

impl StagedChange {
    /// Returns the step's entry in the journal.
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
    /// Whether `name` is the recorded file or directory.
    fn is_at(&self, directory: BorrowedFd<'_>, name: &str) -> bool {
        match self {
            Self::Nothing => false,
            Self::File(old) => FileVersion::read(directory, name) == Ok(*old),
            Self::Directory(old) => old.is_at(directory, name),
        }
    }
}

/// Puts the new file in place, and the old one under the temporary name.
///
/// # Errors
///
/// If the path is not in the state that the change starts from. Then the step has no effect.
pub(super) fn apply(staged: &StagedChange) -> Result<(), Error> {
    let (directory, name, temporary) = (&staged.directory, &staged.name, &staged.temporary);
    let to_error = |errno| match (errno, &staged.previous) {
        (Errno::EXIST, Previous::Nothing) => already_exists_error(&staged.path),
        (Errno::NOENT, Previous::File(_) | Previous::Directory(_)) => stale_error(&staged.path),
        _ => os_error(errno, staged.path.as_str(), ExpectedKind::File),
    };
    let checked = |renamed: Result<(), Errno>| renamed.map_err(to_error);

    match (staged.action, &staged.previous) {
        (StagedAction::Unfinished, _) => {
            Err(Error::internal("a staged change whose content is not written"))
        }
        (StagedAction::Put(_), Previous::Nothing) => {
            checked(rename_noreplace(directory, temporary, name))
        }
        (StagedAction::Put(new), old) => {
            let new_file = open_entry(directory.as_fd(), temporary.as_bytes());
            let new_file = new_file.map_err(to_error)?;
            checked(exchange(directory, temporary, name))?;
            if old.is_at(directory.as_fd(), temporary) {
                return Ok(());
            }

            // Another process has changed the old file: restore it.
            checked(take_back(directory, (temporary, name), (new, new_file.as_fd())))?;
            Err(stale_error(&staged.path))
        }
        (StagedAction::Delete, old) => {
            checked(rename_noreplace(directory, name, temporary))?;
            if old.is_at(directory.as_fd(), temporary) {
                return Ok(());
            }
            checked(rename_noreplace(directory, temporary, name))?;
            Err(stale_error(&staged.path))
        }
    }
}

/// Takes a new file back to its temporary name, and what is there to its path.
///
/// If another process has replaced the path meanwhile, its file stays. If it has moved the new file
/// instead, what is at the temporary name may have no other name: that is put back as often as it
/// takes.
fn take_back(
    directory: &OwnedFd,
    (temporary, name): (&str, &str),
    (new, new_file): (FileVersion, BorrowedFd<'_>),
) -> Result<(), Errno> {
    let at_temporary = || FileVersion::read(directory.as_fd(), temporary);
    for attempt in 0..MAX_EXCHANGES {
        if attempt >= IMMEDIATE_EXCHANGES {
            thread::sleep(EXCHANGE_DELAY);
        }
        exchange(directory, temporary, name)?;
        let taken = at_temporary();
        if taken == Ok(new) {
            return Ok(());
        }

        // What was taken out is newer than the new file.
        exchange(directory, temporary, name)?;
        let is_changed = taken.is_ok_and(|taken| taken.identity() == new.identity());
        if is_changed || at_temporary() == Ok(new) || fstat(new_file)?.st_nlink == 0 {
            return Ok(());
        }
    }
    Ok(())
}

/// Reverts [`apply`], even if it was interrupted, and removes the new file. Has no effect the
/// second time.
///
/// If another process has changed or replaced the new file since, it stays. The old file then keeps
/// its temporary name.
pub(super) fn undo(directory: &OwnedFd, name: &str, step: &JournalStep) -> Result<(), Errno> {
    let version_at = |name: &str| match FileVersion::read(directory.as_fd(), name) {
        Ok(version) => Ok(Some(version)),
        Err(Errno::NOENT) => Ok(None),
        Err(errno) => Err(errno),
    };

    let temporary = step.temporary.as_str();
    let old_link = fallback_link_name(temporary);
    if version_at(temporary)?.is_none() && version_at(&old_link)?.is_some() {
        renameat(directory, &old_link, directory, temporary)?;
    }
    remove_leftover(directory, &old_link)?;

    let (at_temporary, at_name) = (version_at(temporary)?, version_at(name)?);
    let is_same_file = |a: Option<FileVersion>, b: Option<FileVersion>| {
        a.is_some() && a.map(FileVersion::identity) == b.map(FileVersion::identity)
    };

    match (at_temporary, at_name) {
        // The new file is not in place, or is linked to both names.
        (Some(_), _) if is_same_file(at_temporary, step.new) => {
            if is_same_file(at_temporary, at_name) && !step.replaces {
                remove_leftover(directory, name)?;
            }
            remove_leftover(directory, temporary)
        }
        // The old file is linked to both names.
        (Some(_), _) if is_same_file(at_temporary, at_name) => {
            remove_leftover(directory, temporary)
        }
        (Some(_), None) => renameat(directory, temporary, directory, name),
        (Some(_), Some(_)) if at_name == step.new => {
            exchange(directory, temporary, name)?;
            if version_at(temporary)? == step.new {
                return remove_leftover(directory, temporary);
            }

            // Another process has just replaced the new file: restore the file of that process.
            exchange(directory, temporary, name)?;
            warn_left_aside(step);
            Ok(())
        }
        (Some(_), Some(_)) => {
            warn_left_aside(step);
            Ok(())
        }
        (None, Some(_)) if at_name == step.new && !step.replaces => {
            match rename_noreplace(directory, name, temporary) {
                Err(Errno::NOENT) => return Ok(()), // just removed by another process
                renamed => renamed?,
            }
            if version_at(temporary)? == step.new {
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
        "cannot undo a change of a file, because another process has changed it since: the original is in the same directory under the temporary name"
    );
}

/// Removes a file that is no longer needed, or a directory with its contents. Succeeds if it is
/// gone.
pub(super) fn remove_leftover(directory: &OwnedFd, name: &str) -> Result<(), Errno> {
    match remove_entry(directory, name) {
        Err(Errno::NOENT) => Ok(()),
        removed => removed,
    }
}

/// Renames `from` to a name that must not exist.
fn rename_noreplace(directory: &OwnedFd, from: &str, to: &str) -> Result<(), Errno> {
    match retry_on_intr(|| renameat_with(directory, from, directory, to, RenameFlags::NOREPLACE)) {
        // The file system does not support the flag. A link also fails if the name exists.
        Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => {
            linkat(directory, from, directory, to, AtFlags::empty())?;
            unlinkat(directory, from, AtFlags::empty())
        }
        renamed => renamed,
    }
}

/// Exchanges two files.
pub(super) fn exchange(directory: &OwnedFd, temporary: &str, name: &str) -> Result<(), Errno> {
    match retry_on_intr(|| {
        renameat_with(directory, temporary, directory, name, RenameFlags::EXCHANGE)
    }) {
        // The file system does not support the flag. The old file gets a second name first.
        Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => {
            let old_link = fallback_link_name(temporary);
            linkat(directory, name, directory, &old_link, AtFlags::empty())?;
            fault_injection::step();
            renameat(directory, temporary, directory, name)?;
            fault_injection::step();
            renameat(directory, &old_link, directory, temporary)
        }
        exchanged => exchanged,
    }
}

/// Second name of the old file during an exchange, where the file system has no atomic one.
pub(super) fn fallback_link_name(temporary: &str) -> String {
    format!("{temporary}~")
}
