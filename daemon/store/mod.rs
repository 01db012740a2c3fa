//! What outlives a call: the state directory, its sessions, their events and artifacts.
//!
//! ```text
//! STATE_DIR/
//!   lock                                  held by the one daemon, with its process id
//!   sessions/ID/events.jsonl              a record for each call that starts, and for each that ends
//!   sessions/ID/logs/tool_step_NNNN_stdout.txt
//! ```

pub(crate) mod artifact;
pub(crate) mod session;
pub(crate) mod state_dir;
