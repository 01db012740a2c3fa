//! Ownership check of the state directory.
//!
//! Entries of another user are dangerous: a link redirects what the daemon writes, a FIFO blocks it,
//! and the owner of a directory can replace all its content.

use std::{
    fs::{self, Metadata},
    io,
    os::unix::fs::{FileTypeExt as _, MetadataExt as _},
    path::Path,
};

/// Checks an existing state directory and its entries. They must belong to the daemon's user or to
/// root.
///
/// # Errors
///
/// Returns which entry is not trusted, and what to do.
pub(super) fn check_ownership(directory: &Path) -> io::Result<()> {
    let own_uid = rustix::process::geteuid().as_raw();
    let is_trusted = |metadata: &Metadata| [own_uid, 0].contains(&metadata.uid());

    let metadata = fs::metadata(directory)?;
    if !is_trusted(&metadata) {
        let problem = format!(
            "belongs to user {}, who could replace all that is in it: give it to user {own_uid} (chown)",
            metadata.uid()
        );
        return Err(untrusted(directory, &problem));
    }
    if metadata.mode() & 0o022 != 0 {
        tracing::warn!(
            state_dir = %directory.display(),
            remedy = "chmod go-w",
            "other users may put files into the state directory"
        );
    }

    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        let metadata = entry.metadata()?;
        let kind = metadata.file_type();
        let problem = if !is_trusted(&metadata) {
            "belongs to another user"
        } else if kind.is_fifo()
            || kind.is_socket()
            || kind.is_char_device()
            || kind.is_block_device()
        {
            "is neither a file nor a directory"
        } else if kind.is_file() && metadata.nlink() > 1 {
            "is a file with another name (a hard link)"
        } else {
            continue;
        };
        return Err(untrusted(&entry.path(), &format!("{problem}: remove it")));
    }
    Ok(())
}

fn untrusted(path: &Path, problem: &str) -> io::Error {
    let text = format!("{} {problem}", path.display());
    io::Error::new(io::ErrorKind::PermissionDenied, text)
}
