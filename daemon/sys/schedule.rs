//! Scheduling attributes of a thread.

use std::time::Duration;

use rustix::process::getpriority_process;

use super::{Errno, syscall::syscall};

/// `struct sched_attr` as it was in its first version (sched_setattr(2)).
#[repr(C)]
struct SchedulingAttributes {
    size: u32,
    policy: u32,
    flags: u64,
    nice: i32,
    priority: u32,
    runtime_ns: u64,
    deadline_ns: u64,
    period_ns: u64,
}

/// Limits the time slice of this thread and of threads that it starts. In return the kernel
/// schedules the thread sooner when it wakes; its CPU share stays the same. Needs no privilege.
/// Linux before 6.12 ignores it.
pub(crate) fn set_time_slice(slice: Duration) -> Result<(), Errno> {
    let attributes = SchedulingAttributes {
        size: size_of::<SchedulingAttributes>() as u32,
        policy: libc::SCHED_OTHER as u32,
        flags: 0,
        nice: getpriority_process(None)?,
        priority: 0,
        runtime_ns: u64::try_from(slice.as_nanos()).map_err(|_| Errno::RANGE)?,
        deadline_ns: 0,
        period_ns: 0,
    };
    // SAFETY: the kernel reads as many bytes of the attributes as their `size` states.
    unsafe { syscall(libc::SYS_sched_setattr, [0, (&raw const attributes) as usize, 0, 0, 0, 0]) }
        .map(|_| ())
}
