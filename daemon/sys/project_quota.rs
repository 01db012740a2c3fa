//! Project quotas of ext4 and XFS: bounds on the files below a directory (quotactl(2), and
//! ioctl_xfs_fsgetxattr(2)).

use std::os::fd::{AsFd, AsRawFd as _};

use super::{Errno, syscall::syscall};

/// `FS_IOC_FSGETXATTR` and `FS_IOC_FSSETXATTR` of `linux/fs.h`.
const GET_ATTRIBUTES: usize = 0x801c_581f;
pub(crate) const SET_ATTRIBUTES: u32 = 0x401c_5820;
/// `FS_XFLAG_PROJINHERIT`: new files in the directory get its project.
const INHERIT_PROJECT: u32 = 0x200;

/// `QCMD(Q_GETQUOTA, PRJQUOTA)` and `QCMD(Q_SETQUOTA, PRJQUOTA)` of `linux/quota.h`.
const GET_QUOTA: usize = 0x8000_0702;
const SET_QUOTA: usize = 0x8000_0802;
/// `QIF_BLIMITS | QIF_ILIMITS`
const SET_LIMITS: u32 = 1 | 4;
/// Unit of limits of disk space.
const QUOTA_BLOCK_BYTES: u64 = 1024;

/// `struct fsxattr`.
#[repr(C)]
#[derive(Debug, Default)]
struct FileAttributes {
    flags: u32,
    extent_size: u32,
    extents: u32,
    project: u32,
    cow_extent_size: u32,
    padding: [u8; 8],
}

/// `struct if_dqblk`.
#[repr(C)]
#[derive(Debug, Default)]
struct QuotaBlock {
    block_hard_limit: u64,
    block_soft_limit: u64,
    current_bytes: u64,
    inode_hard_limit: u64,
    inode_soft_limit: u64,
    current_inodes: u64,
    block_time: u64,
    inode_time: u64,
    valid: u32,
}

/// Gives a directory that is open for reading a project, which new files in it inherit.
pub(crate) fn set_project(directory: impl AsFd, project: u32) -> Result<(), Errno> {
    let fd = directory.as_fd().as_raw_fd() as usize;
    let mut attributes = FileAttributes::default();
    // SAFETY: the kernel writes a `struct fsxattr`, which this is.
    unsafe {
        syscall(libc::SYS_ioctl, [fd, GET_ATTRIBUTES, &raw mut attributes as usize, 0, 0, 0])?;
    }
    attributes.flags |= INHERIT_PROJECT;
    attributes.project = project;
    // SAFETY: the kernel reads a `struct fsxattr`, which this is.
    unsafe {
        syscall(
            libc::SYS_ioctl,
            [fd, SET_ATTRIBUTES as usize, &raw const attributes as usize, 0, 0, 0],
        )
    }
    .map(drop)
}

/// Whether a project has files or limits, on the file system of `directory`.
///
/// Needs Linux 5.14 and `CAP_SYS_ADMIN`.
pub(crate) fn is_project_in_use(directory: impl AsFd, project: u32) -> Result<bool, Errno> {
    let mut quota = QuotaBlock::default();
    let fd = directory.as_fd().as_raw_fd() as usize;
    let arguments = [fd, GET_QUOTA, project as usize, &raw mut quota as usize, 0, 0];
    // SAFETY: the kernel writes a `struct if_dqblk`, which this is.
    match unsafe { syscall(libc::SYS_quotactl_fd, arguments) } {
        // XFS has no record of a project that was never used.
        Err(Errno::NOENT) => Ok(false),
        Err(errno) => Err(errno),
        Ok(_) => Ok(quota.current_bytes > 0
            || quota.current_inodes > 0
            || quota.block_hard_limit > 0
            || quota.inode_hard_limit > 0),
    }
}

/// Limits the disk space and the number of files of a project. 0 is no limit.
///
/// Needs Linux 5.14 and `CAP_SYS_ADMIN`. `ESRCH` if the file system has no project quotas.
pub(crate) fn set_project_limits(
    directory: impl AsFd,
    project: u32,
    (bytes, files): (u64, u64),
) -> Result<(), Errno> {
    let quota = QuotaBlock {
        block_hard_limit: bytes / QUOTA_BLOCK_BYTES,
        inode_hard_limit: files,
        valid: SET_LIMITS,
        ..QuotaBlock::default()
    };
    let fd = directory.as_fd().as_raw_fd() as usize;
    let arguments = [fd, SET_QUOTA, project as usize, &raw const quota as usize, 0, 0];
    // SAFETY: the kernel reads a `struct if_dqblk`, which this is.
    unsafe { syscall(libc::SYS_quotactl_fd, arguments) }.map(drop)
}
