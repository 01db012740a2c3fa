//! Watches trees that change. The kernel queues the events of a system call before it returns, so a
//! test reads them without waiting.

mod filters;
mod mirror;

use std::{
    ffi::OsStr,
    fs,
    os::{
        fd::{AsFd as _, OwnedFd},
        unix::{
            ffi::OsStrExt as _,
            fs::{PermissionsExt as _, symlink},
        },
    },
    path::{Path, PathBuf},
    sync::Arc,
};

use ignore::overrides::Override;
use rustix::{
    fs::{CWD, FileType, Mode, RenameFlags, mknodat, renameat_with},
    thread::{CapabilitySet, CapabilitySets, capabilities, set_capabilities},
};
use tempfile::TempDir;

use super::*;
use crate::daemon::{
    error::{Error, Reason},
    queue::PrincipalName,
    workspace::{CancelToken, FileKind, RelativePath, Workspace},
};

/// A workspace, and a directory beside it.
struct Fixture {
    directory: TempDir,
    workspace: Arc<Workspace>,
    budget: Arc<WatchBudget>,
}

impl Fixture {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        fs::create_dir(directory.path().join("w")).unwrap();
        fs::create_dir(directory.path().join("outside")).unwrap();
        let workspace = Workspace::open("w", directory.path().join("w"), "/workspace").unwrap();
        Self { directory, workspace: Arc::new(workspace), budget: Arc::default() }
    }

    fn path(&self, path: &str) -> PathBuf {
        self.directory.path().join("w").join(path)
    }

    fn outside(&self, path: &str) -> PathBuf {
        self.directory.path().join("outside").join(path)
    }

    fn mkdir(&self, path: &str) {
        fs::create_dir_all(self.path(path)).unwrap();
    }

    fn write(&self, path: &str) {
        fs::write(self.path(path), "x").unwrap();
    }

    fn rename(&self, from: &str, to: &str) {
        fs::rename(self.path(from), self.path(to)).unwrap();
    }

    fn open(&self, base: &str, filter: WatchFilter) -> Result<TreeWatch, Error> {
        let base = RelativePath::parse(base, Path::new("/workspace")).unwrap();
        let reservation = self.budget.reserve(&PrincipalName::from("a"));
        let workspace = Arc::clone(&self.workspace);
        TreeWatch::open(workspace, base, filter, reservation, &CancelToken::new())
    }

    fn watch(&self) -> TreeWatch {
        self.open(".", all()).unwrap()
    }
}

fn all() -> WatchFilter {
    WatchFilter { globs: Override::empty(), include_hidden: true, max_depth: None }
}

fn next_batch(watch: &mut TreeWatch) -> Result<ChangeBatch, Error> {
    watch.next_batch(&CancelToken::new())
}

/// Returns all changes: `+` created, `~` changed, `-` deleted, `!` rescan; with a slash after a
/// directory.
fn changes(watch: &mut TreeWatch) -> Vec<String> {
    let mut changes = Vec::new();
    loop {
        let batch = next_batch(watch).unwrap();
        changes.extend(batch.changes.into_iter().map(|change| {
            let kind = match change.kind {
                EntryChangeKind::Created => '+',
                EntryChangeKind::Changed => '~',
                EntryChangeKind::Deleted => '-',
                EntryChangeKind::Rescan => '!',
            };
            let slash = if change.file_kind == FileKind::Directory { "/" } else { "" };
            format!("{kind}{}{slash}", change.path)
        }));
        if !batch.has_more {
            return changes;
        }
    }
}

/// Returns all changes, sorted.
fn sorted(watch: &mut TreeWatch) -> Vec<String> {
    let mut changes = changes(watch);
    changes.sort();
    changes
}

#[test]
fn each_kind_of_change_is_reported() {
    let fixture = Fixture::new();
    fixture.write("old");
    let mut watch = fixture.watch();
    assert!(changes(&mut watch).is_empty());

    fixture.write("f");
    assert_eq!(changes(&mut watch), ["+f"]);
    fixture.write("f");
    assert_eq!(changes(&mut watch), ["~f"]);
    fs::set_permissions(fixture.path("f"), fs::Permissions::from_mode(0o700)).unwrap();
    assert_eq!(changes(&mut watch), ["~f"]);
    fixture.rename("f", "g");
    assert_eq!(changes(&mut watch), ["-f", "+g"]);
    fixture.rename("g", "old");
    assert_eq!(changes(&mut watch), ["-g", "+old"]);
    fixture.write("g");
    assert_eq!(changes(&mut watch), ["+g"]);
    let (g, old) = (fixture.path("g"), fixture.path("old"));
    renameat_with(CWD, &g, CWD, &old, RenameFlags::EXCHANGE).unwrap();
    assert_eq!(sorted(&mut watch), ["+g", "~old"]);
    fs::remove_file(&old).unwrap();
    assert_eq!(changes(&mut watch), ["-old"]);
    fs::remove_file(&g).unwrap();
    fixture.write("g");
    assert_eq!(changes(&mut watch), ["+g"]);

    symlink("nowhere", fixture.path("link")).unwrap();
    assert_eq!(changes(&mut watch), ["+link"]);
    mknodat(CWD, fixture.path("fifo"), FileType::Fifo, Mode::RWXU, 0).unwrap();
    assert_eq!(changes(&mut watch), ["+fifo"]);
    fixture.mkdir("d");
    assert_eq!(changes(&mut watch), ["+d/"]);
    fs::set_permissions(fixture.path("d"), fs::Permissions::from_mode(0o700)).unwrap();
    assert_eq!(changes(&mut watch), ["~d/"]);
    fs::remove_dir(fixture.path("d")).unwrap();
    assert_eq!(changes(&mut watch), ["-d/"]);

    // A file replaces a directory, and the reverse.
    fixture.mkdir("x");
    assert_eq!(changes(&mut watch), ["+x/"]);
    fs::remove_dir(fixture.path("x")).unwrap();
    fixture.write("x");
    assert_eq!(changes(&mut watch), ["-x/", "+x"]);
    fs::remove_file(fixture.path("x")).unwrap();
    fixture.mkdir("x/y");
    assert_eq!(changes(&mut watch), ["+x/", "+x/y/"]);
    assert_eq!(watch.directories(), 3);
}

#[test]
fn write_of_the_daemon_is_one_change() {
    use crate::daemon::workspace::rename_step::{exchange, temporary_name};
    let fixture = Fixture::new();
    fixture.write("f");
    let mut watch = fixture.watch();
    let temporary = temporary_name();
    fixture.write(&temporary);
    let directory = OwnedFd::from(fs::File::open(fixture.path("")).unwrap());
    exchange(&directory, &temporary, "f").unwrap();
    fs::remove_file(fixture.path(&temporary)).unwrap();
    assert_eq!(changes(&mut watch), ["~f"]);
}

#[test]
fn new_directories_are_reported_with_their_contents() {
    let fixture = Fixture::new();
    let mut watch = fixture.watch();
    fixture.mkdir("a/b/c");
    fixture.write("a/b/c/f");
    assert_eq!(sorted(&mut watch), ["+a/", "+a/b/", "+a/b/c/", "+a/b/c/f"]);
    fixture.write("a/b/c/g");
    assert_eq!(changes(&mut watch), ["+a/b/c/g"]);

    // A directory that was made again is another one.
    fs::remove_dir_all(fixture.path("a")).unwrap();
    fixture.mkdir("a/n");
    assert_eq!(changes(&mut watch), ["-a/", "+a/", "+a/n/"]);
    fs::remove_dir_all(fixture.path("a")).unwrap();
    assert_eq!(changes(&mut watch), ["-a/"]);
    assert_eq!(watch.directories(), 1);
}

#[test]
fn renamed_directories_are_watched_at_their_new_paths_only() {
    let fixture = Fixture::new();
    fixture.mkdir("a/b");
    fixture.write("a/b/f");
    let mut watch = fixture.watch();

    fixture.rename("a", "z");
    fixture.write("z/b/g");
    assert_eq!(sorted(&mut watch), ["+z/", "+z/b/", "+z/b/f", "+z/b/g", "-a/"]);
    fixture.write("z/b/h");
    assert_eq!(changes(&mut watch), ["+z/b/h"]);
    fixture.rename("z", "y");
    fixture.rename("y", "z");
    assert_eq!(sorted(&mut watch), ["+z/", "+z/b/", "+z/b/f", "+z/b/g", "+z/b/h", "-y/", "-z/"]);
    assert_eq!(watch.directories(), 3);

    // Out of the workspace, and into it.
    fs::rename(fixture.path("z/b"), fixture.outside("b")).unwrap();
    fs::write(fixture.outside("b/secret"), "").unwrap();
    assert_eq!(changes(&mut watch), ["-z/b/"]);
    fs::write(fixture.outside("b/secret2"), "").unwrap();
    assert!(changes(&mut watch).is_empty());
    assert_eq!(watch.directories(), 2);
    fs::rename(fixture.outside("b"), fixture.path("b")).unwrap();
    assert_eq!(sorted(&mut watch), ["+b/", "+b/f", "+b/g", "+b/h", "+b/secret", "+b/secret2"]);
    fixture.write("b/i");
    assert_eq!(changes(&mut watch), ["+b/i"]);

    // Two directories change places.
    fixture.mkdir("c/only");
    let _reported = changes(&mut watch);
    let (b, c) = (fixture.path("b"), fixture.path("c"));
    renameat_with(CWD, &b, CWD, &c, RenameFlags::EXCHANGE).unwrap();
    fixture.write("b/only/x");
    let reported = sorted(&mut watch);
    for change in ["-b/", "-c/", "+b/", "+c/", "+b/only/", "+b/only/x", "+c/i"] {
        assert!(reported.contains(&change.to_owned()), "{change} {reported:?}");
    }
    fixture.write("c/j");
    assert_eq!(changes(&mut watch), ["+c/j"]);
}

#[test]
fn overflow_of_the_kernel_is_a_rescan_and_nothing_is_missed_later() {
    let fixture = Fixture::new();
    fixture.mkdir("d");
    let mut watch = fixture.watch();
    let limit = fs::read_to_string("/proc/sys/fs/inotify/max_queued_events").unwrap();
    let limit: usize = limit.trim().parse().unwrap();
    for number in 0..=limit / 2 {
        let path = fixture.path(&format!("d/{}", number % 1000));
        fs::write(&path, "").unwrap();
        fs::remove_file(&path).unwrap();
    }
    // The kernel loses the event of this directory.
    fixture.mkdir("lost/below");
    fixture.rename("d", "e");
    let reported = changes(&mut watch);
    assert_eq!(reported.last().unwrap(), "!./", "{} changes", reported.len());
    fixture.write("lost/below/f");
    fixture.write("e/f");
    assert_eq!(sorted(&mut watch), ["+e/f", "+lost/below/f"]);
    assert_eq!(watch.directories(), 4);
}

#[test]
fn too_many_entries_are_a_rescan_of_their_directory() {
    let fixture = Fixture::new();
    let mut watch = fixture.watch();
    fs::create_dir_all(fixture.outside("big/d")).unwrap();
    for number in 0..9000 {
        fs::write(fixture.outside(&format!("big/d/{number}")), "").unwrap();
    }
    fs::rename(fixture.outside("big"), fixture.path("big")).unwrap();
    fixture.write("f");
    assert_eq!(changes(&mut watch), ["+big/", "!big/", "+f"]);
    fixture.write("big/d/f");
    assert_eq!(changes(&mut watch), ["+big/d/f"]);
}

#[test]
fn watched_directory_itself_is_followed_at_its_path() {
    let fixture = Fixture::new();
    fixture.mkdir("a/b/c");
    let mut watch = fixture.open("a/b", all()).unwrap();
    fixture.write("a/b/c/f");
    fixture.write("a/not-watched");
    assert_eq!(changes(&mut watch), ["+a/b/c/f"]);

    // Another directory at the same path.
    fixture.rename("a", "old");
    fixture.mkdir("a/b");
    assert_eq!(changes(&mut watch), ["!a/b/"]);
    fixture.write("old/b/c/g");
    fixture.write("a/b/g");
    assert_eq!(changes(&mut watch), ["+a/b/g"]);

    for remove in [
        |fixture: &Fixture| fixture.rename("a", "gone"),
        |fixture: &Fixture| fixture.rename("a/b", "a/gone"),
        |fixture: &Fixture| fs::remove_dir_all(fixture.path("a")).unwrap(),
        |fixture: &Fixture| fs::remove_dir_all(fixture.path("a/b")).unwrap(),
    ] {
        let fixture = Fixture::new();
        fixture.mkdir("a/b");
        let mut watch = fixture.open("a/b", all()).unwrap();
        remove(&fixture);
        let error = next_batch(&mut watch).unwrap_err();
        assert_eq!(error.reason, Reason::DirectoryNotFound, "{error}");
    }
}

#[test]
fn symbolic_links_are_never_followed() {
    let fixture = Fixture::new();
    fixture.mkdir("d");
    symlink(fixture.outside(""), fixture.path("out")).unwrap();
    symlink("d", fixture.path("in")).unwrap();
    for base in ["out", "in", "in/x"] {
        let error = fixture.open(base, all()).unwrap_err();
        assert_eq!(error.reason, Reason::SymlinkBlocked, "{base}");
    }

    let mut watch = fixture.watch();
    assert_eq!(watch.directories(), 2);
    symlink(fixture.outside(""), fixture.path("d/out")).unwrap();
    fs::remove_dir_all(fixture.path("d")).unwrap();
    symlink(fixture.outside(""), fixture.path("d")).unwrap();
    fs::write(fixture.outside("secret"), "").unwrap();
    assert_eq!(changes(&mut watch), ["-d/", "+d"]);
    assert_eq!(watch.directories(), 1);

    // A watched directory is replaced by a link before its event is read.
    fixture.mkdir("e/f");
    let _reported = changes(&mut watch);
    fixture.write("e/f/g");
    fixture.rename("e", "moved");
    symlink(fixture.outside(""), fixture.path("e")).unwrap();
    fs::create_dir(fixture.outside("f")).unwrap();
    fs::write(fixture.outside("f/g"), "").unwrap();
    let reported = sorted(&mut watch);
    assert_eq!(reported, ["+e", "+moved/", "+moved/f/", "+moved/f/g", "-e/"]);
}

#[test]
fn entries_without_a_path_are_counted() {
    let fixture = Fixture::new();
    let mut watch = fixture.watch();
    let name = OsStr::from_bytes(b"\xff");
    fs::write(fixture.path("").join(name), "").unwrap();
    fs::create_dir(fixture.path("").join(OsStr::from_bytes(b"d\xff"))).unwrap();
    fixture.write("f");
    let batch = next_batch(&mut watch).unwrap();
    assert_eq!((batch.changes.len(), batch.skipped_names), (1, 2));
    fs::remove_file(fixture.path("").join(name)).unwrap();
    assert_eq!(next_batch(&mut watch).unwrap().skipped_names, 1);
    assert_eq!(watch.directories(), 1);
}

#[test]
fn deep_tree_is_watched_up_to_the_length_of_its_paths() {
    let fixture = Fixture::new();
    let mut watch = fixture.watch();
    let name = "n".repeat(250);
    let mut directory = OwnedFd::from(fs::File::open(fixture.path("")).unwrap());
    for _ in 0..60 {
        rustix::fs::mkdirat(&directory, name.as_str(), Mode::RWXU).unwrap();
        directory = crate::daemon::workspace::resolve::open_child_directory(
            directory.as_fd(),
            name.as_bytes(),
        )
        .unwrap();
    }
    let batch = next_batch(&mut watch).unwrap();
    assert_eq!((batch.changes.len(), batch.skipped_names), (47, 1));
    assert_eq!(watch.directories(), 48);
    fs::rename(fixture.path(&name), fixture.outside("n")).unwrap();
    assert_eq!(changes(&mut watch), [format!("-{name}/")]);
    assert_eq!(watch.directories(), 1);
}

#[test]
fn limit_of_watches_is_an_error_at_the_start_and_later() {
    let fixture = Fixture::new();
    fixture.mkdir("a/b");
    let mut others = fixture.budget.reserve(&PrincipalName::from("a"));
    while others.add().is_ok() {}
    for (free, reason) in [(0, true), (2, true), (3, false)] {
        others.remove(free);
        match fixture.open(".", all()) {
            Ok(watch) => {
                assert!(!reason, "{free}");
                drop(watch);
            }
            Err(error) => {
                assert!(reason, "{error}");
                assert_eq!(error.reason, Reason::ResourceExhausted);
                assert!(error.message.contains("65536 per caller"), "{error}");
            }
        }
        while others.add().is_ok() {}
    }

    others.remove(3);
    let mut watch = fixture.watch();
    fixture.mkdir("a/b/c");
    assert_eq!(next_batch(&mut watch).unwrap_err().reason, Reason::ResourceExhausted);
    drop(watch);
    let mut freed = 0;
    while others.add().is_ok() {
        freed += 1;
    }
    assert_eq!(freed, 3);
}

#[test]
fn unreadable_directory_is_rescanned_when_it_becomes_readable() {
    let fixture = Fixture::new();
    fixture.mkdir("d");
    fixture.mkdir("never");
    let set_mode = |path: &str, mode| {
        fs::set_permissions(fixture.path(path), fs::Permissions::from_mode(mode)).unwrap();
    };
    set_mode("never", 0o000);
    let before = capabilities(None).unwrap();
    let without = CapabilitySets {
        effective: before.effective - CapabilitySet::DAC_OVERRIDE - CapabilitySet::DAC_READ_SEARCH,
        ..before
    };
    set_capabilities(None, without).unwrap();

    let mut watch = fixture.watch();
    assert_eq!(watch.directories(), 2);
    set_mode("d", 0o000);
    assert_eq!(changes(&mut watch), ["~d/"]);
    assert_eq!(watch.directories(), 1);
    set_mode("d", 0o700);
    fixture.write("d/f");
    assert_eq!(changes(&mut watch), ["!d/"]);
    fixture.write("d/f");
    assert_eq!(changes(&mut watch), ["~d/f"]);

    fixture.mkdir("u/v");
    set_mode("u", 0o000);
    assert_eq!(fixture.open("u/v", all()).unwrap_err().reason, Reason::PermissionDenied);
    set_mode("u", 0o700);
    set_capabilities(None, before).unwrap();
}

#[test]
fn cancelled_watch_ends() {
    let fixture = Fixture::new();
    let mut watch = fixture.watch();
    fixture.write("f");
    let cancel = CancelToken::new();
    cancel.cancel();
    assert_eq!(watch.next_batch(&cancel).unwrap_err().reason, Reason::Timeout);
}
