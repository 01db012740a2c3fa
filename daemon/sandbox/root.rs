//! The root directory that commands see: an allowlist of mounts on a file system of its own. The
//! daemon's root is not mounted at all, so nothing of it needs to be masked.

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

/// Devices that commands see, by name and number (Documentation/admin-guide/devices.txt). The
/// numbers are checked: a container's /dev can hold anything under these names.
pub(super) const DEVICE_NODES: &[(&str, (u32, u32))] = &[
    ("null", (1, 3)),
    ("zero", (1, 5)),
    ("full", (1, 7)),
    ("random", (1, 8)),
    ("urandom", (1, 9)),
];
/// The controlling terminal of the process that opens it, if it has one.
const TERMINAL_DEVICE: (&str, (u32, u32)) = ("tty", (5, 0));
/// File systems that must not lie below a mounted directory, because they would reveal the host.
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
/// The most revealing of them by statfs(2) magic number, for a check of the opened tree itself:
/// PROC_SUPER_MAGIC, SYSFS_MAGIC, CGROUP_SUPER_MAGIC, CGROUP2_SUPER_MAGIC.
const HOST_REVEALING_MAGIC_NUMBERS: &[rustix::fs::FsWord] =
    &[0x9fa0, 0x6265_6572, 0x0027_e0eb, 0x6367_7270];
/// An empty directory of the root, used to mask others.
pub(super) const EMPTY_DIRECTORY: &std::ffi::CStr = c"/.empty";
/// Where the new root is assembled: a directory that every system has. Its content is opened before
/// it is covered.
const STAGING_DIRECTORY: &str = "/usr";
/// The root holds only a few small files and mount points.
const ROOT_OPTIONS: &std::ffi::CStr = c"size=8m,nr_inodes=4096,mode=755";
const DEVICE_OPTIONS: &std::ffi::CStr = c"size=64k,nr_inodes=64,mode=755";

/// A detached mount, and where it is attached.
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

/// Builds the root of `workspace` and makes it this process's root.
///
/// `trees` holds the mount trees of the workspace and its binds if the keeper opened them.
/// Otherwise it is empty, and this function opens them.
pub(super) fn build_root(
    workspace: &WorkspacePlan,
    network: NetworkMode,
    level: IsolationLevel,
    identity: SandboxIdentity,
    trees: Vec<OwnedFd>,
) -> Result<(), StageFailure> {
    make_private()?;

    // Opened before the new root covers their sources.
    let mut mounts = system_mounts()?;
    let trees = if trees.is_empty() { open_trees(workspace)? } else { trees };
    let binds = workspace.all_binds().map(|bind| &bind.destination);
    for (tree, destination) in
        trees.into_iter().zip([&workspace.mount_path].into_iter().chain(binds))
    {
        mounts.push(RootMount::new(tree, destination.clone())?);
    }
    let etc = EtcFiles::read(network);

    enter_staging_directory()?;
    etc.write(identity).map_err(|error| io_failure(&error, "etc"))?;
    link_scratch_directories(&mounts)?;
    mount_dev()?;

    // Shorter destinations first, so that none covers another below it.
    mounts.sort_by_key(|mount| mount.destination.components().count());
    for mount in mounts {
        attach_mount(mount)?;
    }
    let mount_path = workspace.mount_path.strip_prefix("/");
    protect(mount_path.unwrap_or(&workspace.mount_path), &workspace.protected_paths)?;

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
        .map_err(at_stage(Stage::BuildRoot, "making /dev read-only"))?;
    mount_remount("/", read_only | MountFlags::NODEV, c"")
        .map_err(at_stage(Stage::BuildRoot, "making the root read-only"))
}

/// Mounts an empty root at the staging directory, makes it the working directory, and creates the
/// directories that every root has.
fn enter_staging_directory() -> Result<(), StageFailure> {
    let failed = |what: &'static str| at_stage(Stage::BuildRoot, what);
    let flags = MountFlags::NOSUID | MountFlags::NODEV;
    mount(c"tmpfs", STAGING_DIRECTORY, c"tmpfs", flags, ROOT_OPTIONS)
        .map_err(failed("mounting the root"))?;
    chdir(STAGING_DIRECTORY).map_err(failed("entering the root"))?;

    for directory in [".empty", "proc", "tmp", "dev", "etc", "home", &SANDBOX_HOME[1..]] {
        mkdirat(CWD, directory, Mode::from_raw_mode(0o755))
            .map_err(failed("making directories"))?;
    }
    Ok(())
}

/// Mounts `/dev`, with its directories and links. The devices are attached later.
fn mount_dev() -> Result<(), StageFailure> {
    let failed = |what: &'static str| at_stage(Stage::BuildRoot, what);
    let flags = MountFlags::NOSUID | MountFlags::NOEXEC;
    mount(c"tmpfs", c"dev", c"tmpfs", flags, DEVICE_OPTIONS).map_err(failed("mounting /dev"))?;

    for directory in ["dev/shm", "dev/pts"] {
        mkdirat(CWD, directory, Mode::from_raw_mode(0o755)).map_err(failed("filling /dev"))?;
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
    Ok(())
}

/// Links the usual directories for temporary files other than `/tmp` to file systems of the run.
/// Skips those that a bind covers.
fn link_scratch_directories(mounts: &[RootMount]) -> Result<(), StageFailure> {
    let failed = |error: io::Error| io_failure(&error, "making links");
    for (link, target) in [("run", "dev/shm"), ("var/run", "../run"), ("var/tmp", "../tmp")] {
        let path = Path::new("/").join(link);
        let is_bound = |mount: &RootMount| {
            mount.destination.starts_with(&path) || path.starts_with(&mount.destination)
        };
        if mounts.iter().any(is_bound) {
            continue;
        }

        if let Some(parent) = Path::new(link).parent() {
            fs::create_dir_all(parent).map_err(failed)?;
        }
        symlink(target, link).map_err(failed)?;
    }
    Ok(())
}

/// Makes the working directory, which must be the root of a mount, the root of this process and its
/// descendants.
fn pivot_into_root() -> Result<(), StageFailure> {
    match pivot_root(".", ".") {
        Ok(()) => unmount(".", UnmountFlags::DETACH)
            .map_err(at_stage(Stage::PivotRoot, "leaving the old root"))?,
        // Default seccomp profiles of container engines allow mount(2) and chroot(2) with
        // CAP_SYS_ADMIN, but not this call. On a kernel's initial ramdisk it cannot work. The
        // fallback leaves the old root mounted below the new one, where no path leads. Leaving by
        // chroot(2) needs CAP_SYS_CHROOT, which sandboxes drop and their probe checks.
        Err(refused @ (Errno::PERM | Errno::INVAL | Errno::NOSYS)) => {
            mount_move(".", "/").map_err(|_| {
                at_stage(Stage::PivotRoot, "the fallback, MS_MOVE, is refused too")(refused)
            })?;
            chroot(".").map_err(at_stage(Stage::PivotRoot, "changing the root"))?;
        }
        Err(errno) => return Err(at_stage(Stage::PivotRoot, "")(errno)),
    }
    chdir("/").map_err(at_stage(Stage::PivotRoot, "entering the new root"))
}

/// Makes every mount of this mount namespace private: mount changes do not propagate in or out.
pub(super) fn make_private() -> Result<(), StageFailure> {
    mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)
        .map_err(at_stage(Stage::Propagation, "/"))
}

pub(super) fn bind_attributes(bind: &BindMount) -> u64 {
    attribute::NOSUID | attribute::NODEV | if bind.writable { 0 } else { attribute::RDONLY }
}

/// Opens a detached copy of the mount tree at `source`, with `attributes`.
pub(super) fn open_source(source: &Path, attributes: u64) -> Result<OwnedFd, StageFailure> {
    let tree = open_detached(source)?;
    set_attributes(tree.as_fd(), attributes, None)
        .map_err(at_stage(Stage::OpenSource, &source.display().to_string()))?;
    Ok(tree)
}

/// Opens a detached copy of the mount tree at `source`, unchanged.
pub(super) fn open_detached(source: &Path) -> Result<OwnedFd, StageFailure> {
    let name = source.display().to_string();
    refuse_host_revealing_mounts(source)?;
    let flags = OpenTreeFlags::OPEN_TREE_CLONE
        | OpenTreeFlags::OPEN_TREE_CLOEXEC
        | OpenTreeFlags::AT_RECURSIVE;
    open_tree(CWD, source, flags).map_err(at_stage(Stage::OpenSource, &name))
}

/// Opens the mount trees of the workspace and its binds, in this order.
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

/// Checks that `tree` is the directory that was at `path` at startup, and that it does not reveal
/// the host. The path may lead elsewhere by now.
pub(super) fn check_source_identity(
    path: &Path,
    identity: (u64, u64),
    tree: &OwnedFd,
) -> Result<(), StageFailure> {
    let name = path.display().to_string();
    let stat = fstat(tree).map_err(at_stage(Stage::OpenSource, &name))?;
    if (stat.st_dev, stat.st_ino) != identity {
        let text = format!("{name} was replaced after the daemon started: restart the daemon");
        return Err(StageFailure::other(Stage::OpenSource, text));
    }

    let kind = fstatfs(tree).map_err(at_stage(Stage::OpenSource, &name))?.f_type;
    if HOST_REVEALING_MAGIC_NUMBERS.contains(&kind) {
        let text = format!("{name} would show the host's processes, devices or settings");
        return Err(StageFailure::other(Stage::OpenSource, text));
    }
    Ok(())
}

/// Opens the system's directories and devices.
fn system_mounts() -> Result<Vec<RootMount>, StageFailure> {
    let read_only = attribute::RDONLY | attribute::NOSUID | attribute::NODEV;
    let mut mounts = Vec::new();

    let etc = ETC_DIRECTORIES
        .iter()
        .map(|name| PathBuf::from("/etc").join(name))
        .chain(java_directories());
    let system = SYSTEM_DIRECTORIES.iter().map(PathBuf::from);
    for path in system.chain(etc) {
        // Symbolic links are copied as links, by [`EtcFiles`].
        if fs::symlink_metadata(&path).is_ok_and(|metadata| metadata.is_dir()) {
            mounts.push(RootMount {
                tree: open_source(&path, read_only)?,
                destination: path,
                is_directory: true,
            });
        }
    }

    for (name, number) in DEVICE_NODES.iter().chain([&TERMINAL_DEVICE]) {
        let path = Path::new("/dev").join(name);
        let metadata = fs::metadata(&path).map_err(|error| source_failure(&error, &path))?;
        let device = metadata.rdev();
        let is_character = metadata.file_type().is_char_device();
        if !is_character || (rustix::fs::major(device), rustix::fs::minor(device)) != *number {
            return Err(StageFailure::other(
                Stage::OpenSource,
                format!("{} is not the character device {}:{}", path.display(), number.0, number.1),
            ));
        }
        let tree = open_source(&path, attribute::NOSUID | attribute::NOEXEC)?;
        mounts.push(RootMount { tree, destination: path, is_directory: false });
    }
    Ok(mounts)
}

/// Attaches a mount below the working directory, which is the new root.
fn attach_mount(mount: RootMount) -> Result<(), StageFailure> {
    let name = mount.destination.display().to_string();
    let relative = mount.destination.strip_prefix("/").unwrap_or(&mount.destination);

    let created = if mount.is_directory {
        fs::create_dir_all(relative)
    } else {
        relative.parent().map_or(Ok(()), fs::create_dir_all).and_then(|()| {
            let mut options = fs::OpenOptions::new();
            options.write(true).create(true).truncate(false).mode(0o644).open(relative).map(drop)
        })
    };
    created.map_err(|error| io_failure(&error, &name))?;

    move_mount(mount.tree.as_fd(), "", CWD, relative, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)
        .map_err(at_stage(Stage::BuildRoot, &name))
}

/// Refuses a directory with a mount below it that would reveal the host's processes, devices or
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

/// Decodes the octal escapes of mountinfo.
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
