//! System calls made only to see them refused, by the sandbox's probe.

use super::{Errno, syscall::syscall};

fn answer(number: i64, arguments: [usize; 6]) -> Errno {
    // SAFETY: callers below pass integers and null pointers only, which every kernel checks.
    match unsafe { syscall(number, arguments) } {
        Ok(_) => Errno::from_raw_os_error(0),
        Err(errno) => errno,
    }
}

/// clone3(2) without arguments: EINVAL where it is let through.
pub(crate) fn clone3() -> Errno {
    answer(libc::SYS_clone3, [0; 6])
}

/// keyctl(2) asking for the session keyring: its number where it is let through.
pub(crate) fn keyctl() -> Errno {
    const GET_KEYRING_ID: usize = 0;
    const SESSION_KEYRING: usize = -3_isize as usize;
    answer(
        libc::SYS_keyctl,
        [GET_KEYRING_ID, SESSION_KEYRING, 0, 0, 0, 0],
    )
}

/// io_uring_setup(2) with no parameters: EFAULT where it is let through.
pub(crate) fn io_uring_setup() -> Errno {
    answer(libc::SYS_io_uring_setup, [1, 0, 0, 0, 0, 0])
}

/// bpf(2) with no attributes: EINVAL where it is let through to one who may.
pub(crate) fn bpf() -> Errno {
    answer(libc::SYS_bpf, [usize::MAX, 0, 0, 0, 0, 0])
}

/// ioctl(2) TIOCSTI on the standard input, with bits set above the 32 that the kernel looks at:
/// ENOTTY where it is let through.
pub(crate) fn tiocsti() -> Errno {
    answer(libc::SYS_ioctl, [0, 0x1_0000_0000 | 0x5412, 0, 0, 0, 0])
}
