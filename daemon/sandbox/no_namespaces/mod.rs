//! Sandboxes at L1: for hosts that cannot make namespaces, in the daemon's own.
//!
//! ```text
//! keeper
//!  └─ template       one per workspace: has changed to the commands' user for good
//!      └─ slot       in a Landlock domain of its own, which its signals cannot leave
//!          └─ L1 init        one per run, in a nested domain. Orphans of the run become its
//!              │             children. One kill(2) call reaches the run and nothing else
//!              └─ command    in a nested domain, under seccomp: receives the request, executes it
//! ```
//!
//! Landlock (files, TCP, signals, abstract sockets, tracing) and the seccomp filter (all other
//! sockets, message queues, and every call that tunes processes by id) replace namespaces.
//! [`prerequisites`] checks what this depends on.
//!
//! A command sees the daemon's own root and can open what [`landlock_rules`] lists. So the
//! workspace is at its own path, and `HOME` and `TMPDIR` are directories made for the run
//! ([`scratch_directory`]). What Landlock does not mediate
//! (Documentation/userspace-api/landlock.rst) stays possible: a command can look up names, sizes
//! and owners of other files, and can change modes, times and attributes of files of its own user.
//!
//! A run is killed in the opposite order to the higher levels. There, the first process is killed
//! and takes all others along. Here, the L1 init is signalled to kill all others ([`signal`]),
//! and exits when they are gone. If the L1 init is killed, its slot does the same. If the daemon
//! dies, the kernel signals each process that its parent has died, and it does the same.
//!
//! [`signal`]: crate::daemon::sys::signal

mod l1_init;
mod landlock_rules;
mod prerequisites;
pub(super) mod scratch_directory;
mod slot;
pub(super) mod template;
mod template_context;
