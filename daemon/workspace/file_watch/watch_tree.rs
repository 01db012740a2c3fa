//! The watched directories, by their watch descriptors and by their names.

use std::collections::{BTreeMap, HashMap};

/// The directories below a watched one.
#[derive(Debug, Default)]
pub(super) struct WatchTree {
    directories: HashMap<i32, WatchedDirectory>,
    /// Watch descriptors by the parent's and the name.
    children: BTreeMap<(i32, Box<[u8]>), i32>,
}

#[derive(Debug)]
struct WatchedDirectory {
    /// Watch descriptor of the parent. `None` for the top.
    parent: Option<i32>,
    /// For the top: its path, relative to the workspace.
    name: Box<[u8]>,
    /// Levels below the top.
    depth: usize,
}

impl WatchTree {
    /// Adds the top, at a path relative to the workspace.
    pub(super) fn insert_top(&mut self, watch: i32, path: &[u8]) {
        let top = WatchedDirectory { parent: None, name: path.into(), depth: 0 };
        self.directories.insert(watch, top);
    }

    /// Adds a directory, which must not be in the tree.
    pub(super) fn insert(&mut self, watch: i32, parent: i32, name: &[u8]) {
        let Some(above) = self.directories.get(&parent) else {
            return;
        };
        let directory =
            WatchedDirectory { parent: Some(parent), name: name.into(), depth: above.depth + 1 };
        self.directories.insert(watch, directory);
        self.children.insert((parent, name.into()), watch);
    }

    pub(super) fn contains(&self, watch: i32) -> bool {
        self.directories.contains_key(&watch)
    }

    pub(super) fn len(&self) -> usize {
        self.directories.len()
    }

    /// Returns the watch descriptor of an entry, if it is a watched directory.
    pub(super) fn child(&self, parent: i32, name: &[u8]) -> Option<i32> {
        self.children.get(&(parent, Box::from(name))).copied()
    }

    /// Levels below the top.
    pub(super) fn depth(&self, watch: i32) -> Option<usize> {
        self.directories.get(&watch).map(|directory| directory.depth)
    }

    /// Whether `watch` is `below` or a directory above it.
    pub(super) fn is_at_or_above(&self, watch: i32, below: i32) -> bool {
        let mut next = Some(below);
        while let Some(current) = next {
            if current == watch {
                return true;
            }
            next = self.directories.get(&current).and_then(|directory| directory.parent);
        }
        false
    }

    /// Returns the path of a directory, relative to the workspace.
    pub(super) fn path(&self, watch: i32) -> Option<Vec<u8>> {
        let mut directory = self.directories.get(&watch)?;
        let mut names = vec![&directory.name];
        while let Some(parent) = directory.parent {
            directory = self.directories.get(&parent)?;
            names.push(&directory.name);
        }
        let mut path = Vec::with_capacity(names.iter().map(|name| name.len() + 1).sum());
        for name in names.into_iter().rev().filter(|name| !name.is_empty()) {
            if !path.is_empty() {
                path.push(b'/');
            }
            path.extend_from_slice(name);
        }
        Some(path)
    }

    /// Removes a directory with all below it. Returns their watch descriptors.
    pub(super) fn remove(&mut self, watch: i32) -> Vec<i32> {
        let Some(directory) = self.directories.remove(&watch) else {
            return Vec::new();
        };
        if let Some(parent) = directory.parent {
            self.children.remove(&(parent, directory.name));
        }
        let mut removed = vec![watch];
        let mut next = 0;
        while let Some(&parent) = removed.get(next) {
            next += 1;
            let below = (parent, Box::default())..(parent.saturating_add(1), Box::default());
            let children: Vec<_> =
                self.children.range(below).map(|(key, watch)| (key.clone(), *watch)).collect();
            for (key, child) in children {
                self.children.remove(&key);
                self.directories.remove(&child);
                removed.push(child);
            }
        }
        removed
    }

    /// Removes all directories. Returns their watch descriptors.
    pub(super) fn clear(&mut self) -> Vec<i32> {
        self.children.clear();
        self.directories.drain().map(|(watch, _)| watch).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directory_is_removed_with_all_below_it() {
        let mut tree = WatchTree::default();
        tree.insert_top(1, b"top");
        tree.insert(2, 1, b"a");
        tree.insert(3, 2, b"b");
        tree.insert(4, 3, b"c");
        tree.insert(5, 1, b"z");
        assert_eq!(tree.path(4).unwrap(), b"top/a/b/c");
        assert_eq!(tree.depth(4), Some(3));
        assert!(tree.is_at_or_above(2, 4) && !tree.is_at_or_above(5, 4));

        assert_eq!(tree.remove(2), [2, 3, 4]);
        assert_eq!(tree.remove(2), [0; 0]);
        assert_eq!((tree.child(1, b"a"), tree.child(1, b"z")), (None, Some(5)));
        assert_eq!((tree.path(4), tree.len(), tree.children.len()), (None, 2, 1));
    }
}
