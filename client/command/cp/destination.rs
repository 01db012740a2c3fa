//! Resolves the local path that a copy replaces. It must be a regular file, or not exist.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use crate::local_error::LocalError;

/// Maximum number of links to follow, as in the kernel.
const MAX_SYMLINKS: usize = 40;

/// Treatment of a symbolic link at the destination.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum DestinationSymlinks {
    /// Replace its target, because the user named it.
    Follow,
    /// Reject it, because the name comes from the workspace and must stay below the destination.
    Reject,
}

/// Returns the path that a copy to `to` replaces.
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
        if links == DestinationSymlinks::Reject {
            return Err(LocalError::symlink(to));
        }

        let to_error = |error| LocalError::file(to, &error);
        let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
        let parent = fs::canonicalize(parent.unwrap_or(Path::new("."))).map_err(to_error)?;
        // A link to an open file, such as /dev/stdout. A regular file there must be written in
        // place, not replaced.
        if parent.starts_with("/proc") {
            return Err(LocalError::not_a_destination(to));
        }

        path = parent.join(fs::read_link(&path).map_err(to_error)?);
    }
    Err(LocalError::dangling_symlink(to))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn only_files_and_missing_paths_are_destinations() {
        let directory = tempfile::tempdir().unwrap();
        let path_of = |name: &str| directory.path().join(name);
        fs::create_dir(path_of("dir")).unwrap();
        fs::write(path_of("dir/file"), "").unwrap();
        for (link, to) in [
            ("link", "dir/file"),
            ("dir/back", "../link"),
            ("dangling", "dir/none"),
            ("circle", "circle"),
            ("null", "/dev/null"),
            ("output", "/dev/stdout"),
        ] {
            symlink(to, path_of(link)).unwrap();
        }
        let resolve = |name: &str, links| {
            let path = resolve_destination(&path_of(name), links);
            path.map_err(|error| error.reason.unwrap_or(error.code))
        };
        for name in ["none", "dir/file"] {
            for links in [DestinationSymlinks::Follow, DestinationSymlinks::Reject] {
                assert_eq!(resolve(name, links), Ok(path_of(name)));
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
            assert_eq!(resolve(name, DestinationSymlinks::Follow), Err(reason), "{name}");
        }
        for name in ["link", "dir/back"] {
            let path = resolve(name, DestinationSymlinks::Follow).unwrap();
            assert_eq!(
                fs::canonicalize(path).unwrap(),
                fs::canonicalize(path_of("dir/file")).unwrap()
            );
            assert_eq!(resolve(name, DestinationSymlinks::Reject), Err("SYMLINK_BLOCKED"));
        }
    }

    #[test]
    fn devices_and_open_files_are_rejected() {
        for path in ["/dev/null", "/dev/stdout", "/dev/fd/0", "/proc/self/fd/0"] {
            let error =
                resolve_destination(Path::new(path), DestinationSymlinks::Follow).unwrap_err();
            assert!(error.message.contains("`jig read`"), "{path}: {error:?}");
        }
    }
}
