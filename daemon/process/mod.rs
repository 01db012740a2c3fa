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

pub(crate) mod environment;
pub(crate) mod outcome;
pub(crate) mod output;
pub(crate) mod spec;
mod stop;
pub(crate) mod supervise;
