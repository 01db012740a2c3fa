//! Copies one file into the workspace.

use std::{
    fs::{self, File},
    hash::{DefaultHasher, Hash as _, Hasher as _},
    os::unix::fs::PermissionsExt as _,
    path::Path,
    sync::Arc,
};

use jig::{
    api::v1::{GetUploadRequest, UploadStart, WriteMode},
    client::{Client, sha256_of},
};

use super::{
    copy_log::CopiedFile,
    options::{CopyOptions, unique_suffix},
};
use crate::{cli_error::CliError, local_error::LocalError, progress::ProgressLine};

/// Files up to this size are sent again from the start after a lost connection.
const MAX_SINGLE_SHOT_BYTES: u64 = 1 << 20;
/// Maximum size of a resumable upload: the daemon stores at most this much of all incomplete
/// uploads without a connection.
const MAX_RESUMABLE_BYTES: u64 = 64 << 30;
/// Maximum number of upload ids to try for one file. The daemon stores fewer uploads.
const MAX_UPLOAD_ID_ATTEMPTS: u32 = 100;

pub(super) async fn send_file(
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
