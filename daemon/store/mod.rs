//! Persistent storage: the state directory, its database, sessions, events and artifacts.
//!
//! ```text
//! STATE_DIR/
//!   lock                                  locked by the running daemon; holds its process id
//!   jig.db                                the database: request ids, jobs, approvals, rules
//!   fleet-id                              name of the daemon in its fleet
//!   life                                  generation of the daemon that wrote to the database last
//!   sessions/ID/workspace                 the session's workspace; ID@WORKSPACE if several have this id
//!   sessions/ID/events.jsonl              a record for each call that starts, and for each that ends
//!   sessions/ID/numbers                   last step and sequence number, if records were removed
//!   sessions/.past                        tombstones: last numbers of removed sessions
//!   sessions/ID/logs/tool_step_NNNN_stdout.txt
//!   sessions/ID/diffs/step_NNNN.patch     the patch of a call of apply_patch
//!   sessions/ID/shells/OWNER/NAME         the state of a named shell of a caller
//!   jobs/ID.json                          parameters of a queued job; removed when it starts
//!   uploads/NAME.json                     an upload in progress, to be resumed or removed
//!   embedded-uploads/DEVICE-INODE/NAME.json   those of embedded daemons on this workspace
//! ```
//!
//! `life`, `numbers` and `.past` keep the names that earlier versions gave them, so that a newer
//! daemon reads the files of an older one.
//!
//! The directory and its entries must belong to the daemon's user or root; none may be a hard link,
//! FIFO, socket or device. Otherwise another user could redirect what the daemon writes, so the
//! daemon does not start.

pub(crate) mod approvals;
pub(crate) mod artifact_writer;
pub(crate) mod database;
mod directory;
pub(crate) mod failure;
#[cfg(feature = "fleet")]
pub(crate) mod fleet_id;
#[cfg_attr(not(feature = "fleet"), allow(dead_code, reason = "only fleets record starts"))]
pub(crate) mod fleet_starts;
pub(crate) mod follower;
pub(crate) mod generation;
pub(crate) mod job_params;
pub(crate) mod jobs;
mod ownership;
mod record_locks;
pub(crate) mod requests;
pub(crate) mod retention;
pub(crate) mod rules;
pub(crate) mod session;
mod session_directories;
mod session_usage;
pub(crate) mod sessions;
pub(crate) mod state_dir;
pub(crate) mod state_files;
mod tombstones;
pub(crate) mod unix_millis;
pub(crate) mod uploads;
pub(crate) mod workspaces;
