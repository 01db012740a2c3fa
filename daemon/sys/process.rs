//! Creates processes: by copying a single-threaded process, or sharing the parent's memory.

use std::{
    ffi::c_void,
    os::fd::{BorrowedFd, FromRawFd as _, OwnedFd},
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::retry_on_intr,
    process::{Pid, Signal, set_parent_process_death_signal},
};

use super::{
    Errno,
    arch::clone_onto_stack,
    syscall::{result_of, syscall},
};

/// Namespaces of a new process: an OR of `libc::CLONE_NEW*`.
pub(crate) type Namespaces = i32;

/// Proof that the process has a single thread, so that a fork of it is complete: no other thread
/// holds a lock.
#[derive(Debug)]
pub(crate) struct SingleThreaded(());

/// The result of [`fork`], in each of the two processes.
#[derive(Debug)]
pub(crate) enum Fork {
    Parent {
        /// Id of the child in this process's namespace.
        child: Pid,
        /// Pidfd of the child, which stays valid if the id is reused.
        pidfd: OwnedFd,
    },
    Child,
}

#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct ResourceUsage {
    /// CPU time in user mode, in microseconds.
    pub(crate) user_us: u64,
    /// CPU time in kernel mode, in microseconds.
    pub(crate) system_us: u64,
    /// Largest resident set of one process, in KiB.
    pub(crate) max_rss_kib: u64,
}

impl SingleThreaded {
    /// Checks that the process has a single thread.
    pub(crate) fn check() -> std::io::Result<Self> {
        let tasks = std::fs::read_dir("/proc/self/task")?.count();
        if tasks == 1 {
            Ok(Self(()))
        } else {
            Err(std::io::Error::other(format!("the process has {tasks} threads and must have one")))
        }
    }

    /// The proof for a fork of this process, which always has a single thread.
    pub(crate) fn for_fork(&self) -> Self {
        Self(())
    }
}

/// Copies this process into `namespaces` of its own, as fork(2) does.
///
/// Uses clone(2), because container runtimes' default seccomp profiles return ENOSYS for clone3(2).
pub(crate) fn fork(_proof: &SingleThreaded, namespaces: Namespaces) -> Result<Fork, Errno> {
    let mut pidfd: i32 = -1;
    let flags = namespaces | libc::CLONE_PIDFD | libc::SIGCHLD;
    // SAFETY: without CLONE_VM and with no stack given, the child runs on a copy of this stack in a
    // copy of this memory. The kernel writes the descriptor to `pidfd`, which outlives the call.
    // The caller has shown that no other thread exists.
    let child = unsafe {
        syscall(libc::SYS_clone, [flags as u32 as usize, 0, (&raw mut pidfd) as usize, 0, 0, 0])
    }?;

    match i32::try_from(child).ok().and_then(Pid::from_raw) {
        None => Ok(Fork::Child),
        Some(child) => {
            // SAFETY: the kernel has just made this descriptor for us; nothing else owns it.
            let pidfd = unsafe { OwnedFd::from_raw_fd(pidfd) };
            Ok(Fork::Parent { child, pidfd })
        }
    }
}

/// Makes the kernel kill this process when its parent ends, which the pidfd `parent` refers to.
/// Fails with ESRCH if the parent has ended already, because no signal would come
/// (PR_SET_PDEATHSIG(2const)).
pub(crate) fn die_with_parent(parent: BorrowedFd<'_>) -> Result<(), Errno> {
    set_parent_process_death_signal(Some(Signal::KILL))?;
    let mut ended = [PollFd::from_borrowed_fd(parent, PollFlags::IN)];
    match poll(&mut ended, Some(&Timespec::default()))? {
        0 => Ok(()),
        _ => Err(Errno::SRCH),
    }
}

/// Runs `compute` in a fork of this process, which has memory of its own, and waits for the result.
///
/// No other child may exist. `compute` must follow the rules of [`super`]: a process that shares
/// this memory may have held a lock at the time of the fork.
pub(crate) fn run_in_fork(compute: impl FnOnce() -> bool) -> Result<bool, Errno> {
    // SAFETY: without CLONE_VM and with no stack given, the child runs on a copy of this stack in a
    // copy of this memory; it takes no lock, as the caller guarantees.
    let child = unsafe { syscall(libc::SYS_clone, [libc::SIGCHLD as usize, 0, 0, 0, 0, 0]) }?;
    if child == 0 {
        exit_now(i32::from(!compute()));
    }
    Ok(wait_any()?.status == 0)
}

/// Starts a process that shares this one's memory and runs `entry(argument)` on the stack that ends
/// at `stack_top`, in `namespaces` of its own.
///
/// It has its own descriptors, working directory, signal handlers and limits. It shares all memory,
/// including thread-local storage, so `entry` must not use std except for plain computation. This
/// saves the copy of page tables and the page faults of a fork.
///
/// # Safety
///
/// Until the process has ended or executed another program:
///
/// * `stack_top` must be the 16-byte aligned end of a writable region that is large enough for
///   `entry`. Nothing else may use the region.
/// * `argument` must stay valid.
/// * `entry` must not return, allocate, take a lock or touch thread-local storage.
pub(super) unsafe fn spawn_sharing_memory(
    entry: unsafe extern "C" fn(*mut c_void) -> !,
    argument: *mut c_void,
    stack_top: *mut c_void,
    namespaces: Namespaces,
    pidfd: Option<&mut i32>,
) -> Result<Pid, Errno> {
    let mut flags = namespaces | libc::CLONE_VM | libc::SIGCHLD;
    let pidfd_pointer = match pidfd {
        Some(pidfd) => {
            flags |= libc::CLONE_PIDFD;
            std::ptr::from_mut(pidfd)
        }
        None => std::ptr::null_mut(),
    };

    // SAFETY: the caller guarantees the stack, the argument and the entry; the kernel writes the
    // descriptor to `pidfd`, which outlives the call.
    let result = unsafe {
        clone_onto_stack(flags as u32 as usize, stack_top, pidfd_pointer, entry, argument)
    };
    let child = result_of(result)?;
    i32::try_from(child).ok().and_then(Pid::from_raw).ok_or(Errno::INVAL)
}

/// CPU time of this process and of its reaped descendants, in microseconds (getrusage(2)).
pub(crate) fn cpu_time_with_children_us() -> u64 {
    let time_of = |who: i32| {
        // SAFETY: all-zero bytes are a valid rusage: it holds integers only.
        let mut raw: libc::rusage = unsafe { std::mem::zeroed() };
        let arguments = [who as isize as usize, (&raw mut raw) as usize, 0, 0, 0, 0];
        // SAFETY: the kernel writes one rusage, alive here.
        let read = unsafe { syscall(libc::SYS_getrusage, arguments) };
        read.map_or(0, |_| micros(raw.ru_utime) + micros(raw.ru_stime))
    };
    time_of(libc::RUSAGE_SELF) + time_of(libc::RUSAGE_CHILDREN)
}

fn micros(time: libc::timeval) -> u64 {
    (time.tv_sec as u64).saturating_mul(1_000_000).saturating_add(time.tv_usec as u64)
}

/// A child that has ended and was reaped.
#[derive(Debug)]
pub(crate) struct EndedChild {
    pub(crate) pid: Pid,
    /// Wait status (wait(2)).
    pub(crate) status: i32,
    /// Usage of the child and of the descendants that it has reaped.
    pub(crate) usage: ResourceUsage,
}

/// Waits for any child of any kind to end, and reaps it. Fails with ECHILD if there is none.
pub(crate) fn wait_any() -> Result<EndedChild, Errno> {
    reap(0)?.ok_or(Errno::INVAL) // `None` needs WNOHANG
}

/// Reaps a child of any kind if one has ended. Fails with ECHILD if there is none.
pub(crate) fn reap_ended() -> Result<Option<EndedChild>, Errno> {
    reap(libc::WNOHANG)
}

/// Calls wait4(2) for any child.
fn reap(flags: i32) -> Result<Option<EndedChild>, Errno> {
    // SAFETY: all-zero bytes are a valid rusage: it holds integers only.
    let mut raw: libc::rusage = unsafe { std::mem::zeroed() };
    let mut status: i32 = 0;
    let options = libc::__WALL | flags;
    let any_child = -1_isize as usize;
    let arguments = [
        any_child,
        (&raw mut status) as usize,
        options as u32 as usize,
        (&raw mut raw) as usize,
        0,
        0,
    ];
    let child = loop {
        // SAFETY: the kernel writes one status and one rusage, both alive here.
        let child = retry_on_intr(|| unsafe { syscall(libc::SYS_wait4, arguments) })?;
        // A child that asked to be traced also reports stops (ptrace(2)).
        if child == 0 || !libc::WIFSTOPPED(status) {
            break child;
        }
    };

    Ok(Pid::from_raw(child as i32).map(|pid| EndedChild {
        pid,
        status,
        usage: ResourceUsage {
            user_us: micros(raw.ru_utime),
            system_us: micros(raw.ru_stime),
            max_rss_kib: raw.ru_maxrss as u64,
        },
    }))
}

impl ResourceUsage {
    /// Adds the usage of another process.
    pub(crate) fn add(&mut self, other: Self) {
        self.user_us = self.user_us.saturating_add(other.user_us);
        self.system_us = self.system_us.saturating_add(other.system_us);
        self.max_rss_kib = self.max_rss_kib.max(other.max_rss_kib);
    }
}

/// Sends `signal` to every process that this one may signal, except itself and the namespace's init
/// (kill(2) with -1).
pub(crate) fn kill_all(signal: i32) -> Result<(), Errno> {
    kill(-1, signal)
}

/// Sends `signal` to the process group `group` (kill(2) with its negated number).
pub(crate) fn kill_group(group: i32, signal: i32) -> Result<(), Errno> {
    kill(-group, signal)
}

fn kill(target: i32, signal: i32) -> Result<(), Errno> {
    let target = target as isize as usize;
    // SAFETY: kill(2) takes two integers.
    unsafe { syscall(libc::SYS_kill, [target, signal as u32 as usize, 0, 0, 0, 0]) }.map(|_| ())
}

/// Exits at once, without destructors, handlers or flushing.
pub(crate) fn exit_now(code: i32) -> ! {
    loop {
        // SAFETY: exit_group(2) takes one integer and does not return.
        let _ended =
            unsafe { syscall(libc::SYS_exit_group, [code as u32 as usize, 0, 0, 0, 0, 0]) };
    }
}
