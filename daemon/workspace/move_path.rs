//! Moving what is at one path to another, in one rename.

use std::os::fd::{AsFd as _, OwnedFd};

use rustix::{
    fs::{AtFlags, FileType, RenameFlags, Stat, fstat, renameat, renameat_with, statat, unlinkat},
    io::retry_on_intr,
};

use super::{
    Workspace,
    cancel::CancelToken,
    os_error::{ExpectedKind, already_exists, os_error},
    path::RelativePath,
};
use crate::daemon::{
    error::{Error, Reason},
    sys::Errno,
};

impl Workspace {
    /// Moves what is at `source`, a symbolic link itself, to `destination`. Answers whether it
    /// replaced something, which it does only if `overwrite` says so.
    pub(crate) fn move_path(
        &self,
        source: &RelativePath,
        destination: &RelativePath,
        overwrite: bool,
        cancel: &CancelToken,
    ) -> Result<bool, Error> {
        self.check_removal_allowed(source)?;
        self.check_change_allowed(destination)?;
        let _held = self.locks.lock(&[source.clone(), destination.clone()], cancel)?;
        if destination != source && destination.is_at_or_below(source) {
            return Err(destination_in_source_error(source));
        }
        let (from, from_name) = self.parent_for_field(source, "source", ExpectedKind::File)?;
        let (to, to_name) =
            self.parent_for_field(destination, "destination", ExpectedKind::Directory)?;
        let failed = |errno| os_error(errno, source.as_str(), ExpectedKind::File);
        let moved = statat(&from, &from_name, AtFlags::SYMLINK_NOFOLLOW).map_err(failed)?;
        if source == destination {
            return Ok(false);
        }
        let is_moved = |found: &Stat| (found.st_dev, found.st_ino) == (moved.st_dev, moved.st_ino);
        let is_one_name = || {
            let [from, to] = [fstat(&from)?, fstat(&to)?];
            let in_one_place = (from.st_dev, from.st_ino) == (to.st_dev, to.st_ino);
            Ok(in_one_place && from_name.eq_ignore_ascii_case(&to_name))
        };
        loop {
            cancel.check()?;
            let replaced = match statat(&to, &to_name, AtFlags::SYMLINK_NOFOLLOW) {
                // One name, written in two ways: through a link, or in another case where that
                // makes no difference. rename(2) knows, and does what there is to do.
                Ok(found)
                    if is_moved(&found)
                        && (found.st_nlink == 1
                            || is_directory(&found)
                            || is_one_name().map_err(failed)?) =>
                {
                    let renamed = retry_on_intr(|| renameat(&from, &from_name, &to, &to_name));
                    return renamed
                        .map(|()| false)
                        .map_err(|errno| move_error(errno, source, destination));
                }
                Ok(found) => Some(found),
                Err(Errno::NOENT) => None,
                Err(errno) => {
                    return Err(os_error(errno, destination.as_str(), ExpectedKind::File));
                }
            };
            let renamed = match replaced {
                Some(_) if !overwrite => return Err(already_exists(destination)),
                // Two names of one file: rename(2) would leave both.
                Some(found) if is_moved(&found) => unlinkat(&from, &from_name, AtFlags::empty()),
                Some(_) => retry_on_intr(|| renameat(&from, &from_name, &to, &to_name)),
                None => rename_noreplace((&from, &from_name), (&to, &to_name)),
            };
            return match renamed {
                Ok(()) => {
                    let places = [source.split(), destination.split()];
                    self.sync_directories(
                        places.into_iter().flatten().map(|(directory, _)| directory),
                    )?;
                    Ok(replaced.is_some())
                }
                // Somebody has made something there a moment ago.
                Err(Errno::EXIST) if replaced.is_none() => continue,
                Err(errno) => Err(move_error(errno, source, destination)),
            };
        }
    }

    /// The directory of a path and the name in it. The workspace itself has none; `field` is the
    /// request's field that named it.
    pub(super) fn parent_for_field(
        &self,
        path: &RelativePath,
        field: &'static str,
        wanted: ExpectedKind,
    ) -> Result<(OwnedFd, String), Error> {
        let Some((directory, name)) = path.split() else {
            return Err(Error::invalid_field(
                field,
                "is the workspace itself: name something in it",
            ));
        };
        let opened = self.root.open_directory_handle(directory.as_bytes());
        let opened = opened.map_err(|errno| match wanted {
            ExpectedKind::File => os_error(errno, path.as_str(), wanted),
            ExpectedKind::Directory => os_error(errno, directory.as_str(), wanted),
        })?;
        self.check_change_allowed_in(opened.as_fd(), name)?;
        Ok((opened, name.to_owned()))
    }
}

fn is_directory(stat: &Stat) -> bool {
    FileType::from_raw_mode(stat.st_mode) == FileType::Directory
}

/// Why what is at `source` could not be moved to `destination`.
fn move_error(errno: Errno, source: &RelativePath, destination: &RelativePath) -> Error {
    let path = destination.as_str();
    let (reason, text) = match errno {
        Errno::ISDIR | Errno::NOTDIR => (
            Reason::FileExists,
            format!(
                "one of {:?} and {path:?} is a directory and the other is not: delete {path:?} first",
                source.as_str()
            ),
        ),
        Errno::NOTEMPTY | Errno::EXIST => (
            Reason::DirectoryNotEmpty,
            format!("the directory {path:?} holds entries: delete it first"),
        ),
        Errno::XDEV => (
            Reason::PermissionDenied,
            format!("{path:?} lies on another file system: copy instead"),
        ),
        // Through a symbolic link: else it is seen before.
        Errno::INVAL => return destination_in_source_error(source),
        errno => return os_error(errno, source.as_str(), ExpectedKind::File),
    };
    Error::new(reason, text).with_metadata("path", path)
}

fn destination_in_source_error(source: &RelativePath) -> Error {
    let problem = format!("lies in {:?}, which is to be moved", source.as_str());
    Error::invalid_field("destination", problem)
}

fn rename_noreplace(from: (&OwnedFd, &str), to: (&OwnedFd, &str)) -> Result<(), Errno> {
    let renamed =
        retry_on_intr(|| renameat_with(from.0, from.1, to.0, to.1, RenameFlags::NOREPLACE));
    match renamed {
        // A file system that cannot look and rename in one step: it was free a moment ago.
        Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => {
            retry_on_intr(|| renameat(from.0, from.1, to.0, to.1))
        }
        renamed => renamed,
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::symlink};

    use super::*;

    #[test]
    fn what_may_be_moved_where() {
        use Reason as R;
        for (source, destination, overwrite, expected) in [
            ("file", "new", false, Ok(false)),
            ("file", "dir/new", false, Ok(false)),
            ("file", "other", false, Err(R::FileExists)),
            ("file", "other", true, Ok(true)),
            ("file", "twin", true, Ok(true)),
            ("file", "file", false, Ok(false)),
            ("file", "dir", true, Err(R::FileExists)),
            ("file", "none/new", false, Err(R::DirectoryNotFound)),
            ("file", "link/new", false, Err(R::SymlinkBlocked)),
            ("file", "other/new", false, Err(R::NotADirectory)),
            ("none", "new", false, Err(R::FileNotFound)),
            ("link/x", "new", false, Err(R::SymlinkBlocked)),
            ("link", "new", false, Ok(false)),
            ("dir", "new", false, Ok(false)),
            ("dir", "empty", true, Ok(true)),
            ("dir", "full", true, Err(R::DirectoryNotEmpty)),
            ("dir", "other", true, Err(R::FileExists)),
            ("full", "full/in", false, Err(R::InvalidParams)),
            (".", "new", false, Err(R::InvalidParams)),
            ("file", ".", true, Err(R::InvalidParams)),
            ("safe/x", "new", false, Err(R::PolicyDenied)),
            ("file", "safe", false, Err(R::PolicyDenied)),
        ] {
            let folder = tempfile::tempdir().unwrap();
            let at = |name: &str| folder.path().join(name);
            fs::write(at("file"), "file").unwrap();
            fs::hard_link(at("file"), at("twin")).unwrap();
            fs::write(at("other"), "other").unwrap();
            fs::create_dir_all(at("full/entry")).unwrap();
            fs::create_dir(at("dir")).unwrap();
            fs::create_dir(at("empty")).unwrap();
            symlink("dir", at("link")).unwrap();
            let mut workspace = Workspace::open("w", folder.path(), "/workspace").unwrap();
            workspace.protect(&["safe".to_owned()]).unwrap();
            let [from, to] = [source, destination].map(|path| workspace.resolve(path).unwrap());
            let before = fs::symlink_metadata(at(source)).ok();
            let moved = workspace.move_path(&from, &to, overwrite, &CancelToken::new());
            let moved = moved.map_err(|error| error.reason);
            assert_eq!(moved, expected, "{source} to {destination}");
            if moved.is_ok() && source != destination {
                use std::os::unix::fs::MetadataExt as _;
                assert!(fs::symlink_metadata(at(source)).is_err());
                let after = fs::symlink_metadata(at(destination)).unwrap();
                assert_eq!(after.ino(), before.unwrap().ino());
            }
        }
    }

    #[test]
    fn a_file_is_not_deleted_for_being_named_in_two_ways() {
        for other_names in [0, 1] {
            let folder = tempfile::tempdir().unwrap();
            let at = |name: &str| folder.path().join(name);
            fs::create_dir(at("real")).unwrap();
            fs::write(at("real/x"), "kept").unwrap();
            for name in 0..other_names {
                fs::hard_link(at("real/x"), at(&format!("{name}"))).unwrap();
            }
            symlink("real", at("link")).unwrap();
            let mut workspace = Workspace::open("w", folder.path(), "/workspace").unwrap();
            workspace.follow_links().unwrap();
            for (source, destination) in [("link/x", "real/x"), ("real/x", "link/x")] {
                for overwrite in [true, false] {
                    let [from, to] = [source, destination].map(|path| workspace.resolve(path));
                    let moved = workspace.move_path(
                        &from.unwrap(),
                        &to.unwrap(),
                        overwrite,
                        &CancelToken::new(),
                    );
                    assert!(!moved.unwrap());
                    assert_eq!(fs::read_to_string(at("real/x")).unwrap(), "kept");
                }
            }
        }
    }

    #[test]
    fn what_is_wrong_is_told_as_it_is() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        fs::create_dir_all(at("dir/below")).unwrap();
        fs::write(at("file"), "").unwrap();
        symlink("dir/below", at("link")).unwrap();
        let mut workspace = Workspace::open("w", folder.path(), "/workspace").unwrap();
        workspace.follow_links().unwrap();
        let error = |source: &str, destination: &str, overwrite| {
            let [from, to] = [source, destination].map(|path| workspace.resolve(path).unwrap());
            let moved = workspace.move_path(&from, &to, overwrite, &CancelToken::new());
            moved.unwrap_err()
        };
        for (source, destination) in [("file", "dir"), ("dir", "file")] {
            let replacing = error(source, destination, true);
            assert_eq!(replacing.reason, Reason::FileExists);
            assert!(!replacing.message.contains("replaced"), "{replacing}");
            assert!(error(source, destination, false).message.contains("replaced"));
        }
        let beneath = error("dir", "link/x", false);
        assert_eq!(beneath.reason, Reason::InvalidParams, "{beneath}");
        assert_eq!(beneath.violations.first().unwrap().field, "destination");
        // It is the name of the destination that is told.
        let too_long = error("file", &"n".repeat(256), false);
        assert!(too_long.message.contains("nnn"), "{too_long}");
    }
}
