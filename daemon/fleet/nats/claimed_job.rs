//! A job of the NATS queue that this daemon has claimed.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant, SystemTime},
};

use async_nats::jetstream::{self, AckKind};
use tokio_util::sync::CancellationToken;

use super::{
    acknowledgement::acknowledge,
    bucket::RecordError,
    claims::{JobClaims, WonClaim},
    jobs::PublishJobError,
};
use crate::{
    api::v1::{FleetJobRecord, FleetJobState, JobState},
    daemon::{
        error::Error,
        fleet::{
            backoff::{Backoff, retry},
            failure::{exhausted_error, failed},
            in_flight::InFlightClaim,
            transition::{ended, is_claim_of, requeued},
            work_source::{
                ClaimedWork, FinishOutcome, JobEnd, Progress, ReleaseReason, SourceUnavailable,
                Work,
            },
        },
        task::BoxFuture,
    },
};

/// Part of the time for an acknowledgement after which the claim is renewed.
const PROGRESS_FRACTION: u32 = 3;

#[derive(Debug)]
pub(super) struct NatsClaim {
    claims: Arc<JobClaims>,
    work: Work,
    /// The record of the claim, and its revision.
    record: FleetJobRecord,
    revision: u64,
    stored: Mutex<StoredParts>,
    message: jetstream::Message,
    _in_flight: InFlightClaim,
}

/// What the server has of a claim. It drops what is older than the retention.
#[derive(Debug, Clone, Copy)]
struct StoredParts {
    /// When the record was stored last. `None` if that is unknown.
    record: Option<Instant>,
    /// When the message was published last.
    message: Option<Instant>,
    /// The last heartbeat of this daemon when it kept the claim last.
    kept: Instant,
    /// Whether the record is no longer that of the claim.
    is_superseded: bool,
}

/// What a record has become when this daemon wanted to replace its claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Replaced {
    /// It is the new record of this daemon.
    Stored,
    /// It is the end that another daemon has stored.
    EndedElsewhere,
    /// Another daemon has claimed the job.
    ClaimedElsewhere,
    /// The server did not answer until the daemon stopped.
    Unknown,
}

impl NatsClaim {
    pub(super) fn new(claims: Arc<JobClaims>, claim: WonClaim) -> Self {
        let WonClaim { work, record, revision, message, in_flight } = claim;
        let is_new = work.resumed_from.is_none();
        let stored = Mutex::new(StoredParts {
            record: is_new.then(Instant::now),
            message: published_at(&message),
            kept: Instant::now(),
            is_superseded: false,
        });
        Self { claims, work, record, revision, stored, message, _in_flight: in_flight }
    }

    async fn finish_job(&self, end: JobEnd, stop: &CancellationToken) -> FinishOutcome {
        let is_lost = end.job.state() == JobState::Lost;
        if end.runs_again(&self.record, self.claims.max_deliver) {
            return self.requeue(self.record.attempts, Duration::ZERO, stop).await;
        }

        if is_lost && self.record.retry_if_lost {
            let error = exhausted_error(self.record.attempts);
            if !self.publish_dead_letter(&error, stop).await {
                return FinishOutcome::Unknown;
            }
        }
        let mut record = ended(&self.work.id, &self.record, end.job.clone());
        if !self.claims.store_artifacts(&self.work.id, &end, &mut record, stop).await {
            return FinishOutcome::Unknown;
        }
        self.end(record, AckKind::Ack, stop).await
    }

    /// Stores the end of the job, and settles its message.
    async fn end(
        &self,
        mut record: FleetJobRecord,
        kind: AckKind,
        stop: &CancellationToken,
    ) -> FinishOutcome {
        let mut backoff = Backoff::default();
        while let Err(error) = self.claims.results.detach_large(&self.work.id, &mut record).await {
            tracing::warn!(%error, job = self.work.id, "cannot store the result of a fleet job yet");
            if !backoff.wait(stop).await {
                return FinishOutcome::Unknown;
            }
        }

        match self.replace_claim(&record, stop).await {
            Replaced::Stored => {
                acknowledge(&self.message, kind).await;
                FinishOutcome::Stored
            }
            Replaced::EndedElsewhere => {
                acknowledge(&self.message, kind).await;
                FinishOutcome::Superseded
            }
            Replaced::ClaimedElsewhere => FinishOutcome::Superseded,
            Replaced::Unknown => FinishOutcome::Unknown,
        }
    }

    /// Puts the job into the queue again. `attempts` are those that count.
    async fn requeue(
        &self,
        attempts: u32,
        delay: Duration,
        stop: &CancellationToken,
    ) -> FinishOutcome {
        match self.replace_claim(&requeued(&self.record, attempts), stop).await {
            Replaced::Stored => {
                acknowledge(&self.message, AckKind::Nak(Some(delay))).await;
                FinishOutcome::Requeued
            }
            Replaced::EndedElsewhere => {
                acknowledge(&self.message, AckKind::Ack).await;
                FinishOutcome::Superseded
            }
            Replaced::ClaimedElsewhere => FinishOutcome::Superseded,
            Replaced::Unknown => FinishOutcome::Unknown,
        }
    }

    /// Replaces the record of the claim, until the server has answered or `stop` is cancelled.
    async fn replace_claim(&self, record: &FleetJobRecord, stop: &CancellationToken) -> Replaced {
        let what = "store the state of a fleet job";
        let replaced = retry(stop, &self.work.id, what, || self.try_replace_claim(record)).await;
        replaced.unwrap_or(Replaced::Unknown)
    }

    async fn try_replace_claim(
        &self,
        record: &FleetJobRecord,
    ) -> Result<Replaced, SourceUnavailable> {
        let id = &self.work.id;
        let mut revision = Some(self.revision);
        loop {
            match self.claims.store(id, record, revision).await {
                Ok(_) => return Ok(Replaced::Stored),
                Err(RecordError::Unavailable(error)) => return Err(error),
                Err(RecordError::Conflict) => {}
            }
            // Older than the bucket stores records, or deleted.
            let Some((found, found_revision)) = self.claims.records.read(id).await? else {
                revision = None;
                continue;
            };
            let Ok(found) = found else {
                tracing::warn!(job = id, "replacing a damaged record of a fleet job");
                revision = Some(found_revision);
                continue;
            };
            // An earlier attempt was stored, and its acknowledgement was lost.
            if found == *record {
                return Ok(Replaced::Stored);
            }
            if self.is_own_claim(&found) {
                revision = Some(found_revision);
            } else if found.state() == FleetJobState::Ended {
                tracing::warn!(
                    job = id,
                    daemon = found.daemon_id,
                    "another daemon has ended a fleet job: the result of this one is dropped"
                );
                return Ok(Replaced::EndedElsewhere);
            } else {
                tracing::warn!(
                    job = id,
                    daemon = found.daemon_id,
                    "another daemon has taken a fleet job over: the result of this one is dropped"
                );
                return Ok(Replaced::ClaimedElsewhere);
            }
        }
    }

    /// Changes the record of the claim, if this daemon has it still. One that is damaged, or that was
    /// deleted with its bucket, becomes that of the claim. Returns false if it has changed meanwhile.
    async fn change_record(
        &self,
        change: impl FnOnce(&mut FleetJobRecord),
    ) -> Result<bool, SourceUnavailable> {
        let id = &self.work.id;
        let (mut record, revision) = match self.claims.records.read(id).await? {
            Some((Ok(found), revision)) if self.is_own_claim(&found) => (found, Some(revision)),
            Some((Ok(_other), _)) => {
                self.stored().is_superseded = true;
                return Ok(true);
            }
            Some((Err(_damaged), revision)) => (self.record.clone(), Some(revision)),
            None => (self.record.clone(), None),
        };
        change(&mut record);
        match self.claims.store(id, &record, revision).await {
            Ok(_) => {
                self.stored().record = Some(Instant::now());
                Ok(true)
            }
            Err(RecordError::Conflict) => Ok(false),
            Err(RecordError::Unavailable(error)) => Err(error),
        }
    }

    /// Stores the record and the message of a job that still runs again, before the server drops them.
    /// Returns false if this daemon no longer has the claim.
    async fn renew_stored(&self) -> Result<bool, SourceUnavailable> {
        let is_old = |stored: Option<Instant>| {
            stored.is_none_or(|stored| stored.elapsed() >= self.claims.result_retention / 2)
        };
        let StoredParts { record, message, kept, .. } = *self.stored();
        let JobClaims { heartbeats, records_age, .. } = &*self.claims;
        // Others may have taken this daemon for dead.
        let was_absent = kept.elapsed() >= heartbeats.lost_after;
        let last_heartbeat = *heartbeats.last.borrow();
        // An older one was in a bucket that was deleted.
        let must_store = was_absent || is_old(record) || record < Some(records_age.known_since());
        if must_store && !self.change_record(|_same| {}).await? {
            // The next call looks again.
            return Ok(true);
        }
        if self.stored().is_superseded {
            return Ok(false);
        }
        self.stored().kept = last_heartbeat.unwrap_or(kept);
        if is_old(message) {
            self.publish_again().await;
        }
        Ok(true)
    }

    /// Publishes the message once more. If this daemon dies, others get it. Until then, its record says
    /// that the job is claimed.
    async fn publish_again(&self) {
        match self.claims.publisher.publish_again(&self.message).await {
            Ok(()) | Err(PublishJobError::NoSigningKey) => {}
            // It has more headers than the first one.
            Err(error @ PublishJobError::TooLarge) => {
                tracing::warn!(%error, job = self.work.id, "no other daemon can take a job over");
            }
            Err(PublishJobError::Unavailable(error)) => {
                tracing::warn!(%error, job = self.work.id, "cannot publish an old job again yet");
                return;
            }
        }
        self.stored().message = Some(Instant::now());
    }

    fn stored(&self) -> MutexGuard<'_, StoredParts> {
        self.stored.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_own_claim(&self, record: &FleetJobRecord) -> bool {
        is_claim_of(record, &self.claims.identity.daemon_id, &self.work.claim_id)
    }

    async fn reject_job(&self, error: &Error, stop: &CancellationToken) -> FinishOutcome {
        if !self.publish_dead_letter(error, stop).await {
            return FinishOutcome::Unknown;
        }
        self.end(failed(&self.work.id, &self.record, error), AckKind::Term, stop).await
    }

    /// Publishes the message as a dead letter. Returns false if `stop` is cancelled first.
    async fn publish_dead_letter(&self, error: &Error, stop: &CancellationToken) -> bool {
        let (queue, id) = (&self.work.queue, &self.work.id);
        let publisher = &self.claims.publisher;
        let publish = || publisher.publish_dead_letter(queue, Some(id), &self.message, error);
        retry(stop, id, "publish a dead letter", publish).await.is_some()
    }
}

impl ClaimedWork for NatsClaim {
    fn work(&self) -> &Work {
        &self.work
    }

    fn progress_interval(&self) -> Duration {
        self.claims.ack_wait / PROGRESS_FRACTION
    }

    fn progress(&self) -> BoxFuture<'_, Result<Progress, SourceUnavailable>> {
        Box::pin(async {
            let sent = self.message.ack_with(AckKind::Progress).await;
            sent.map_err(SourceUnavailable::new)?;
            let is_kept = self.renew_stored().await?;
            Ok(if is_kept { Progress::Kept } else { Progress::ClaimLost })
        })
    }

    fn show_approval<'a>(
        &'a self,
        approval_id: &'a str,
    ) -> BoxFuture<'a, Result<(), SourceUnavailable>> {
        Box::pin(async move {
            let show =
                |record: &mut FleetJobRecord| approval_id.clone_into(&mut record.approval_id);
            self.change_record(show).await.map(|_is_stored| ())
        })
    }

    fn finish<'a>(
        &'a self,
        end: JobEnd,
        stop: &'a CancellationToken,
    ) -> BoxFuture<'a, FinishOutcome> {
        Box::pin(self.finish_job(end, stop))
    }

    fn release<'a>(
        &'a self,
        reason: ReleaseReason,
        delay: Duration,
        stop: &'a CancellationToken,
    ) -> BoxFuture<'a, FinishOutcome> {
        let attempts = reason.counted_attempts(self.record.attempts);
        Box::pin(self.requeue(attempts, delay, stop))
    }

    fn reject<'a>(
        &'a self,
        error: &'a Error,
        stop: &'a CancellationToken,
    ) -> BoxFuture<'a, FinishOutcome> {
        Box::pin(self.reject_job(error, stop))
    }
}

/// When the stream stored a message, as far as the clocks of server and daemon agree. `None` if that is
/// unknown.
fn published_at(message: &jetstream::Message) -> Option<Instant> {
    let published = message.info().ok()?.published.unix_timestamp_nanos();
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).ok()?;
    let age = i128::try_from(now.as_nanos()).ok()? - published;
    Instant::now().checked_sub(Duration::from_nanos(u64::try_from(age).unwrap_or_default()))
}
