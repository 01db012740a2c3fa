//! What outlives a call: the state directory, its sessions, their events and artifacts.
//!
//! ```text
//! STATE_DIR/
//!   lock                                  held by the one daemon, with its process id
//!   jig.db                                the database: request ids, jobs, approvals, rules
//!   life                                  which daemon wrote to the database last
//!   sessions/ID/workspace                 whose session it is; ID@WORKSPACE where several have this id
//!   sessions/ID/events.jsonl              a record for each call that starts, and for each that ends
//!   sessions/ID/numbers                   what step and record it has got to, where old ones were removed
//!   sessions/.past                        what numbers those had got to that were removed
//!   sessions/ID/logs/tool_step_NNNN_stdout.txt
//!   sessions/ID/diffs/step_NNNN.patch     the patch of a call of apply_patch
//!   jobs/ID.json                          what a job that waits is to do; gone once it starts
//!   uploads/NAME.json                     an upload that has begun, to be resumed or swept
//!   embedded-uploads/DEVICE-INODE/NAME.json   those of daemons for one call, on this workspace
//! ```
//!
//! The directory and what lies in it must be the daemon's user's or root's, no file a hard link and
//! nothing a FIFO: else another user could lead what the daemon writes elsewhere, and it does not start.

pub(crate) mod approvals;
pub(crate) mod artifact_writer;
pub(crate) mod database;
pub(crate) mod failure;
mod folder;
pub(crate) mod follower;
pub(crate) mod generation;
pub(crate) mod job_params;
pub(crate) mod jobs;
mod ownership;
mod record_locks;
pub(crate) mod requests;
pub(crate) mod row_retention;
pub(crate) mod rules;
pub(crate) mod session;
mod session_folders;
pub(crate) mod session_retention;
mod session_usage;
pub(crate) mod sessions;
pub(crate) mod state_dir;
pub(crate) mod state_files;
mod tombstones;
pub(crate) mod unix_millis;
pub(crate) mod uploads;
