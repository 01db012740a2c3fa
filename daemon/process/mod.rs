//! Running one command: what is asked for, one task that owns it until nothing of it is left, and
//! what is told about it.
//!
//! ```text
//!             end by itself
//! Running ───────────────────────────▶ Ended
//!    │ time is up, daemon drains          ▲
//!    ▼                                    │
//! Ending: SIGTERM sent ───────────────────┤
//!    │ grace is over, or nobody waits     │
//!    ▼                                    │
//! Killing: SIGKILL to the sandbox's init ─┘ its pidfd says that it is gone
//! ```
//!
//! | file | holds |
//! |---|---|
//! | [`spec`], [`environment`] | what is asked for |
//! | [`supervise`], [`connect`], [`stop`], [`watch`], [`watchdog`] | the task that owns the command, what connects it, how and why it is ended |
//! | [`output`], [`capture`], [`input`] | what it writes and reads |
//! | [`live`], [`transcript`], [`registry`] | commands that are watched and fed while they run |
//! | [`outcome`], [`finished`] | what is told about it |

pub(crate) mod environment;
pub(crate) mod handle;
mod head_tail_buffer;
pub(crate) mod input;
mod limit_monitor;
pub(crate) mod outcome;
pub(crate) mod output;
pub(crate) mod registry;
pub(crate) mod replay_buffer;
pub(crate) mod result;
pub(crate) mod spec;
mod stdio;
mod stop_sequence;
pub(crate) mod supervisor;
mod watchdog;
