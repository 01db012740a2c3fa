//! The System V objects of an IPC namespace (sysvipc(7)).

use super::{Errno, syscall::syscall};

/// `struct shm_info` of linux/shm.h.
#[repr(C)]
#[derive(Default)]
struct SegmentUsage {
    segments: i32,
    pages: [u64; 3],
    swaps: [u64; 2],
}

/// `struct seminfo` of linux/sem.h.
#[repr(C)]
#[derive(Default)]
struct SemaphoreUsage {
    limits: [i32; 7],
    sets: i32,
    more_limits: [i32; 2],
}

/// `struct msginfo` of linux/msg.h.
#[repr(C)]
#[derive(Default)]
struct QueueUsage {
    queues: i32,
    limits: [i32; 6],
    segments: u16,
}

// Commands that report use (shmctl(2), semctl(2), msgctl(2)). The libc crate lacks the first two.
const SHM_INFO: usize = 14;
const SEM_INFO: usize = 19;
const MSG_INFO: usize = 12;

/// Number of shared memory segments, semaphore sets and message queues in the IPC namespace of this
/// process.
pub(crate) fn sysv_object_count() -> Result<u32, Errno> {
    let mut segments = SegmentUsage::default();
    let mut semaphores = SemaphoreUsage::default();
    let mut queues = QueueUsage::default();
    query(libc::SYS_shmctl, [0, SHM_INFO, (&raw mut segments) as usize, 0, 0, 0])?;
    query(libc::SYS_semctl, [0, 0, SEM_INFO, (&raw mut semaphores) as usize, 0, 0])?;
    query(libc::SYS_msgctl, [0, MSG_INFO, (&raw mut queues) as usize, 0, 0, 0])?;
    let count = |number: i32| number.unsigned_abs();
    Ok(count(segments.segments) + count(semaphores.sets) + count(queues.queues))
}

fn query(number: i64, arguments: [usize; 6]) -> Result<(), Errno> {
    // SAFETY: the caller above passes a structure of the kind that the call writes.
    unsafe { syscall(number, arguments) }.map(|_| ())
}
