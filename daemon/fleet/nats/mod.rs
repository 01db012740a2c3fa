//! The fleet on NATS JetStream: a stream of jobs, which each queue reads by consumers that all daemons
//! share, and buckets for records, results and heartbeats.
//!
//! | object | content |
//! |---|---|
//! | stream `JIG_JOBS` | jobs, until they have ended |
//! | stream `JIG_JOBS_dead` | jobs that no daemon runs |
//! | bucket `JIG_JOBS_records` | the state of each job, and its result |
//! | object store `JIG_JOBS_results` | artifacts, and results that are too large for a record |
//! | bucket `JIG_JOBS_daemons` | heartbeats |
//!
//! A message may be delivered twice, and to two daemons. The record of its job decides: each change
//! of it names the revision that it replaces, so one of two daemons claims a job, and one of two ends
//! is stored.

mod acknowledgement;
mod artifact_objects;
mod artifact_reader;
mod artifact_upload;
mod authentication;
mod bucket;
mod claimed_job;
mod claims;
mod connection;
mod dead_letter;
mod inbound;
mod job_output;
mod job_watch;
mod jobs;
mod liveness;
mod message;
mod names;
mod nats_jobs;
mod object_chunks;
mod object_digest;
mod objects;
mod pull;
mod queue;
mod records;
mod results;
mod session;
mod settlement;
mod signature;
mod stored_result;
mod unreadable;

pub(super) use self::{
    connection::NatsSetupError, job_output::JobOutputServer, nats_jobs::NatsJobs, queue::NatsQueue,
    session::NatsSession,
};
