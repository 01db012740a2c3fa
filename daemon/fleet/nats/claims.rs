//! Claims the jobs of messages: decides by the record of a job whether this daemon runs it.

use std::{sync::Arc, time::Duration};

use async_nats::jetstream::{self, AckKind};
use sha2::{Digest as _, Sha256};

use super::{
    acknowledgement::{acknowledge, hand_back},
    artifact_objects::ArtifactObjects,
    bucket::{BucketAge, RecordError},
    jobs::JobPublisher,
    liveness::{Heartbeats, Liveness},
    message::{InvalidMessage, JobMessage},
    names::{MESSAGE_ID_HEADER, SIGNATURE_HEADER, parse_job_subject, single_header},
    records::FleetRecords,
    results::FleetResults,
};
use crate::{
    api::v1::{FleetJobRecord, FleetJobState, SubmitJobRequest},
    daemon::{
        config::fleet::FleetQueueConfig,
        error::{Error, Reason},
        fleet::{
            counts::FleetJobEvent,
            failure::{exhausted_error, failed, lost},
            identity::FleetIdentity,
            in_flight::{InFlightClaim, InFlightClaims},
            job_log::{FleetJobFacts, FleetJobLog},
            queued_request::{check_session, decode_request, to_local_request},
            transition::{ClaimDecision, claim_id, claimed, decide, may_run_again},
            work_source::{SourceUnavailable, Work, fleet_job_id},
        },
        pipeline::access::principal::key_principal_name,
    },
};

/// Delay of a message whose job could not be looked up.
const UNAVAILABLE_DELAY: Duration = Duration::from_secs(1);

/// Makes claims for all queues of this daemon.
#[derive(Debug)]
pub(super) struct JobClaims {
    pub(super) records: FleetRecords,
    pub(super) records_age: Arc<BucketAge>,
    pub(super) results: FleetResults,
    pub(super) artifacts: ArtifactObjects,
    pub(super) publisher: JobPublisher,
    pub(super) heartbeats: Heartbeats,
    pub(super) in_flight: Arc<InFlightClaims>,
    pub(super) identity: FleetIdentity,
    pub(super) log: Arc<FleetJobLog>,
    pub(super) max_deliver: u32,
    /// Deliveries of a message that `max_deliver` deaths of daemons can explain.
    pub(super) max_deliveries: u32,
    pub(super) ack_wait: Duration,
    pub(super) result_retention: Duration,
}

/// A message whose job this daemon may claim.
struct ReadMessage {
    id: String,
    message: JobMessage,
    request: SubmitJobRequest,
    /// The record that the job has before its first claim.
    record: FleetJobRecord,
    /// The workspace of this daemon that the job runs in.
    workspace: String,
}

/// A claim that was stored.
struct StoredClaim {
    record: FleetJobRecord,
    revision: u64,
    is_resumed: bool,
}

/// A job that this daemon has claimed.
#[derive(Debug)]
pub(super) struct WonClaim {
    pub(super) work: Work,
    /// The record of the claim, and its revision.
    pub(super) record: FleetJobRecord,
    pub(super) revision: u64,
    pub(super) message: jetstream::Message,
    pub(super) in_flight: InFlightClaim,
}

impl JobClaims {
    /// Claims the job of a message. Returns `None` if there is nothing for this daemon to run; the
    /// message is settled then, or will be delivered again.
    pub(super) async fn claim(
        &self,
        queue: &FleetQueueConfig,
        message: jetstream::Message,
    ) -> Option<WonClaim> {
        if self.heartbeats.is_name_taken() {
            hand_back(&message, UNAVAILABLE_DELAY).await;
            return None;
        }
        let read = match self.read(queue, &message) {
            Ok(read) => read,
            Err(invalid) => {
                self.reject_invalid(queue, &message, *invalid).await;
                return None;
            }
        };
        // A second delivery: the first one keeps the claim, and settles the message.
        let in_flight = self.in_flight.begin(&read.id)?;

        match self.claim_record(&read, &message).await {
            Ok(Some(stored)) => Some(self.build_claim(read, stored, message, in_flight)),
            Ok(None) => None,
            Err(error) => {
                tracing::warn!(%error, job = read.id, "cannot claim a job of the fleet yet");
                hand_back(&message, UNAVAILABLE_DELAY).await;
                None
            }
        }
    }

    /// Reads and checks a message.
    fn read(
        &self,
        queue: &FleetQueueConfig,
        message: &jetstream::Message,
    ) -> Result<ReadMessage, Box<InvalidMessage>> {
        let parsed = JobMessage::parse(&message.message, self.publisher.signing_key())?;
        let invalid = |error| {
            let (queue, request_id) = (parsed.queue.clone(), parsed.request_id.clone());
            let (queue, request_id) = (Some(queue), Some(request_id));
            Box::new(InvalidMessage { queue, request_id, error })
        };

        let request = decode_request(parsed.body.clone(), &queue.name).map_err(invalid)?;
        check_session(parsed.session.as_deref()).map_err(invalid)?;
        let principal = parsed.signed_principal.clone();
        let principal = principal.or_else(|| queue.key.as_deref().map(key_principal_name));
        let Some(principal) = principal else {
            let text = "the queue accepts only jobs with a signature: sign it, or the operator can set `key` in [[fleet.queues]]";
            return Err(invalid(Error::new(Reason::Unauthenticated, text)));
        };
        let workspace = parsed.workspace.clone().or_else(|| queue.workspaces.first().cloned());
        let signature = single_header(message.headers.as_ref(), SIGNATURE_HEADER).ok().flatten();
        let signature = signature.filter(|_| parsed.signed_principal.is_some());

        let record = FleetJobRecord {
            state: FleetJobState::Queued.into(),
            queue: queue.name.clone(),
            workspace: parsed.workspace.clone().unwrap_or_default(),
            request_id: parsed.request_id.clone(),
            tool: request.tool.clone(),
            dialect: request.dialect.clone(),
            principal,
            session: parsed.session.clone().unwrap_or_default(),
            retry_if_lost: request.retry_if_lost,
            store_artifacts: request.store_artifacts,
            submit_time: message.info().ok().map(|info| published_at(&info)),
            request_sha256: Sha256::digest(&parsed.body).to_vec().into(),
            signature_sha256: signature
                .map(|signature| Sha256::digest(signature).to_vec().into())
                .unwrap_or_default(),
            priority: request.priority.unwrap_or_default(),
            ..FleetJobRecord::default()
        };
        Ok(ReadMessage {
            id: fleet_job_id(&queue.name, &parsed.request_id),
            request: to_local_request(request, &queue.name),
            record,
            workspace: workspace.unwrap_or_default(),
            message: parsed,
        })
    }

    /// Claims a job in its record. Returns `None` if another daemon has it, or none is to run it.
    async fn claim_record(
        &self,
        read: &ReadMessage,
        message: &jetstream::Message,
    ) -> Result<Option<StoredClaim>, SourceUnavailable> {
        loop {
            let found = self.records.get(&read.id).await?;
            if found.is_none() && self.may_lack_record(read, message).await? {
                hand_back(message, self.ack_wait / 2).await;
                return Ok(None);
            }
            let (record, revision) = match &found {
                Some((record, revision)) => (record, Some(*revision)),
                None => (&read.record, None),
            };

            let stored = found.as_ref().map(|(record, _)| record);
            let decision = decide(stored, &read.record, &self.identity.daemon_id, self.max_deliver);
            let next = match decision {
                ClaimDecision::Claim => claimed(record, &self.identity, &read.workspace),
                ClaimDecision::Resume => {
                    return Ok(revision.map(|revision| StoredClaim {
                        record: record.clone(),
                        revision,
                        is_resumed: true,
                    }));
                }
                ClaimDecision::Ended => {
                    acknowledge(message, AckKind::Ack).await;
                    return Ok(None);
                }
                ClaimDecision::Conflict => {
                    let text =
                        "another job of this queue had the same request id: give each job its own";
                    let error = Error::new(Reason::RequestIdReused, text);
                    self.bury(&read.record.queue, None, message, &error).await?;
                    let facts = FleetJobFacts::of_record(&read.id, &read.record);
                    let facts = FleetJobFacts { reason: Some(error.reason), ..facts };
                    self.log.report(FleetJobEvent::Rejected, facts);
                    return Ok(None);
                }
                ClaimDecision::Exhausted => {
                    let error = exhausted_error(record.attempts);
                    self.publish_dead_letter(read, message, &error).await?;
                    lost(&read.id, record)
                }
                ClaimDecision::CheckOwner => {
                    match self.heartbeats.liveness(&record.daemon_id).await? {
                        Liveness::Alive | Liveness::Unknown => {
                            hand_back(message, self.ack_wait / 2).await;
                            return Ok(None);
                        }
                        Liveness::Dead => self.take_over(read, record, message).await?,
                    }
                }
            };

            match self.store(&read.id, &next, revision).await {
                Ok(_) if next.state() == FleetJobState::Ended => {
                    self.log.report_end(&read.id, &next, Some(Reason::DaemonLost));
                    acknowledge(message, AckKind::Ack).await;
                    return Ok(None);
                }
                Ok(revision) => {
                    return Ok(Some(StoredClaim { record: next, revision, is_resumed: false }));
                }
                // Another daemon was faster: its record decides.
                Err(RecordError::Conflict) => {}
                Err(RecordError::Unavailable(error)) => return Err(error),
            }
        }
    }

    /// Whether the bucket of records may lack that of a job that runs: it was deleted and made again after
    /// the job was published, and daemons are storing the records of their claims again.
    async fn may_lack_record(
        &self,
        read: &ReadMessage,
        message: &jetstream::Message,
    ) -> Result<bool, SourceUnavailable> {
        let info = message.info().map_err(SourceUnavailable::new)?;
        // The first message of a job is hardly ever delivered again while its daemon lives.
        let message_id = single_header(message.headers.as_ref(), MESSAGE_ID_HEADER);
        if message_id == Ok(Some(&read.record.request_id)) {
            return Ok(false);
        }
        self.records_age.update().await?;
        let wait = self.heartbeats.lost_after + self.ack_wait;
        Ok(self.records_age.is_newer(info.published.unix_timestamp_nanos(), wait))
    }

    /// Returns the record that a job gets whose daemon is dead: a claim of this daemon, or its end.
    async fn take_over(
        &self,
        read: &ReadMessage,
        record: &FleetJobRecord,
        message: &jetstream::Message,
    ) -> Result<FleetJobRecord, SourceUnavailable> {
        let runs_again = may_run_again(record, self.max_deliver);
        tracing::warn!(
            job = read.id,
            daemon = record.daemon_id,
            attempts = record.attempts,
            runs_again,
            "the daemon of a fleet job is dead"
        );
        if runs_again {
            return Ok(claimed(record, &self.identity, &read.workspace));
        }

        if record.retry_if_lost {
            let error = exhausted_error(record.attempts);
            self.publish_dead_letter(read, message, &error).await?;
        }
        Ok(lost(&read.id, record))
    }

    async fn publish_dead_letter(
        &self,
        read: &ReadMessage,
        message: &jetstream::Message,
        error: &Error,
    ) -> Result<(), SourceUnavailable> {
        let (queue, id) = (&read.record.queue, Some(read.id.as_str()));
        self.publisher.publish_dead_letter(queue, id, message, error).await
    }

    /// Stores a record in place of that of `revision`, or as the first one.
    pub(super) async fn store(
        &self,
        id: &str,
        record: &FleetJobRecord,
        revision: Option<u64>,
    ) -> Result<u64, RecordError> {
        match revision {
            Some(revision) => self.records.update(id, record, revision).await,
            None => self.records.create(id, record).await,
        }
    }

    fn build_claim(
        &self,
        read: ReadMessage,
        stored: StoredClaim,
        message: jetstream::Message,
        in_flight: InFlightClaim,
    ) -> WonClaim {
        let StoredClaim { record, revision, is_resumed } = stored;
        let work = Work {
            id: read.id,
            queue: record.queue.clone(),
            workspace: read.workspace,
            principal: record.principal.clone(),
            session: read.message.session,
            traceparent: read.message.traceparent,
            claim_id: claim_id(&record),
            resumed_from: is_resumed.then(|| record.start_id.clone()),
            is_cancelled: false,
            is_rate_counted: read.message.signed_principal.is_some(),
            request: read.request,
        };
        WonClaim { work, record, revision, message, in_flight }
    }

    /// Rejects a message whose job cannot be claimed. Its job fails, unless it has a record already:
    /// a forged message must not end the job of another caller.
    async fn reject_invalid(
        &self,
        queue: &FleetQueueConfig,
        message: &jetstream::Message,
        invalid: InvalidMessage,
    ) {
        let InvalidMessage { queue: named, request_id, error } = invalid;
        tracing::warn!(
            %error,
            reason = error.reason.name(),
            queue = queue.name,
            request_id,
            "rejected a message of the fleet"
        );
        let queue_name = named.as_deref().unwrap_or(&queue.name);
        let id = request_id.as_ref().map(|id| fleet_job_id(queue_name, id));
        if let (Some(id), Some(request_id)) = (&id, &request_id) {
            let subject = parse_job_subject(&message.subject);
            let workspace = subject.and_then(|(_queue, workspace)| workspace);
            let record = FleetJobRecord {
                queue: queue_name.to_owned(),
                workspace: workspace.unwrap_or_default().to_owned(),
                request_id: request_id.clone(),
                submit_time: message.info().ok().map(|info| published_at(&info)),
                request_sha256: Sha256::digest(&message.payload).to_vec().into(),
                ..FleetJobRecord::default()
            };
            let failed = failed(id, &record, &error);
            let stored = match self.records.create(id, &failed).await {
                Ok(_) => Ok(true),
                Err(RecordError::Conflict) => self.reject_published(id, message, &error).await,
                Err(RecordError::Unavailable(error)) => Err(error),
            };
            match stored {
                Ok(true) => {}
                Ok(false) => return hand_back(message, self.ack_wait / 2).await,
                Err(error) => {
                    tracing::warn!(%error, job = id, "cannot store that a job was rejected yet");
                    return hand_back(message, UNAVAILABLE_DELAY).await;
                }
            }
        }
        if let Err(error) = self.bury(queue_name, id.as_deref(), message, &error).await {
            tracing::warn!(%error, "cannot publish a dead letter yet");
            return hand_back(message, UNAVAILABLE_DELAY).await;
        }
        // Its principal is a claim that nothing has proved.
        let facts = FleetJobFacts {
            queue: queue_name,
            id: id.as_deref().unwrap_or_default(),
            request_id: request_id.as_deref().unwrap_or_default(),
            reason: Some(error.reason),
            ..FleetJobFacts::default()
        };
        self.log.report(FleetJobEvent::Rejected, facts);
    }

    /// Publishes the dead letter of a message whose headers cannot be read, so its job has no id.
    pub(super) async fn reject_unreadable(
        &self,
        queue: &FleetQueueConfig,
        message: &jetstream::Message,
    ) -> Result<(), SourceUnavailable> {
        let text = "cannot be read: give lines of UTF-8 text, NAME: VALUE, without a carriage return in a value";
        let error = Error::invalid_field("headers", text);
        tracing::warn!(%error, queue = queue.name, "rejected a message of the fleet");
        self.publisher.publish_dead_letter(&queue.name, None, message, &error).await?;
        let facts = FleetJobFacts {
            queue: &queue.name,
            reason: Some(error.reason),
            ..FleetJobFacts::default()
        };
        self.log.report(FleetJobEvent::Rejected, facts);
        Ok(())
    }

    /// Decides about a message whose job has a record already. Returns false if it is the one that a
    /// daemon has published: this daemon has another key, so another one may run the job. After as
    /// many attempts as deaths can explain, the job fails.
    async fn reject_published(
        &self,
        id: &str,
        message: &jetstream::Message,
        error: &Error,
    ) -> Result<bool, SourceUnavailable> {
        let Some((record, revision)) = self.records.get(id).await? else { return Ok(true) };
        let signature = single_header(message.headers.as_ref(), SIGNATURE_HEADER);
        let is_published = signature.is_ok_and(|signature| {
            signature.is_some_and(|text| *Sha256::digest(text) == *record.signature_sha256)
        });
        if !is_published {
            return Ok(true);
        }

        tracing::error!(
            job = id,
            "cannot verify a job that another daemon has published: give all daemons of the fleet the same fleet.signing_key_file"
        );
        let deliveries = message.info().map_or(1, |info| info.delivered);
        let state = record.state();
        // The daemon that has claimed the job settles its messages.
        if deliveries <= i64::from(self.max_deliveries) || state == FleetJobState::Claimed {
            return Ok(false);
        }
        if state != FleetJobState::Queued {
            return Ok(true);
        }
        match self.records.update(id, &failed(id, &record, error), revision).await {
            Ok(_) => Ok(true),
            Err(RecordError::Conflict) => Ok(false),
            Err(RecordError::Unavailable(error)) => Err(error),
        }
    }

    /// Moves a message to the dead letters.
    pub(super) async fn bury(
        &self,
        queue: &str,
        id: Option<&str>,
        message: &jetstream::Message,
        error: &Error,
    ) -> Result<(), SourceUnavailable> {
        self.publisher.publish_dead_letter(queue, id, message, error).await?;
        acknowledge(message, AckKind::Term).await;
        Ok(())
    }
}

fn published_at(info: &jetstream::message::Info<'_>) -> prost_types::Timestamp {
    let nanos = info.published.unix_timestamp_nanos();
    prost_types::Timestamp {
        seconds: i64::try_from(nanos.div_euclid(1_000_000_000)).unwrap_or_default(),
        nanos: i32::try_from(nanos.rem_euclid(1_000_000_000)).unwrap_or_default(),
    }
}
