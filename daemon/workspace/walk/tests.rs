//! Walking trees, also such as change, are hostile or cannot be read.

use std::{
    fs::{self, read_dir, rename},
    os::fd::BorrowedFd,
};

use rustix::fs::{Mode, OFlags, mkdirat, openat};

use super::*;

/// Makes `depth` directories `name`, one in the other, each with what `more` puts into it.
fn deep(root: &Path, name: &str, depth: usize, more: impl Fn(usize, BorrowedFd<'_>)) {
    let mut place = OwnedFd::from(fs::File::open(root).unwrap());
    for level in 0..depth {
        mkdirat(&place, name, Mode::RWXU).unwrap();
        place = open_child_directory(place.as_fd(), name.as_bytes()).unwrap();
        more(level, place.as_fd());
    }
}

/// Removes what [`deep`] made: the library's way to remove a tree needs a descriptor for each
/// level.
fn flatten(root: &Path, name: &str) {
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

fn selection() -> WalkFilter {
    WalkFilter {
        globs: Override::empty(),
        respect_ignore: false,
        include_hidden: true,
        include_git: false,
        max_depth: None,
    }
}

/// All files behind `after`, their number of open descriptors watched, and how many names were
/// skipped.
fn walk(root: &Path, after: Option<&str>) -> (Vec<String>, u32) {
    let root = Root::open(root).unwrap();
    let base = RelativePath::parse(".", Path::new("/workspace")).unwrap();
    let stop = CancelToken::new();
    let mut walk = FileWalk::start(&root, &base, selection(), after, &stop).unwrap();
    let mut files = Vec::new();
    while let Some(path) = walk.next().unwrap() {
        files.push(path.to_owned());
        let open = |frame: &&WalkFrame| frame.directory.is_some();
        if files.len().is_multiple_of(100) {
            assert!(walk.frames.iter().filter(open).count() <= MAX_OPEN_DIRECTORIES);
        }
    }
    assert_eq!(walk.budget.entries, PENDING_ENTRIES_BUDGET.entries);
    assert_eq!(walk.budget.bytes, PENDING_ENTRIES_BUDGET.bytes);
    (files, walk.skipped_entries())
}

#[test]
fn a_tree_may_be_deep() {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path();
    // Files and directories behind the deep directory: the walk comes back to them.
    deep(root, "d", 4000, |level, place| {
        if level % 3 == 0 {
            create(place, "z");
        }
        if level % 7 == 0 {
            mkdirat(place, "e", Mode::RWXU).unwrap();
            create(open_child_directory(place, b"e").unwrap().as_fd(), "f");
        }
    });
    let (files, skipped) = walk(root, None);
    assert_eq!((files.len(), skipped), (1334 + 572, 0));
    assert!(files.is_sorted());
    // Resuming anywhere gives the rest.
    for at in [0, 500, 1333, 1905] {
        let (rest, _) = walk(root, Some(&files[at]));
        assert_eq!(rest, files[at + 1..], "{at}");
    }
    flatten(root, "d");
}

#[test]
fn what_is_too_deep_to_be_named_is_counted() {
    let directory = tempfile::tempdir().unwrap();
    let name = "n".repeat(250);
    deep(directory.path(), &name, 60, |_, place| create(place, "f"));
    let (files, skipped) = walk(directory.path(), None);
    assert_eq!((files.len(), skipped), (MAX_DIRECTORY_PATH_BYTES / 251, 1));
    flatten(directory.path(), &name);
}

#[test]
fn directories_that_move_away_are_passed_over() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    for name in ["a", "b", "c", "d"] {
        fs::create_dir(path.join(name)).unwrap();
        fs::write(path.join(name).join("f"), "").unwrap();
    }
    let root = Root::open(path).unwrap();
    let base = RelativePath::parse(".", Path::new("/workspace")).unwrap();
    let stop = CancelToken::new();
    let mut walk = FileWalk::start(&root, &base, selection(), None, &stop).unwrap();
    assert_eq!(walk.next().unwrap(), Some("a/f"));
    fs::remove_dir_all(path.join("b")).unwrap();
    fs::remove_dir_all(path.join("c")).unwrap();
    std::os::unix::fs::symlink("/etc", path.join("c")).unwrap();
    assert_eq!(walk.next().unwrap(), Some("d/f"));
    assert_eq!(walk.next().unwrap(), None);
    assert!(read_dir(path).unwrap().count() == 3);
}
