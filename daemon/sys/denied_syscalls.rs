//! System calls that a sandbox and its probe make to verify that they are refused.

use rustix::process::Pid;

use super::{Errno, syscall::syscall};

/// Makes a call and returns its error number; 0 if it succeeds.
fn call_errno(number: i64, arguments: [usize; 6]) -> Errno {
    // SAFETY: callers below pass integers and null pointers only, which every kernel checks.
    match unsafe { syscall(number, arguments) } {
        Ok(_) => Errno::from_raw_os_error(0),
        Err(errno) => errno,
    }
}

/// unshare(2) of the user namespace: 0 if it is allowed.
pub(crate) fn unshare_user_namespace() -> Errno {
    call_errno(libc::SYS_unshare, [libc::CLONE_NEWUSER as usize, 0, 0, 0, 0, 0])
}

/// clone3(2) without arguments: EINVAL if it is allowed.
pub(crate) fn clone3() -> Errno {
    call_errno(libc::SYS_clone3, [0; 6])
}

/// keyctl(2) for the session keyring: the keyring's id if it is allowed.
pub(crate) fn keyctl() -> Errno {
    const GET_KEYRING_ID: usize = 0;
    const SESSION_KEYRING: usize = -3_isize as usize;
    call_errno(libc::SYS_keyctl, [GET_KEYRING_ID, SESSION_KEYRING, 0, 0, 0, 0])
}

/// io_uring_setup(2) with no parameters: EFAULT if it is allowed.
pub(crate) fn io_uring_setup() -> Errno {
    call_errno(libc::SYS_io_uring_setup, [1, 0, 0, 0, 0, 0])
}

/// bpf(2) with no attributes: EINVAL if it is allowed and the caller has the privilege.
pub(crate) fn bpf() -> Errno {
    call_errno(libc::SYS_bpf, [usize::MAX, 0, 0, 0, 0, 0])
}

/// ioctl(2) TIOCSTI on the standard input, with bits set above the 32 that the kernel uses: ENOTTY
/// if it is allowed.
pub(crate) fn tiocsti() -> Errno {
    call_errno(libc::SYS_ioctl, [0, 0x1_0000_0000 | 0x5412, 0, 0, 0, 0])
}

/// shmget(2) of a private segment of no bytes: EINVAL if it is allowed.
pub(crate) fn shmget() -> Errno {
    call_errno(libc::SYS_shmget, [0; 6])
}

/// mq_open(2) without a name: EFAULT if it is allowed.
pub(crate) fn mq_open() -> Errno {
    call_errno(libc::SYS_mq_open, [0; 6])
}

/// ptrace(2) with an unknown request for an invalid process: ESRCH or EIO if it is allowed.
pub(crate) fn ptrace() -> Errno {
    call_errno(libc::SYS_ptrace, [usize::MAX, usize::MAX >> 33, 0, 0, 0, 0])
}

/// process_vm_readv(2) of no bytes: 0 if it is allowed.
pub(crate) fn process_vm_readv() -> Errno {
    call_errno(libc::SYS_process_vm_readv, [usize::MAX >> 33, 0, 0, 0, 0, 0])
}

/// Makes the calls that tune a process, so that an allowed one changes nothing. Returns the name of
/// the first call that is allowed.
pub(crate) fn process_tuning(process: Pid) -> Result<(), &'static str> {
    const WHO_PROCESS: usize = 1;
    let pid = process.as_raw_nonzero().get() as usize;
    let calls = [
        ("prlimit64", libc::SYS_prlimit64, [pid, 0, 0, 0, 0, 0]),
        ("sched_setaffinity", libc::SYS_sched_setaffinity, [pid, 8, 0, 0, 0, 0]),
        ("sched_setscheduler", libc::SYS_sched_setscheduler, [pid, 0, 0, 0, 0, 0]),
        ("sched_setparam", libc::SYS_sched_setparam, [pid, 0, 0, 0, 0, 0]),
        ("sched_setattr", libc::SYS_sched_setattr, [pid, 0, 0, 0, 0, 0]),
        ("setpriority", libc::SYS_setpriority, [0, pid, 0, 0, 0, 0]),
        ("ioprio_set", libc::SYS_ioprio_set, [WHO_PROCESS, pid, 0, 0, 0, 0]),
    ];

    for (name, number, arguments) in calls {
        if call_errno(number, arguments) != Errno::PERM {
            return Err(name);
        }
    }
    Ok(())
}
