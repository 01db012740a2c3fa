//! Copies a directory into the workspace: small files as one archive, and large files one by one,
//! so that these can resume. If the daemon does not take the archive, all files are sent one by one.

use std::{
    collections::HashSet,
    ffi::{OsStr, OsString},
    fs::{self, DirEntry, File},
    io::{self, Read as _},
    mem,
    os::unix::fs::{MetadataExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use bytes::Bytes;
use jig::{
    api::v1::{CreateDirectoryRequest, UploadTreeStart, WriteMode},
    archive::{END_OF_ARCHIVE, Member, MemberKind, padding, write_header},
    client::{CallError, Client, Sha256Sum},
};

use super::{
    copy_log::{CopiedFile, CopyLog, SkipReason},
    git::{is_repository, skip_reason},
    options::{CopyOptions, MAX_PATH_BYTES, is_reserved_name, join},
    send_file::send_file,
};
use crate::{cli_error::CliError, local_error::LocalError, progress::ProgressLine};

/// Size of a file that is sent in an archive. With the headers of others, it fits into a message.
const MAX_ARCHIVED_FILE_BYTES: u64 = 512 << 10;
/// Size of a chunk of the archive, unless a larger file is in it.
const ARCHIVE_CHUNK_BYTES: usize = 256 << 10;
/// Archives after which the rest is sent file by file, because too many files are rejected.
const MAX_ARCHIVES: u32 = 8;
/// Mode of directories without files.
const NEW_DIRECTORY_MODE: u32 = 0o755;

/// Recursive copy of a local directory.
struct TreeSender<'a> {
    client: &'a Client,
    options: &'a CopyOptions,
    log: &'a CopyLog,
    /// Directories to read: source and destination.
    pending: Vec<(PathBuf, String)>,
    /// Small files and empty directories, in the order of the archive.
    small: Vec<PlannedEntry>,
    large_files: Vec<PlannedEntry>,
    /// Directories that no other directory creates.
    directories: Vec<PlannedEntry>,
    /// Destinations of directories that exist now.
    created: HashSet<String>,
}

/// A file or directory to copy.
#[derive(Debug, Clone)]
struct PlannedEntry {
    from: PathBuf,
    to: String,
    /// Size of a file. `None` for a directory.
    size: Option<u64>,
}

/// The members of an archive so far.
#[derive(Debug, Clone, Default)]
struct SentMembers(Arc<Mutex<Vec<SentMember>>>);

#[derive(Debug)]
struct SentMember {
    /// Index of the planned entry.
    index: usize,
    /// The copy, unless it is a directory.
    file: Option<CopiedFile>,
}

pub(super) async fn send_tree(
    client: &Client,
    from: &str,
    to: String,
    options: &CopyOptions,
    log: &CopyLog,
) -> Result<(), CliError> {
    let from = Path::new(from);
    let mut sender = TreeSender {
        client,
        options,
        log,
        pending: vec![(from.to_owned(), to.clone())],
        small: Vec::new(),
        large_files: Vec::new(),
        directories: Vec::new(),
        created: HashSet::new(),
    };
    while let Some((directory, to)) = sender.pending.pop() {
        sender.plan_directory(from, directory, to)?;
    }

    sender.send_small(&to).await?;
    for file in mem::take(&mut sender.large_files) {
        sender.send_one(&file).await?;
    }
    sender.create_directories().await
}

impl TreeSender<'_> {
    /// Plans the copy of a directory's files. Its subdirectories become pending.
    fn plan_directory(
        &mut self,
        top: &Path,
        directory: PathBuf,
        to: String,
    ) -> Result<(), CliError> {
        let entries = match sorted_entries(&directory) {
            Ok(entries) => entries,
            Err(error) if directory == top => return Err(LocalError::file(top, &error).into()),
            Err(error) => {
                let local = LocalError::file(&directory, &error);
                return self.log.record_failed(directory.display().to_string(), local.into());
            }
        };
        let names = entries.iter().map(|(name, _)| name.to_string_lossy());
        if !self.options.with_git && is_repository(names) {
            if directory == top {
                let problem = "is a directory that git takes for a repository";
                return Err(LocalError::vcs_path(top, problem).into());
            }
            self.log.record_skipped(directory.display().to_string(), SkipReason::GitRepository);
            return Ok(());
        }

        let (planned_files, pending) = (self.planned_files(), self.pending.len());
        for (name, entry) in entries {
            self.plan_entry(&directory, &to, &name, &entry)?;
        }
        // Otherwise, an upload creates the directory of its file.
        if self.pending.len() == pending && !to.is_empty() {
            let planned = PlannedEntry { from: directory, to, size: None };
            if self.planned_files() == planned_files {
                self.small.push(planned.clone());
            }
            self.directories.push(planned);
        }
        Ok(())
    }

    fn planned_files(&self) -> usize {
        self.small.len() + self.large_files.len()
    }

    fn plan_entry(
        &mut self,
        directory: &Path,
        to: &str,
        name: &OsStr,
        entry: &DirEntry,
    ) -> Result<(), CliError> {
        let path = directory.join(name);
        let display_path = path.display().to_string();
        let Some(name) = name.to_str() else {
            self.log.record_skipped(display_path, SkipReason::NotUtf8);
            return Ok(());
        };
        let to = join(to, name);
        let kind = match entry.file_type() {
            Ok(kind) => kind,
            Err(error) => {
                let local = LocalError::file(&path, &error);
                return self.log.record_failed(display_path, local.into());
            }
        };

        let vcs_reason = if self.options.with_git { None } else { skip_reason(name) };
        let reason = if let Some(reason) = vcs_reason {
            reason
        } else if is_reserved_name(name) {
            SkipReason::ReservedName
        } else if to.len() > MAX_PATH_BYTES {
            SkipReason::TooLong
        } else if kind.is_dir() {
            self.pending.push((path, to));
            return Ok(());
        } else if kind.is_file() {
            // A file that has gone fails when it is sent.
            let size = entry.metadata().map_or(0, |metadata| metadata.size());
            let file = PlannedEntry { from: path, to, size: Some(size) };
            let is_small = size <= MAX_ARCHIVED_FILE_BYTES;
            if is_small { &mut self.small } else { &mut self.large_files }.push(file);
            return Ok(());
        } else if kind.is_symlink() {
            SkipReason::Symlink
        } else {
            SkipReason::NotRegularFile
        };

        self.log.record_skipped(display_path, reason);
        Ok(())
    }

    /// Sends the small files and empty directories to the directory `to`.
    ///
    /// An archive ends at the first member that the daemon rejects. That one is sent alone, for the
    /// error that this gives, and the rest as another archive.
    async fn send_small(&mut self, to: &str) -> Result<(), CliError> {
        let mut rest = mem::take(&mut self.small);
        for _ in 0..MAX_ARCHIVES {
            if rest.len() < 2 {
                break;
            }
            let sent = SentMembers::default();
            let result = self.send_archive(to, &rest, &sent).await;
            let sent = mem::take(&mut *sent.lock());
            let (in_place, is_rejected) = match &result {
                Ok(()) => (sent.len(), false),
                Err(error) => (extracted_members(error), error.metadata.contains_key("member")),
            };

            // Entries that could not be read are not in the archive.
            let mut is_in_place = vec![false; rest.len()];
            let mut next = 0;
            for member in sent.into_iter().take(in_place) {
                is_in_place[member.index] = true;
                next = member.index + 1;
                self.created.insert(directory_of(&rest[member.index]).to_owned());
                if let Some(file) = member.file {
                    self.log.record_copied(file);
                }
            }
            if result.is_ok() {
                next = rest.len();
            }
            let is_finished = result.is_ok() || !is_rejected;
            let end = if is_finished { next } else { (next + 1).min(rest.len()) };
            let after = rest.split_off(end);
            for (entry, is_in_place) in rest.iter().zip(is_in_place) {
                if !is_in_place {
                    self.send_one(entry).await?;
                }
            }
            rest = after;
            if is_finished {
                break;
            }
        }

        for entry in rest {
            self.send_one(&entry).await?;
        }
        Ok(())
    }

    async fn send_archive(
        &self,
        to: &str,
        entries: &[PlannedEntry],
        sent: &SentMembers,
    ) -> Result<(), CallError> {
        let start = UploadTreeStart {
            path: (!to.is_empty()).then(|| to.to_owned()),
            compression: None,
            mode: self.options.no_clobber.then(|| WriteMode::CreateNew.into()),
        };
        let planned = entries.to_vec();
        let total = entries.iter().filter_map(|entry| entry.size).sum();
        let progress = ProgressLine::new(to, self.options.quiet);
        let chunks = ArchiveChunks {
            entries: planned.into_iter().enumerate(),
            base: to.to_owned(),
            sent: sent.clone(),
            content_bytes: 0,
            show: Box::new(move |bytes| progress.update(bytes, total)),
            is_complete: false,
        };
        self.client.upload_tree(start, chunks).await.map(drop)
    }

    /// Sends one file, and records the result. A directory is created at the end.
    async fn send_one(&mut self, entry: &PlannedEntry) -> Result<(), CliError> {
        if entry.size.is_none() {
            return Ok(());
        }
        match send_file(self.client, &entry.from, entry.to.clone(), self.options).await {
            Ok(file) => {
                self.created.insert(directory_of(entry).to_owned());
                self.log.record_copied(file);
                Ok(())
            }
            Err(failure) => self.log.record_failed(entry.from.display().to_string(), failure),
        }
    }

    /// Creates the directories that no file has created.
    async fn create_directories(&mut self) -> Result<(), CliError> {
        for PlannedEntry { from, to, .. } in mem::take(&mut self.directories) {
            if self.created.contains(&to) {
                continue;
            }
            let request = CreateDirectoryRequest { path: to };
            if let Err(error) = self.client.create_directory(request).await {
                self.log.record_failed(from.display().to_string(), error.into())?;
            }
        }
        Ok(())
    }
}

impl SentMembers {
    fn lock(&self) -> MutexGuard<'_, Vec<SentMember>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the directory that the copy of an entry creates.
fn directory_of(entry: &PlannedEntry) -> &str {
    match entry.size {
        None => &entry.to,
        Some(_) => entry.to.rsplit_once('/').map_or("", |(directory, _)| directory),
    }
}

/// Number of members in place when an archive ended with an error.
fn extracted_members(error: &CallError) -> usize {
    let members = error.metadata.get("extracted_members");
    members.and_then(|members| members.parse().ok()).unwrap_or(0)
}

/// The archive of planned entries, in chunks. Files that cannot be read, or that have grown, are
/// left out.
struct ArchiveChunks {
    entries: std::iter::Enumerate<std::vec::IntoIter<PlannedEntry>>,
    /// Directory of the tree in the workspace.
    base: String,
    sent: SentMembers,
    content_bytes: u64,
    show: Box<dyn FnMut(u64) + Send>,
    is_complete: bool,
}

impl Iterator for ArchiveChunks {
    type Item = Bytes;

    fn next(&mut self) -> Option<Bytes> {
        let mut chunk = Vec::with_capacity(ARCHIVE_CHUNK_BYTES);
        while !self.is_complete && chunk.len() < ARCHIVE_CHUNK_BYTES {
            match self.entries.next() {
                Some((index, entry)) => self.add(index, entry, &mut chunk),
                None => {
                    chunk.extend_from_slice(&END_OF_ARCHIVE);
                    self.is_complete = true;
                }
            }
        }
        (self.show)(self.content_bytes);
        (!chunk.is_empty()).then(|| chunk.into())
    }
}

impl ArchiveChunks {
    fn add(&mut self, index: usize, entry: PlannedEntry, chunk: &mut Vec<u8>) {
        let path = entry.to.strip_prefix(&self.base).unwrap_or(&entry.to);
        let path = path.trim_start_matches('/').to_owned();
        let Some(_) = entry.size else {
            let mode = NEW_DIRECTORY_MODE;
            let member = Member { path, kind: MemberKind::Directory, mode, modified: None };
            write_header(&member, chunk);
            self.sent.lock().push(SentMember { index, file: None });
            return;
        };
        let Ok((content, mode)) = read_small_file(&entry.from) else {
            return;
        };

        let size_bytes = content.len() as u64;
        let kind = MemberKind::File(size_bytes);
        write_header(&Member { path, kind, mode, modified: None }, chunk);
        chunk.extend_from_slice(&content);
        chunk.resize(chunk.len() + padding(size_bytes), 0);
        self.content_bytes += size_bytes;
        let mut sum = Sha256Sum::default();
        sum.update(&content);
        let file = CopiedFile {
            source: entry.from.display().to_string(),
            destination: format!(":{}", entry.to),
            size_bytes,
            sha256: sum.finish(),
        };
        self.sent.lock().push(SentMember { index, file: Some(file) });
    }
}

/// Reads a file of at most [`MAX_ARCHIVED_FILE_BYTES`]. Returns its content and permission bits.
fn read_small_file(path: &Path) -> io::Result<(Vec<u8>, u32)> {
    // Opening a FIFO without the flag could block for ever.
    let flags = i32::try_from(rustix::fs::OFlags::NONBLOCK.bits()).unwrap_or(0);
    let file = File::options().read(true).custom_flags(flags).open(path)?;
    let metadata = file.metadata()?;
    if !metadata.is_file() || metadata.len() > MAX_ARCHIVED_FILE_BYTES {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let mut content = Vec::with_capacity(usize::try_from(metadata.len()).unwrap_or(0) + 1);
    file.take(MAX_ARCHIVED_FILE_BYTES + 1).read_to_end(&mut content)?;
    if content.len() as u64 > MAX_ARCHIVED_FILE_BYTES {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    Ok((content, metadata.mode() & 0o777))
}

/// Lists a directory's entries, sorted by name.
fn sorted_entries(directory: &Path) -> io::Result<Vec<(OsString, DirEntry)>> {
    let mut entries = Vec::new();
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        entries.push((entry.file_name(), entry));
    }
    entries.sort_unstable_by(|one, other| one.0.cmp(&other.0));
    Ok(entries)
}
