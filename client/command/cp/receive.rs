//! Files out of the workspace. What is there was chosen by others: its names lead nowhere but below
//! the destination, and nothing of it is more open to other users than it was.

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

/// Entries on each page of a directory's list.
const ENTRIES_PER_PAGE: u32 = 10_000;

/// Copies a file or directory of the workspace to a path of this side.
pub(super) async fn receive(
    client: Client,
    from: String,
    mut to: PathBuf,
    manner: CopyOptions,
    copies: CopyLog,
) -> Result<(), CliError> {
    let into = to.is_dir() || to.as_os_str().as_encoded_bytes().ends_with(b"/");
    if into {
        match base_name(&from) {
            Some(name) => to.push(name),
            None if manner.recursive => {}
            None => return Err(no_file_name_error()),
        }
    }
    if !manner.with_git {
        check_name(&from, &format!(":{from}"))?;
        check_destination(&to)?;
    }
    if manner.recursive {
        match list_entries(&client, &from).await {
            Err(error) if error.name() == "NOT_A_DIRECTORY" => {}
            Err(error) => return Err(error.into()),
            Ok(listed) => return receive_tree(&client, (from, listed), to, &manner, &copies).await,
        }
    }
    copies.record_copied(
        receive_file(&client, from, (&to, DestinationSymlinks::Follow), &manner).await?,
    );
    Ok(())
}

async fn receive_tree(
    client: &Client,
    (from, listed): (String, ListDirectoryResponse),
    to: PathBuf,
    manner: &CopyOptions,
    copies: &CopyLog,
) -> Result<(), CliError> {
    let path = if from.is_empty() { "." } else { &from };
    let request = StatPathRequest { path: path.to_owned() };
    let mode = client.stat_path(request).await?.mode;
    if !manner.with_git && becomes_repository(&to, entry_names(&listed))? {
        let problem = "is a directory that git takes for a repository";
        return Err(LocalError::vcs_path(Path::new(&format!(":{from}")), problem).into());
    }
    if !to.is_dir() {
        if let Some(above) = to.parent().filter(|above| !above.as_os_str().is_empty()) {
            fs::create_dir_all(above).map_err(|error| LocalError::file(above, &error))?;
        }
        create_directory(&to, mode)?;
    }
    let mut listed = Some(listed);
    let mut open = vec![(from, to, mode)];
    while let Some((from, to, mode)) = open.pop() {
        let listed = match listed.take() {
            Some(listed) => Ok(Some(listed)),
            None => prepare_directory(client, &from, (&to, mode), manner).await,
        };
        let listed = match listed {
            Ok(Some(listed)) => listed,
            Ok(None) => {
                copies.record_skipped(format!(":{from}"), SkipReason::GitRepository);
                continue;
            }
            Err(failure) => {
                copies.record_failed(format!(":{from}"), failure)?;
                continue;
            }
        };
        for entry in listed.entries {
            let name = match safe_name(&entry) {
                Ok(name) => name,
                Err(failure) => {
                    copies.record_failed(format!(":{}", join(&from, &entry.name)), failure)?;
                    continue;
                }
            };
            let (from, to) = (join(&from, name), to.join(name));
            let shown = format!(":{from}");
            let is_too_long = from.len().max(to.as_os_str().len()) > MAX_PATH_BYTES;
            if !manner.with_git
                && let Some(why) = skip_reason(name)
            {
                copies.record_skipped(shown, why);
                continue;
            }
            match entry.r#type() {
                FileType::File | FileType::Directory if is_too_long => {
                    copies.record_skipped(shown, SkipReason::TooLong);
                }
                FileType::Directory => open.push((from, to, entry.mode)),
                FileType::File => {
                    match receive_file(client, from, (&to, DestinationSymlinks::Refuse), manner)
                        .await
                    {
                        Ok(file) => copies.record_copied(file),
                        Err(failure) => copies.record_failed(shown, failure)?,
                    }
                }
                FileType::Symlink => copies.record_skipped(shown, SkipReason::Symlink),
                FileType::Fifo
                | FileType::Socket
                | FileType::CharacterDevice
                | FileType::BlockDevice
                | FileType::Unspecified => copies.record_skipped(shown, SkipReason::NotRegularFile),
            }
        }
        for _ in 0..listed.skipped_names {
            copies.record_skipped(format!(":{}", join(&from, "?")), SkipReason::NotUtf8);
        }
    }
    Ok(())
}

/// Lists a directory and makes its copy. None: git would take the copy for a repository, with what
/// is in it already, as after an earlier copy, or one of a name that the file system folds to this.
async fn prepare_directory(
    client: &Client,
    from: &str,
    (to, mode): (&Path, u32),
    manner: &CopyOptions,
) -> Result<Option<ListDirectoryResponse>, CliError> {
    let listed = list_entries(client, from).await?;
    // Before its copy is looked into, which must not be behind a link.
    let is_link = to.symlink_metadata().is_ok_and(|there| there.is_symlink());
    if is_link {
        return Err(LocalError::symlink(to).into());
    }
    if !manner.with_git && becomes_repository(to, entry_names(&listed))? {
        return Ok(None);
    }
    create_directory(to, mode)?;
    Ok(Some(listed))
}

fn entry_names(listed: &ListDirectoryResponse) -> impl Iterator<Item = &str> {
    listed.entries.iter().map(|entry| entry.name.as_str())
}

/// All entries of a directory.
async fn list_entries(client: &Client, path: &str) -> Result<ListDirectoryResponse, CallError> {
    let mut request = ListDirectoryRequest {
        path: (!path.is_empty()).then(|| path.to_owned()),
        page_size: Some(ENTRIES_PER_PAGE),
        page_token: None,
    };
    let mut whole = client.list_directory(request.clone()).await?;
    while !whole.next_page_token.is_empty() {
        request.page_token = Some(whole.next_page_token);
        let mut page = client.list_directory(request.clone()).await?;
        whole.entries.append(&mut page.entries);
        whole.skipped_names = page.skipped_names;
        whole.next_page_token = page.next_page_token;
    }
    Ok(whole)
}

/// The name of an entry, which is that of something in its directory.
fn safe_name(entry: &DirectoryEntry) -> Result<&str, CliError> {
    let name = entry.name.as_str();
    if matches!(name, "" | "." | "..") || name.contains(['/', '\0']) {
        let text = format!("the daemon lists {name:?}, which leads elsewhere");
        return Err(CliError::Daemon(text));
    }
    Ok(name)
}

/// Makes a directory, unless it is there. It can be written to by its owner: there is more to come.
fn create_directory(path: &Path, mode: u32) -> Result<(), LocalError> {
    let made = DirBuilder::new().mode(mode & 0o777 | 0o700).create(path);
    match made {
        Ok(()) => Ok(()),
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {
            let there = path.symlink_metadata();
            match there.map(|there| there.file_type()) {
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
    manner: &CopyOptions,
) -> Result<CopiedFile, CliError> {
    let fails = |error| LocalError::file(to, &error);
    if manner.no_clobber && to.symlink_metadata().is_ok() {
        return Err(LocalError::file_exists(to).into());
    }
    let place = resolve_destination(to, links)?;
    // Where a link leads to, for what is not checked as part of a directory.
    if links == DestinationSymlinks::Follow && !manner.with_git {
        check_destination(&place)?;
    }
    let part = LocalPartialFile::create(&place).map_err(fails)?;
    let mut file = part.file.try_clone().map_err(fails)?;
    let progress = ProgressLine::new(&from, manner.quiet);
    let show = |bytes, size| progress.update(bytes, size);
    let received = client.receive_file(&from, &mut file, show).await;
    let whole = received.map_err(|error| CliError::from_transfer(to, error))?;
    file.set_permissions(Permissions::from_mode(whole.mode & 0o777 & !umask())).map_err(fails)?;
    if manner.no_clobber {
        let linked = fs::hard_link(&part.path, &place);
        if linked.as_ref().map_err(io::Error::kind) == Err(ErrorKind::AlreadyExists) {
            return Err(LocalError::file_exists(to).into());
        }
        linked.map_err(fails)?;
    } else {
        fs::rename(&part.path, &place).map_err(fails)?;
    }
    Ok(CopiedFile {
        source: format!(":{from}"),
        destination: to.display().to_string(),
        size_bytes: whole.size_bytes,
        sha256: whole.sha256,
    })
}

/// Permission bits that what this process makes does not get.
fn umask() -> u32 {
    // The system call that tells it also sets it.
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    parse_umask(&status).unwrap_or(0o077)
}

fn parse_umask(status: &str) -> Option<u32> {
    let octal = status.lines().find_map(|line| line.strip_prefix("Umask:"))?;
    u32::from_str_radix(octal.trim(), 8).ok()
}

/// A file that is not whole yet, beside its place. Removed when this is dropped, unless it was
/// moved there.
struct LocalPartialFile {
    path: PathBuf,
    file: File,
}

impl LocalPartialFile {
    fn create(to: &Path) -> io::Result<Self> {
        to.file_name().ok_or(ErrorKind::IsADirectory)?;
        let path = to.with_file_name(format!(".jig-{}.part", unique_suffix()));
        // Nobody else's until it is known whose it may be.
        let file =
            File::options().read(true).write(true).create_new(true).mode(0o600).open(&path)?;
        Ok(Self { path, file })
    }
}

impl Drop for LocalPartialFile {
    fn drop(&mut self) {
        // Gone already when it was moved.
        fs::remove_file(&self.path).ok();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_comes_is_nobody_elses_while_it_comes() {
        let to = std::env::temp_dir().join("jig-cp-part");
        let part = LocalPartialFile::create(&to).unwrap();
        let mode = fs::metadata(&part.path).unwrap().permissions().mode();
        assert_eq!(mode & 0o077, 0);
        assert_eq!(parse_umask("Name:\tjig\nUmask:\t0027\n"), Some(0o027));
        assert_eq!(parse_umask(""), None);
        let status = fs::read_to_string("/proc/self/status").unwrap();
        assert_eq!(parse_umask(&status), Some(umask()));
    }

    #[test]
    fn names_that_lead_elsewhere_are_refused() {
        let entry =
            |name: &str| DirectoryEntry { name: name.to_owned(), ..DirectoryEntry::default() };
        assert_eq!(safe_name(&entry("a")).ok(), Some("a"));
        for name in ["", ".", "..", "a/b", "/a", "a\0"] {
            assert!(safe_name(&entry(name)).is_err(), "{name:?}");
        }
    }
}
