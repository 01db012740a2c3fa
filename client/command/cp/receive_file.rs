//! Copies one file out of the workspace.

use std::{
    fs::{self, File, Permissions},
    io::{self, ErrorKind},
    os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _},
    path::{Path, PathBuf},
    sync::OnceLock,
};

use jig::client::Client;

use super::{
    copy_log::CopiedFile,
    destination::{DestinationSymlinks, resolve_destination},
    git::check_destination,
    options::{CopyOptions, unique_suffix},
};
use crate::{cli_error::CliError, local_error::LocalError, progress::ProgressLine};

pub(super) async fn receive_file(
    client: &Client,
    from: String,
    (to, links): (&Path, DestinationSymlinks),
    options: &CopyOptions,
) -> Result<CopiedFile, CliError> {
    let to_error = |error| LocalError::file(to, &error);
    let partial = LocalPartialFile::create((to, links), options)?;
    let mut file = partial.file.try_clone().map_err(to_error)?;
    let progress = ProgressLine::new(&from, options.quiet);
    let show = |bytes, size| progress.update(bytes, size);
    let received = client.receive_file(&from, &mut file, show).await;
    let summary = received.map_err(|error| CliError::from_transfer(to, error))?;
    partial.commit(to, summary.mode, options)?;

    Ok(CopiedFile {
        source: format!(":{from}"),
        destination: to.display().to_string(),
        size_bytes: summary.size_bytes,
        sha256: summary.sha256,
    })
}

/// Returns the umask of this process.
fn umask() -> u32 {
    static UMASK: OnceLock<u32> = OnceLock::new();
    *UMASK.get_or_init(|| {
        // umask(2) cannot read it without setting it.
        let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
        parse_umask(&status).unwrap_or(0o077)
    })
}

fn parse_umask(status: &str) -> Option<u32> {
    let octal = status.lines().find_map(|line| line.strip_prefix("Umask:"))?;
    u32::from_str_radix(octal.trim(), 8).ok()
}

/// An incomplete file beside its destination. Dropping it removes the file, unless it was moved.
pub(super) struct LocalPartialFile {
    path: PathBuf,
    /// The path that the file replaces.
    target: PathBuf,
    pub(super) file: File,
}

impl LocalPartialFile {
    /// Creates the file for the destination `to`, if that may be replaced.
    pub(super) fn create(
        (to, links): (&Path, DestinationSymlinks),
        options: &CopyOptions,
    ) -> Result<Self, CliError> {
        if options.no_clobber && to.symlink_metadata().is_ok() {
            return Err(LocalError::file_exists(to).into());
        }

        let target = resolve_destination(to, links)?;
        // Checks the target of a link. The names in a directory have been checked.
        if links == DestinationSymlinks::Follow && !options.with_git {
            check_destination(&target)?;
        }
        Self::create_beside(target).map_err(|error| LocalError::file(to, &error).into())
    }

    fn create_beside(target: PathBuf) -> io::Result<Self> {
        target.file_name().ok_or(ErrorKind::IsADirectory)?;
        let path = target.with_file_name(format!(".jig-{}.part", unique_suffix()));
        // Readable by this user only, until its permissions are set.
        let file =
            File::options().read(true).write(true).create_new(true).mode(0o600).open(&path)?;
        Ok(Self { path, target, file })
    }

    /// Puts the complete file in place, with the permission bits that the umask leaves. `to` is the
    /// destination for messages.
    pub(super) fn commit(
        self,
        to: &Path,
        mode: u32,
        options: &CopyOptions,
    ) -> Result<(), LocalError> {
        let to_error = |error| LocalError::file(to, &error);
        self.file
            .set_permissions(Permissions::from_mode(mode & 0o777 & !umask()))
            .map_err(to_error)?;

        if !options.no_clobber {
            return fs::rename(&self.path, &self.target).map_err(to_error);
        }
        let linked = fs::hard_link(&self.path, &self.target);
        if linked.as_ref().map_err(io::Error::kind) == Err(ErrorKind::AlreadyExists) {
            return Err(LocalError::file_exists(to));
        }
        linked.map_err(to_error)
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
        let partial = LocalPartialFile::create_beside(to).unwrap();
        let mode = fs::metadata(&partial.path).unwrap().permissions().mode();
        assert_eq!(mode & 0o077, 0);
        assert_eq!(parse_umask("Name:\tjig\nUmask:\t0027\n"), Some(0o027));
        assert_eq!(parse_umask(""), None);
        let status = fs::read_to_string("/proc/self/status").unwrap();
        assert_eq!(parse_umask(&status), Some(umask()));
    }
}
