//! Protects paths of the workspace from commands, which may change the rest of it.
//!
//! Each path is mounted onto itself read-only. The directories above it are mounted onto themselves
//! too, writable: a mount point can be neither renamed nor removed, so no other directory can take
//! its place. All lookups use descriptors and refuse symbolic links, because commands of an earlier
//! template have been in the workspace.

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

/// Protects `paths` in the workspace mounted at `workspace`, which is relative to the working
/// directory. Creates a missing path as its placeholder, because otherwise commands could create
/// it.
pub(super) fn protect(workspace: &Path, paths: &[ProtectedPath]) -> Result<(), StageFailure> {
    let mut mounted = HashSet::new();
    for ProtectedPath { path, placeholder } in paths {
        let failed = |errno| at_stage(Stage::BuildRoot, path)(errno);
        let mut directory =
            open(workspace, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
                .map_err(failed)?;

        let mut prefix = PathBuf::new();
        let mut names = path.split('/').peekable();
        while let Some(name) = names.next() {
            prefix.push(name);
            let is_last = names.peek().is_none();
            if mounted.insert(prefix.clone()) || is_last {
                let placeholder = if is_last { placeholder } else { &Placeholder::Directory };
                let entry = open_or_create(&directory, name, placeholder).map_err(failed)?;
                bind_onto_itself(&entry, is_last).map_err(failed)?;
            }
            // Opened again to get the new mount.
            directory =
                open_or_create(&directory, name, &Placeholder::Directory).map_err(failed)?;
        }
    }
    Ok(())
}

/// Opens `name` in `directory`, and creates it as `placeholder` if it is missing.
fn open_or_create(
    directory: &OwnedFd,
    name: &str,
    placeholder: &Placeholder,
) -> Result<OwnedFd, Errno> {
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    let open_beneath = || {
        openat2(
            directory,
            name,
            flags,
            Mode::empty(),
            ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS,
        )
    };

    match open_beneath() {
        Err(Errno::NOENT) => {
            create_placeholder(directory, name, placeholder)?;
            open_beneath()
        }
        // BENEATH refuses to cross the new mount. A single name without symbolic links stays
        // beneath.
        Err(Errno::XDEV) => openat2(
            directory,
            name,
            flags | OFlags::NOFOLLOW,
            Mode::empty(),
            ResolveFlags::NO_SYMLINKS,
        ),
        result => result,
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

fn bind_onto_itself(entry: &OwnedFd, read_only: bool) -> Result<(), Errno> {
    let tree = open_tree(
        entry,
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
        entry,
        "",
        MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH,
    )
}
