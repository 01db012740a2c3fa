//! Runs commands: their specification, the task that owns one until all its processes are gone,
//! their output and their result.
//!
//! ```text
//!               ends by itself
//! Running ───────────────────────────▶ Ended
//!  │ │ timeout, or daemon shuts down      ▲
//!  │ ▼                                    │
//!  │ Terminating: SIGTERM sent ───────────┤
//!  │ │ grace is over, limit exceeded,     │
//!  │ │ abandoned, or terminal lost        │
//!  ▼ ▼                                    │
//! Killing: SIGKILL to the sandbox's init ─┘ its pidfd reports the exit
//! ```
//!
//! The left edge is taken if a limit is exceeded, the command is abandoned (all callers have
//! disconnected), or its terminal is lost.
//!
//! A *command* is the program that a caller wants to run. A *run* is one sandbox with one command.
//! A *process* is a command that `ProcessService` started, and that clients can attach to.
//!
//! | module | contents |
//! |---|---|
//! | [`spec`], [`environment`] | the command to run |
//! | [`supervisor`], [`stdio`], [`control`], [`stop_sequence`] | the task that owns the command, its standard streams, how it is stopped |
//! | [`limit_monitor`], [`measurement_schedule`], [`cpu_share`] | limits that the kernel does not enforce |
//! | [`output`], [`head_tail_buffer`], [`input`] | what it writes and reads |
//! | [`handle`], [`replay_buffer`], [`registry`] | attaching to commands while they run |
//! | [`shell_state`] | what a command in a named shell leaves for the next |
//! | [`outcome`], [`result`] | how it ended |
//! | [`run_observer`] | what follows a run beside the supervisor |

mod control;
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
pub(crate) mod run_observer;
pub(crate) mod shell_state;
pub(crate) mod spec;
mod stdio;
mod stop_sequence;
pub(crate) mod supervisor;
