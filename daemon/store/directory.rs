//! Creates directories below the state directory, never that directory itself: if the state
//! directory was removed, it stays removed and the operation fails.

use std::{
    fs::DirBuilder,
    io::{self, ErrorKind},
    os::unix::fs::DirBuilderExt as _,
    path::Path,
};

/// Creates a directory with mode 0700, unless it exists. Its parent must exist.
pub(super) fn create(path: &Path) -> io::Result<()> {
    match DirBuilder::new().mode(0o700).create(path) {
        Err(error) if error.kind() == ErrorKind::AlreadyExists && path.is_dir() => Ok(()),
        result => result,
    }
}
