//! The artifacts of a session, as they lie in its folder.

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

/// Bytes of a block, in which the kernel counts.
const STAT_BLOCK_BYTES: u64 = 512;

/// An artifact.
#[derive(Debug)]
pub(crate) struct ArtifactMetadata {
    /// Its path, relative to the session's folder.
    pub(crate) path: String,
    /// The step that made it.
    pub(crate) step: StepId,
    /// Its bytes.
    pub(crate) size_bytes: u64,
    /// Bytes that it takes on the disk.
    pub(crate) disk_bytes: u64,
    /// When it was last written to.
    pub(crate) modified: SystemTime,
}

/// The first artifacts by path behind `after`.
pub(super) fn list(
    folder: &Path,
    after: Option<&str>,
    step: Option<u64>,
    at_most: usize,
) -> io::Result<Vec<ArtifactMetadata>> {
    let mut found = BTreeMap::new();
    for name in ARTIFACT_DIRS {
        for_each_artifact(&folder.join(name), name, |path, of| {
            let is_wanted = after.is_none_or(|after| path.as_str() > after)
                && step.is_none_or(|step| of.number() == step);
            if is_wanted {
                found.insert(path, of);
                if found.len() > at_most {
                    found.pop_last();
                }
            }
        })?;
    }
    let kept = found.into_iter();
    kept.filter_map(|(path, step)| stat_artifact(folder, path, step).transpose()).collect()
}

/// All of them, in no order.
pub(super) fn list_all(
    folder: &Path,
    end: &CancellationToken,
) -> io::Result<Vec<ArtifactMetadata>> {
    let mut found = Vec::new();
    for name in ARTIFACT_DIRS {
        for_each_artifact(&folder.join(name), name, |path, step| {
            found.push((path, step));
        })?;
    }
    let kept = found.into_iter();
    kept.filter_map(|(path, step)| {
        let looked = check_not_cancelled(end).and_then(|()| stat_artifact(folder, path, step));
        looked.transpose()
    })
    .collect()
}

/// Bytes that all of them take.
pub(super) fn disk_usage(folder: &Path, end: &CancellationToken) -> io::Result<u64> {
    Ok(list_all(folder, end)?.iter().map(|kept| kept.disk_bytes).sum())
}

/// Removes those of a step, as far as there are some.
pub(super) fn remove_step(folder: &Path, step: u64) -> io::Result<()> {
    let [stdout, stderr] = StepId::stream_paths(step);
    for path in [stdout, stderr, StepId(step).patch_path()] {
        match fs::remove_file(folder.join(path)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            Ok(()) | Err(_) => {}
        }
    }
    Ok(())
}

/// Removes all of them, and whatever else lies where they do.
pub(super) fn remove_all(folder: &Path, end: &CancellationToken) -> io::Result<()> {
    for name in ARTIFACT_DIRS {
        let entries = match fs::read_dir(folder.join(name)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            entries => entries?,
        };
        for entry in entries {
            check_not_cancelled(end)?;
            fs::remove_file(entry?.path())?;
        }
    }
    Ok(())
}

fn for_each_artifact(
    folder: &Path,
    name: &str,
    mut found: impl FnMut(String, StepId),
) -> io::Result<()> {
    let entries = match fs::read_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        entries => entries?,
    };
    for entry in entries {
        let Ok(file) = entry?.file_name().into_string() else {
            continue;
        };
        let path = format!("{name}/{file}");
        if let Some(step) = StepId::from_artifact_path(&path) {
            found(path, step);
        }
    }
    Ok(())
}

/// Looks at one; nothing where it is gone meanwhile.
fn stat_artifact(
    folder: &Path,
    path: String,
    step: StepId,
) -> io::Result<Option<ArtifactMetadata>> {
    match fs::symlink_metadata(folder.join(&path)) {
        Ok(data) => Ok(Some(ArtifactMetadata {
            path,
            step,
            size_bytes: data.len(),
            disk_bytes: data.blocks() * STAT_BLOCK_BYTES,
            modified: data.modified().unwrap_or(UNIX_EPOCH),
        })),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}
