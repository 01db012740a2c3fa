//! Opens paths beneath a directory. No path leads out of it or passes through a symbolic link.
//!
//! openat2(2) resolves a whole path under these rules in one call. Some kernels and sandboxes do
//! not have it (gVisor before 2026, old seccomp profiles). There, the daemon opens one component at
//! a time and checks each. It determines the method once per directory.

use std::{
    ffi::OsStr,
    io,
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::ffi::OsStrExt as _,
    },
    path::Path,
};

use rustix::{
    fs::{FileType, Mode, OFlags, ResolveFlags, fstat, open, openat, openat2},
    io::retry_on_intr,
};

use crate::daemon::sys::Errno;

/// Attempts while directories on the way are renamed. An attempt fails only after a new rename.
const MAX_OPEN_ATTEMPTS: usize = 128;
/// Length of a path in one system call: less than PATH_MAX with its NUL. Longer paths are opened in
/// several steps.
const MAX_OPEN_PATH_BYTES: usize = 4000;
/// Flags for a descriptor that identifies a file but cannot read or write it.
const HANDLE_FLAGS: OFlags = OFlags::PATH.union(OFlags::CLOEXEC);
/// Flags for reading a directory. They open nothing else, so no FIFO blocks and no device reacts.
const READ_DIRECTORY_FLAGS: OFlags =
    OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// A directory beneath which paths are opened.
#[derive(Debug)]
pub(super) struct Root {
    directory: OwnedFd,
    method: ResolveMethod,
    symlinks: SymlinkPolicy,
}

/// How symbolic links on the way are treated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SymlinkPolicy {
    Refuse,
    /// Follow links that stay beneath the directory.
    Within,
}

/// How paths are resolved.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ResolveMethod {
    Openat2,
    /// Component by component.
    Components,
}

impl SymlinkPolicy {
    /// The flags of openat2(2) for this policy.
    fn resolve_flags(self) -> ResolveFlags {
        let beneath = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
        match self {
            Self::Refuse => beneath | ResolveFlags::NO_SYMLINKS,
            Self::Within => beneath,
        }
    }
}

impl Root {
    /// Opens a directory of the operator, whose path may contain symbolic links.
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        let directory = open(path, HANDLE_FLAGS | OFlags::DIRECTORY, Mode::empty())?;
        let symlinks = SymlinkPolicy::Refuse;
        let method = match open_by_openat2(directory.as_fd(), b".", HANDLE_FLAGS, symlinks) {
            Ok(_) => ResolveMethod::Openat2,
            Err(Errno::NOSYS | Errno::PERM) => ResolveMethod::Components,
            Err(errno) => return Err(errno.into()),
        };
        Ok(Self { directory, method, symlinks })
    }

    /// Follows symbolic links that stay beneath the directory. Fails without openat2(2), because
    /// only the kernel can do that without a race.
    pub(super) fn follow_links(&mut self) -> io::Result<()> {
        if self.method == ResolveMethod::Components {
            return Err(io::Error::new(
                io::ErrorKind::Unsupported,
                "this kernel has no openat2(2), without which symlinks = \"within\" is not safe",
            ));
        }
        self.symlinks = SymlinkPolicy::Within;
        Ok(())
    }

    /// Returns another descriptor of the directory, with the same method and policy.
    pub(super) fn try_clone(&self) -> io::Result<Self> {
        Ok(Self { directory: self.directory.try_clone()?, ..*self })
    }

    /// Whether the directory is on a file system of local disks or memory (statfs(2)).
    pub(super) fn is_local(&self) -> io::Result<bool> {
        const LOCAL_FILE_SYSTEMS: [u32; 8] = [
            0xef53,      // ext4
            0x5846_5342, // XFS
            0x9123_683e, // Btrfs
            0x0102_1994, // tmpfs
            0x794c_7630, // overlayfs
            0xf2f5_2010, // F2FS
            0x2fc1_2fc1, // ZFS
            0xca45_1a4e, // bcachefs
        ];
        let kind = rustix::fs::fstatfs(self)?.f_type;
        Ok(u32::try_from(kind).is_ok_and(|kind| LOCAL_FILE_SYSTEMS.contains(&kind)))
    }

    /// Whether symbolic links that stay beneath the directory are followed.
    pub(super) fn follows_links(&self) -> bool {
        self.symlinks == SymlinkPolicy::Within
    }

    /// Opens a handle to the file at `path`, of any type.
    pub(super) fn open_path(&self, path: &[u8]) -> Result<OwnedFd, Errno> {
        self.open_with(path, HANDLE_FLAGS)
    }

    /// Whether symbolic links on `path` lead out of the directory, as absolute links do. The kernel
    /// stops at the boundary, so nothing outside is accessed. False if the kernel cannot tell.
    pub(super) fn leads_out(&self, path: &[u8]) -> bool {
        self.method == ResolveMethod::Openat2
            && open_by_openat2(self.as_fd(), path, HANDLE_FLAGS, SymlinkPolicy::Within)
                .is_err_and(|e| e == Errno::XDEV)
    }

    /// Opens a handle to the file at `path` if the kernel can resolve the path from its caches.
    /// Never waits for a disk.
    pub(super) fn open_path_cached(&self, path: &[u8]) -> Option<OwnedFd> {
        if self.method == ResolveMethod::Components
            || path.is_empty()
            || path.len() > MAX_OPEN_PATH_BYTES
        {
            return None;
        }

        let resolve = self.symlinks.resolve_flags() | ResolveFlags::CACHED;
        let path = OsStr::from_bytes(path);
        openat2(&self.directory, path, HANDLE_FLAGS, Mode::empty(), resolve).ok()
    }

    /// Opens the directory at `path` for reading.
    pub(super) fn open_directory(&self, path: &[u8]) -> Result<OwnedFd, Errno> {
        self.open_with(path, READ_DIRECTORY_FLAGS)
    }

    /// Opens a handle to the directory at `path`, without permission to list it.
    pub(super) fn open_directory_handle(&self, path: &[u8]) -> Result<OwnedFd, Errno> {
        self.open_with(path, HANDLE_FLAGS.union(OFlags::DIRECTORY))
    }

    fn open_with(&self, path: &[u8], flags: OFlags) -> Result<OwnedFd, Errno> {
        if self.method == ResolveMethod::Components {
            return open_by_components(self.directory.as_fd(), path, flags);
        }

        let mut rest = path;
        let mut base: Option<OwnedFd> = None;
        while rest.len() > MAX_OPEN_PATH_BYTES {
            // No file system accepts a component longer than a step.
            let slash =
                memchr::memrchr(b'/', &rest[..MAX_OPEN_PATH_BYTES]).ok_or(Errno::NAMETOOLONG)?;
            let from = base.as_ref().map_or(self.directory.as_fd(), AsFd::as_fd);
            let flags = HANDLE_FLAGS | OFlags::DIRECTORY;
            base = Some(open_by_openat2(from, &rest[..slash], flags, self.symlinks)?);
            rest = &rest[slash + 1..];
        }
        let from = base.as_ref().map_or(self.directory.as_fd(), AsFd::as_fd);
        let rest = if rest.is_empty() { b"." } else { rest };
        open_by_openat2(from, rest, flags, self.symlinks)
    }
}

impl AsFd for Root {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.directory.as_fd()
    }
}

/// Opens the directory `name` in `parent` for reading. `name` must be one component, so that it
/// cannot lead elsewhere.
pub(super) fn open_child_directory(parent: BorrowedFd<'_>, name: &[u8]) -> Result<OwnedFd, Errno> {
    retry_on_intr(|| openat(parent, OsStr::from_bytes(name), READ_DIRECTORY_FLAGS, Mode::empty()))
}

/// Opens a handle to `name` in `parent`. A symbolic link is opened itself.
pub(super) fn open_entry(parent: BorrowedFd<'_>, name: &[u8]) -> Result<OwnedFd, Errno> {
    retry_on_intr(|| {
        openat(parent, OsStr::from_bytes(name), HANDLE_FLAGS | OFlags::NOFOLLOW, Mode::empty())
    })
}

/// Opens a handle to the directory `name` in `parent`. Rejects a symbolic link.
pub(super) fn open_child_handle(parent: &OwnedFd, name: &str) -> Result<OwnedFd, Errno> {
    let handle = open_entry(parent.as_fd(), name.as_bytes())?;
    let kind = FileType::from_raw_mode(fstat(&handle)?.st_mode);
    if kind == FileType::Directory {
        Ok(handle)
    } else if kind == FileType::Symlink {
        Err(Errno::LOOP)
    } else {
        Err(Errno::NOTDIR)
    }
}

fn open_by_openat2(
    base: BorrowedFd<'_>,
    path: &[u8],
    flags: OFlags,
    symlinks: SymlinkPolicy,
) -> Result<OwnedFd, Errno> {
    let mut attempt = 1;
    loop {
        let opened = openat2(
            base,
            OsStr::from_bytes(path),
            // With O_PATH, O_NOFOLLOW would open a final link instead of rejecting it.
            flags.difference(OFlags::NOFOLLOW),
            Mode::empty(),
            symlinks.resolve_flags(),
        );
        match opened {
            Err(Errno::AGAIN | Errno::INTR) if attempt < MAX_OPEN_ATTEMPTS => attempt += 1,
            result => return result,
        }
    }
}

fn open_by_components(base: BorrowedFd<'_>, path: &[u8], flags: OFlags) -> Result<OwnedFd, Errno> {
    let mut handle = open_entry(base, b".")?;
    for name in path.split(|byte| *byte == b'/').filter(|name| !name.is_empty()) {
        let next = open_entry(handle.as_fd(), name)?;
        if FileType::from_raw_mode(fstat(&next)?.st_mode) == FileType::Symlink {
            return Err(Errno::LOOP);
        }
        handle = next;
    }

    if flags.contains(OFlags::DIRECTORY) {
        return open_child_directory(handle.as_fd(), b".");
    }
    Ok(handle)
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::symlink};

    use super::*;

    #[test]
    fn both_methods_open_and_reject_the_same_paths() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("root");
        fs::create_dir_all(path.join("a/b")).unwrap();
        fs::write(path.join("a/file"), "").unwrap();
        fs::write(directory.path().join("outside"), "").unwrap();
        symlink("a", path.join("link")).unwrap();
        symlink("../outside", path.join("out")).unwrap();
        symlink("nowhere", path.join("dangling")).unwrap();
        symlink("/", path.join("a/everything")).unwrap();
        let long = "n".repeat(256);
        let longer = "n".repeat(5000);
        for method in [ResolveMethod::Openat2, ResolveMethod::Components] {
            let mut root = Root::open(&path).unwrap();
            assert_eq!(root.method, ResolveMethod::Openat2, "this kernel should have openat2");
            root.method = method;
            for (path, handle_error, directory_error) in [
                ("", None, None),
                ("a", None, None),
                ("a/b", None, None),
                ("a/file", None, Some(Errno::NOTDIR)),
                ("a/file/x", Some(Errno::NOTDIR), Some(Errno::NOTDIR)),
                ("none", Some(Errno::NOENT), Some(Errno::NOENT)),
                ("none/x", Some(Errno::NOENT), Some(Errno::NOENT)),
                ("link", Some(Errno::LOOP), Some(Errno::LOOP)),
                ("link/b", Some(Errno::LOOP), Some(Errno::LOOP)),
                ("out", Some(Errno::LOOP), Some(Errno::LOOP)),
                ("dangling", Some(Errno::LOOP), Some(Errno::LOOP)),
                ("a/everything/etc", Some(Errno::LOOP), Some(Errno::LOOP)),
                (&long, Some(Errno::NAMETOOLONG), Some(Errno::NAMETOOLONG)),
                (&longer, Some(Errno::NAMETOOLONG), Some(Errno::NAMETOOLONG)),
            ] {
                let opened = root.open_path(path.as_bytes());
                assert_eq!(opened.err(), handle_error, "{method:?} {path:?}");
                let opened = root.open_directory(path.as_bytes());
                assert_eq!(opened.err(), directory_error, "{method:?} {path:?}");
            }
        }
    }

    #[test]
    fn links_out_of_the_directory_are_detected_whether_or_not_the_target_exists() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("here");
        fs::create_dir_all(path.join("a")).unwrap();
        fs::write(path.join("file"), "").unwrap();
        fs::write(directory.path().join("outside"), "").unwrap();
        let mut root = Root::open(&path).unwrap();
        for (target, leads_out) in [
            ("file", false),
            ("../file", false),
            ("nowhere", false),
            ("link", false),
            ("../../outside", true),
            ("../../nowhere", true),
            ("../../here/file", true),
            ("/etc/passwd", true),
            ("/nowhere", true),
        ] {
            let link = path.join("a/link");
            symlink(target, &link).unwrap();
            root.method = ResolveMethod::Openat2;
            assert_eq!(root.leads_out(b"a/link"), leads_out, "{target}");
            assert_eq!(root.leads_out(b"a/link/x"), leads_out, "{target}");
            root.method = ResolveMethod::Components;
            assert!(!root.leads_out(b"a/link"), "{target}");
            fs::remove_file(link).unwrap();
        }
    }

    #[test]
    fn path_longer_than_the_kernel_limit_is_opened_in_steps() {
        let directory = tempfile::tempdir().unwrap();
        let mut root = Root::open(directory.path()).unwrap();
        let name = "n".repeat(250);
        let mut path = String::new();
        let mut handle = root.open_path(b"").unwrap();
        for _ in 0..40 {
            rustix::fs::mkdirat(&handle, name.as_str(), Mode::RWXU).unwrap();
            handle = open_entry(handle.as_fd(), name.as_bytes()).unwrap();
            path.push_str(&name);
            path.push('/');
        }
        let bottom = fstat(&handle).unwrap().st_ino;
        for method in [ResolveMethod::Openat2, ResolveMethod::Components] {
            root.method = method;
            let opened = root.open_directory(path.trim_end_matches('/').as_bytes());
            assert_eq!(fstat(opened.unwrap()).unwrap().st_ino, bottom);
        }
    }
}
