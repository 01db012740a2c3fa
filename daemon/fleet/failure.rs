//! Records of jobs that end without a daemon that ran them to their end.

use super::transition::{ended, job_of_record};
use crate::{
    api::v1::{FleetJobRecord, Job, JobState},
    daemon::{
        error::{Error, Reason},
        pipeline::{envelope::rejected_response, jobs::lost_response},
    },
};

/// The record of a job that failed before it began.
pub(super) fn failed(id: &str, record: &FleetJobRecord, error: &Error) -> FleetJobRecord {
    let job = Job {
        state: JobState::Failed.into(),
        result: Some(rejected_response(&record.tool, error)),
        ..job_of_record(id, record)
    };
    ended(id, record, job)
}

/// The record of a job whose daemon died.
pub(super) fn lost(id: &str, record: &FleetJobRecord) -> FleetJobRecord {
    let started = record.claim_time.and_then(|time| time.try_into().ok());
    let job = Job {
        state: JobState::Lost.into(),
        start_time: record.claim_time,
        result: Some(lost_response(&record.tool, started)),
        ..job_of_record(id, record)
    };
    ended(id, record, job)
}

/// Why a job is a dead letter that no daemon could begin or complete.
pub(super) fn exhausted_error(attempts: u32) -> Error {
    let text = format!(
        "no daemon of the fleet could begin or complete the job in {attempts} attempts (fleet.max_deliver): check what it has done, and the logs of the daemons"
    );
    Error::new(Reason::DaemonLost, text).with_metadata("attempts", attempts.to_string())
}
