//! A large file of an archive, written beside its destination as it arrives. Until it is complete,
//! no command can open it (see [`PartialFile`]). A journal names it, so that the next daemon removes
//! it after a crash.

use std::cell::RefCell;

use super::super::{
    Workspace,
    cancel::CancelToken,
    journal::{JournalEntry, TransactionJournal},
    os_error::{ExpectedKind, already_exists_error, os_error},
    partial_file::{PartialFile, PartialFileLocation},
    path::RelativePath,
    snapshot::ReceivedMetadata,
};
use crate::{
    archive::ModifyTime,
    daemon::{error::Error, store::failure::state_failure},
};

/// A file that is being received. Dropped before it is committed, it is removed.
#[derive(Debug)]
pub(super) struct ReceivedFile {
    path: RelativePath,
    metadata: ReceivedMetadata,
    /// `None` after the commit.
    partial: Option<PartialFile>,
    /// Dropped after the file is removed.
    journal: Option<TransactionJournal>,
}

impl ReceivedFile {
    /// Creates the file in the directory of its destination, which must exist.
    pub(super) fn create(
        workspace: &Workspace,
        path: RelativePath,
        mode: u32,
        modified: Option<ModifyTime>,
    ) -> Result<Self, Error> {
        workspace.check_change_allowed(&path)?;
        let (parent, name) = path.split_file()?;
        let directory = workspace
            .strict_root
            .open_directory_handle(parent.as_bytes())
            .map_err(|errno| os_error(errno, parent.as_str(), ExpectedKind::Directory))?;
        workspace.check_change_allowed_in(std::os::fd::AsFd::as_fd(&directory), name)?;

        let begin = |journals: &super::super::JournalDirectory| journals.begin();
        let journal = workspace.journals.as_ref().map(begin).transpose();
        let journal =
            RefCell::new(journal.map_err(|error| state_failure(&error).with_cause(error))?);
        let record = |location: &PartialFileLocation| {
            if location.identity.is_some() {
                return Ok(()); // it is recorded
            }
            let entry =
                JournalEntry::Put { path: location.path.clone(), temporary: location.name.clone() };
            let mut journal = journal.borrow_mut();
            let appended = journal.as_mut().map_or(Ok(()), |journal| journal.append(&[entry]));
            appended.map_err(|error| state_failure(&error).with_cause(error))
        };
        let quota = workspace.quota.clone();
        let partial = PartialFile::create(directory, &path, quota, record)?;
        let metadata = ReceivedMetadata { mode, modified };
        Ok(Self { path, metadata, partial: Some(partial), journal: journal.into_inner() })
    }

    pub(super) fn path(&self) -> &RelativePath {
        &self.path
    }

    /// Number of bytes received so far.
    pub(super) fn length(&self) -> u64 {
        self.partial.as_ref().map_or(0, PartialFile::length)
    }

    pub(super) fn append(&mut self, data: &[u8]) -> Result<(), Error> {
        match &mut self.partial {
            Some(partial) => partial.append(data),
            None => Err(Error::internal("a file that is committed")),
        }
    }

    /// Puts the complete file in place. Returns its device and inode.
    pub(super) fn commit(
        mut self,
        workspace: &Workspace,
        replaces: bool,
        cancel: &CancelToken,
    ) -> Result<(u64, u64), Error> {
        let paths = std::slice::from_ref(&self.path);
        let mut transaction = workspace.begin_strict_transaction(paths, cancel)?;
        let original = transaction.stat(&self.path)?;
        if original.is_some() && !replaces {
            return Err(already_exists_error(&self.path));
        }

        let Some(partial) = &self.partial else {
            return Err(Error::internal("a file that is committed"));
        };
        let identity = partial.location().identity;
        let received = (partial, self.journal.take());
        transaction.adopt(&self.path, received, original.as_ref(), self.metadata)?;
        // From here on, the transaction removes the file if it fails.
        self.partial = None;
        transaction.commit()?.sync_result()?;
        identity.ok_or_else(|| Error::internal("a file without an identity"))
    }
}

impl Drop for ReceivedFile {
    fn drop(&mut self) {
        if let Some(partial) = self.partial.take() {
            partial.discard();
        }
    }
}
