//! What another user may have put where the daemon makes its files: a link in the place of one leads
//! what the daemon writes to another file, a FIFO has it wait, a directory lets its owner replace all.

use std::{
    fs::{self, Metadata},
    io,
    os::unix::fs::{FileTypeExt as _, MetadataExt as _},
    path::Path,
};

/// Checks a state directory that exists and what lies in it. What its own user or root has put there
/// is theirs to put.
///
/// # Errors
///
/// What is not to be trusted, and what to do.
pub(super) fn check_ownership(folder: &Path) -> io::Result<()> {
    let refused = |path: &Path, problem: &str| {
        let path = path.display();
        let text = format!("{path} {problem}");
        Err(io::Error::new(io::ErrorKind::PermissionDenied, text))
    };
    let own = rustix::process::geteuid().as_raw();
    let is_trusted = |found: &Metadata| [own, 0].contains(&found.uid());
    let found = fs::metadata(folder)?;
    if !is_trusted(&found) {
        let problem = format!(
            "belongs to user {}, who could replace all that is in it: give it to user {own} (chown)",
            found.uid()
        );
        return refused(folder, &problem);
    }
    if found.mode() & 0o022 != 0 {
        tracing::warn!(
            state_dir = %folder.display(),
            remedy = "chmod go-w",
            "other users may put files into the state directory"
        );
    }
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let found = entry.metadata()?;
        let kind = found.file_type();
        let problem = if !is_trusted(&found) {
            Some("belongs to another user")
        } else if kind.is_fifo()
            || kind.is_socket()
            || kind.is_char_device()
            || kind.is_block_device()
        {
            Some("is neither a file nor a directory")
        } else if kind.is_file() && found.nlink() > 1 {
            Some("is a file that has another name too (a hard link)")
        } else {
            None
        };
        if let Some(problem) = problem {
            return refused(&entry.path(), &format!("{problem}: remove it"));
        }
    }
    Ok(())
}
