//! Tests with patches in the forms that people, programs and models write.

mod files;
mod hunks;
mod random;

use std::collections::BTreeMap;

use super::*;
use crate::daemon::error::Error;

type FileMap = BTreeMap<String, String>;

fn files(pairs: &[(&str, &str)]) -> FileMap {
    pairs.iter().map(|(path, content)| (path.to_string(), content.to_string())).collect()
}

fn never_cancelled() -> Result<(), Error> {
    Ok(())
}

/// Applies a patch. Returns all files after it, and the report about those of the patch.
fn apply_patch(
    before: &FileMap,
    patch: &str,
    strip: usize,
) -> Result<(FileMap, Vec<PatchedFile>), Error> {
    let patches = parse(patch, strip)?;
    let originals = before
        .iter()
        .map(|(path, content)| {
            (path.clone(), SourceFile { mode: 0o644, content: content.as_bytes() })
        })
        .collect();
    let plan = plan(&patches, &originals, 2, &never_cancelled, &|_| Ok(()))?;

    let mut after = before.clone();
    for (path, outcome) in plan.outcomes {
        match outcome {
            PathOutcome::Written { content, .. } => {
                after.insert(path, String::from_utf8(content.into_owned()).unwrap())
            }
            PathOutcome::Deleted => after.remove(&path),
        };
    }
    Ok((after, plan.files))
}

/// Applies hunks to a file `f`. Returns its content, the fuzz and the offset.
fn apply_hunks(content: &str, hunks: &str) -> Result<(String, usize, usize), Error> {
    let patch = format!("--- a/f\n+++ b/f\n{hunks}");
    let (mut after, changed) = apply_patch(&files(&[("f", content)]), &patch, 1)?;
    Ok((after.remove("f").unwrap(), changed[0].fuzz, changed[0].offset))
}
