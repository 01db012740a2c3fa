//! Snapshots of directory trees.

use std::{collections::BTreeMap, fs, os::unix::fs::PermissionsExt as _, path::Path};

/// Mode and content of each file, by its path below the directory. The content is the bytes of a
/// regular file or the target of a symbolic link.
pub(crate) type Tree = BTreeMap<String, (u32, Vec<u8>)>;

/// Removes all that a directory contains.
pub(crate) fn empty_directory(directory: &Path) {
    for entry in fs::read_dir(directory).unwrap() {
        let entry = entry.unwrap();
        if entry.file_type().unwrap().is_dir() {
            fs::remove_dir_all(entry.path()).unwrap();
        } else {
            fs::remove_file(entry.path()).unwrap();
        }
    }
}

/// Reads the tree below `directory` without following links.
pub(crate) fn snapshot_tree(directory: &Path) -> Tree {
    let mut tree = Tree::new();
    let mut directories = vec![directory.to_owned()];
    while let Some(next) = directories.pop() {
        for entry in fs::read_dir(next).unwrap() {
            let path = entry.unwrap().path();
            let name = path.strip_prefix(directory).unwrap().to_string_lossy();
            let metadata = path.symlink_metadata().unwrap();
            let content = if metadata.is_symlink() {
                let target = fs::read_link(&path).unwrap();
                target.into_os_string().into_encoded_bytes()
            } else if metadata.is_file() {
                fs::read(&path).unwrap()
            } else {
                Vec::new()
            };

            tree.insert(name.into_owned(), (metadata.permissions().mode(), content));
            if metadata.is_dir() {
                directories.push(path);
            }
        }
    }

    tree
}
