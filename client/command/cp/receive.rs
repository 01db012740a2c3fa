//! Copies files out of the workspace.
//!
//! Names and permissions there are untrusted: all names stay below the destination, and no file
//! becomes accessible to more users.

use std::{
    fs::{self, DirBuilder, File, Permissions},
    io::{self, ErrorKind},
    os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, PermissionsExt as _},
    path::{Path, PathBuf},
};

use jig::{
    api::v1::{
        DirectoryEntry, FileType, ListDirectoryRequest, ListDirectoryResponse, StatPathRequest,
    },
    client::{CallError, Client},
};

use super::{
    copy_log::{CopiedFile, CopyLog, SkipReason},
    destination::{DestinationSymlinks, resolve_destination},
    git::{becomes_repository, check_destination, check_name, skip_reason},
    options::{CopyOptions, MAX_PATH_BYTES, base_name, join, no_file_name_error, unique_suffix},
};
use crate::{cli_error::CliError, local_error::LocalError, progress::ProgressLine};

/// Entries per page of a directory listing.
const ENTRIES_PER_PAGE: u32 = 10_000;

/// Recursive copy of a workspace directory.
struct TreeReceiver<'a> {
    client: &'a Client,
    options: &'a CopyOptions,
    log: &'a CopyLog,
    /// Directories to copy: source, destination and permission bits.
    pending: Vec<(String, PathBuf, u32)>,
}

/// Copies a file or directory of the workspace to a local path.
pub(super) async fn receive(
    client: Client,
    from: String,
    mut to: PathBuf,
    options: CopyOptions,
    log: CopyLog,
) -> Result<(), CliError> {
    let keeps_name = to.is_dir() || to.as_os_str().as_encoded_bytes().ends_with(b"/");
    if keeps_name {
        match base_name(&from) {
            Some(name) => to.push(name),
            None if options.recursive => {}
            None => return Err(no_file_name_error()),
        }
    }
    if !options.with_git {
        check_name(&from, &format!(":{from}"))?;
        check_destination(&to)?;
    }

    if options.recursive {
        match list_entries(&client, &from).await {
            Err(error) if error.name() == "NOT_A_DIRECTORY" => {}
            Err(error) => return Err(error.into()),
            Ok(listed) => return receive_tree(&client, (from, listed), to, &options, &log).await,
        }
    }
    log.record_copied(
        receive_file(&client, from, (&to, DestinationSymlinks::Follow), &options).await?,
    );
    Ok(())
}

async fn receive_tree(
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

    let mut receiver = TreeReceiver { client, options, log, pending: Vec::new() };
    receiver.receive_entries(&from, &to, listed).await?;
    while let Some((from, to, mode)) = receiver.pending.pop() {
        match prepare_directory(client, &from, (&to, mode), options).await {
            Ok(Some(listed)) => receiver.receive_entries(&from, &to, listed).await?,
            Ok(None) => log.record_skipped(format!(":{from}"), SkipReason::GitRepository),
            Err(failure) => log.record_failed(format!(":{from}"), failure)?,
        }
    }
    Ok(())
}

impl TreeReceiver<'_> {
    /// Copies the files of a directory. Its subdirectories become pending.
    async fn receive_entries(
        &mut self,
        from: &str,
        to: &Path,
        listed: ListDirectoryResponse,
    ) -> Result<(), CliError> {
        for entry in &listed.entries {
            self.receive_entry(from, to, entry).await?;
        }
        for _ in 0..listed.skipped_names {
            self.log.record_skipped(format!(":{}", join(from, "?")), SkipReason::NotUtf8);
        }
        Ok(())
    }

    async fn receive_entry(
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
                let to = (&*to, DestinationSymlinks::Reject);
                match receive_file(self.client, from, to, self.options).await {
                    Ok(file) => self.log.record_copied(file),
                    Err(failure) => self.log.record_failed(display_path, failure)?,
                }
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
async fn list_entries(client: &Client, path: &str) -> Result<ListDirectoryResponse, CallError> {
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

async fn receive_file(
    client: &Client,
    from: String,
    (to, links): (&Path, DestinationSymlinks),
    options: &CopyOptions,
) -> Result<CopiedFile, CliError> {
    let to_error = |error| LocalError::file(to, &error);

    if options.no_clobber && to.symlink_metadata().is_ok() {
        return Err(LocalError::file_exists(to).into());
    }

    let target = resolve_destination(to, links)?;
    // Checks the target of a link. The names in a directory have been checked.
    if links == DestinationSymlinks::Follow && !options.with_git {
        check_destination(&target)?;
    }

    let partial = LocalPartialFile::create(&target).map_err(to_error)?;
    let mut file = partial.file.try_clone().map_err(to_error)?;
    let progress = ProgressLine::new(&from, options.quiet);
    let show = |bytes, size| progress.update(bytes, size);
    let received = client.receive_file(&from, &mut file, show).await;
    let summary = received.map_err(|error| CliError::from_transfer(to, error))?;
    file.set_permissions(Permissions::from_mode(summary.mode & 0o777 & !umask()))
        .map_err(to_error)?;

    if options.no_clobber {
        let linked = fs::hard_link(&partial.path, &target);
        if linked.as_ref().map_err(io::Error::kind) == Err(ErrorKind::AlreadyExists) {
            return Err(LocalError::file_exists(to).into());
        }
        linked.map_err(to_error)?;
    } else {
        fs::rename(&partial.path, &target).map_err(to_error)?;
    }

    Ok(CopiedFile {
        source: format!(":{from}"),
        destination: to.display().to_string(),
        size_bytes: summary.size_bytes,
        sha256: summary.sha256,
    })
}

/// Returns the umask of this process.
fn umask() -> u32 {
    // umask(2) cannot read it without setting it.
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    parse_umask(&status).unwrap_or(0o077)
}

fn parse_umask(status: &str) -> Option<u32> {
    let octal = status.lines().find_map(|line| line.strip_prefix("Umask:"))?;
    u32::from_str_radix(octal.trim(), 8).ok()
}

/// An incomplete file beside its destination. Dropping it removes the file, unless it was moved.
struct LocalPartialFile {
    path: PathBuf,
    file: File,
}

impl LocalPartialFile {
    fn create(to: &Path) -> io::Result<Self> {
        to.file_name().ok_or(ErrorKind::IsADirectory)?;
        let path = to.with_file_name(format!(".jig-{}.part", unique_suffix()));
        // Readable by this user only, until its permissions are set.
        let file =
            File::options().read(true).write(true).create_new(true).mode(0o600).open(&path)?;
        Ok(Self { path, file })
    }
}

impl Drop for LocalPartialFile {
    fn drop(&mut self) {
        // Fails without effect if the file was moved.
        fs::remove_file(&self.path).ok();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn partial_file_is_private() {
        let to = std::env::temp_dir().join("jig-cp-part");
        let partial = LocalPartialFile::create(&to).unwrap();
        let mode = fs::metadata(&partial.path).unwrap().permissions().mode();
        assert_eq!(mode & 0o077, 0);
        assert_eq!(parse_umask("Name:\tjig\nUmask:\t0027\n"), Some(0o027));
        assert_eq!(parse_umask(""), None);
        let status = fs::read_to_string("/proc/self/status").unwrap();
        assert_eq!(parse_umask(&status), Some(umask()));
    }

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
