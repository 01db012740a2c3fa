//! Files into the workspace.

use std::{
    ffi::OsString,
    fs::{self, File, FileType},
    hash::{DefaultHasher, Hash as _, Hasher as _},
    io,
    os::unix::fs::PermissionsExt as _,
    path::Path,
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

/// Files up to this size are sent again from the start when the connection is lost.
const MAX_SINGLE_SHOT_BYTES: u64 = 1 << 20;
/// Larger files cannot be resumed: the daemon keeps no more of all uploads together.
const MAX_RESUMABLE_BYTES: u64 = 64 << 30;
/// Copies of one file to one place that are looked for: more than a daemon keeps uploads.
const MAX_UPLOAD_ID_ATTEMPTS: u32 = 100;

/// Copies a file or directory to a path of the workspace.
pub(super) async fn send(
    client: Client,
    from: String,
    mut to: String,
    manner: CopyOptions,
    copies: CopyLog,
) -> Result<(), CliError> {
    let is_directory = Path::new(&from).is_dir();
    if to.is_empty() || to.ends_with('/') {
        match base_name(&from) {
            Some(name) => to = join(&to, name),
            None if is_directory && manner.recursive => {}
            None => return Err(no_file_name_error()),
        }
    }
    if !manner.with_git {
        check_name(&from, &from)?;
        check_name(&to, &format!(":{to}"))?;
    }
    if is_directory && !manner.recursive {
        return Err(CliError::Usage(format!("{from:?} is a directory: copy it with -r")));
    }
    if is_directory {
        return send_tree(&client, &from, to, &manner, &copies).await;
    }
    copies.record_copied(send_file(&client, Path::new(&from), to, &manner).await?);
    Ok(())
}

async fn send_tree(
    client: &Client,
    from: &str,
    to: String,
    manner: &CopyOptions,
    copies: &CopyLog,
) -> Result<(), CliError> {
    let from = Path::new(from);
    let mut open = vec![(from.to_owned(), to)];
    while let Some((directory, to)) = open.pop() {
        let entries = match sorted_entries(&directory) {
            Ok(entries) => entries,
            Err(error) if directory == from => return Err(LocalError::file(from, &error).into()),
            Err(error) => {
                let local = LocalError::file(&directory, &error);
                copies.record_failed(directory.display().to_string(), local.into())?;
                continue;
            }
        };
        let names = entries.iter().map(|(name, _)| name.to_string_lossy());
        if !manner.with_git && is_repository(names) {
            if directory == from {
                let problem = "is a directory that git takes for a repository";
                return Err(LocalError::vcs_path(from, problem).into());
            }
            copies.record_skipped(directory.display().to_string(), SkipReason::GitRepository);
            continue;
        }
        // Files bring their directory with them.
        let mut is_made = to.is_empty();
        for (name, kind) in entries {
            let path = directory.join(&name);
            let shown = path.display().to_string();
            let Some(name) = name.to_str() else {
                copies.record_skipped(shown, SkipReason::NotUtf8);
                continue;
            };
            let to = join(&to, name);
            if !manner.with_git
                && let Some(why) = skip_reason(name)
            {
                copies.record_skipped(shown, why);
            } else if is_reserved_name(name) {
                copies.record_skipped(shown, SkipReason::ReservedName);
            } else if to.len() > MAX_PATH_BYTES {
                copies.record_skipped(shown, SkipReason::TooLong);
            } else if kind.is_dir() {
                open.push((path, to));
                is_made = true;
            } else if kind.is_file() {
                match send_file(client, &path, to, manner).await {
                    Ok(file) => {
                        copies.record_copied(file);
                        is_made = true;
                    }
                    Err(failure) => copies.record_failed(shown, failure)?,
                }
            } else {
                let is_link = kind.is_symlink();
                copies.record_skipped(
                    shown,
                    if is_link { SkipReason::Symlink } else { SkipReason::NotRegularFile },
                );
            }
        }
        if !is_made {
            let request = CreateDirectoryRequest { path: to };
            if let Err(error) = client.create_directory(request).await {
                copies.record_failed(directory.display().to_string(), error.into())?;
            }
        }
    }
    Ok(())
}

/// Names and kinds of what is in a directory, by name.
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
    manner: &CopyOptions,
) -> Result<CopiedFile, CliError> {
    let fails = |error| LocalError::file(from, &error);
    // Opening a FIFO could wait for ever.
    if !fs::metadata(from).map_err(fails)?.is_file() {
        return Err(LocalError::not_a_file(from).into());
    }
    let file = File::open(from).map_err(fails)?;
    let mode = file.metadata().map_err(fails)?.permissions().mode() & 0o777;
    let (size, sha256) = sha256_of(&file).await.map_err(fails)?;
    let mut start = UploadStart {
        path: to.clone(),
        size_bytes: size,
        sha256: sha256.clone(),
        mode: manner.no_clobber.then(|| WriteMode::CreateNew.into()),
        create_directories: None,
        expected_sha256: manner.expected_sha256.clone(),
        file_mode: Some(mode),
        upload_id: None,
    };
    if size > MAX_SINGLE_SHOT_BYTES && size <= MAX_RESUMABLE_BYTES {
        start.upload_id = Some(upload_id(client, &start).await?);
    }
    let progress = Arc::new(ProgressLine::new(&to, manner.quiet));
    let show = move |bytes| progress.update(bytes, size);
    let sent = client.send_file(&file, start, show).await;
    sent.map_err(|error| CliError::from_transfer(from, error))?;
    Ok(CopiedFile {
        source: from.display().to_string(),
        destination: format!(":{to}"),
        size_bytes: size,
        sha256,
    })
}

/// The same for the same copy, so that one that was broken off is found again. One that is complete
/// would not be made again: the copy after it has the next number, which is the same each time, too.
async fn upload_id(client: &Client, start: &UploadStart) -> Result<String, CliError> {
    let mut path = DefaultHasher::new();
    start.path.hash(&mut path);
    let path = path.finish();
    let sum = start.sha256.get(..32).unwrap_or_default();
    let first = format!("cp-{path:016x}-{sum}");
    for number in 0..MAX_UPLOAD_ID_ATTEMPTS {
        let id = match number {
            0 => first.clone(),
            number => format!("{first}-{number}"),
        };
        let request = GetUploadRequest { upload_id: id.clone() };
        match client.get_upload(request).await {
            Ok(known) if known.complete || known.sha256 != start.sha256 => {}
            Ok(_) => return Ok(id),
            Err(error) if error.name() == "UPLOAD_NOT_FOUND" => return Ok(id),
            Err(error) => return Err(error.into()),
        }
    }
    Ok(format!("cp-{}", unique_suffix()))
}
