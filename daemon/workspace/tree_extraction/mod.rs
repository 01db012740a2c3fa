//! Puts the members of an archive into a directory, as they arrive.
//!
//! Each member is changed as by any tool: resolved beneath the workspace's descriptor, written
//! beside its destination, renamed into place, and journaled. No member passes through a symbolic
//! link, even if the workspace follows links. Small files and directories are collected and changed
//! together, because most of the time of a small change is that of its journal. If such a batch
//! fails, its members are changed one by one, up to the one that fails.
//!
//! | module | contents |
//! |---|---|
//! | [`created_directories`] | directories whose metadata are set at the end |
//! | [`received_file`] | a large file that is being received |

mod created_directories;
mod received_file;

use std::{
    collections::{BTreeSet, HashMap},
    hash::{BuildHasher as _, RandomState},
    mem,
    sync::Arc,
};

use self::{created_directories::CreatedDirectories, received_file::ReceivedFile};
use super::{
    Workspace,
    cancel::CancelToken,
    file_usage::FileUsage,
    memory_budget::MemoryReservation,
    os_error::already_exists_error,
    path::RelativePath,
    snapshot::{FileSnapshot, NewContent},
};
use crate::{
    archive::{MAX_MEMBER_PATH_BYTES, Member, MemberKind, ModifyTime},
    daemon::error::{Error, Reason},
};

/// Members that are changed together.
const MAX_BATCH_MEMBERS: usize = 512;
/// Bytes of files that are changed together.
const MAX_BATCH_BYTES: usize = 4 << 20;
/// Size of a file that is collected in memory. A larger one is written as it arrives.
const MAX_BATCHED_FILE_BYTES: u64 = 1 << 20;
/// Memory for each extracted file: a hash of its path, its inode, and the table.
const BYTES_PER_EXTRACTED_FILE: u64 = 48;
/// Files between two reservations of memory.
const FILES_PER_RESERVATION: usize = 4096;

/// Extracts an archive into a directory.
#[derive(Debug)]
pub(crate) struct TreeExtraction {
    workspace: Arc<Workspace>,
    /// Directory of the tree, without symbolic links.
    base: RelativePath,
    /// Whether files and links may be replaced.
    replaces: bool,
    batch: Vec<BatchedMember>,
    batch_bytes: usize,
    receiving: Option<Receiving>,
    directories: CreatedDirectories,
    extracted: ExtractedFiles,
    counts: TreeCounts,
}

/// Number of members that are in place.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TreeCounts {
    pub(crate) files: u64,
    pub(crate) directories: u64,
    pub(crate) symlinks: u64,
    pub(crate) hard_links: u64,
    /// Bytes of the contents of the files.
    pub(crate) size_bytes: u64,
}

/// A member that is changed together with others.
#[derive(Debug)]
struct BatchedMember {
    path: RelativePath,
    /// The content of a file. `None` for a directory.
    content: Option<Vec<u8>>,
    mode: u32,
    modified: Option<ModifyTime>,
}

/// The file whose content arrives.
#[derive(Debug)]
enum Receiving {
    Buffered(BatchedMember),
    Streamed(Box<ReceivedFile>),
}

/// Inodes of extracted files by hashes of their paths: hard links to them are accepted.
#[derive(Debug, Default)]
struct ExtractedFiles {
    inodes: HashMap<u64, (u64, u64)>,
    hasher: RandomState,
    memory: MemoryReservation,
}

impl TreeCounts {
    /// Number of all members.
    pub(crate) fn members(self) -> u64 {
        self.files + self.directories + self.symlinks + self.hard_links
    }
}

impl TreeExtraction {
    /// Starts an extraction into the directory `path`, which is created if it is missing.
    pub(crate) fn start(
        workspace: Arc<Workspace>,
        path: &RelativePath,
        replaces: bool,
        cancel: &CancelToken,
    ) -> Result<Self, Error> {
        // A path above a protected one cannot be changed, but its other entries can.
        if workspace.root.open_directory_handle(path.as_bytes()).is_err() {
            let paths = std::slice::from_ref(path);
            let mut transaction = workspace.begin_transaction(paths, cancel)?;
            transaction.create_directories(path)?;
            transaction.commit()?.sync_result()?;
        }

        let base = workspace.resolve_symlinks(path)?.unwrap_or_else(|| path.clone());
        Ok(Self {
            workspace,
            base,
            replaces,
            batch: Vec::new(),
            batch_bytes: 0,
            receiving: None,
            directories: CreatedDirectories::default(),
            extracted: ExtractedFiles::default(),
            counts: TreeCounts::default(),
        })
    }

    /// Number of members that are in place.
    pub(crate) fn counts(&self) -> TreeCounts {
        self.counts
    }

    /// Returns the path of a member in the workspace.
    pub(crate) fn workspace_path(&self, member: &str) -> Result<RelativePath, Error> {
        let path = if member.is_empty() { self.base.clone() } else { self.base.join(member) };
        if path.as_bytes().len() > MAX_MEMBER_PATH_BYTES {
            let text = format!("the path is longer than {MAX_MEMBER_PATH_BYTES} bytes");
            return Err(Error::new(Reason::InvalidArchive, text));
        }
        Ok(path)
    }

    /// Starts a member. The content of a file follows.
    pub(crate) fn begin_member(
        &mut self,
        member: Member,
        cancel: &CancelToken,
    ) -> Result<(), Error> {
        let path = self.workspace_path(&member.path)?;
        let Member { kind, mode, modified, .. } = member;
        match kind {
            // The top of the tree exists.
            MemberKind::Directory if path == self.base => Ok(()),
            MemberKind::Directory => {
                self.add(BatchedMember { path, content: None, mode, modified }, cancel)
            }
            MemberKind::File(size) if size <= MAX_BATCHED_FILE_BYTES => {
                let capacity = usize::try_from(size).unwrap_or(0);
                let content = Some(Vec::with_capacity(capacity));
                let file = BatchedMember { path, content, mode, modified };
                self.receiving = Some(Receiving::Buffered(file));
                Ok(())
            }
            MemberKind::File(size) => {
                self.flush(cancel)?;
                self.workspace.check_room(FileUsage::of_file(size), cancel)?;
                self.create_parents(&path, cancel)?;
                let file = ReceivedFile::create(&self.workspace, path, mode, modified)?;
                self.receiving = Some(Receiving::Streamed(Box::new(file)));
                Ok(())
            }
            MemberKind::Symlink(target) => {
                self.flush(cancel)?;
                self.write_symlink(&path, &target, modified, cancel)
            }
            MemberKind::HardLink(target) => {
                self.flush(cancel)?;
                self.write_hard_link(&path, &target, cancel)
            }
        }
    }

    /// Adds bytes to the content of the file.
    pub(crate) fn append(&mut self, data: &[u8]) -> Result<(), Error> {
        match &mut self.receiving {
            Some(Receiving::Buffered(file)) => {
                file.content.get_or_insert_default().extend_from_slice(data);
                Ok(())
            }
            Some(Receiving::Streamed(file)) => file.append(data),
            None => Err(Error::internal("content without a file")),
        }
    }

    /// Ends the content of the file.
    pub(crate) fn end_content(&mut self, cancel: &CancelToken) -> Result<(), Error> {
        match self.receiving.take() {
            Some(Receiving::Buffered(file)) => self.add(file, cancel),
            Some(Receiving::Streamed(file)) => {
                let (path, size) = (file.path().clone(), file.length());
                let identity = file.commit(&self.workspace, self.replaces, cancel)?;
                self.count_file(&path, identity, size)
            }
            None => Err(Error::internal("the end of a content without a file")),
        }
    }

    /// Puts all members in place, and sets the metadata of the directories.
    pub(crate) fn finish(&mut self, cancel: &CancelToken) -> Result<TreeCounts, Error> {
        self.flush(cancel)?;
        mem::take(&mut self.directories).apply_metadata(&self.workspace)?;
        Ok(self.counts)
    }

    /// Puts the collected members in place.
    pub(crate) fn flush(&mut self, cancel: &CancelToken) -> Result<(), Error> {
        let batch = mem::take(&mut self.batch);
        self.batch_bytes = 0;
        // A later member of the same name replaces the earlier one.
        let names: BTreeSet<_> = batch.iter().map(|member| &member.path).collect();
        if names.len() == batch.len() && batch.len() > 1 {
            match self.change(&batch, cancel) {
                Err(_) if !cancel.is_cancelled() => {}
                changed => return changed,
            }
        }

        for member in &batch {
            self.change(std::slice::from_ref(member), cancel)
                .map_err(|error| self.at_member(error, &member.path))?;
        }
        Ok(())
    }

    fn add(&mut self, member: BatchedMember, cancel: &CancelToken) -> Result<(), Error> {
        self.batch_bytes += member.content.as_ref().map_or(0, Vec::len);
        self.batch.push(member);
        if self.batch.len() >= MAX_BATCH_MEMBERS || self.batch_bytes >= MAX_BATCH_BYTES {
            return self.flush(cancel);
        }
        Ok(())
    }

    /// Changes members together: all of them or none.
    fn change(&mut self, members: &[BatchedMember], cancel: &CancelToken) -> Result<(), Error> {
        if members.is_empty() {
            return Ok(());
        }
        let workspace = Arc::clone(&self.workspace);
        let exists = |member: &&BatchedMember| {
            let path = member.path.as_bytes();
            member.content.is_none() && workspace.strict_root.open_directory_handle(path).is_ok()
        };
        let (existing, changed): (Vec<_>, Vec<_>) = members.iter().partition(exists);
        let paths: Vec<_> = changed.iter().map(|member| member.path.clone()).collect();
        let mut transaction = workspace.begin_strict_transaction(&paths, cancel)?;
        let (files, directories): (Vec<_>, Vec<_>) =
            changed.into_iter().partition(|member| member.content.is_some());
        for directory in &directories {
            transaction.create_directories(&directory.path)?;
        }

        let originals = files
            .iter()
            .map(|file| {
                let original = transaction.stat(&file.path)?;
                match original {
                    Some(_) if !self.replaces => Err(already_exists_error(&file.path)),
                    original => Ok(original),
                }
            })
            .collect::<Result<Vec<Option<FileSnapshot>>, Error>>()?;
        let contents = files.iter().zip(&originals).map(|(file, original)| {
            let content = NewContent {
                mode: Some(file.mode),
                modified: file.modified,
                ..NewContent::new(file.content.as_deref().unwrap_or_default())
            };
            (&file.path, original.as_ref(), content)
        });
        transaction.write_all(contents)?;

        let created: Vec<String> = transaction.created_directories().map(str::to_owned).collect();
        let written: Vec<_> =
            transaction.staged_files().map(|(path, identity)| (path.clone(), identity)).collect();
        transaction.commit()?.sync_result()?;

        self.directories.add_created(&workspace, &created)?;
        for directory in directories.into_iter().chain(existing) {
            self.directories.set_metadata(&directory.path, directory.mode, directory.modified);
            self.counts.directories += 1;
        }
        for ((path, identity), file) in written.into_iter().zip(files) {
            let size = file.content.as_ref().map_or(0, Vec::len);
            self.count_file(&path, identity, size as u64)?;
        }
        Ok(())
    }

    /// Creates the missing parent directories of a member.
    fn create_parents(&mut self, path: &RelativePath, cancel: &CancelToken) -> Result<(), Error> {
        let workspace = Arc::clone(&self.workspace);
        let paths = std::slice::from_ref(path);
        let mut transaction = workspace.begin_strict_transaction(paths, cancel)?;
        if let Some((parent, _)) = path.split() {
            transaction.create_directories(&parent)?;
        }
        let created: Vec<String> = transaction.created_directories().map(str::to_owned).collect();
        transaction.commit()?.sync_result()?;
        self.directories.add_created(&workspace, &created)
    }

    fn write_symlink(
        &mut self,
        path: &RelativePath,
        target: &str,
        modified: Option<ModifyTime>,
        cancel: &CancelToken,
    ) -> Result<(), Error> {
        self.create_parents(path, cancel)?;
        let paths = std::slice::from_ref(path);
        let mut transaction = self.workspace.begin_strict_transaction(paths, cancel)?;
        transaction.write_symlink(path, target, modified, self.replaces)?;
        transaction.commit()?.sync_result()?;
        self.counts.symlinks += 1;
        Ok(())
    }

    fn write_hard_link(
        &mut self,
        path: &RelativePath,
        target: &str,
        cancel: &CancelToken,
    ) -> Result<(), Error> {
        let target = self.workspace_path(target)?;
        let Some(identity) = self.extracted.identity(&target) else {
            let text = format!(
                "the target {:?} of the hard link is not a file that the archive has before it",
                target.as_str()
            );
            return Err(Error::new(Reason::InvalidArchive, text));
        };
        self.create_parents(path, cancel)?;
        let paths = std::slice::from_ref(path);
        let mut transaction = self.workspace.begin_strict_transaction(paths, cancel)?;
        transaction.write_hard_link(path, &target, identity, self.replaces)?;
        transaction.commit()?.sync_result()?;
        self.extracted.insert(path, identity)?;
        self.counts.hard_links += 1;
        Ok(())
    }

    /// Names the member that an error is about, relative to the tree.
    fn at_member(&self, error: Error, path: &RelativePath) -> Error {
        let path = path.as_str();
        let member = path.strip_prefix(self.base.as_str()).unwrap_or(path);
        error.with_metadata("member", member.trim_start_matches('/'))
    }

    fn count_file(
        &mut self,
        path: &RelativePath,
        identity: (u64, u64),
        size: u64,
    ) -> Result<(), Error> {
        self.counts.files += 1;
        self.counts.size_bytes += size;
        self.extracted.insert(path, identity)
    }
}

impl ExtractedFiles {
    fn identity(&self, path: &RelativePath) -> Option<(u64, u64)> {
        self.inodes.get(&self.hasher.hash_one(path)).copied()
    }

    fn insert(&mut self, path: &RelativePath, identity: (u64, u64)) -> Result<(), Error> {
        if self.inodes.len().is_multiple_of(FILES_PER_RESERVATION) {
            let files = (self.inodes.len() + FILES_PER_RESERVATION) as u64;
            self.memory.grow_to(files * BYTES_PER_EXTRACTED_FILE)?;
        }
        self.inodes.insert(self.hasher.hash_one(path), identity);
        Ok(())
    }
}
