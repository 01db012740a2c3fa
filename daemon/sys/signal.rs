//! Signals: resets their state, and relays them into a sandbox.

use std::os::fd::{AsRawFd as _, BorrowedFd};

use nix::sys::signal::SigSet;

use super::{
    Errno,
    arch::restore_context,
    from_nix,
    process::{kill_all, kill_group},
    syscall::syscall,
};

/// Makes a sandbox's init send another signal to the command's process group. Its value names both
/// ([`RelayedSignal`]). A real-time signal, because several of those queue in order (signal(7)).
pub(crate) const RELAY_SIGNAL: i32 = 40;
/// Signals the init of a run at L1 that its parent has died.
pub(crate) const PARENT_DEATH_SIGNAL: i32 = libc::SIGUSR1;
/// What an init relays, as the value of [`RELAY_SIGNAL`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RelayedSignal {
    pub(crate) signal: i32,
    /// The group, by its number in the init's namespace. The group of a command that has ended
    /// reaches no later command of the sandbox.
    pub(crate) group: i32,
}

impl RelayedSignal {
    fn to_value(self) -> i64 {
        i64::from(self.group) << 32 | i64::from(self.signal)
    }

    fn from_value(value: i64) -> Self {
        Self { signal: value as i32, group: (value >> 32) as i32 }
    }

    fn relay(self) {
        // To kill(2), the numbers 0 and 1 mean other processes than those of a group. A command can
        // choose them.
        if self.group > 1 {
            // A group that is gone needs no signal.
            let _gone = kill_group(self.group, self.signal);
        }
    }
}

const LAST_SIGNAL: i32 = 64;
/// Size of the kernel's signal set, in bytes.
const SIGNAL_SET_BYTES: usize = 8;

#[repr(C)]
struct SignalAction {
    handler: usize,
    flags: u64,
    restorer: usize,
    mask: u64,
}

/// Fields of `siginfo_t` that a queued signal uses (sigaction(2)).
#[repr(C)]
struct QueuedSignalInfo {
    signal: i32,
    errno: i32,
    code: i32,
    padding: i32,
    pid: i32,
    uid: u32,
    value: i64,
    rest: [u8; 96],
}

impl QueuedSignalInfo {
    /// The signal to relay, if this one was queued with a value.
    fn relayed_signal(&self) -> Option<RelayedSignal> {
        (self.code == libc::SI_QUEUE).then(|| RelayedSignal::from_value(self.value))
    }
}

/// Sets the default action of every signal and unblocks all: ignored and blocked signals would stay
/// so across execve(2).
pub(crate) fn reset_all() -> Result<(), Errno> {
    let default = SignalAction { handler: libc::SIG_DFL, flags: 0, restorer: 0, mask: 0 };
    for signal in 1..=LAST_SIGNAL {
        if signal != libc::SIGKILL && signal != libc::SIGSTOP {
            set_action(signal, &default)?;
        }
    }

    SigSet::empty().thread_set_mask().map_err(from_nix)
}

/// Makes this process survive the signals that end a daemon. It receives them too if they are sent
/// to a process group or cgroup, and it must outlive the calls that the daemon drains.
///
/// The signals are caught, not ignored: ignored ones stay ignored across execve(2).
pub(crate) fn ignore_termination_signals() -> Result<(), Errno> {
    let action = SignalAction {
        handler: ignore_signal as *const () as usize,
        flags: libc::SA_RESTART as u64 | SA_RESTORER,
        restorer: restore_context as *const () as usize,
        mask: 0,
    };
    for signal in [libc::SIGHUP, libc::SIGINT, libc::SIGQUIT, libc::SIGTERM] {
        set_action(signal, &action)?;
    }
    Ok(())
}

/// Makes the kernel reap the children of this process and the orphans that it inherits, so that
/// none stays a zombie (sigaction(2), SA_NOCLDWAIT). Children inherit this.
pub(crate) fn enable_auto_reap() -> Result<(), Errno> {
    set_sigchld_action(libc::SA_NOCLDWAIT as u64)
}

/// Undoes [`enable_auto_reap`]: children must be waited for again.
pub(crate) fn disable_auto_reap() -> Result<(), Errno> {
    set_sigchld_action(0)
}

/// Makes the end of a child interrupt [`wait_for_child_or_input`], and nothing else. The command's
/// process must call [`unblock_all`].
pub(crate) fn enable_child_interrupts() -> Result<(), Errno> {
    let action = SignalAction {
        handler: ignore_signal as *const () as usize,
        flags: SA_RESTORER,
        restorer: restore_context as *const () as usize,
        mask: 0,
    };
    set_action(libc::SIGCHLD, &action)?;
    set_mask(1 << (libc::SIGCHLD - 1))
}

/// Unblocks all signals. Handlers do not survive execve(2), but blocked signals stay blocked.
pub(crate) fn unblock_all() -> Result<(), Errno> {
    set_mask(0)
}

fn set_mask(mask: u64) -> Result<(), Errno> {
    let arguments =
        [libc::SIG_SETMASK as usize, (&raw const mask) as usize, 0, SIGNAL_SET_BYTES, 0, 0];
    // SAFETY: the kernel reads one signal set.
    unsafe { syscall(libc::SYS_rt_sigprocmask, arguments) }.map(|_| ())
}

/// Waits until a child has ended or `input` is readable (ppoll(2)). Returns whether `input` is.
/// Needs [`enable_child_interrupts`].
pub(crate) fn wait_for_child_or_input(input: BorrowedFd<'_>) -> Result<bool, Errno> {
    let mut polled = libc::pollfd { fd: input.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    let no_signals: u64 = 0;
    let arguments =
        [(&raw mut polled) as usize, 1, 0, (&raw const no_signals) as usize, SIGNAL_SET_BYTES, 0];
    // SAFETY: the kernel reads one signal set, and reads and writes one pollfd, all alive here.
    match unsafe { syscall(libc::SYS_ppoll, arguments) } {
        Ok(_) => Ok(polled.revents & libc::POLLIN != 0),
        Err(Errno::INTR) => Ok(false),
        Err(errno) => Err(errno),
    }
}

fn set_sigchld_action(flags: u64) -> Result<(), Errno> {
    let action = SignalAction { handler: libc::SIG_DFL, flags, restorer: 0, mask: 0 };
    set_action(libc::SIGCHLD, &action)
}

/// Makes this process, a sandbox's init, relay the value of [`RELAY_SIGNAL`].
///
/// A command can send this signal too. It then reaches nothing that the command could not reach by
/// itself.
pub(crate) fn install_signal_relay() -> Result<(), Errno> {
    let action = SignalAction {
        handler: relay_signal as *const () as usize,
        flags: (libc::SA_SIGINFO | libc::SA_RESTART) as u64 | SA_RESTORER,
        restorer: restore_context as *const () as usize,
        mask: 0,
    };
    set_action(RELAY_SIGNAL, &action)
}

/// Makes this process, the init of a run at L1, relay the value of [`RELAY_SIGNAL`]. If the value is
/// SIGKILL, or on [`PARENT_DEATH_SIGNAL`], it kills every process that it may signal.
pub(crate) fn install_signal_relay_and_kill() -> Result<(), Errno> {
    let action = SignalAction {
        handler: relay_or_kill_all as *const () as usize,
        flags: (libc::SA_SIGINFO | libc::SA_RESTART) as u64 | SA_RESTORER,
        restorer: restore_context as *const () as usize,
        mask: 0,
    };
    set_action(RELAY_SIGNAL, &action)?;
    set_action(PARENT_DEATH_SIGNAL, &action)
}

/// Makes the init of `pidfd` relay a signal.
pub(crate) fn send_through_init(
    pidfd: BorrowedFd<'_>,
    relayed: RelayedSignal,
) -> Result<(), Errno> {
    let info = QueuedSignalInfo {
        signal: RELAY_SIGNAL,
        errno: 0,
        code: libc::SI_QUEUE,
        padding: 0,
        pid: 0,
        uid: 0,
        value: relayed.to_value(),
        rest: [0; 96],
    };
    const { assert!(size_of::<QueuedSignalInfo>() == 128, "a siginfo_t has 128 bytes") };

    // SAFETY: the kernel reads one siginfo_t, which has the size of `QueuedSignalInfo`.
    unsafe {
        syscall(
            libc::SYS_pidfd_send_signal,
            [
                pidfd.as_raw_fd() as usize,
                RELAY_SIGNAL as usize,
                (&raw const info) as usize,
                0,
                0,
                0,
            ],
        )
    }
    .map(|_| ())
}

/// The kernel requires this flag with a restorer. The libc crate does not export it.
const SA_RESTORER: u64 = 0x0400_0000;

fn set_action(signal: i32, action: &SignalAction) -> Result<(), Errno> {
    // SAFETY: the kernel reads one sigaction of its own layout. Handlers in it are functions of this
    // file that take what the kernel passes: with SA_SIGINFO, a reference to a valid siginfo.
    unsafe {
        syscall(
            libc::SYS_rt_sigaction,
            [
                signal as u32 as usize,
                std::ptr::from_ref(action) as usize,
                0,
                SIGNAL_SET_BYTES,
                0,
                0,
            ],
        )
    }
    .map(|_| ())
}

extern "C" fn ignore_signal(_signal: i32) {}

extern "C" fn relay_signal(_signal: i32, info: &QueuedSignalInfo, _context: *const u8) {
    if let Some(relayed) = info.relayed_signal() {
        relayed.relay();
    }
}

extern "C" fn relay_or_kill_all(_signal: i32, info: &QueuedSignalInfo, _context: *const u8) {
    match info.relayed_signal() {
        // The parent has died, or the daemon kills the run.
        None | Some(RelayedSignal { signal: libc::SIGKILL, .. }) => {
            let _none_left = kill_all(libc::SIGKILL);
        }
        Some(relayed) => relayed.relay(),
    }
}
