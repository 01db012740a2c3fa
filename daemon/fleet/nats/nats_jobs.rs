//! Fleet jobs on NATS, for the services of every daemon: submits them, finds them by their records,
//! waits for their ends and cancels them.

use std::{
    sync::Arc,
    time::{Duration, Instant, SystemTime},
};

use async_nats::{Request, RequestErrorKind};
use bytes::Bytes;
use prost::Message as _;
use sha2::{Digest as _, Sha256};

use super::{
    bucket::RecordError,
    job_watch::FleetJobWatch,
    jobs::{OutgoingJob, PublishJobError},
    names::cancel_subject,
    session::NatsSession,
    stored_result::load_result,
};
use crate::{
    api::v1::{
        FleetCancelRequest, FleetCancelResponse, FleetJobRecord, FleetJobState, Job,
        SubmitJobRequest,
    },
    daemon::{
        error::{Error, Reason},
        fleet::{
            record_job::{cancelled_in_queue, to_fleet_job},
            work_source::{SourceUnavailable, fleet_job_id},
        },
        pipeline::fleet_jobs::{
            FleetArtifactReader, FleetJob, FleetJobEvents, FleetJobs, FleetSubmission,
        },
        task::{self, BoxFuture},
    },
};

/// Bytes of the headers of a job, which count for the maximum size of a message.
const MAX_HEADER_BYTES: usize = 4096;
/// How long the daemon that runs a job has to respond to a request.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(5);
/// Attempts to change a record that another daemon changes at the same time.
const MAX_ATTEMPTS: usize = 10;

/// The jobs of a fleet, by the records on its NATS servers.
#[derive(Debug, Clone)]
pub(crate) struct NatsJobs(Arc<NatsSession>);

impl NatsJobs {
    pub(crate) fn new(session: Arc<NatsSession>) -> Self {
        Self(session)
    }

    /// Stores the record of a job, then publishes its message.
    ///
    /// In this order, a job that was published has a record. If the daemon dies between the two, a
    /// repetition of the submission publishes the message.
    async fn submit_job(&self, submission: FleetSubmission) -> Result<FleetJob, Error> {
        let id = fleet_job_id(&submission.queue, &submission.request_id);
        let body = Bytes::from(submission.request.encode_to_vec());
        let FleetSubmission { queue, workspace, request_id, principal, session, .. } = &submission;
        let job = OutgoingJob {
            queue,
            workspace,
            request_id,
            principal,
            session,
            traceparent: &submission.traceparent,
            body: body.clone(),
        };
        // Before there is a record of a job that cannot be published.
        let publisher = self.0.publisher();
        let signature = publisher.sign(&job)?;
        if body.len() + MAX_HEADER_BYTES > self.0.client().max_payload() {
            return Err(PublishJobError::TooLarge.into());
        }
        let new = FleetJobRecord {
            state: FleetJobState::Queued.into(),
            request_sha256: Sha256::digest(&body).to_vec().into(),
            submit_time: Some(SystemTime::now().into()),
            queue: queue.clone(),
            workspace: workspace.clone(),
            request_id: request_id.clone(),
            principal: principal.clone(),
            session: session.clone(),
            signature_sha256: Sha256::digest(&signature).to_vec().into(),
            ..record_of(submission.request.clone())
        };
        let records = self.0.records().await?;
        let record = match records.create(&id, &new).await {
            Ok(_revision) => new,
            Err(RecordError::Unavailable(error)) => return Err(error.into()),
            Err(RecordError::Conflict) => {
                let existing = records.get(&id).await?;
                let (existing, _revision) = existing.ok_or_else(|| {
                    SourceUnavailable::new("the record of a job expired while it was read")
                })?;
                require_same_submission(&existing, &new)?;
                existing
            }
        };

        // Also for a record of an earlier submission: its message may not have been stored. The
        // stream drops a second one, and daemons run one job for both.
        if record.state() == FleetJobState::Queued {
            publisher.publish(&job, &signature).await?;
        }
        Ok(self.to_job(&id, record))
    }

    async fn find_job(&self, id: &str) -> Result<Option<FleetJob>, SourceUnavailable> {
        let found = self.0.records().await?.get(id).await?;
        Ok(found.map(|(record, _revision)| self.to_job(id, record)))
    }

    fn to_job(&self, id: &str, record: FleetJobRecord) -> FleetJob {
        to_fleet_job(id, record, self.0.result_retention())
    }

    /// Waits for the end of a job.
    async fn wait_for_end(
        &self,
        id: &str,
        until: Option<Instant>,
    ) -> Result<Option<FleetJob>, Error> {
        tokio::select! {
            biased;
            watched = self.watch_until_end(id) => {
                Ok(watched?.map(|record| self.to_job(id, record)))
            }
            () = task::sleep_until(until) => Ok(self.find_job(id).await?),
        }
    }

    /// Waits until the job has ended. Returns `None` if its record expires before.
    async fn watch_until_end(&self, id: &str) -> Result<Option<FleetJobRecord>, SourceUnavailable> {
        let mut records = self.0.records().await?.watch(id);
        loop {
            let record = records.next().await?;
            if record.as_ref().is_none_or(|record| record.state() == FleetJobState::Ended) {
                return Ok(record);
            }
        }
    }

    /// Ends a queued job, or asks the daemon that runs it to cancel it.
    async fn cancel_job(&self, id: &str) -> Result<(), Error> {
        let records = self.0.records().await?;
        for _ in 0..MAX_ATTEMPTS {
            let Some((record, revision)) = records.get(id).await? else { return Ok(()) };
            match record.state() {
                FleetJobState::Ended | FleetJobState::Unspecified => return Ok(()),
                FleetJobState::Claimed => {
                    return self.cancel_at_daemon(id, &record.daemon_id).await;
                }
                FleetJobState::Queued => {
                    let cancelled = cancelled_in_queue(id, &record);
                    match records.update(id, &cancelled, revision).await {
                        Ok(_revision) => return Ok(()),
                        Err(RecordError::Unavailable(error)) => return Err(error.into()),
                        // A daemon has just claimed it.
                        Err(RecordError::Conflict) => {}
                    }
                }
            }
        }
        Ok(())
    }

    async fn cancel_at_daemon(&self, id: &str, daemon_id: &str) -> Result<(), Error> {
        let payload = FleetCancelRequest { job_id: id.to_owned() }.encode_to_vec();
        let request = Request::new().payload(payload.into()).timeout(Some(RESPONSE_TIMEOUT));
        match self.0.client().send_request(cancel_subject(daemon_id), request).await {
            Ok(response) => {
                let response = FleetCancelResponse::decode(response.payload).unwrap_or_default();
                tracing::debug!(job_id = id, daemon_id, response.found, "cancelled a fleet job");
                Ok(())
            }
            Err(error) if is_daemon_error(error.kind()) => {
                let text = format!(
                    "the daemon {daemon_id}, which runs this job, does not answer: cancel again; if the daemon has died, another one ends the job"
                );
                Err(Error::new(Reason::FleetUnavailable, text)
                    .with_metadata("daemon_id", daemon_id)
                    .with_cause(error))
            }
            Err(error) => Err(SourceUnavailable::new(error).into()),
        }
    }
}

impl FleetJobs for NatsJobs {
    fn submit(&self, submission: FleetSubmission) -> BoxFuture<'_, Result<FleetJob, Error>> {
        Box::pin(self.submit_job(submission))
    }

    fn is_unserved<'a>(&'a self, queue: &'a str, workspace: &'a str) -> BoxFuture<'a, bool> {
        Box::pin(self.0.is_unserved(queue, workspace))
    }

    fn find<'a>(&'a self, id: &'a str) -> BoxFuture<'a, Result<Option<FleetJob>, Error>> {
        Box::pin(async move { Ok(self.find_job(id).await?) })
    }

    fn wait<'a>(
        &'a self,
        id: &'a str,
        until: Option<Instant>,
    ) -> BoxFuture<'a, Result<Option<FleetJob>, Error>> {
        Box::pin(self.wait_for_end(id, until))
    }

    fn cancel<'a>(&'a self, id: &'a str) -> BoxFuture<'a, Result<(), Error>> {
        Box::pin(self.cancel_job(id))
    }

    fn load_result(&self, found: FleetJob) -> BoxFuture<'_, Result<Job, Error>> {
        Box::pin(load_result(&self.0, found))
    }

    fn open_artifact<'a>(
        &'a self,
        object: &'a str,
    ) -> BoxFuture<'a, Result<Option<Box<dyn FleetArtifactReader>>, Error>> {
        Box::pin(async move {
            let reader = self.0.artifacts().await?.open(object).await?;
            Ok(reader.map(|reader| Box::new(reader) as Box<dyn FleetArtifactReader>))
        })
    }

    fn watch<'a>(
        &'a self,
        id: &'a str,
        offsets: [u64; 2],
    ) -> BoxFuture<'a, Result<Box<dyn FleetJobEvents>, Error>> {
        Box::pin(async move {
            let watch = FleetJobWatch::new(Arc::clone(&self.0), id.to_owned(), offsets).await?;
            Ok(Box::new(watch) as Box<dyn FleetJobEvents>)
        })
    }
}

/// Returns the part of a new record that its request determines.
fn record_of(request: SubmitJobRequest) -> FleetJobRecord {
    FleetJobRecord {
        tool: request.tool,
        dialect: request.dialect,
        priority: request.priority.unwrap_or_default(),
        retry_if_lost: request.retry_if_lost,
        store_artifacts: request.store_artifacts,
        ..FleetJobRecord::default()
    }
}

/// Requires that a submission with a known request id is a repetition.
fn require_same_submission(existing: &FleetJobRecord, new: &FleetJobRecord) -> Result<(), Error> {
    // The end replaced a damaged record. Of its submission, only the principal is known.
    let is_same_end = existing.state() == FleetJobState::Ended
        && existing.request_sha256.is_empty()
        && existing.principal == new.principal;
    let identity = |record: &FleetJobRecord| {
        let FleetJobRecord { principal, workspace, session, request_sha256, .. } = record.clone();
        (principal, workspace, session, request_sha256)
    };
    if is_same_end || identity(existing) == identity(new) {
        return Ok(());
    }
    let text = "the queue has another job with this jig-request-id: give each job an id of its own";
    Err(Error::new(Reason::RequestIdReused, text))
}

/// Whether a request reached the server, but no daemon responded.
fn is_daemon_error(kind: RequestErrorKind) -> bool {
    match kind {
        RequestErrorKind::TimedOut | RequestErrorKind::NoResponders => true,
        RequestErrorKind::InvalidSubject
        | RequestErrorKind::MaxPayloadExceeded
        | RequestErrorKind::Other => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_repetition_has_the_same_caller_and_request() {
        let record = FleetJobRecord {
            principal: "key:ci".to_owned(),
            workspace: "main".to_owned(),
            request_sha256: vec![1].into(),
            ..FleetJobRecord::default()
        };
        let running = FleetJobRecord {
            state: FleetJobState::Claimed.into(),
            daemon_id: "a".to_owned(),
            ..record.clone()
        };
        assert!(require_same_submission(&running, &record).is_ok());

        let replaced = FleetJobRecord {
            state: FleetJobState::Ended.into(),
            principal: "key:ci".to_owned(),
            ..FleetJobRecord::default()
        };
        assert!(require_same_submission(&replaced, &record).is_ok());

        for other in [
            FleetJobRecord { principal: "key:other".to_owned(), ..replaced },
            FleetJobRecord { principal: "key:other".to_owned(), ..record.clone() },
            FleetJobRecord { workspace: "other".to_owned(), ..record.clone() },
            FleetJobRecord { request_sha256: vec![2].into(), ..record.clone() },
        ] {
            let error = require_same_submission(&other, &record).unwrap_err();
            assert_eq!(error.reason, Reason::RequestIdReused);
        }
    }
}
