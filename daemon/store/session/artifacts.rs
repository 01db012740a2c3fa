//! The artifacts of a session: files in its directory.

use std::{
    collections::BTreeMap,
    fs, io,
    os::unix::fs::MetadataExt as _,
    path::Path,
    time::{SystemTime, UNIX_EPOCH},
};

use tokio_util::sync::CancellationToken;

use super::{
    event_log::check_not_cancelled,
    step::{ARTIFACT_DIRS, StepId},
};
use crate::daemon::sys::STAT_BLOCK_BYTES;

#[derive(Debug)]
pub(crate) struct ArtifactMetadata {
    /// Relative to the session's directory.
    pub(crate) path: String,
    /// The step that created it.
    pub(crate) step: StepId,
    pub(crate) size_bytes: u64,
    /// Bytes allocated on the disk.
    pub(crate) disk_bytes: u64,
    pub(crate) modified: SystemTime,
}

/// Lists at most `limit` artifacts by path, those after `after`.
pub(super) fn list(
    directory: &Path,
    after: Option<&str>,
    step: Option<u64>,
    limit: usize,
) -> io::Result<Vec<ArtifactMetadata>> {
    let mut paths = BTreeMap::new();
    for name in ARTIFACT_DIRS {
        for_each_artifact(&directory.join(name), name, |path, artifact_step| {
            let matches = after.is_none_or(|after| path.as_str() > after)
                && step.is_none_or(|step| artifact_step.number() == step);
            if matches {
                paths.insert(path, artifact_step);
                if paths.len() > limit {
                    paths.pop_last();
                }
            }
        })?;
    }

    paths
        .into_iter()
        .filter_map(|(path, step)| stat_artifact(directory, path, step).transpose())
        .collect()
}

/// Lists all artifacts, in no order.
pub(super) fn list_all(
    directory: &Path,
    shutdown: &CancellationToken,
) -> io::Result<Vec<ArtifactMetadata>> {
    let mut paths = Vec::new();
    for name in ARTIFACT_DIRS {
        for_each_artifact(&directory.join(name), name, |path, step| paths.push((path, step)))?;
    }

    let stat = |(path, step)| {
        check_not_cancelled(shutdown)
            .and_then(|()| stat_artifact(directory, path, step))
            .transpose()
    };
    paths.into_iter().filter_map(stat).collect()
}

/// Returns the bytes that all artifacts take on the disk.
pub(super) fn disk_usage(directory: &Path, shutdown: &CancellationToken) -> io::Result<u64> {
    Ok(list_all(directory, shutdown)?.iter().map(|artifact| artifact.disk_bytes).sum())
}

/// Removes the artifacts of a step that exist.
pub(super) fn remove_step(directory: &Path, step: u64) -> io::Result<()> {
    let [stdout, stderr] = StepId::stream_paths(step);
    for path in [stdout, stderr, StepId(step).patch_path()] {
        match fs::remove_file(directory.join(path)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            Ok(()) | Err(_) => {}
        }
    }
    Ok(())
}

/// Removes all artifacts and any other files in their directories.
pub(super) fn remove_all(directory: &Path, shutdown: &CancellationToken) -> io::Result<()> {
    for name in ARTIFACT_DIRS {
        let entries = match fs::read_dir(directory.join(name)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            entries => entries?,
        };
        for entry in entries {
            check_not_cancelled(shutdown)?;
            fs::remove_file(entry?.path())?;
        }
    }
    Ok(())
}

fn for_each_artifact(
    directory: &Path,
    name: &str,
    mut f: impl FnMut(String, StepId),
) -> io::Result<()> {
    let entries = match fs::read_dir(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        entries => entries?,
    };

    for entry in entries {
        let Ok(file) = entry?.file_name().into_string() else {
            continue;
        };
        let path = format!("{name}/{file}");
        if let Some(step) = StepId::from_artifact_path(&path) {
            f(path, step);
        }
    }
    Ok(())
}

/// Returns the metadata of an artifact; `None` if it does not exist any more.
fn stat_artifact(
    directory: &Path,
    path: String,
    step: StepId,
) -> io::Result<Option<ArtifactMetadata>> {
    match fs::symlink_metadata(directory.join(&path)) {
        Ok(metadata) => Ok(Some(ArtifactMetadata {
            path,
            step,
            size_bytes: metadata.len(),
            disk_bytes: metadata.blocks() * STAT_BLOCK_BYTES,
            modified: metadata.modified().unwrap_or(UNIX_EPOCH),
        })),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}
