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
    events::go_on,
    step::{FOLDERS, Step},
};

/// Bytes of a block, in which the kernel counts.
const BLOCK: u64 = 512;

/// An artifact.
#[derive(Debug)]
pub(crate) struct Kept {
    /// Its path, relative to the session's folder.
    pub(crate) path: String,
    /// The step that made it.
    pub(crate) step: Step,
    /// Its bytes.
    pub(crate) size: u64,
    /// Bytes that it takes on the disk.
    pub(crate) taken: u64,
    /// When it was last written to.
    pub(crate) modified: SystemTime,
}

/// The first artifacts by path behind `after`.
pub(super) fn list(
    folder: &Path,
    after: Option<&str>,
    step: Option<u64>,
    at_most: usize,
) -> io::Result<Vec<Kept>> {
    let mut found = BTreeMap::new();
    for name in FOLDERS {
        each(&folder.join(name), name, |path, of| {
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
    kept.filter_map(|(path, step)| look(folder, path, step).transpose()).collect()
}

/// All of them, in no order.
pub(super) fn all(folder: &Path, end: &CancellationToken) -> io::Result<Vec<Kept>> {
    let mut found = Vec::new();
    for name in FOLDERS {
        each(&folder.join(name), name, |path, step| {
            found.push((path, step));
        })?;
    }
    let kept = found.into_iter();
    kept.filter_map(|(path, step)| {
        let looked = go_on(end).and_then(|()| look(folder, path, step));
        looked.transpose()
    })
    .collect()
}

/// Bytes that all of them take.
pub(super) fn bytes(folder: &Path, end: &CancellationToken) -> io::Result<u64> {
    Ok(all(folder, end)?.iter().map(|kept| kept.taken).sum())
}

/// Removes those of a step, as far as there are some.
pub(super) fn remove_of(folder: &Path, step: u64) -> io::Result<()> {
    let [stdout, stderr] = Step::paths(step);
    for path in [stdout, stderr, Step(step).patch_path()] {
        match fs::remove_file(folder.join(path)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            Ok(()) | Err(_) => {}
        }
    }
    Ok(())
}

/// Removes all of them, and whatever else lies where they do.
pub(super) fn remove_all(folder: &Path, end: &CancellationToken) -> io::Result<()> {
    for name in FOLDERS {
        let entries = match fs::read_dir(folder.join(name)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            entries => entries?,
        };
        for entry in entries {
            go_on(end)?;
            fs::remove_file(entry?.path())?;
        }
    }
    Ok(())
}

fn each(folder: &Path, name: &str, mut found: impl FnMut(String, Step)) -> io::Result<()> {
    let entries = match fs::read_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        entries => entries?,
    };
    for entry in entries {
        let Ok(file) = entry?.file_name().into_string() else {
            continue;
        };
        let path = format!("{name}/{file}");
        if let Some(step) = Step::of_artifact(&path) {
            found(path, step);
        }
    }
    Ok(())
}

/// Looks at one; nothing where it is gone meanwhile.
fn look(folder: &Path, path: String, step: Step) -> io::Result<Option<Kept>> {
    match fs::symlink_metadata(folder.join(&path)) {
        Ok(data) => Ok(Some(Kept {
            path,
            step,
            size: data.len(),
            taken: data.blocks() * BLOCK,
            modified: data.modified().unwrap_or(UNIX_EPOCH),
        })),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}
