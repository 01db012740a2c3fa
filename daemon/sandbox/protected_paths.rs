//! Paths of the workspace that its commands may not change, though they may change the rest.
//!
//! Each is mounted onto itself read-only. The directories on the way are mounted onto themselves
//! too, writable: a directory that something is mounted on can be neither renamed nor removed, so
//! nobody can put another in its place. All of it goes by descriptors and refuses symbolic links:
//! commands of a template before this one have been in the workspace.

use std::{
    collections::HashSet,
    os::fd::{AsFd as _, OwnedFd},
    path::{Path, PathBuf},
};

use rustix::{
    fs::{Mode, OFlags, ResolveFlags, mkdirat, open, openat, openat2},
    io::write,
    mount::{MoveMountFlags, OpenTreeFlags, move_mount, open_tree},
};

use super::{
    plan::{Placeholder, ProtectedPath},
    stage::{Stage, StageFailure, at_stage},
};
use crate::daemon::sys::{
    Errno,
    mount::{attribute, set_attributes},
};

/// Protects `paths` in the workspace that is mounted at `workspace`, a path relative to the working
/// directory. One that is missing is made, as its placeholder: otherwise commands could make it.
pub(super) fn protect(workspace: &Path, paths: &[ProtectedPath]) -> Result<(), StageFailure> {
    let mut mounted = HashSet::new();
    for ProtectedPath { path, placeholder: missing } in paths {
        let failed = |errno| at_stage(Stage::BuildRoot, path)(errno);
        let mut here =
            open(workspace, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
                .map_err(failed)?;
        let mut so_far = PathBuf::new();
        let mut names = path.split('/').peekable();
        while let Some(name) = names.next() {
            so_far.push(name);
            let last = names.peek().is_none();
            if mounted.insert(so_far.clone()) || last {
                let missing = if last { missing } else { &Placeholder::Directory };
                let found = open_or_create(&here, name, missing).map_err(failed)?;
                bind_onto_itself(&found, last).map_err(failed)?;
            }
            // Opened again: this is the mount now.
            here = open_or_create(&here, name, &Placeholder::Directory).map_err(failed)?;
        }
    }
    Ok(())
}

fn open_or_create(
    directory: &OwnedFd,
    name: &str,
    missing: &Placeholder,
) -> Result<OwnedFd, Errno> {
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    let find = || {
        openat2(
            directory,
            name,
            flags,
            Mode::empty(),
            ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS,
        )
    };
    match find() {
        Err(Errno::NOENT) => {
            create_placeholder(directory, name, missing)?;
            find()
        }
        // BENEATH refuses to enter the mount that was just made: a name cannot lead elsewhere.
        Err(Errno::XDEV) => openat2(
            directory,
            name,
            flags | OFlags::NOFOLLOW,
            Mode::empty(),
            ResolveFlags::NO_SYMLINKS,
        ),
        found => found,
    }
}

fn create_placeholder(
    directory: &OwnedFd,
    name: &str,
    placeholder: &Placeholder,
) -> Result<(), Errno> {
    match placeholder {
        Placeholder::Directory => mkdirat(directory, name, Mode::from_raw_mode(0o755)),
        Placeholder::File(content) => {
            let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
            let file = openat(directory, name, flags, Mode::from_raw_mode(0o644))?;
            let written = write(&file, content.as_bytes())?;
            if written == content.len() { Ok(()) } else { Err(Errno::NOSPC) }
        }
    }
}

fn bind_onto_itself(found: &OwnedFd, read_only: bool) -> Result<(), Errno> {
    let tree = open_tree(
        found,
        "",
        OpenTreeFlags::OPEN_TREE_CLONE
            | OpenTreeFlags::OPEN_TREE_CLOEXEC
            | OpenTreeFlags::AT_EMPTY_PATH
            | OpenTreeFlags::AT_RECURSIVE,
    )?;
    if read_only {
        set_attributes(tree.as_fd(), attribute::RDONLY, None)?;
    }
    move_mount(
        tree.as_fd(),
        "",
        found,
        "",
        MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH,
    )
}
