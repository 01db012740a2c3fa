//! Patches as people, programs and models write them.

mod files;
mod hunks;
mod random;

use std::collections::BTreeMap;

use super::*;
use crate::daemon::error::Error;

type FileMap = BTreeMap<String, String>;

fn files(pairs: &[(&str, &str)]) -> FileMap {
    let own = |(path, content): &(&str, &str)| (path.to_string(), content.to_string());
    pairs.iter().map(own).collect()
}

fn go_on() -> Result<(), Error> {
    Ok(())
}

/// Applies a patch, and answers all files then and what was said about those of the patch.
fn patched(
    before: &FileMap,
    patch: &str,
    strip: usize,
) -> Result<(FileMap, Vec<PatchedFile>), Error> {
    let patches = parse(patch, strip)?;
    let originals = before.iter();
    let originals = originals
        .map(|(path, content)| {
            (path.clone(), SourceFile { mode: 0o644, content: content.as_bytes() })
        })
        .collect();
    let plan = plan(&patches, &originals, 2, &go_on, &|_| Ok(()))?;
    let mut after = before.clone();
    for (path, fate) in plan.outcomes {
        match fate {
            PathOutcome::Written { content, .. } => {
                after.insert(path, String::from_utf8(content.into_owned()).unwrap())
            }
            PathOutcome::Deleted => after.remove(&path),
        };
    }
    Ok((after, plan.files))
}

/// Applies hunks to a file `f`, and answers its content, the fuzz and the offset.
fn one(content: &str, hunks: &str) -> Result<(String, usize, usize), Error> {
    let patch = format!("--- a/f\n+++ b/f\n{hunks}");
    let (mut after, changed) = patched(&files(&[("f", content)]), &patch, 1)?;
    Ok((after.remove("f").unwrap(), changed[0].fuzz, changed[0].offset))
}
