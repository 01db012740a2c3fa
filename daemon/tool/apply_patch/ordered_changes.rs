//! In what order the files of a patch are changed: a directory may come in the place of a file, and a
//! file in that of a directory.

use std::collections::BTreeMap;

use crate::daemon::{
    error::{Error, Reason},
    workspace::{FileSnapshot, NewContent, RelativePath, transaction::FileTransaction},
};

/// A file that is there after the patch.
#[derive(Debug, Clone, Copy)]
pub(super) struct WrittenFile<'a> {
    /// What was there before.
    pub(super) original: Option<&'a FileSnapshot>,
    pub(super) content: NewContent<'a>,
}

/// What becomes of the paths of a patch. In this order the paths below a directory stand together.
#[derive(Debug, Default)]
pub(super) struct OrderedChanges<'a> {
    pub(super) deleted: BTreeMap<&'a RelativePath, &'a FileSnapshot>,
    pub(super) written: BTreeMap<&'a RelativePath, WrittenFile<'a>>,
}

/// Paths below another one, with what is to become of them.
type PathsBelow<'a, T> = Vec<(&'a RelativePath, T)>;

impl<'a> OrderedChanges<'a> {
    /// Stages all of it; without `makes` it is only looked whether it could be.
    pub(super) fn stage(
        mut self,
        change: &mut FileTransaction<'_>,
        makes: bool,
    ) -> Result<(), Error> {
        self.check_no_nesting()?;
        // A file that makes room for a directory.
        for (path, original) in std::mem::take(&mut self.deleted) {
            let below = take_below(&mut self.written, path);
            if below.is_empty() {
                self.deleted.insert(path, original);
            } else if makes {
                let files: PathsBelow<'_, NewContent<'_>> =
                    below.into_iter().map(|(file, written)| (file, written.content)).collect();
                change.replace_file_with_directory(path, original, &files)?;
            }
        }
        // Files that make room for one.
        for (path, written) in std::mem::take(&mut self.written) {
            let below = take_below(&mut self.deleted, path);
            if below.is_empty() {
                self.written.insert(path, written);
            } else if makes {
                change.replace_directory_with_file(path, &below, written.content)?;
            } else {
                change.check_subtree(path, &below)?;
            }
        }
        for (path, original) in self.deleted {
            match makes {
                true => change.delete(path, original)?,
                false => drop(change.check_delete(path)?),
            }
        }
        let written = self.written.into_iter();
        if makes {
            let files =
                written.map(|(path, WrittenFile { original, content })| (path, original, content));
            return change.write_all(files);
        }
        for (path, WrittenFile { original, content }) in written {
            change.check_write(path, original, content)?;
        }
        Ok(())
    }

    /// Checks that no file of the patch lies below another one.
    fn check_no_nesting(&self) -> Result<(), Error> {
        let names = self.written.keys();
        for (one, next) in names.clone().zip(names.skip(1)) {
            if next.is_at_or_below(one) {
                let text = format!(
                    "the patch makes {:?} a file, and a directory with {:?} in it",
                    one.as_str(),
                    next.as_str()
                );
                return Err(
                    Error::new(Reason::FileExists, text).with_metadata("path", one.as_str())
                );
            }
        }
        Ok(())
    }
}

/// Takes what lies below a path.
fn take_below<'a, T>(
    from: &mut BTreeMap<&'a RelativePath, T>,
    path: &RelativePath,
) -> PathsBelow<'a, T> {
    let below = from.range::<RelativePath, _>(path..);
    let below: Vec<&RelativePath> = below
        .map(|(found, _)| *found)
        .skip_while(|found| *found == path)
        .take_while(|found| found.is_at_or_below(path))
        .collect();
    below.into_iter().filter_map(|found| from.remove_entry(found)).collect()
}
