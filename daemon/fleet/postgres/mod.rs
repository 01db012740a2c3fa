//! The fleet in PostgreSQL: one table, in which each job is a row. `deploy/postgres/fleet.sql` creates
//! it, so that daemons need no right to create anything.
//!
//! ```text
//! INSERT ──▶ queued ──▶ claimed by a daemon, until its lease ends ──▶ ended, with the result
//!              ▲             │   ▲  │
//!              └─────────────┘   └──┘ another daemon, if the lease has ended and the job may run again
//!               given back
//! ```
//!
//! * A claim locks rows with `SKIP LOCKED`, so that daemons do not wait for each other.
//! * The daemon renews the lease while it has the job. [`judge`] ends the claims of dead daemons.
//! * Each later change names the time of the claim. So one of two ends is stored.
//! * A trigger notifies of new and ended jobs.
//!
//! All times are those of the server. Rows have no signature: jobs have the rights of the queue's key.

mod claimed_row;
mod connection;
mod job_row;
mod judge;
mod postgres_jobs;
mod queue;
mod retention;
mod session;

pub(super) use self::{
    connection::PostgresSetupError, judge::judge_daemons, postgres_jobs::PostgresJobs,
    queue::PostgresQueue, retention::delete_old_rows, session::PostgresSession,
};
