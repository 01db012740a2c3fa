//! When a process gets its turn.

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

/// Has this thread, and those that it starts, run for no longer than `slice` at a time, for which the
/// kernel lets it have its turn sooner when it wakes: its share stays the same. Needs no privilege.
/// Linux before 6.12 passes over it.
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
    // SAFETY: the kernel reads as many bytes of the attributes as they say that they have.
    unsafe { syscall(libc::SYS_sched_setattr, [0, (&raw const attributes) as usize, 0, 0, 0, 0]) }
        .map(|_| ())
}
