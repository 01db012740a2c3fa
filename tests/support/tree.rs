//! All that lies below a directory.

use std::{collections::BTreeMap, fs, os::unix::fs::PermissionsExt as _, path::Path};

/// By its path below the directory, the mode of each file and its content: the bytes of a regular file, the
/// target of a symbolic link.
pub(crate) type Tree = BTreeMap<String, (u32, Vec<u8>)>;

/// Reads the tree below `folder`. Links are not followed.
pub(crate) fn snapshot_tree(folder: &Path) -> Tree {
    let mut found = Tree::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(next) = folders.pop() {
        for entry in fs::read_dir(next).unwrap() {
            let path = entry.unwrap().path();
            let name = path.strip_prefix(folder).unwrap().to_string_lossy();
            let about = path.symlink_metadata().unwrap();
            let content = if about.is_symlink() {
                let target = fs::read_link(&path).unwrap();
                target.into_os_string().into_encoded_bytes()
            } else if about.is_file() {
                fs::read(&path).unwrap()
            } else {
                Vec::new()
            };
            found.insert(name.into_owned(), (about.permissions().mode(), content));
            if about.is_dir() {
                folders.push(path);
            }
        }
    }
    found
}
