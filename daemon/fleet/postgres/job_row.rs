//! The row of a job, as the other parts of the fleet know it.

use std::time::SystemTime;

use bytes::Bytes;
use prost::Message as _;
use tokio_postgres::Row;

use crate::{
    api::v1::{FleetJobRecord, FleetJobState, Job, SubmitJobRequest},
    daemon::{
        config::fleet::FleetQueueConfig,
        error::Error,
        fleet::{
            queued_request::{check_session, decode_request, to_local_request},
            transition::claim_id,
            work_source::{SourceUnavailable, Work},
        },
    },
};

/// The columns that daemons use. They are named, so that a statement fails before it changes a table
/// of an older version.
macro_rules! columns {
    () => {
        "id, queue, workspace, any_workspace, request_id, session, traceparent, request, \
         retry_if_lost, state, claimed_by, claimed_start, approval_id, cancel_requested, attempts, \
         result, submitted_at, claimed_at, ended_at"
    };
}
pub(super) use columns;

/// A job in the table.
#[derive(Debug, Clone)]
pub(super) struct JobRow {
    pub(super) id: String,
    /// Identifies the claim, if there is one.
    pub(super) claimed_at: Option<SystemTime>,
    /// Whether a caller at any daemon cancels the job.
    pub(super) is_cancelled: bool,
    pub(super) record: FleetJobRecord,
    pub(super) request: Bytes,
    traceparent: String,
}

impl JobRow {
    pub(super) fn read(row: &Row) -> Result<Self, SourceUnavailable> {
        Self::read_columns(row)
            .map_err(|error| SourceUnavailable(format!("the table jig_jobs: {error}")))
    }

    fn read_columns(row: &Row) -> Result<Self, tokio_postgres::Error> {
        let time = |name: &str| row.try_get::<_, Option<SystemTime>>(name);
        let count = |name: &str| {
            let count: i32 = row.try_get(name)?;
            Ok::<_, tokio_postgres::Error>(u32::try_from(count).unwrap_or_default())
        };
        let request = Bytes::from(row.try_get::<_, Vec<u8>>("request")?);
        // One that is malformed fails when the job is claimed.
        let decoded = SubmitJobRequest::decode(request.clone()).unwrap_or_default();
        let state = match row.try_get("state")? {
            "ended" => FleetJobState::Ended,
            "claimed" => FleetJobState::Claimed,
            _ => FleetJobState::Queued,
        };
        let result: Option<Vec<u8>> = row.try_get("result")?;
        let job = result.and_then(|result| Job::decode(result.as_slice()).ok());

        Ok(Self {
            id: row.try_get("id")?,
            claimed_at: time("claimed_at")?,
            is_cancelled: row.try_get("cancel_requested")?,
            record: FleetJobRecord {
                state: state.into(),
                queue: row.try_get("queue")?,
                workspace: row.try_get("workspace")?,
                request_id: row.try_get("request_id")?,
                tool: decoded.tool,
                dialect: decoded.dialect,
                principal: job.as_ref().map(|job| job.principal.clone()).unwrap_or_default(),
                session: row.try_get("session")?,
                daemon_id: row.try_get::<_, Option<_>>("claimed_by")?.unwrap_or_default(),
                start_id: row.try_get("claimed_start")?,
                approval_id: row.try_get("approval_id")?,
                attempts: count("attempts")?,
                retry_if_lost: row.try_get("retry_if_lost")? || decoded.retry_if_lost,
                submit_time: time("submitted_at")?.map(Into::into),
                claim_time: time("claimed_at")?.map(Into::into),
                end_time: time("ended_at")?.map(Into::into),
                job,
                priority: decoded.priority.unwrap_or_default(),
                ..FleetJobRecord::default()
            },
            request,
            traceparent: row.try_get("traceparent")?,
        })
    }

    /// Returns the work of a claim of this daemon, with the request of the row.
    pub(super) fn take_work(
        &mut self,
        queue: &FleetQueueConfig,
        resumed_from: Option<String>,
    ) -> Result<Work, Error> {
        let request = decode_request(std::mem::take(&mut self.request), &queue.name)?;
        let record = &self.record;
        let session = Some(record.session.clone()).filter(|session| !session.is_empty());
        check_session(session.as_deref())?;
        require_no_artifacts(&request)?;

        Ok(Work {
            id: self.id.clone(),
            queue: queue.name.clone(),
            workspace: record.workspace.clone(),
            principal: record.principal.clone(),
            session,
            traceparent: Some(self.traceparent.clone()).filter(|parent| !parent.is_empty()),
            claim_id: claim_id(record),
            resumed_from,
            is_cancelled: self.is_cancelled,
            is_rate_counted: false,
            request: to_local_request(request, &queue.name),
        })
    }
}

/// Rejects a job that is to store its artifacts: the table has no place for them.
pub(super) fn require_no_artifacts(request: &SubmitJobRequest) -> Result<(), Error> {
    if !request.store_artifacts {
        return Ok(());
    }
    let text = "must not be set: a fleet on PostgreSQL stores no artifacts";
    Err(Error::invalid_field("store_artifacts", text))
}
