//! Copies a directory out of the workspace. The directories are listed first, so that nothing is
//! copied that a version control tool would act on. Then small files arrive as one archive, of which
//! only listed files are taken, and the others one by one, so that these can resume.

use std::{
    collections::{HashMap, HashSet},
    fs::{self, DirBuilder},
    io::{ErrorKind, Write as _},
    mem,
    os::unix::fs::DirBuilderExt as _,
    path::{Path, PathBuf},
};

use jig::{
    api::v1::{
        DirectoryEntry, DownloadTreeRequest, DownloadTreeSummary, FileType, ListDirectoryRequest,
        ListDirectoryResponse, StatPathRequest, TreeProblemKind,
    },
    archive::{MemberKind, TarEvent, TarReader},
    client::{CallError, Client, Sha256Sum},
};

use super::{
    copy_log::{CopiedFile, CopyLog, SkipReason},
    destination::DestinationSymlinks,
    git::{becomes_repository, skip_reason},
    options::{CopyOptions, MAX_PATH_BYTES, join},
    receive_file::{LocalPartialFile, receive_file},
};
use crate::{cli_error::CliError, local_error::LocalError, progress::ProgressLine};

/// Size of a file that is received in an archive. A larger one resumes after a lost connection.
const MAX_ARCHIVED_FILE_BYTES: u64 = 1 << 20;
/// Entries per page of a directory listing.
const ENTRIES_PER_PAGE: u32 = 10_000;
/// Files from which an archive is worth its call.
const MIN_ARCHIVED_FILES: usize = 2;
/// Names that the daemon leaves out of an archive. Other spellings arrive, and are not taken.
const EXCLUDED_NAMES: [&str; 9] =
    [".git", ".hg", ".jj", ".bzr", ".sl", ".pijul", "_darcs", ".fslckout", "_FOSSIL_"];

/// Recursive copy of a workspace directory.
struct TreeReceiver<'a> {
    client: &'a Client,
    options: &'a CopyOptions,
    log: &'a CopyLog,
    /// Directories to copy: source, destination and permission bits.
    pending: Vec<(String, PathBuf, u32)>,
    small_files: Vec<PlannedFile>,
    large_files: Vec<PlannedFile>,
}

/// A file to copy.
#[derive(Debug)]
struct PlannedFile {
    from: String,
    to: PathBuf,
    size: u64,
}

/// A file of the archive that is being received.
struct ArchivedFile {
    index: usize,
    partial: LocalPartialFile,
    mode: u32,
    size: u64,
    sum: Sha256Sum,
}

/// How far the copies of an archive's files are.
#[derive(Debug, Default)]
struct ArchiveProgress {
    /// Indices of files that are in place.
    in_place: HashSet<usize>,
    /// Indices of files that failed, and are reported.
    failed: HashSet<usize>,
}

pub(super) async fn receive_tree(
    client: &Client,
    (from, listed): (String, ListDirectoryResponse),
    to: PathBuf,
    options: &CopyOptions,
    log: &CopyLog,
) -> Result<(), CliError> {
    let path = if from.is_empty() { "." } else { &from };
    let request = StatPathRequest { path: path.to_owned() };
    let mode = client.stat_path(request).await?.mode;

    if !options.with_git && becomes_repository(&to, entry_names(&listed))? {
        let problem = "is a directory that git takes for a repository";
        return Err(LocalError::vcs_path(Path::new(&format!(":{from}")), problem).into());
    }
    if !to.is_dir() {
        if let Some(parent) = to.parent().filter(|parent| !parent.as_os_str().is_empty()) {
            fs::create_dir_all(parent).map_err(|error| LocalError::file(parent, &error))?;
        }
        create_directory(&to, mode)?;
    }

    let mut receiver = TreeReceiver {
        client,
        options,
        log,
        pending: Vec::new(),
        small_files: Vec::new(),
        large_files: Vec::new(),
    };
    let top = from.clone();
    let mut failed = Vec::new();
    receiver.plan_entries(&from, &to, &listed)?;
    while let Some((from, to, mode)) = receiver.pending.pop() {
        match prepare_directory(client, &from, (&to, mode), options).await {
            Ok(Some(listed)) => receiver.plan_entries(&from, &to, &listed)?,
            Ok(None) => log.record_skipped(format!(":{from}"), SkipReason::GitRepository),
            Err(failure) if failure.is_file_error() => failed.push((from, failure)),
            Err(failure) => return Err(failure),
        }
    }

    receiver.receive_small(&top).await?;
    for file in mem::take(&mut receiver.large_files) {
        receiver.receive_one(&file, options).await?;
    }
    for (from, failure) in failed {
        log.record_failed(format!(":{from}"), failure)?;
    }
    Ok(())
}

impl TreeReceiver<'_> {
    /// Plans the copies of a directory's files. Its subdirectories become pending.
    fn plan_entries(
        &mut self,
        from: &str,
        to: &Path,
        listed: &ListDirectoryResponse,
    ) -> Result<(), CliError> {
        for entry in &listed.entries {
            self.plan_entry(from, to, entry)?;
        }
        for _ in 0..listed.skipped_names {
            self.log.record_skipped(format!(":{}", join(from, "?")), SkipReason::NotUtf8);
        }
        Ok(())
    }

    fn plan_entry(
        &mut self,
        from: &str,
        to: &Path,
        entry: &DirectoryEntry,
    ) -> Result<(), CliError> {
        let name = match safe_name(entry) {
            Ok(name) => name,
            Err(failure) => {
                return self.log.record_failed(format!(":{}", join(from, &entry.name)), failure);
            }
        };
        let (from, to) = (join(from, name), to.join(name));
        let display_path = format!(":{from}");
        let is_too_long = from.len().max(to.as_os_str().len()) > MAX_PATH_BYTES;
        if !self.options.with_git
            && let Some(reason) = skip_reason(name)
        {
            self.log.record_skipped(display_path, reason);
            return Ok(());
        }

        match entry.r#type() {
            FileType::File | FileType::Directory if is_too_long => {
                self.log.record_skipped(display_path, SkipReason::TooLong);
            }
            FileType::Directory => self.pending.push((from, to, entry.mode)),
            FileType::File => {
                let file = PlannedFile { from, to, size: entry.size_bytes };
                let is_small = file.size <= MAX_ARCHIVED_FILE_BYTES;
                if is_small { &mut self.small_files } else { &mut self.large_files }.push(file);
            }
            FileType::Symlink => self.log.record_skipped(display_path, SkipReason::Symlink),
            FileType::Fifo
            | FileType::Socket
            | FileType::CharacterDevice
            | FileType::BlockDevice
            | FileType::Unspecified => {
                self.log.record_skipped(display_path, SkipReason::NotRegularFile);
            }
        }
        Ok(())
    }

    /// Receives the small files below the directory `top`.
    async fn receive_small(&mut self, top: &str) -> Result<(), CliError> {
        let files = mem::take(&mut self.small_files);
        let mut progress = ArchiveProgress::default();
        let mut is_repeated = HashSet::new();
        if files.len() >= MIN_ARCHIVED_FILES {
            let received = self.receive_archive(top, &files, &mut progress).await;
            is_repeated = match received? {
                Some(summary) => changed_files(&summary, top, &files),
                // The daemon has not confirmed what arrived.
                None => progress.in_place.clone(),
            };
        }

        let destinations: HashSet<String> =
            is_repeated.iter().map(|index| files[*index].to.display().to_string()).collect();
        if !destinations.is_empty() {
            self.log.forget_copied(|destination| destinations.contains(destination));
        }
        // This copy has created the files that it repeats.
        let replacing = CopyOptions { no_clobber: false, ..self.options.clone() };
        for (index, file) in files.iter().enumerate() {
            let is_in_place = progress.in_place.contains(&index);
            if is_in_place && is_repeated.contains(&index) {
                self.receive_one(file, &replacing).await?;
            } else if !is_in_place && !progress.failed.contains(&index) {
                self.receive_one(file, self.options).await?;
            }
        }
        Ok(())
    }

    /// Receives one file, and records the result.
    async fn receive_one(&self, file: &PlannedFile, options: &CopyOptions) -> Result<(), CliError> {
        let to = (&*file.to, DestinationSymlinks::Reject);
        match receive_file(self.client, file.from.clone(), to, options).await {
            Ok(copied) => {
                self.log.record_copied(copied);
                Ok(())
            }
            Err(failure) => self.log.record_failed(format!(":{}", file.from), failure),
        }
    }

    /// Receives an archive, and puts planned files of it in place. Returns the daemon's summary;
    /// `None` if the archive is incomplete or cannot be read, or the daemon has none.
    async fn receive_archive(
        &self,
        top: &str,
        files: &[PlannedFile],
        progress: &mut ArchiveProgress,
    ) -> Result<Option<DownloadTreeSummary>, CliError> {
        let exclude: &[&str] = if self.options.with_git { &[] } else { &EXCLUDED_NAMES };
        let request = DownloadTreeRequest {
            path: (!top.is_empty()).then(|| top.to_owned()),
            compression: None,
            exclude: exclude.iter().map(|&name| name.to_owned()).collect(),
            max_file_bytes: Some(MAX_ARCHIVED_FILE_BYTES),
        };
        let Ok(mut parts) = self.client.download_tree(request).await else {
            return Ok(None);
        };

        let paths: HashMap<&str, usize> = files
            .iter()
            .enumerate()
            .map(|(index, file)| (member_path(&file.from, top), index))
            .collect();
        let total = files.iter().map(|file| file.size).sum();
        let line = ProgressLine::new(top, self.options.quiet);
        let (mut reader, mut received) = (TarReader::new(), None);
        let mut received_bytes = 0;
        loop {
            let data = match parts.next().await {
                Ok(Some(data)) => data,
                Ok(None) => break,
                Err(_) => return Ok(None),
            };
            let mut data = &data[..];
            loop {
                match reader.next(&mut data) {
                    Err(_) => return Ok(None),
                    Ok(None) => break,
                    Ok(Some(TarEvent::Member(member))) => {
                        let MemberKind::File(size) = member.kind else {
                            continue;
                        };
                        if let Some(index) = paths.get(member.path.as_str()) {
                            let opened = self.open_received(*index, files, (member.mode, size));
                            received = self.or_failed(*index, files, opened, progress)?;
                        }
                    }
                    Ok(Some(TarEvent::Content(bytes))) => {
                        received_bytes += bytes.len() as u64;
                        line.update(received_bytes, total);
                        let Some(mut file): Option<ArchivedFile> = received.take() else {
                            continue;
                        };
                        let index = file.index;
                        let to_error = |error| LocalError::file(&files[index].to, &error);
                        file.sum.update(bytes);
                        let written = file.partial.file.write_all(bytes).map_err(to_error);
                        let written = written.map(|()| file).map_err(CliError::from);
                        received = self.or_failed(index, files, written, progress)?;
                    }
                    Ok(Some(TarEvent::ContentEnd)) => {
                        if let Some(file) = received.take() {
                            let index = file.index;
                            let copied = self.put_in_place(file, files);
                            if let Some(copied) = self.or_failed(index, files, copied, progress)? {
                                self.log.record_copied(copied);
                                progress.in_place.insert(index);
                            }
                        }
                    }
                }
            }
        }
        Ok(reader.finish().ok().and_then(|()| parts.summary().cloned()))
    }

    fn open_received(
        &self,
        index: usize,
        files: &[PlannedFile],
        (mode, size): (u32, u64),
    ) -> Result<ArchivedFile, CliError> {
        let to = (&*files[index].to, DestinationSymlinks::Reject);
        let partial = LocalPartialFile::create(to, self.options)?;
        Ok(ArchivedFile { index, partial, mode, size, sum: Sha256Sum::default() })
    }

    fn put_in_place(
        &self,
        file: ArchivedFile,
        files: &[PlannedFile],
    ) -> Result<CopiedFile, CliError> {
        let PlannedFile { from, to, .. } = &files[file.index];
        file.partial.commit(to, file.mode, self.options)?;
        Ok(CopiedFile {
            source: format!(":{from}"),
            destination: to.display().to_string(),
            size_bytes: file.size,
            sha256: file.sum.finish(),
        })
    }

    /// Records the failure of a file.
    fn or_failed<T>(
        &self,
        index: usize,
        files: &[PlannedFile],
        result: Result<T, CliError>,
        progress: &mut ArchiveProgress,
    ) -> Result<Option<T>, CliError> {
        match result {
            Ok(value) => Ok(Some(value)),
            Err(failure) => {
                progress.failed.insert(index);
                self.log.record_failed(format!(":{}", files[index].from), failure)?;
                Ok(None)
            }
        }
    }
}

/// Returns the path of a planned file in the archive of the directory `top`.
fn member_path<'a>(from: &'a str, top: &str) -> &'a str {
    from.strip_prefix(top).unwrap_or(from).trim_start_matches('/')
}

/// Returns the indices of files that changed while the daemon read them: all, if it does not name
/// each.
fn changed_files(
    summary: &DownloadTreeSummary,
    top: &str,
    files: &[PlannedFile],
) -> HashSet<usize> {
    let changed: HashSet<&str> = summary
        .problems
        .iter()
        .filter(|problem| problem.kind() == TreeProblemKind::Changed)
        .map(|problem| problem.path.as_str())
        .collect();
    let names_each = changed.len() as u64 == summary.changed_files;
    let is_changed =
        |file: &PlannedFile| !names_each || changed.contains(member_path(&file.from, top));
    files.iter().enumerate().filter(|(_, file)| is_changed(file)).map(|(index, _)| index).collect()
}

/// Lists a directory and creates its copy.
///
/// Returns `None` if git would take the copy for a repository. Existing entries count, for example
/// from an earlier copy or from a directory whose name the file system folds to this one.
async fn prepare_directory(
    client: &Client,
    from: &str,
    (to, mode): (&Path, u32),
    options: &CopyOptions,
) -> Result<Option<ListDirectoryResponse>, CliError> {
    let listed = list_entries(client, from).await?;

    // Before the copy's entries are listed, which must not happen through a link.
    let is_link = to.symlink_metadata().is_ok_and(|metadata| metadata.is_symlink());
    if is_link {
        return Err(LocalError::symlink(to).into());
    }

    if !options.with_git && becomes_repository(to, entry_names(&listed))? {
        return Ok(None);
    }

    create_directory(to, mode)?;
    Ok(Some(listed))
}

fn entry_names(listed: &ListDirectoryResponse) -> impl Iterator<Item = &str> {
    listed.entries.iter().map(|entry| entry.name.as_str())
}

/// Lists all entries of a directory.
pub(super) async fn list_entries(
    client: &Client,
    path: &str,
) -> Result<ListDirectoryResponse, CallError> {
    let mut request = ListDirectoryRequest {
        path: (!path.is_empty()).then(|| path.to_owned()),
        page_size: Some(ENTRIES_PER_PAGE),
        page_token: None,
    };
    let mut complete = client.list_directory(request.clone()).await?;
    while !complete.next_page_token.is_empty() {
        request.page_token = Some(complete.next_page_token);
        let mut page = client.list_directory(request.clone()).await?;
        complete.entries.append(&mut page.entries);
        complete.skipped_names = page.skipped_names;
        complete.next_page_token = page.next_page_token;
    }
    Ok(complete)
}

/// Returns the name of an entry, after checking that it stays in its directory.
fn safe_name(entry: &DirectoryEntry) -> Result<&str, CliError> {
    let name = entry.name.as_str();
    if matches!(name, "" | "." | "..") || name.contains(['/', '\0']) {
        let text = format!("the daemon lists the name {name:?}, which leaves the directory");
        return Err(CliError::Daemon(text));
    }
    Ok(name)
}

/// Creates a directory unless it exists. Its owner can write to it, because entries follow.
fn create_directory(path: &Path, mode: u32) -> Result<(), LocalError> {
    let created = DirBuilder::new().mode(mode & 0o777 | 0o700).create(path);
    match created {
        Ok(()) => Ok(()),
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {
            let existing = path.symlink_metadata();
            match existing.map(|existing| existing.file_type()) {
                Ok(kind) if kind.is_dir() => Ok(()),
                Ok(kind) if kind.is_symlink() => Err(LocalError::symlink(path)),
                _ => Err(LocalError::file(path, &ErrorKind::NotADirectory.into())),
            }
        }
        Err(error) => Err(LocalError::file(path, &error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_leave_the_directory_are_rejected() {
        let entry =
            |name: &str| DirectoryEntry { name: name.to_owned(), ..DirectoryEntry::default() };
        assert_eq!(safe_name(&entry("a")).ok(), Some("a"));
        for name in ["", ".", "..", "a/b", "/a", "a\0"] {
            assert!(safe_name(&entry(name)).is_err(), "{name:?}");
        }
    }
}
