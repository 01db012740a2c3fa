//! The state of a named shell: what one command leaves for the next, although no process lives in
//! between.
//!
//! A command in a named shell is run by bash between a prologue and an epilogue ([`script`]). The
//! prologue restores the state from a sealed memory file. The epilogue writes the new state into a
//! memory file of fixed size, which the daemon reads when every process of the run is gone.
//!
//! Commands can write anything into that file. The daemon checks its form and size, and never
//! interprets it further: bash does, in a sandbox of the same caller.

pub(super) mod file;
mod parts;
mod quoting;
pub(crate) mod script;
pub(crate) mod state;
