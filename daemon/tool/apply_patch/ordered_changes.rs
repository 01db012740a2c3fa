//! The order in which a patch changes its files. A patch can replace a file by a directory, and a
//! directory by a file.

use std::collections::BTreeMap;

use crate::daemon::{
    error::{Error, Reason},
    workspace::{FileSnapshot, NewContent, RelativePath, transaction::FileTransaction},
};

/// A file that exists after the patch.
#[derive(Debug, Clone, Copy)]
pub(super) struct WrittenFile<'a> {
    pub(super) original: Option<&'a FileSnapshot>,
    pub(super) content: NewContent<'a>,
}

/// The outcome of each path of a patch. The map order keeps paths below a directory together.
#[derive(Debug, Default)]
pub(super) struct OrderedChanges<'a> {
    pub(super) deleted: BTreeMap<&'a RelativePath, &'a FileSnapshot>,
    pub(super) written: BTreeMap<&'a RelativePath, WrittenFile<'a>>,
}

/// Paths below another path, each with its outcome.
type PathsBelow<'a, T> = Vec<(&'a RelativePath, T)>;

impl<'a> OrderedChanges<'a> {
    /// Stages all changes. A dry run only checks whether they could be made.
    pub(super) fn stage(
        mut self,
        transaction: &mut FileTransaction<'_>,
        dry_run: bool,
    ) -> Result<(), Error> {
        self.check_no_nesting()?;

        // Files that directories replace.
        for (path, original) in std::mem::take(&mut self.deleted) {
            let below = take_below(&mut self.written, path);
            if below.is_empty() {
                self.deleted.insert(path, original);
            } else if !dry_run {
                let files: PathsBelow<'_, NewContent<'_>> =
                    below.into_iter().map(|(file, written)| (file, written.content)).collect();
                transaction.replace_file_with_directory(path, original, &files)?;
            }
        }

        // Directories that files replace.
        for (path, written) in std::mem::take(&mut self.written) {
            let below = take_below(&mut self.deleted, path);
            if below.is_empty() {
                self.written.insert(path, written);
            } else if dry_run {
                transaction.check_subtree(path, &below)?;
            } else {
                transaction.replace_directory_with_file(path, &below, written.content)?;
            }
        }

        for (path, original) in self.deleted {
            if dry_run {
                let _checked = transaction.check_delete(path)?;
            } else {
                transaction.delete(path, original)?;
            }
        }

        let written = self.written.into_iter();
        if !dry_run {
            return transaction.write_all(
                written.map(|(path, WrittenFile { original, content })| (path, original, content)),
            );
        }
        for (path, WrittenFile { original, content }) in written {
            transaction.check_write(path, original, content)?;
        }
        Ok(())
    }

    /// Checks that the patch writes no file below another one.
    fn check_no_nesting(&self) -> Result<(), Error> {
        let names = self.written.keys();
        for (path, next) in names.clone().zip(names.skip(1)) {
            if next.is_at_or_below(path) {
                let text = format!(
                    "the patch makes {:?} a file, and also a directory with {:?} in it",
                    path.as_str(),
                    next.as_str()
                );
                return Err(
                    Error::new(Reason::FileExists, text).with_metadata("path", path.as_str())
                );
            }
        }
        Ok(())
    }
}

/// Removes the paths strictly below `path` from the map and returns them.
fn take_below<'a, T>(
    from: &mut BTreeMap<&'a RelativePath, T>,
    path: &RelativePath,
) -> PathsBelow<'a, T> {
    let below: Vec<&RelativePath> = from
        .range::<RelativePath, _>(path..)
        .map(|(other, _)| *other)
        .skip_while(|other| *other == path)
        .take_while(|other| other.is_at_or_below(path))
        .collect();
    below.into_iter().filter_map(|other| from.remove_entry(other)).collect()
}
