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
    copies::{Copied, Copies, Why},
    git::{becomes_repository, check_destination, check_name, why_left_out},
    manner::{LONGEST_PATH, Manner, join, name_of, nameless, unique},
    place::{Links, place},
};
use crate::{failure::Failure, local::Local, progress::Progress};

/// Entries on each page of a directory's list.
const PAGE: u32 = 10_000;

/// Copies a file or directory of the workspace to a path of this side.
pub(super) async fn receive(
    client: Client,
    from: String,
    mut to: PathBuf,
    manner: Manner,
    copies: Copies,
) -> Result<(), Failure> {
    let into = to.is_dir() || to.as_os_str().as_encoded_bytes().ends_with(b"/");
    if into {
        match name_of(&from) {
            Some(name) => to.push(name),
            None if manner.recursive => {}
            None => return Err(nameless()),
        }
    }
    if !manner.with_git {
        check_name(&from, &format!(":{from}"))?;
        check_destination(&to)?;
    }
    if manner.recursive {
        match entries(&client, &from).await {
            Err(error) if error.name() == "NOT_A_DIRECTORY" => {}
            Err(error) => return Err(error.into()),
            Ok(listed) => return tree(&client, (from, listed), to, &manner, &copies).await,
        }
    }
    copies.copied(file(&client, from, (&to, Links::Follow), &manner).await?);
    Ok(())
}

async fn tree(
    client: &Client,
    (from, listed): (String, ListDirectoryResponse),
    to: PathBuf,
    manner: &Manner,
    copies: &Copies,
) -> Result<(), Failure> {
    let path = if from.is_empty() { "." } else { &from };
    let request = StatPathRequest { path: path.to_owned() };
    let mode = client.stat_path(request).await?.mode;
    if !manner.with_git && becomes_repository(&to, names(&listed))? {
        let problem = "is a directory that git takes for a repository";
        return Err(Local::of_vcs(Path::new(&format!(":{from}")), problem).into());
    }
    if !to.is_dir() {
        if let Some(above) = to.parent().filter(|above| !above.as_os_str().is_empty()) {
            fs::create_dir_all(above).map_err(|error| Local::file(above, &error))?;
        }
        make_directory(&to, mode)?;
    }
    let mut listed = Some(listed);
    let mut open = vec![(from, to, mode)];
    while let Some((from, to, mode)) = open.pop() {
        let listed = match listed.take() {
            Some(listed) => Ok(Some(listed)),
            None => open_directory(client, &from, (&to, mode), manner).await,
        };
        let listed = match listed {
            Ok(Some(listed)) => listed,
            Ok(None) => {
                copies.leave_out(format!(":{from}"), Why::GitRepository);
                continue;
            }
            Err(failure) => {
                copies.failed(format!(":{from}"), failure)?;
                continue;
            }
        };
        for entry in listed.entries {
            let name = match safe_name(&entry) {
                Ok(name) => name,
                Err(failure) => {
                    copies.failed(format!(":{}", join(&from, &entry.name)), failure)?;
                    continue;
                }
            };
            let (from, to) = (join(&from, name), to.join(name));
            let shown = format!(":{from}");
            let is_too_long = from.len().max(to.as_os_str().len()) > LONGEST_PATH;
            if !manner.with_git
                && let Some(why) = why_left_out(name)
            {
                copies.leave_out(shown, why);
                continue;
            }
            match entry.r#type() {
                FileType::File | FileType::Directory if is_too_long => {
                    copies.leave_out(shown, Why::TooLong);
                }
                FileType::Directory => open.push((from, to, entry.mode)),
                FileType::File => match file(client, from, (&to, Links::Refuse), manner).await {
                    Ok(file) => copies.copied(file),
                    Err(failure) => copies.failed(shown, failure)?,
                },
                FileType::Symlink => copies.leave_out(shown, Why::Symlink),
                FileType::Fifo
                | FileType::Socket
                | FileType::CharacterDevice
                | FileType::BlockDevice
                | FileType::Unspecified => copies.leave_out(shown, Why::NoFile),
            }
        }
        for _ in 0..listed.skipped_names {
            copies.leave_out(format!(":{}", join(&from, "?")), Why::NoUtf8);
        }
    }
    Ok(())
}

/// Lists a directory and makes its copy. None: git would take the copy for a repository, with what
/// is in it already, as after an earlier copy, or one of a name that the file system folds to this.
async fn open_directory(
    client: &Client,
    from: &str,
    (to, mode): (&Path, u32),
    manner: &Manner,
) -> Result<Option<ListDirectoryResponse>, Failure> {
    let listed = entries(client, from).await?;
    // Before its copy is looked into, which must not be behind a link.
    let is_link = to.symlink_metadata().is_ok_and(|there| there.is_symlink());
    if is_link {
        return Err(Local::link(to).into());
    }
    if !manner.with_git && becomes_repository(to, names(&listed))? {
        return Ok(None);
    }
    make_directory(to, mode)?;
    Ok(Some(listed))
}

fn names(listed: &ListDirectoryResponse) -> impl Iterator<Item = &str> {
    listed.entries.iter().map(|entry| entry.name.as_str())
}

/// All entries of a directory.
async fn entries(client: &Client, path: &str) -> Result<ListDirectoryResponse, CallError> {
    let mut request = ListDirectoryRequest {
        path: (!path.is_empty()).then(|| path.to_owned()),
        page_size: Some(PAGE),
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
fn safe_name(entry: &DirectoryEntry) -> Result<&str, Failure> {
    let name = entry.name.as_str();
    if matches!(name, "" | "." | "..") || name.contains(['/', '\0']) {
        let text = format!("the daemon lists {name:?}, which leads elsewhere");
        return Err(Failure::Daemon(text));
    }
    Ok(name)
}

/// Makes a directory, unless it is there. It can be written to by its owner: there is more to come.
fn make_directory(path: &Path, mode: u32) -> Result<(), Local> {
    let made = DirBuilder::new().mode(mode & 0o777 | 0o700).create(path);
    match made {
        Ok(()) => Ok(()),
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {
            let there = path.symlink_metadata();
            match there.map(|there| there.file_type()) {
                Ok(kind) if kind.is_dir() => Ok(()),
                Ok(kind) if kind.is_symlink() => Err(Local::link(path)),
                _ => Err(Local::file(path, &ErrorKind::NotADirectory.into())),
            }
        }
        Err(error) => Err(Local::file(path, &error)),
    }
}

async fn file(
    client: &Client,
    from: String,
    (to, links): (&Path, Links),
    manner: &Manner,
) -> Result<Copied, Failure> {
    let fails = |error| Local::file(to, &error);
    if manner.no_clobber && to.symlink_metadata().is_ok() {
        return Err(Local::file_exists(to).into());
    }
    let place = place(to, links)?;
    // Where a link leads to, for what is not checked as part of a directory.
    if links == Links::Follow && !manner.with_git {
        check_destination(&place)?;
    }
    let part = Part::create(&place).map_err(fails)?;
    let mut file = part.file.try_clone().map_err(fails)?;
    let progress = Progress::new(&from, manner.quiet);
    let show = |bytes, size| progress.at(bytes, size);
    let received = client.receive_file(&from, &mut file, show).await;
    let whole = received.map_err(|error| Failure::of_transfer(to, error))?;
    file.set_permissions(Permissions::from_mode(whole.mode & 0o777 & !umask())).map_err(fails)?;
    if manner.no_clobber {
        let linked = fs::hard_link(&part.path, &place);
        if linked.as_ref().map_err(io::Error::kind) == Err(ErrorKind::AlreadyExists) {
            return Err(Local::file_exists(to).into());
        }
        linked.map_err(fails)?;
    } else {
        fs::rename(&part.path, &place).map_err(fails)?;
    }
    Ok(Copied {
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
    umask_in(&status).unwrap_or(0o077)
}

fn umask_in(status: &str) -> Option<u32> {
    let octal = status.lines().find_map(|line| line.strip_prefix("Umask:"))?;
    u32::from_str_radix(octal.trim(), 8).ok()
}

/// A file that is not whole yet, beside its place. Removed when this is dropped, unless it was
/// moved there.
struct Part {
    path: PathBuf,
    file: File,
}

impl Part {
    fn create(to: &Path) -> io::Result<Self> {
        to.file_name().ok_or(ErrorKind::IsADirectory)?;
        let path = to.with_file_name(format!(".jig-{}.part", unique()));
        // Nobody else's until it is known whose it may be.
        let file =
            File::options().read(true).write(true).create_new(true).mode(0o600).open(&path)?;
        Ok(Self { path, file })
    }
}

impl Drop for Part {
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
        let part = Part::create(&to).unwrap();
        let mode = fs::metadata(&part.path).unwrap().permissions().mode();
        assert_eq!(mode & 0o077, 0);
        assert_eq!(umask_in("Name:\tjig\nUmask:\t0027\n"), Some(0o027));
        assert_eq!(umask_in(""), None);
        let status = fs::read_to_string("/proc/self/status").unwrap();
        assert_eq!(umask_in(&status), Some(umask()));
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
