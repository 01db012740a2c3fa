//! The artifacts of a session, as they lie in its folder.

use std::{
    collections::BTreeMap,
    fs, io,
    path::Path,
    time::{SystemTime, UNIX_EPOCH},
};

use super::step::{FOLDERS, Step};

/// An artifact.
#[derive(Debug)]
pub(crate) struct Kept {
    /// Its path, relative to the session's folder.
    pub(crate) path: String,
    /// The step that made it.
    pub(crate) step: Step,
    /// Its bytes.
    pub(crate) size: u64,
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
    kept.filter_map(|(path, step)| look(folder, path, step).transpose())
        .collect()
}

/// All of them, in no order.
pub(super) fn all(folder: &Path) -> io::Result<Vec<Kept>> {
    let mut found = Vec::new();
    for name in FOLDERS {
        each(&folder.join(name), name, |path, step| {
            found.push((path, step));
        })?;
    }
    let kept = found.into_iter();
    kept.filter_map(|(path, step)| look(folder, path, step).transpose())
        .collect()
}

/// Bytes of all of them.
pub(super) fn bytes(folder: &Path) -> io::Result<u64> {
    Ok(all(folder)?.iter().map(|kept| kept.size).sum())
}

/// Removes one.
pub(super) fn remove(folder: &Path, artifact: &Kept) -> io::Result<()> {
    match fs::remove_file(folder.join(&artifact.path)) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        Ok(()) | Err(_) => Ok(()),
    }
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
            modified: data.modified().unwrap_or(UNIX_EPOCH),
        })),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}
