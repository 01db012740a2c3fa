//! Where on this side the copy of a file is put. It takes the place of what is there, so that must be
//! a regular file, or nothing.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use crate::local_error::LocalError;

/// Links that are followed one after the other, as many as the kernel follows.
const MAX_SYMLINKS: usize = 40;

/// What becomes of a symbolic link where a copy is to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum DestinationSymlinks {
    /// The copy goes where it leads to: whoever runs us has named it.
    Follow,
    /// It is refused: its name comes out of the workspace, and leads nowhere but below the
    /// destination.
    Refuse,
}

/// The path at which the copy that is to be at `to` takes the place of what is there.
pub(super) fn resolve_destination(
    to: &Path,
    links: DestinationSymlinks,
) -> Result<PathBuf, LocalError> {
    let mut path = to.to_owned();
    for _ in 0..=MAX_SYMLINKS {
        let kind = match path.symlink_metadata() {
            Ok(metadata) => metadata.file_type(),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return if path == to { Ok(path) } else { Err(LocalError::dangling_symlink(to)) };
            }
            Err(error) => return Err(LocalError::file(to, &error)),
        };
        if kind.is_file() {
            return Ok(path);
        }
        if kind.is_dir() {
            return Err(LocalError::file(to, &io::ErrorKind::IsADirectory.into()));
        }
        if !kind.is_symlink() {
            return Err(LocalError::not_a_destination(to));
        }
        if links == DestinationSymlinks::Refuse {
            return Err(LocalError::symlink(to));
        }
        let fails = |error| LocalError::file(to, &error);
        let above = path.parent().filter(|above| !above.as_os_str().is_empty());
        let above = fs::canonicalize(above.unwrap_or(Path::new("."))).map_err(fails)?;
        // What a process has open, as /dev/stdout: a regular file there is to be written to where
        // it is, not replaced.
        if above.starts_with("/proc") {
            return Err(LocalError::not_a_destination(to));
        }
        path = above.join(fs::read_link(&path).map_err(fails)?);
    }
    Err(LocalError::dangling_symlink(to))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn copies_take_the_place_of_files_and_of_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        fs::create_dir(at("dir")).unwrap();
        fs::write(at("dir/file"), "").unwrap();
        for (link, to) in [
            ("link", "dir/file"),
            ("dir/back", "../link"),
            ("dangling", "dir/none"),
            ("circle", "circle"),
            ("null", "/dev/null"),
            ("output", "/dev/stdout"),
        ] {
            symlink(to, at(link)).unwrap();
        }
        let placed = |name: &str, links| {
            let place = resolve_destination(&at(name), links);
            place.map_err(|error| error.reason.unwrap_or(error.code))
        };
        for name in ["none", "dir/file"] {
            for links in [DestinationSymlinks::Follow, DestinationSymlinks::Refuse] {
                assert_eq!(placed(name, links), Ok(at(name)));
            }
        }
        for (name, reason) in [
            ("dir", "NOT_A_FILE"),
            ("dir/file/x", "NOT_A_DIRECTORY"),
            ("dangling", "FILE_NOT_FOUND"),
            ("circle", "FILE_NOT_FOUND"),
            ("null", "NOT_A_FILE"),
            ("output", "NOT_A_FILE"),
        ] {
            assert_eq!(placed(name, DestinationSymlinks::Follow), Err(reason), "{name}");
        }
        for name in ["link", "dir/back"] {
            let place = placed(name, DestinationSymlinks::Follow).unwrap();
            assert_eq!(fs::canonicalize(place).unwrap(), fs::canonicalize(at("dir/file")).unwrap());
            assert_eq!(placed(name, DestinationSymlinks::Refuse), Err("SYMLINK_BLOCKED"));
        }
    }

    #[test]
    fn what_is_open_and_devices_are_for_read() {
        for path in ["/dev/null", "/dev/stdout", "/dev/fd/0", "/proc/self/fd/0"] {
            let error =
                resolve_destination(Path::new(path), DestinationSymlinks::Follow).unwrap_err();
            assert!(error.message.contains("`jig read`"), "{path}: {error:?}");
        }
    }
}
