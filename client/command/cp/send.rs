//! Copies files into the workspace.

use std::{
    ffi::{OsStr, OsString},
    fs::{self, File, FileType},
    hash::{DefaultHasher, Hash as _, Hasher as _},
    io,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    sync::Arc,
};

use jig::{
    api::v1::{CreateDirectoryRequest, GetUploadRequest, UploadStart, WriteMode},
    client::{Client, sha256_of},
};

use super::{
    copy_log::{CopiedFile, CopyLog, SkipReason},
    git::{check_name, is_repository, skip_reason},
    options::{
        CopyOptions, MAX_PATH_BYTES, base_name, is_reserved_name, join, no_file_name_error,
        unique_suffix,
    },
};
use crate::{cli_error::CliError, local_error::LocalError, progress::ProgressLine};

/// Files up to this size are sent again from the start after a lost connection.
const MAX_SINGLE_SHOT_BYTES: u64 = 1 << 20;
/// Maximum size of a resumable upload: the daemon stores at most this much of all incomplete
/// uploads without a connection.
const MAX_RESUMABLE_BYTES: u64 = 64 << 30;
/// Maximum number of upload ids to try for one file. The daemon stores fewer uploads.
const MAX_UPLOAD_ID_ATTEMPTS: u32 = 100;

/// Recursive copy of a local directory.
struct TreeSender<'a> {
    client: &'a Client,
    options: &'a CopyOptions,
    log: &'a CopyLog,
    /// Directories to copy: source and destination.
    pending: Vec<(PathBuf, String)>,
}

/// Copies a local file or directory to a path of the workspace.
pub(super) async fn send(
    client: Client,
    from: String,
    mut to: String,
    options: CopyOptions,
    log: CopyLog,
) -> Result<(), CliError> {
    let is_directory = Path::new(&from).is_dir();
    if to.is_empty() || to.ends_with('/') {
        match base_name(&from) {
            Some(name) => to = join(&to, name),
            None if is_directory && options.recursive => {}
            None => return Err(no_file_name_error()),
        }
    }

    if !options.with_git {
        check_name(&from, &from)?;
        check_name(&to, &format!(":{to}"))?;
    }

    if is_directory && !options.recursive {
        return Err(CliError::Usage(format!("{from:?} is a directory: copy it with -r")));
    }

    if is_directory {
        return send_tree(&client, &from, to, &options, &log).await;
    }
    log.record_copied(send_file(&client, Path::new(&from), to, &options).await?);
    Ok(())
}

async fn send_tree(
    client: &Client,
    from: &str,
    to: String,
    options: &CopyOptions,
    log: &CopyLog,
) -> Result<(), CliError> {
    let from = Path::new(from);
    let mut sender = TreeSender { client, options, log, pending: vec![(from.to_owned(), to)] };
    while let Some((directory, to)) = sender.pending.pop() {
        let entries = match sorted_entries(&directory) {
            Ok(entries) => entries,
            Err(error) if directory == from => return Err(LocalError::file(from, &error).into()),
            Err(error) => {
                let local = LocalError::file(&directory, &error);
                log.record_failed(directory.display().to_string(), local.into())?;
                continue;
            }
        };
        let names = entries.iter().map(|(name, _)| name.to_string_lossy());
        if !options.with_git && is_repository(names) {
            if directory == from {
                let problem = "is a directory that git takes for a repository";
                return Err(LocalError::vcs_path(from, problem).into());
            }
            log.record_skipped(directory.display().to_string(), SkipReason::GitRepository);
            continue;
        }

        // An upload creates the directory of its file.
        let mut is_created = to.is_empty();
        for (name, kind) in entries {
            is_created |= sender.send_entry(&directory, &to, &name, kind).await?;
        }
        if !is_created {
            let request = CreateDirectoryRequest { path: to };
            if let Err(error) = client.create_directory(request).await {
                log.record_failed(directory.display().to_string(), error.into())?;
            }
        }
    }
    Ok(())
}

impl TreeSender<'_> {
    /// Copies a file, or makes a subdirectory pending. Returns whether this creates the directory
    /// `to`.
    async fn send_entry(
        &mut self,
        directory: &Path,
        to: &str,
        name: &OsStr,
        kind: FileType,
    ) -> Result<bool, CliError> {
        let path = directory.join(name);
        let display_path = path.display().to_string();
        let Some(name) = name.to_str() else {
            self.log.record_skipped(display_path, SkipReason::NotUtf8);
            return Ok(false);
        };
        let to = join(to, name);

        let vcs_reason = if self.options.with_git { None } else { skip_reason(name) };
        let reason = if let Some(reason) = vcs_reason {
            reason
        } else if is_reserved_name(name) {
            SkipReason::ReservedName
        } else if to.len() > MAX_PATH_BYTES {
            SkipReason::TooLong
        } else if kind.is_dir() {
            self.pending.push((path, to));
            return Ok(true);
        } else if kind.is_file() {
            match send_file(self.client, &path, to, self.options).await {
                Ok(file) => self.log.record_copied(file),
                Err(failure) => {
                    self.log.record_failed(display_path, failure)?;
                    return Ok(false);
                }
            }
            return Ok(true);
        } else if kind.is_symlink() {
            SkipReason::Symlink
        } else {
            SkipReason::NotRegularFile
        };

        self.log.record_skipped(display_path, reason);
        Ok(false)
    }
}

/// Lists the names and types of a directory's entries, sorted by name.
fn sorted_entries(directory: &Path) -> io::Result<Vec<(OsString, FileType)>> {
    let mut entries = Vec::new();
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        entries.push((entry.file_name(), entry.file_type()?));
    }
    entries.sort_unstable_by(|one, other| one.0.cmp(&other.0));
    Ok(entries)
}

async fn send_file(
    client: &Client,
    from: &Path,
    to: String,
    options: &CopyOptions,
) -> Result<CopiedFile, CliError> {
    let to_error = |error| LocalError::file(from, &error);
    // Opening a FIFO could block for ever.
    if !fs::metadata(from).map_err(to_error)?.is_file() {
        return Err(LocalError::not_a_file(from).into());
    }

    let file = File::open(from).map_err(to_error)?;
    let mode = file.metadata().map_err(to_error)?.permissions().mode() & 0o777;
    let (size, sha256) = sha256_of(&file).await.map_err(to_error)?;

    let mut start = UploadStart {
        path: to.clone(),
        size_bytes: size,
        sha256: sha256.clone(),
        mode: options.no_clobber.then(|| WriteMode::CreateNew.into()),
        create_directories: None,
        expected_sha256: options.expected_sha256.clone(),
        file_mode: Some(mode),
        upload_id: None,
    };

    if size > MAX_SINGLE_SHOT_BYTES && size <= MAX_RESUMABLE_BYTES {
        start.upload_id = Some(upload_id(client, &start).await?);
    }

    let progress = Arc::new(ProgressLine::new(&to, options.quiet));
    let show = move |bytes| progress.update(bytes, size);
    let result = client.send_file(&file, start, show).await;
    result.map_err(|error| CliError::from_transfer(from, error))?;

    Ok(CopiedFile {
        source: from.display().to_string(),
        destination: format!(":{to}"),
        size_bytes: size,
        sha256,
    })
}

/// Returns the id of an upload. Repeating an interrupted copy yields the same id, so that it
/// resumes.
///
/// A completed upload would not be repeated. So the next copy of the same file gets the next
/// number, which is deterministic too.
async fn upload_id(client: &Client, start: &UploadStart) -> Result<String, CliError> {
    let mut hasher = DefaultHasher::new();
    start.path.hash(&mut hasher);
    let path_hash = hasher.finish();
    let sum = start.sha256.get(..32).unwrap_or_default();
    let base = format!("cp-{path_hash:016x}-{sum}");

    for number in 0..MAX_UPLOAD_ID_ATTEMPTS {
        let id = match number {
            0 => base.clone(),
            number => format!("{base}-{number}"),
        };
        let request = GetUploadRequest { upload_id: id.clone() };
        match client.get_upload(request).await {
            Ok(upload) if upload.complete || upload.sha256 != start.sha256 => {}
            Ok(_) => return Ok(id),
            Err(error) if error.name() == "UPLOAD_NOT_FOUND" => return Ok(id),
            Err(error) => return Err(error.into()),
        }
    }
    Ok(format!("cp-{}", unique_suffix()))
}
