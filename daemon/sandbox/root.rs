//! The root directory that commands see: an allowlist on a file system of its own. The daemon's
//! root is never mounted and masked; it is not there.

use std::{
    fs, io,
    os::{
        fd::{AsFd as _, OwnedFd},
        unix::fs::{FileTypeExt as _, MetadataExt as _, OpenOptionsExt as _, symlink},
    },
    path::{Path, PathBuf},
};

use rustix::{
    fs::{CWD, FileType, Mode, fstat, fstatfs, mkdirat},
    mount::{
        MountFlags, MountPropagationFlags, MoveMountFlags, OpenTreeFlags, UnmountFlags, mount,
        mount_change, mount_move, mount_remount, move_mount, open_tree, unmount,
    },
    process::{chdir, chroot, pivot_root},
};

use super::{
    etc::{ETC_DIRECTORIES, EtcFiles, java_directories},
    level::IsolationLevel,
    masked_proc,
    plan::{BindMount, NetworkMode, SANDBOX_HOME, SYSTEM_DIRECTORIES, WorkspacePlan},
    protected_paths::protect,
    stage::{Stage, StageFailure, at_stage},
    wire::SandboxIdentity,
};
use crate::daemon::sys::{
    Errno,
    mount::{attribute, set_attributes},
};

/// Devices that commands see, by name and number (Documentation/admin-guide/devices.txt). A
/// container's /dev can hold anything under these names.
pub(super) const DEVICE_NODES: &[(&str, (u32, u32))] = &[
    ("null", (1, 3)),
    ("zero", (1, 5)),
    ("full", (1, 7)),
    ("random", (1, 8)),
    ("urandom", (1, 9)),
];
/// Whatever terminal controls the process that opens it; none unless it has one.
const TERMINAL_DEVICE: (&str, (u32, u32)) = ("tty", (5, 0));
/// File systems that must not come along below a directory that is mounted: they would show the
/// daemon's host.
const HOST_REVEALING_FILE_SYSTEMS: &[&str] = &[
    "proc",
    "sysfs",
    "cgroup",
    "cgroup2",
    "devtmpfs",
    "devpts",
    "debugfs",
    "tracefs",
    "securityfs",
    "bpf",
    "configfs",
    "efivarfs",
    "mqueue",
];
/// The worst of them by what statfs(2) calls them: PROC_SUPER_MAGIC, SYSFS_MAGIC,
/// CGROUP_SUPER_MAGIC, CGROUP2_SUPER_MAGIC.
const HOST_REVEALING_MAGIC_NUMBERS: &[rustix::fs::FsWord] =
    &[0x9fa0, 0x6265_6572, 0x0027_e0eb, 0x6367_7270];
/// An empty directory of the root, for masks.
pub(super) const EMPTY_DIRECTORY: &std::ffi::CStr = c"/.empty";
/// Where the new root is put together: a directory that every system has, whose content is opened
/// before it is covered.
const STAGING_DIRECTORY: &str = "/usr";
/// The root holds a few small files and mount points only.
const ROOT_OPTIONS: &std::ffi::CStr = c"size=8m,nr_inodes=4096,mode=755";
const DEVICE_OPTIONS: &std::ffi::CStr = c"size=64k,nr_inodes=64,mode=755";

/// What is put where.
struct RootMount {
    tree: OwnedFd,
    destination: PathBuf,
    is_directory: bool,
}

impl RootMount {
    fn new(tree: OwnedFd, destination: PathBuf) -> Result<Self, StageFailure> {
        let name = destination.display().to_string();
        let stat = fstat(&tree).map_err(at_stage(Stage::OpenSource, &name))?;
        let is_directory = FileType::from_raw_mode(stat.st_mode).is_dir();
        Ok(Self { tree, destination, is_directory })
    }
}

/// Builds the root of `workspace` and makes it this process's root. `trees` holds the workspace's
/// and its binds' trees where the keeper opened them.
pub(super) fn build_root(
    workspace: &WorkspacePlan,
    network: NetworkMode,
    level: IsolationLevel,
    identity: SandboxIdentity,
    trees: Vec<OwnedFd>,
) -> Result<(), StageFailure> {
    make_private()?;
    let mut pieces = system_mounts()?;
    let trees = if trees.is_empty() { open_trees(workspace)? } else { trees };
    let destinations = workspace.all_binds().map(|bind| &bind.destination);
    let destinations = std::iter::once(&workspace.mount_path).chain(destinations);
    for (tree, destination) in trees.into_iter().zip(destinations) {
        pieces.push(RootMount::new(tree, destination.clone())?);
    }
    let etc = EtcFiles::read(network);

    let build = |what: &'static str| at_stage(Stage::BuildRoot, what);
    mount(
        c"tmpfs",
        STAGING_DIRECTORY,
        c"tmpfs",
        MountFlags::NOSUID | MountFlags::NODEV,
        ROOT_OPTIONS,
    )
    .map_err(build("mounting the root"))?;
    chdir(STAGING_DIRECTORY).map_err(build("entering the root"))?;
    for directory in [".empty", "proc", "tmp", "dev", "etc", "home", &SANDBOX_HOME[1..]] {
        mkdirat(CWD, directory, Mode::from_raw_mode(0o755)).map_err(build("making directories"))?;
    }
    etc.write(identity).map_err(|error| io_failure(&error, "etc"))?;
    link_scratch_directories(&pieces)?;
    let device_flags = MountFlags::NOSUID | MountFlags::NOEXEC;
    mount(c"tmpfs", c"dev", c"tmpfs", device_flags, DEVICE_OPTIONS)
        .map_err(build("mounting /dev"))?;
    for directory in ["dev/shm", "dev/pts"] {
        mkdirat(CWD, directory, Mode::from_raw_mode(0o755)).map_err(build("filling /dev"))?;
    }
    for (target, link) in [
        ("pts/ptmx", "dev/ptmx"),
        ("/proc/self/fd", "dev/fd"),
        ("/proc/self/fd/0", "dev/stdin"),
        ("/proc/self/fd/1", "dev/stdout"),
        ("/proc/self/fd/2", "dev/stderr"),
    ] {
        symlink(target, link).map_err(|error| io_failure(&error, link))?;
    }
    // Shorter destinations first, so that one below another is not covered by it.
    pieces.sort_by_key(|piece| piece.destination.components().count());
    for piece in pieces {
        attach_mount(piece)?;
    }
    let mounted = workspace.mount_path.strip_prefix("/");
    protect(mounted.unwrap_or(&workspace.mount_path), &workspace.protected_paths)?;
    if level == IsolationLevel::L3 {
        let proc_flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
        mount(c"proc", c"proc", c"proc", proc_flags, None)
            .map_err(at_stage(Stage::MountTemplateProc, "/proc"))?;
    } else {
        masked_proc::bind_host_proc("proc")?;
    }
    pivot_into_root()?;
    if level != IsolationLevel::L3 {
        masked_proc::hide_host_files(EMPTY_DIRECTORY)?;
    }
    let read_only = MountFlags::BIND | MountFlags::RDONLY | MountFlags::NOSUID;
    mount_remount("/dev", read_only | MountFlags::NOEXEC, c"")
        .map_err(build("making /dev read-only"))?;
    mount_remount("/", read_only | MountFlags::NODEV, c"")
        .map_err(build("making the root read-only"))
}

/// Makes the usual places for files that need not last, besides `/tmp`: links to what each run has of its
/// own. Not where something is bound to.
fn link_scratch_directories(pieces: &[RootMount]) -> Result<(), StageFailure> {
    let failed = |error: io::Error| io_failure(&error, "making links");
    for (link, target) in [("run", "dev/shm"), ("var/run", "../run"), ("var/tmp", "../tmp")] {
        let place = Path::new("/").join(link);
        let is_bound = |piece: &RootMount| {
            piece.destination.starts_with(&place) || place.starts_with(&piece.destination)
        };
        if pieces.iter().any(is_bound) {
            continue;
        }
        if let Some(parent) = Path::new(link).parent() {
            fs::create_dir_all(parent).map_err(failed)?;
        }
        symlink(target, link).map_err(failed)?;
    }
    Ok(())
}

/// Makes the working directory, which is the root of a mount, the root of this process and of all
/// made from it.
fn pivot_into_root() -> Result<(), StageFailure> {
    match pivot_root(".", ".") {
        Ok(()) => unmount(".", UnmountFlags::DETACH)
            .map_err(at_stage(Stage::PivotRoot, "leaving the old root"))?,
        // Container engines' default seccomp profiles give who has CAP_SYS_ADMIN mount(2) and
        // chroot(2) and not this; on a kernel's initial ramdisk it cannot work. The old root stays
        // mounted below, where no path leads; the way back by chroot(2) needs CAP_SYS_CHROOT,
        // which sandboxes give up, and which their probe looks for.
        Err(refused @ (Errno::PERM | Errno::INVAL | Errno::NOSYS)) => {
            mount_move(".", "/").map_err(|_| {
                at_stage(Stage::PivotRoot, "and the root cannot be moved either")(refused)
            })?;
            chroot(".").map_err(at_stage(Stage::PivotRoot, "chroot"))?;
        }
        Err(errno) => return Err(at_stage(Stage::PivotRoot, "")(errno)),
    }
    chdir("/").map_err(at_stage(Stage::PivotRoot, "entering the new root"))
}

/// Makes every mount of this mount namespace private: nothing done here is seen outside, nor the
/// other way round.
pub(super) fn make_private() -> Result<(), StageFailure> {
    mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)
        .map_err(at_stage(Stage::Propagation, "/"))
}

/// Attributes that a bind is mounted with.
pub(super) fn bind_attributes(bind: &BindMount) -> u64 {
    attribute::NOSUID | attribute::NODEV | if bind.writable { 0 } else { attribute::RDONLY }
}

/// Opens a copy of the mount tree at `source`, with `attributes`, not attached anywhere.
pub(super) fn open_source(source: &Path, attributes: u64) -> Result<OwnedFd, StageFailure> {
    let tree = open_detached(source)?;
    set_attributes(tree.as_fd(), attributes, None)
        .map_err(at_stage(Stage::OpenSource, &source.display().to_string()))?;
    Ok(tree)
}

/// Opens a copy of the mount tree at `source`, not attached anywhere, as it is.
pub(super) fn open_detached(source: &Path) -> Result<OwnedFd, StageFailure> {
    let name = source.display().to_string();
    refuse_host_revealing_mounts(source)?;
    let flags = OpenTreeFlags::OPEN_TREE_CLONE
        | OpenTreeFlags::OPEN_TREE_CLOEXEC
        | OpenTreeFlags::AT_RECURSIVE;
    open_tree(CWD, source, flags).map_err(at_stage(Stage::OpenSource, &name))
}

/// Opens the trees of the workspace and its binds, in this order.
fn open_trees(workspace: &WorkspacePlan) -> Result<Vec<OwnedFd>, StageFailure> {
    let tree = open_source(&workspace.path, attribute::NOSUID | attribute::NODEV)?;
    check_source_identity(&workspace.path, workspace.file_identity, &tree)?;
    let mut trees = vec![tree];
    for bind in workspace.all_binds() {
        let tree = open_source(&bind.source, bind_attributes(bind))?;
        check_source_identity(&bind.source, bind.file_identity, &tree)?;
        trees.push(tree);
    }
    Ok(trees)
}

/// Checks that `tree` is what was at `path` when the daemon started, and that it shows nothing of
/// the host: the path may lead elsewhere by now.
pub(super) fn check_source_identity(
    path: &Path,
    identity: (u64, u64),
    tree: &OwnedFd,
) -> Result<(), StageFailure> {
    let name = path.display().to_string();
    let stat = fstat(tree).map_err(at_stage(Stage::OpenSource, &name))?;
    if (stat.st_dev, stat.st_ino) != identity {
        let text = format!("{name} is not what it was when the daemon was started: restart it");
        return Err(StageFailure::other(Stage::OpenSource, text));
    }
    let kind = fstatfs(tree).map_err(at_stage(Stage::OpenSource, &name))?.f_type;
    if HOST_REVEALING_MAGIC_NUMBERS.contains(&kind) {
        let text = format!("{name} would show the host's processes, devices or settings");
        return Err(StageFailure::other(Stage::OpenSource, text));
    }
    Ok(())
}

fn system_mounts() -> Result<Vec<RootMount>, StageFailure> {
    let read_only = attribute::RDONLY | attribute::NOSUID | attribute::NODEV;
    let mut pieces = Vec::new();
    let etc = ETC_DIRECTORIES
        .iter()
        .map(|name| PathBuf::from("/etc").join(name))
        .chain(java_directories());
    let system = SYSTEM_DIRECTORIES.iter().map(PathBuf::from);
    for path in system.chain(etc) {
        // A symbolic link is made anew when the root is put together.
        if fs::symlink_metadata(&path).is_ok_and(|metadata| metadata.is_dir()) {
            pieces.push(RootMount {
                tree: open_source(&path, read_only)?,
                destination: path,
                is_directory: true,
            });
        }
    }
    for (name, number) in DEVICE_NODES.iter().chain([&TERMINAL_DEVICE]) {
        let path = Path::new("/dev").join(name);
        let metadata = fs::metadata(&path).map_err(|error| io_failure(&error, name))?;
        let device = metadata.rdev();
        let is_character = metadata.file_type().is_char_device();
        if !is_character || (rustix::fs::major(device), rustix::fs::minor(device)) != *number {
            return Err(StageFailure::other(
                Stage::OpenSource,
                format!("{} is not the device of that name", path.display()),
            ));
        }
        let tree = open_source(&path, attribute::NOSUID | attribute::NOEXEC)?;
        pieces.push(RootMount { tree, destination: path, is_directory: false });
    }
    Ok(pieces)
}

/// Attaches a piece below the scaffold, which is the working directory.
fn attach_mount(piece: RootMount) -> Result<(), StageFailure> {
    let name = piece.destination.display().to_string();
    let relative = piece.destination.strip_prefix("/").unwrap_or(&piece.destination);
    let made = if piece.is_directory {
        fs::create_dir_all(relative)
    } else {
        relative.parent().map_or(Ok(()), fs::create_dir_all).and_then(|()| {
            let mut options = fs::OpenOptions::new();
            options.write(true).create(true).truncate(false).mode(0o644).open(relative).map(drop)
        })
    };
    made.map_err(|error| io_failure(&error, &name))?;
    move_mount(piece.tree.as_fd(), "", CWD, relative, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)
        .map_err(at_stage(Stage::BuildRoot, &name))
}

/// Refuses a directory that has a mount below it which would show the host's processes, devices or
/// settings.
pub(super) fn refuse_host_revealing_mounts(source: &Path) -> Result<(), StageFailure> {
    let mounts = fs::read_to_string("/proc/self/mountinfo")
        .map_err(|error| io_failure(&error, "/proc/self/mountinfo"))?;
    let source = fs::canonicalize(source).map_err(|error| source_failure(&error, source))?;
    for line in mounts.lines() {
        // proc_pid_mountinfo(5): the mount point is field 5, the type the first after " - ".
        let (Some(point), Some(kind)) = (
            line.split(' ').nth(4),
            line.split(" - ").nth(1).and_then(|rest| rest.split(' ').next()),
        ) else {
            continue;
        };
        let point = PathBuf::from(unescape(point));
        if HOST_REVEALING_FILE_SYSTEMS.contains(&kind)
            && point != source
            && point.starts_with(&source)
        {
            let text =
                format!("{} holds a mount of type {kind} at {}", source.display(), point.display());
            return Err(StageFailure::other(Stage::OpenSource, text));
        }
    }
    Ok(())
}

/// Undoes the octal escapes of mountinfo.
fn unescape(text: &str) -> String {
    text.replace("\\040", " ").replace("\\011", "\t").replace("\\012", "\n").replace("\\134", "\\")
}

fn io_failure(error: &io::Error, what: &str) -> StageFailure {
    StageFailure::from_errno(
        Stage::BuildRoot,
        Errno::from_io_error(error).unwrap_or(Errno::IO),
        what,
    )
}

fn source_failure(error: &io::Error, source: &Path) -> StageFailure {
    StageFailure::from_errno(
        Stage::OpenSource,
        Errno::from_io_error(error).unwrap_or(Errno::IO),
        source.display().to_string(),
    )
}
