//! The stream of jobs: publishing, and dead letters.

use async_nats::{HeaderMap, jetstream};

use super::{
    message::{self, OutgoingJob, SigningKey},
    names::{dead_letter_subject, job_subject},
};
use crate::daemon::fleet::work_source::{SourceUnavailable, Work};

/// Header of a dead letter: why no daemon runs the job, as the reason of an error.
const DEAD_LETTER_REASON_HEADER: &str = "Jig-Reason";
/// Header of a dead letter: the message of that error.
const DEAD_LETTER_MESSAGE_HEADER: &str = "Jig-Message";

/// Publishes jobs.
#[derive(Debug, Clone)]
pub(crate) struct JobPublisher {
    jetstream: jetstream::Context,
    stream: String,
    signing_key: Option<SigningKey>,
}
