//! Drafts of files that come in parts, in the workspace: begun, found again, and put into their
//! places at once when they are whole.

use std::{
    os::fd::{AsFd as _, BorrowedFd, OwnedFd},
    sync::Arc,
};

use rustix::fs::{AtFlags, FileType, Stat, fstat, fsync, renameat, statat};

use super::{
    Workspace,
    beneath::open_name,
    draft::{Draft, DraftError, DraftPlace, Left, Target, delete, lost, tampered},
    failure::{Wanted, exists, failure},
    fault,
    file::{RegularFile, hash},
    original::{Fresh, Misfit, Original, Stamp, stale},
    path::RelativePath,
    step::{Kind, Old, Staged, apply, exchange, finish, old_link},
    stop::Stop,
    temporary::is_temporary,
};
use crate::daemon::{
    error::{Error, Reason},
    sys::Errno,
};

/// Mode of a new file.
const NEW_FILE: u32 = 0o644;

impl Workspace {
    /// Checks that a draft could be put there now, before it has come.
    pub(crate) fn look_at(&self, target: &Target, stop: &Stop) -> Result<(), Error> {
        self.allow_change(&target.path)?;
        self.look(target, stop).map(drop)
    }

    /// Begins a draft beside the file that is to be at `path`. `say` writes down where, before and
    /// after it is made.
    pub(crate) fn begin_draft(
        &self,
        path: &RelativePath,
        say: impl Fn(&DraftPlace) -> Result<(), Error>,
    ) -> Result<Draft, Error> {
        let (directory, _) = self.directory_of(path)?;
        Draft::create(directory, path, say)
    }

    /// Finds a draft again, and hashes what it has.
    pub(crate) fn reopen_draft(&self, place: DraftPlace, stop: &Stop) -> Result<Draft, DraftError> {
        let (directory, name) = self.place_of(&place)?;
        match settle(&directory, &name, &place) {
            Ok(Left::Draft(_)) => Draft::open(directory, place, stop),
            Ok(Left::InPlace(_) | Left::Nothing) => Err(tampered(&place.path)),
            Err(errno) => Err(lost(errno, &place.path)),
        }
    }

    /// Checks that a draft is still what has come, where it must be.
    pub(crate) fn check_draft(&self, draft: &Draft) -> Result<(), DraftError> {
        let (directory, _) = self.place_of(draft.place())?;
        draft.check(directory.as_fd())
    }

    /// Finds what is left of a draft of an earlier daemon, and takes back what that had done by half
    /// of putting it into its place.
    pub(crate) fn mend_draft(&self, place: &DraftPlace) -> Result<Left, Error> {
        let settled = match self.place_of(place) {
            Ok((directory, name)) => settle(&directory, &name, place),
            Err(DraftError::Dropped(_)) => Ok(Left::Nothing),
            Err(DraftError::Kept(error)) => return Err(error),
        };
        settled.map_err(|errno| failure(errno, &place.path, Wanted::File))
    }

    /// Deletes the draft at `place`, unless another file has taken its name. Answers whether it is
    /// gone.
    pub(crate) fn delete_draft(&self, place: &DraftPlace) -> bool {
        match self.place_of(place) {
            Ok((directory, name)) => {
                settle(&directory, &name, place).is_ok() && delete(directory.as_fd(), place)
            }
            Err(DraftError::Dropped(_)) => true,
            Err(DraftError::Kept(_)) => false,
        }
    }

    /// Puts a draft into its place, whole as it is. Answers whether nothing was there before. When
    /// that fails it is a draft as before.
    ///
    /// `say` writes down that it is about to be put there: should the daemon die half-way, the next
    /// one knows what to look for.
    pub(crate) fn put(
        &self,
        draft: &mut Draft,
        target: &Target,
        say: impl FnOnce(&DraftPlace) -> Result<(), Error>,
        stop: &Stop,
    ) -> Result<bool, DraftError> {
        self.allow_change(&target.path)?;
        let fails = |errno| failure(errno, target.path.as_str(), Wanted::File);
        // What can take long is done before others must wait.
        let looked_at = self.look(target, stop)?;
        if self.sync {
            fsync(&*draft).map_err(fails)?;
        }
        let _held = self.locks.hold(std::slice::from_ref(&target.path), stop)?;
        let (directory, name) = self.place_of(draft.place())?;
        draft.check(directory.as_fd())?;
        self.allow_change_in(directory.as_fd(), &name)?;
        let existing = find_existing(directory.as_fd(), &name, target)?
            .map(|file| Original::look(&file, &target.path))
            .transpose()?;
        if let Some(existing) = &existing {
            existing.check_writable(&target.path, target.mode)?;
        }
        let old = existing.as_ref().map(|existing| existing.stamp);
        if target.expected_sha256.is_some() && old != looked_at {
            return Err(stale(&target.path).into());
        }
        draft.will_replace(old.is_some());
        say(draft.place())?;
        fault::step();
        let staged = Staged {
            path: target.path.clone(),
            directory: Arc::new(directory),
            name,
            temporary: draft.place().name.clone(),
            kind: Kind::Put(Stamp::of(&fstat(&*draft).map_err(fails)?)),
            old: old.map_or(Old::Nothing, Old::File),
        };
        let applied = self
            .dress(draft, &staged.directory, existing.as_ref(), target)
            .map_err(|misfit| misfit.told(target.path.as_str()))
            .and_then(|()| {
                fault::step();
                apply(&staged)
            });
        fault::step();
        if let Err(error) = applied {
            // A file system that cannot do it in one step may have gone half-way.
            let left = settle(&staged.directory, &staged.name, draft.place());
            if !matches!(left, Ok(Left::InPlace(_))) {
                draft.undress();
                return Err(error.into());
            }
        }
        if old.is_some() {
            if let Err(errno) = finish(&staged.directory, &staged.temporary) {
                tracing::warn!(name = staged.temporary, %errno, "what an upload has replaced cannot be deleted");
            }
            fault::step();
        }
        // It is in its place, and no draft any more.
        self.sync(target.path.split().map(|(directory, _)| directory))
            .map_err(DraftError::Dropped)?;
        Ok(old.is_none())
    }

    /// Makes a draft what it is to be but for its name.
    fn dress(
        &self,
        draft: &Draft,
        directory: &OwnedFd,
        existing: Option<&Original>,
        target: &Target,
    ) -> Result<(), Misfit> {
        match existing {
            Some(original) => original.dress(draft.as_fd(), target.mode)?,
            None => {
                Fresh { owner: self.owner_in(directory)?, mode: target.mode.unwrap_or(NEW_FILE) }
                    .dress(draft.as_fd())?
            }
        };
        if self.sync {
            fsync(draft)?;
        }
        Ok(())
    }

    /// The file that a draft is to replace, if it may; none where nothing is.
    fn look(&self, target: &Target, stop: &Stop) -> Result<Option<Stamp>, Error> {
        let path = target.path.as_str();
        let (directory, name) = self.directory_of(&target.path)?;
        let Some(file) = find_existing(directory.as_fd(), &name, target)? else {
            return match target.expected_sha256 {
                None => Ok(None),
                Some(_) => Err(failure(Errno::NOENT, path, Wanted::File)),
            };
        };
        let stamp = Stamp::of(&file.stat()?);
        if let Some(expected) = &target.expected_sha256
            && *expected != hash(&file, path, u64::MAX, stop)?.0.finish()
        {
            let text = format!(
                "{path:?} is not the file of expected_sha256: read it again, and decide anew"
            );
            return Err(Error::new(Reason::StaleFile, text).with("path", path));
        }
        Ok(Some(stamp))
    }

    /// The directory of a file, as a place to work in, and its name there.
    fn directory_of(&self, path: &RelativePath) -> Result<(OwnedFd, String), Error> {
        let (parent, name) = path.split_file()?;
        let directory = self.root.open_place(parent.as_bytes());
        let directory =
            directory.map_err(|errno| failure(errno, parent.as_str(), Wanted::Directory))?;
        self.allow_change_in(directory.as_fd(), name)?;
        Ok((directory, name.to_owned()))
    }

    /// The directory in which a draft must lie, and the name there of what it is to become.
    fn place_of(&self, place: &DraftPlace) -> Result<(OwnedFd, String), DraftError> {
        // One that was not begun has no name; and whatever a record says, other files stay.
        if !is_temporary(place.name.as_bytes()) {
            return Err(tampered(&place.path));
        }
        let path = self.resolve(&place.path)?;
        let (parent, name) = path.split_file()?;
        let directory = self.root.open_place(parent.as_bytes());
        let directory = directory.map_err(|errno| lost(errno, path.as_str()))?;
        Ok((directory, name.to_owned()))
    }
}

/// What is there, if it may be replaced.
fn find_existing(
    directory: BorrowedFd<'_>,
    name: &str,
    target: &Target,
) -> Result<Option<RegularFile>, Error> {
    let path = target.path.as_str();
    let fails = |errno| failure(errno, path, Wanted::File);
    let found = match open_name(directory, name.as_bytes()) {
        Ok(found) => found,
        Err(Errno::NOENT) => return Ok(None),
        Err(errno) => return Err(fails(errno)),
    };
    let stat = fstat(&found).map_err(fails)?;
    if FileType::from_raw_mode(stat.st_mode) == FileType::Symlink {
        return Err(fails(Errno::LOOP));
    }
    let file = RegularFile::open(&found, path)?;
    if target.create_new {
        return Err(exists(&target.path));
    }
    Ok(Some(file))
}

/// Finds what is left of a draft that was to be put into its place, and takes back what of that was
/// done by half.
fn settle(directory: &OwnedFd, name: &str, place: &DraftPlace) -> Result<Left, Errno> {
    let at = |name: &str| match statat(directory, name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(stat) => Ok(Some(stat)),
        Err(Errno::NOENT) => Ok(None),
        Err(errno) => Err(errno),
    };
    let temporary = place.name.as_str();
    // Where a file system cannot swap two files, the old one has a name of its own meanwhile.
    let old_link = old_link(temporary);
    if at(temporary)?.is_none() && at(&old_link)?.is_some() {
        renameat(directory, &old_link, directory, temporary)?;
    }
    finish(directory, &old_link)?;
    let (beside, in_place) = (at(temporary)?, at(name)?);
    let size_of_draft = |found: Option<Stat>| {
        let draft = found.filter(|stat| Some((stat.st_dev, stat.st_ino)) == place.identity);
        draft.map(|stat| u64::try_from(stat.st_size).unwrap_or(0))
    };
    match (size_of_draft(beside), size_of_draft(in_place), place.replaces) {
        // Where it cannot rename to a free name alone, both names are there for a moment.
        (Some(_), Some(size), Some(false)) => {
            finish(directory, temporary)?;
            Ok(Left::InPlace(size))
        }
        (Some(size), _, _) => Ok(Left::Draft(size)),
        // Swapped; but nobody has looked yet whether the file that came out is the one to replace.
        (None, Some(size), Some(true)) if beside.is_some() => {
            exchange(directory, temporary, name)?;
            if size_of_draft(at(temporary)?).is_some() {
                return Ok(Left::Draft(size));
            }
            // It was replaced just now: what has come out is somebody else's.
            exchange(directory, temporary, name)?;
            Ok(Left::Nothing)
        }
        (None, Some(size), Some(_)) => Ok(Left::InPlace(size)),
        (None, _, _) => Ok(Left::Nothing),
    }
}

#[cfg(test)]
mod tests;
