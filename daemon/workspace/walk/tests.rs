//! Walks over deep, changing and unreadable trees.

use std::{
    fs::{self, read_dir, rename},
    os::fd::BorrowedFd,
};

use rustix::fs::{Mode, OFlags, mkdirat, openat};

use super::*;

/// Creates `depth` nested directories `name`. Calls `fill` with the level and handle of each.
fn create_nested(root: &Path, name: &str, depth: usize, fill: impl Fn(usize, BorrowedFd<'_>)) {
    let mut directory = OwnedFd::from(fs::File::open(root).unwrap());
    for level in 0..depth {
        mkdirat(&directory, name, Mode::RWXU).unwrap();
        directory = open_child_directory(directory.as_fd(), name.as_bytes()).unwrap();
        fill(level, directory.as_fd());
    }
}

/// Removes the directories of [`create_nested`]. The standard library would need a descriptor for
/// each level.
fn remove_nested(root: &Path, name: &str) {
    let (top, spare) = (root.join(name), root.join("spare"));
    while top.join(name).exists() {
        rename(top.join(name), &spare).unwrap();
        fs::remove_dir_all(&top).unwrap();
        rename(&spare, &top).unwrap();
    }
}

fn create(directory: BorrowedFd<'_>, name: &str) {
    let flags = OFlags::CREATE | OFlags::WRONLY | OFlags::CLOEXEC;
    openat(directory, name, flags, Mode::RUSR).unwrap();
}

fn filter() -> WalkFilter {
    WalkFilter {
        globs: Override::empty(),
        respect_ignore: false,
        include_hidden: true,
        include_git: false,
        max_depth: None,
    }
}

/// Returns all files after `after`, and the number of skipped names. Checks the number of open
/// descriptors.
fn walk(root: &Path, after: Option<&str>) -> (Vec<String>, u32) {
    let root = Root::open(root).unwrap();
    let base = RelativePath::parse(".", Path::new("/workspace")).unwrap();
    let cancel = CancelToken::new();
    let mut walk = FileWalk::start(&root, &base, filter(), after, &cancel).unwrap();
    let mut files = Vec::new();
    while let Some(path) = walk.next().unwrap() {
        files.push(path.to_owned());
        let is_open = |frame: &&WalkFrame| frame.directory.is_some();
        if files.len().is_multiple_of(100) {
            assert!(walk.frames.iter().filter(is_open).count() <= MAX_OPEN_DIRECTORIES);
        }
    }
    assert_eq!(walk.budget.entries, PENDING_ENTRIES_BUDGET.entries);
    assert_eq!(walk.budget.bytes, PENDING_ENTRIES_BUDGET.bytes);
    (files, walk.skipped_entries())
}

#[test]
fn deep_tree_is_walked_and_resumed() {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path();
    // Files and directories after the nested directory, to which the walk returns.
    create_nested(root, "d", 4000, |level, directory| {
        if level % 3 == 0 {
            create(directory, "z");
        }
        if level % 7 == 0 {
            mkdirat(directory, "e", Mode::RWXU).unwrap();
            create(open_child_directory(directory, b"e").unwrap().as_fd(), "f");
        }
    });
    let (files, skipped) = walk(root, None);
    assert_eq!((files.len(), skipped), (1334 + 572, 0));
    assert!(files.is_sorted());

    // A walk resumes after any file.
    for at in [0, 500, 1333, 1905] {
        let (rest, _) = walk(root, Some(&files[at]));
        assert_eq!(rest, files[at + 1..], "{at}");
    }
    remove_nested(root, "d");
}

#[test]
fn directories_with_too_long_paths_are_counted() {
    let directory = tempfile::tempdir().unwrap();
    let name = "n".repeat(250);
    create_nested(directory.path(), &name, 60, |_, directory| create(directory, "f"));
    let (files, skipped) = walk(directory.path(), None);
    assert_eq!((files.len(), skipped), (MAX_DIRECTORY_PATH_BYTES / 251, 1));
    remove_nested(directory.path(), &name);
}

#[test]
fn removed_and_replaced_directories_are_skipped() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    for name in ["a", "b", "c", "d"] {
        fs::create_dir(path.join(name)).unwrap();
        fs::write(path.join(name).join("f"), "").unwrap();
    }
    let root = Root::open(path).unwrap();
    let base = RelativePath::parse(".", Path::new("/workspace")).unwrap();
    let cancel = CancelToken::new();
    let mut walk = FileWalk::start(&root, &base, filter(), None, &cancel).unwrap();
    assert_eq!(walk.next().unwrap(), Some("a/f"));
    fs::remove_dir_all(path.join("b")).unwrap();
    fs::remove_dir_all(path.join("c")).unwrap();
    std::os::unix::fs::symlink("/etc", path.join("c")).unwrap();
    assert_eq!(walk.next().unwrap(), Some("d/f"));
    assert_eq!(walk.next().unwrap(), None);
    assert!(read_dir(path).unwrap().count() == 3);
}
