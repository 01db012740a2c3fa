//! Sandboxes at L1: in the daemon's own namespaces, where no others can be made.
//!
//! ```text
//! keeper
//!  └─ template       one per workspace: has become the commands' user for good
//!      └─ slot       in a Landlock domain of its own, from which signals reach no further
//!          └─ supervisor     one for each run: in a domain within it, what a run leaves behind
//!              │             becomes its child, and is killed with one call that reaches the
//!              │             run and nothing else
//!              └─ command    in a domain within that, under seccomp: receives the request, executes
//! ```
//!
//! What namespaces do at the higher levels is done here by Landlock (files, TCP, signals, abstract
//! sockets, tracing) and by the seccomp filter (all other sockets, message queues, and every call
//! that tunes processes by their number). It depends on what [`require`] checks.
//!
//! A command sees the daemon's own root, of which it can open what [`rules`] names: so the workspace
//! is at its own path, and `HOME` and `TMPDIR` are directories made for the run ([`scratch`]). What
//! Landlock does not mediate (Documentation/userspace-api/landlock.rst) stays possible: to look up
//! names, sizes and owners of other files, and to change modes, times and attributes of those that
//! belong to the same user.
//!
//! Ends come the other way round than at the higher levels, where the first process is killed and
//! takes all others along: here the supervisor is asked to kill all others ([`signal`]), and has
//! ended when they are gone. Should the supervisor be killed, its slot does the same; should the
//! daemon die, each is told by the kernel that its parent has died, and does the same.
//!
//! [`signal`]: crate::daemon::sys::signal

mod landlock_rules;
mod prerequisites;
pub(super) mod scratch_directory;
mod slot;
mod supervisor;
pub(super) mod template;
mod template_context;
