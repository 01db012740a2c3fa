//! Notices system calls that a filter reports, and lets them continue (seccomp_unotify(2)).

use std::os::fd::{AsRawFd as _, BorrowedFd};

use rustix::io::retry_on_intr;

use super::{Errno, syscall::syscall};

/// `struct seccomp_notif` of linux/seccomp.h.
#[repr(C)]
#[derive(Default)]
struct ReportedCall {
    id: u64,
    process: u32,
    flags: u32,
    call: [u64; 8],
}

/// `struct seccomp_notif_resp` of linux/seccomp.h.
#[repr(C)]
struct Answer {
    id: u64,
    result: i64,
    errno: i32,
    flags: u32,
}

/// `SECCOMP_USER_NOTIF_FLAG_CONTINUE` (Linux 5.5).
const CONTINUE: u32 = 1;

/// Receives a reported call and lets it continue. Call it when `listener` is readable.
///
/// A caller that was killed needs no answer: that is no error.
pub(crate) fn let_call_continue(listener: BorrowedFd<'_>) -> Result<(), Errno> {
    const { assert!(size_of::<ReportedCall>() == 80, "the request code holds the size") };
    const { assert!(size_of::<Answer>() == 24, "the request code holds the size") };

    let mut reported = ReportedCall::default();
    match control(listener, libc::SECCOMP_IOCTL_NOTIF_RECV as usize, (&raw mut reported) as usize) {
        Err(Errno::NOENT) => return Ok(()),
        received => received?,
    }
    let answer = Answer { id: reported.id, result: 0, errno: 0, flags: CONTINUE };
    match control(listener, libc::SECCOMP_IOCTL_NOTIF_SEND as usize, (&raw const answer) as usize) {
        Err(Errno::NOENT) => Ok(()),
        sent => sent,
    }
}

fn control(listener: BorrowedFd<'_>, request: usize, argument: usize) -> Result<(), Errno> {
    let fd = listener.as_raw_fd() as u32 as usize;
    // SAFETY: the callers above pass a structure that the request reads or writes, zeroed first.
    retry_on_intr(|| unsafe { syscall(libc::SYS_ioctl, [fd, request, argument, 0, 0, 0]) })
        .map(|_| ())
}
