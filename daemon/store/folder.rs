//! Makes folders of the state directory, and never that directory itself: one that was removed stays
//! removed, and what needs it fails.

use std::{
    fs::DirBuilder,
    io::{self, ErrorKind},
    os::unix::fs::DirBuilderExt as _,
    path::Path,
};

/// Makes a folder, unless it exists. The one above it must exist.
pub(super) fn make(path: &Path) -> io::Result<()> {
    match DirBuilder::new().mode(0o700).create(path) {
        Err(error) if error.kind() == ErrorKind::AlreadyExists && path.is_dir() => Ok(()),
        made => made,
    }
}
