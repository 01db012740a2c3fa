//! Runs commands: their specification, the task that owns one until all its processes are gone,
//! their output and their result.
//!
//! ```text
//!               ends by itself
//! Running ───────────────────────────▶ Ended
//!  │ │ timeout, or daemon shuts down      ▲
//!  │ ▼                                    │
//!  │ Terminating: SIGTERM sent ───────────┤
//!  │ │ grace is over, or one of A         │
//!  │A│                                    │
//!  ▼ ▼                                    │
//! Killing: SIGKILL to the sandbox's init ─┘ its pidfd reports the exit
//!
//! A: a limit is exceeded, all callers have gone, or the terminal is lost
//! ```
//!
//! | modules | contents |
//! |---|---|
//! | [`spec`], [`environment`] | the command to run |
//! | [`supervisor`], [`stdio`], [`stop_sequence`] | the task that owns the command, its standard streams, how it is stopped |
//! | [`limit_monitor`], [`measurement_schedule`], [`cpu_share`] | limits that the kernel does not enforce |
//! | [`output`], [`head_tail_buffer`], [`input`] | what it writes and reads |
//! | [`handle`], [`replay_buffer`], [`registry`] | attaching to commands while they run |
//! | [`outcome`], [`result`] | how it ended |

mod cpu_share;
pub(crate) mod environment;
pub(crate) mod handle;
mod head_tail_buffer;
pub(crate) mod input;
mod limit_monitor;
mod measurement_schedule;
pub(crate) mod outcome;
pub(crate) mod output;
pub(crate) mod registry;
pub(crate) mod replay_buffer;
pub(crate) mod result;
pub(crate) mod spec;
mod stdio;
mod stop_sequence;
pub(crate) mod supervisor;
