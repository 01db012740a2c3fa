//! Deletes a file, or a directory with its contents.

use super::{
    Workspace,
    cancel::CancelToken,
    os_error::ExpectedKind,
    path::RelativePath,
    tree_removal::{TreeRemoval, delete},
};
use crate::daemon::{
    error::{Error, Reason},
    sys::Errno,
};

impl Workspace {
    /// Deletes a path. A symbolic link is deleted itself, a directory with entries only with
    /// `recursive`. Returns the number of deleted entries, without those that other processes
    /// delete at the same time.
    pub(crate) fn remove(
        &self,
        path: &RelativePath,
        recursive: bool,
        cancel: &CancelToken,
    ) -> Result<u64, Error> {
        self.check_removal_allowed(path)?;
        let _guard = self.locks.lock(std::slice::from_ref(path), cancel)?;
        let (parent, name) = self.parent_for_field(path, "path", ExpectedKind::File)?;
        let removal = TreeRemoval::new(path, cancel);
        let removed = match delete(&parent, &name) {
            Ok(()) => Ok(1),
            Err(Errno::NOTEMPTY) if recursive => removal.run(&parent, &name),
            Err(Errno::NOTEMPTY) => {
                let path = path.as_str();
                let text = format!(
                    "the directory {path:?} is not empty: set recursive to delete it with its entries"
                );
                Err(Error::new(Reason::DirectoryNotEmpty, text).with_metadata("path", path))
            }
            Err(errno) => Err(removal.to_error(errno)),
        };
        if let Some(quota) = self.file_quota() {
            quota.note_removal();
        }
        self.sync_directories(path.split().map(|(directory, _)| directory))?;
        removed
    }
}

#[cfg(test)]
mod tests {
    use std::{
        fs,
        os::unix::fs::{PermissionsExt as _, symlink},
        path::Path,
        sync::atomic::{AtomicBool, Ordering},
        thread,
    };

    use rustix::fs::{CWD, RenameFlags, mkdirat, openat, renameat_with};

    use super::*;

    fn remove(directory: &Path, path: &str, recursive: bool) -> Result<u64, Reason> {
        let workspace = Workspace::open("w", directory, "/workspace").unwrap();
        let path = workspace.resolve(path).unwrap();
        workspace.remove(&path, recursive, &CancelToken::new()).map_err(|error| error.reason)
    }

    #[test]
    fn files_links_and_directories_are_deleted_themselves() {
        use Reason as R;
        let outside = tempfile::tempdir().unwrap();
        fs::write(outside.path().join("kept"), "").unwrap();
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        fs::write(at("file"), "").unwrap();
        fs::create_dir_all(at("tree/a/b")).unwrap();
        fs::write(at("tree/a/b/file"), "").unwrap();
        fs::create_dir(at("tree/closed")).unwrap();
        fs::write(at("tree/closed/file"), "").unwrap();
        fs::set_permissions(at("tree/closed"), fs::Permissions::from_mode(0o000)).unwrap();
        symlink(outside.path(), at("tree/link")).unwrap();
        symlink(outside.path(), at("link")).unwrap();
        for (path, recursive, expected) in [
            ("none", true, Err(R::FileNotFound)),
            ("link/kept", true, Err(R::SymlinkBlocked)),
            (".", true, Err(R::InvalidParams)),
            ("file", false, Ok(1)),
            ("link", true, Ok(1)),
            ("tree", false, Err(R::DirectoryNotEmpty)),
            ("tree", true, Ok(7)),
        ] {
            assert_eq!(remove(directory.path(), path, recursive), expected, "{path}");
        }
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0);
        assert!(outside.path().join("kept").exists());
    }

    #[test]
    fn deep_and_wide_trees_are_deleted() {
        let directory = tempfile::tempdir().unwrap();
        let mut here = openat(CWD, directory.path(), rustix::fs::OFlags::PATH, 0.into()).unwrap();
        for _ in 0..4000 {
            mkdirat(&here, "d", 0o755.into()).unwrap();
            here = openat(&here, "d", rustix::fs::OFlags::PATH, 0.into()).unwrap();
        }
        for name in 0..5000 {
            fs::write(directory.path().join("d").join(name.to_string()), "").unwrap();
        }
        assert_eq!(remove(directory.path(), "d", true), Ok(9000));
    }

    /// Deletes a tree repeatedly while `interfere` changes it.
    fn with_interference(make: impl Fn(&Path), interfere: impl Fn(&Path) + Sync) {
        let outside = tempfile::tempdir().unwrap();
        fs::write(outside.path().join("kept"), "").unwrap();
        let directory = tempfile::tempdir().unwrap();
        let tree = directory.path().join("tree");
        let done = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    interfere(&tree);
                }
            });
            let error = (0..12).find_map(|_| {
                // The interference begins with the complete tree.
                let made = directory.path().join("made");
                fs::create_dir(&made).unwrap();
                symlink(outside.path(), made.join("link")).unwrap();
                make(&made);
                fs::rename(made, &tree).unwrap();
                remove(directory.path(), "tree", true).err()
            });
            done.store(true, Ordering::Relaxed);
            assert_eq!(error, None);
        });
        assert!(!tree.exists());
        assert!(outside.path().join("kept").exists());
    }

    #[test]
    fn entries_that_become_links_and_back_are_deleted() {
        let make = |tree: &Path| {
            for name in 0..20 {
                fs::create_dir_all(tree.join(format!("{name}/a/b"))).unwrap();
            }
        };
        with_interference(make, |tree| {
            for name in 0..20 {
                let [a, b] = [tree.join(name.to_string()), tree.join("link")];
                let _gone = renameat_with(CWD, a, CWD, b, RenameFlags::EXCHANGE);
            }
        });
    }

    #[test]
    fn concurrent_deletes_and_moves_within_the_tree_are_no_errors() {
        let make = |tree: &Path| {
            for name in 0..20 {
                fs::create_dir_all(tree.join(format!("{name}/a/b/c"))).unwrap();
                fs::write(tree.join(format!("{name}/a/file")), "").unwrap();
            }
        };
        with_interference(make, |tree| {
            for name in 0..20 {
                let at = |path: &str| tree.join(name.to_string()).join(path);
                let _gone = fs::rename(at("a/b"), at("b"));
                let _gone = fs::rename(at("a"), tree.join("a"));
                let _gone = fs::remove_dir_all(tree.join("a"));
            }
        });
    }
}
