//! Fleet jobs as the contract has them, by their records.

use std::time::Duration;

use super::transition::{ended, job_of_record};
use crate::{
    api::v1::{FleetJobRecord, FleetJobState, Job, JobState},
    daemon::pipeline::fleet_jobs::FleetJob,
};

/// Returns the job of a record. `retention`: time that the bucket keeps records.
pub(super) fn to_fleet_job(id: &str, record: FleetJobRecord, retention: Duration) -> FleetJob {
    let (workspace, result_object) = (record.workspace.clone(), record.result_object.clone());
    let artifacts = record.store_artifacts.then(|| record.artifacts.clone());
    FleetJob { job: to_job(id, record, retention), workspace, result_object, artifacts }
}

fn to_job(id: &str, record: FleetJobRecord, retention: Duration) -> Job {
    let state = match record.state() {
        FleetJobState::Claimed if !record.approval_id.is_empty() => JobState::Queued,
        FleetJobState::Claimed => JobState::Running,
        FleetJobState::Unspecified | FleetJobState::Queued => JobState::Queued,
        FleetJobState::Ended => record
            .job
            .as_ref()
            .map_or(JobState::Lost, |job| JobState::try_from(job.state).unwrap_or(JobState::Lost)),
    };
    let start_time = match &record.job {
        Some(ended) => ended.start_time,
        None => record.claim_time.filter(|_| state == JobState::Running),
    };
    let ended = record.job.unwrap_or_default();
    let mut result = ended.result;
    if let Some(result) = &mut result
        && !result.pending
    {
        // Its id in the daemon that ran it.
        result.job_id = id.to_owned();
    }

    Job {
        job_id: id.to_owned(),
        state: state.into(),
        tool: record.tool,
        dialect: record.dialect,
        queue: record.queue,
        priority: record.priority,
        session: if ended.session.is_empty() { record.session } else { ended.session },
        principal: record.principal,
        step: ended.step,
        submit_time: record.submit_time,
        start_time,
        end_time: record.end_time,
        result,
        approval_id: record.approval_id,
        retention: prost_types::Duration::try_from(retention).ok(),
        fleet: true,
        daemon_id: record.daemon_id,
    }
}

/// Returns the record of a queued job that a caller has cancelled.
pub(super) fn cancelled_in_queue(id: &str, record: &FleetJobRecord) -> FleetJobRecord {
    let job = Job { state: JobState::Cancelled.into(), ..job_of_record(id, record) };
    ended(id, record, job)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::v1::InvokeResponse;

    const RETENTION: Duration = Duration::from_secs(60);

    fn record(state: FleetJobState) -> FleetJobRecord {
        FleetJobRecord {
            state: state.into(),
            queue: "build".to_owned(),
            workspace: "main".to_owned(),
            tool: "run".to_owned(),
            principal: "key:ci".to_owned(),
            session: "s".to_owned(),
            daemon_id: "a".to_owned(),
            local_job_id: "01".to_owned(),
            claim_time: Some(prost_types::Timestamp { seconds: 2, nanos: 0 }),
            ..FleetJobRecord::default()
        }
    }

    #[test]
    fn the_job_of_a_record_has_the_fleet_id_everywhere() {
        let running = to_fleet_job("fleet-1", record(FleetJobState::Claimed), RETENTION);
        assert_eq!(running.job.state(), JobState::Running);
        assert_eq!((running.job.job_id.as_str(), running.workspace.as_str()), ("fleet-1", "main"));
        assert_eq!((running.job.daemon_id.as_str(), running.job.fleet), ("a", true));

        let waiting =
            FleetJobRecord { approval_id: "02".to_owned(), ..record(FleetJobState::Claimed) };
        let waiting = to_fleet_job("fleet-1", waiting, RETENTION).job;
        assert_eq!((waiting.state(), waiting.start_time), (JobState::Queued, None));
        assert_eq!(waiting.approval_id, "02");

        let local = Job {
            job_id: "01".to_owned(),
            state: JobState::Succeeded.into(),
            step: Some(3),
            session: "t".to_owned(),
            result: Some(InvokeResponse { job_id: "01".to_owned(), ..InvokeResponse::default() }),
            ..Job::default()
        };
        let ended = FleetJobRecord { job: Some(local), ..record(FleetJobState::Ended) };
        let ended = to_fleet_job("fleet-1", ended, RETENTION).job;
        assert_eq!((ended.state(), ended.step), (JobState::Succeeded, Some(3)));
        assert_eq!((ended.job_id.as_str(), ended.session.as_str()), ("fleet-1", "t"));
        assert_eq!(ended.result.unwrap().job_id, "fleet-1");
    }

    #[test]
    fn a_job_cancelled_in_its_queue_has_no_start() {
        let queued = FleetJobRecord {
            daemon_id: String::new(),
            claim_time: None,
            ..record(FleetJobState::Queued)
        };
        let cancelled = cancelled_in_queue("fleet-1", &queued);
        let job = to_fleet_job("fleet-1", cancelled, RETENTION).job;
        assert_eq!((job.state(), job.start_time, job.result), (JobState::Cancelled, None, None));
        assert!(job.end_time.is_some());
        assert_eq!(job.tool, "run");
    }
}
