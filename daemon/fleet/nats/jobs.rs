//! Publishing: jobs, and the dead letters of jobs that no daemon runs.

use async_nats::{
    HeaderMap,
    jetstream::{self, context::PublishErrorKind, publish::PublishAck},
};
use bytes::Bytes;
use ulid::Ulid;

use super::{
    dead_letter::{build_headers, copied_headers, without_body},
    names::{
        MESSAGE_ID_HEADER, PRINCIPAL_HEADER, REQUEST_ID_HEADER, SESSION_HEADER, SIGNATURE_HEADER,
        TRACEPARENT_HEADER, dead_letter_subject, job_subject,
    },
    signature::{SignedParts, SigningKey},
};
use crate::daemon::{
    error::Error,
    fleet::work_source::{SourceUnavailable, fleet_job_id},
};

/// Publishes to the streams of the fleet.
#[derive(Debug, Clone)]
pub(crate) struct JobPublisher {
    jetstream: jetstream::Context,
    signing_key: Option<SigningKey>,
}

/// A job to publish, with the principal that this daemon has authenticated.
#[derive(Debug, Clone)]
pub(crate) struct OutgoingJob<'a> {
    pub(crate) queue: &'a str,
    pub(crate) workspace: &'a str,
    pub(crate) request_id: &'a str,
    pub(crate) principal: &'a str,
    pub(crate) session: &'a str,
    /// Empty without one.
    pub(crate) traceparent: &'a str,
    /// The encoded `SubmitJobRequest`.
    pub(crate) body: Bytes,
}

/// Why a job was not published.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PublishJobError {
    #[error("this daemon has no fleet.signing_key_file, so it cannot publish jobs")]
    NoSigningKey,
    #[error("the job is larger than a message of the fleet's server may be")]
    TooLarge,
    /// Unknown: the job may have been stored.
    #[error(transparent)]
    Unavailable(#[from] SourceUnavailable),
}

impl JobPublisher {
    pub(super) fn new(jetstream: jetstream::Context, signing_key: Option<SigningKey>) -> Self {
        Self { jetstream, signing_key }
    }

    pub(super) fn signing_key(&self) -> Option<&SigningKey> {
        self.signing_key.as_ref()
    }

    /// Returns the signature of the message of a job.
    pub(crate) fn sign(&self, job: &OutgoingJob<'_>) -> Result<String, PublishJobError> {
        let key = self.signing_key.as_ref().ok_or(PublishJobError::NoSigningKey)?;
        Ok(key.sign(SignedParts {
            subject: &job_subject(job.queue, Some(job.workspace)),
            request_id: job.request_id,
            principal: job.principal,
            session: job.session,
            body: &job.body,
        }))
    }

    /// Publishes a job with its signature, and waits until the stream has stored it.
    ///
    /// The stream drops a message as a duplicate of one with the same `Nats-Msg-Id`, also if that one
    /// is of another queue, of another program, or gone. So this one is published again, with another
    /// id, unless the stream has it. A job that is published twice runs once: its record decides.
    pub(crate) async fn publish(
        &self,
        job: &OutgoingJob<'_>,
        signature: &str,
    ) -> Result<(), PublishJobError> {
        let subject = job_subject(job.queue, Some(job.workspace));
        let mut headers = HeaderMap::new();
        headers.insert(REQUEST_ID_HEADER, job.request_id);
        headers.insert(PRINCIPAL_HEADER, job.principal);
        headers.insert(SIGNATURE_HEADER, signature);
        if !job.session.is_empty() {
            headers.insert(SESSION_HEADER, job.session);
        }
        if !job.traceparent.is_empty() {
            headers.insert(TRACEPARENT_HEADER, job.traceparent);
        }
        let message_ids = [
            job.request_id.to_owned(),
            fleet_job_id(job.queue, job.request_id),
            Ulid::generate().to_string(),
        ];
        for message_id in message_ids {
            headers.insert(MESSAGE_ID_HEADER, message_id);
            let body = job.body.clone();
            let stored = self.publish_message(subject.clone(), headers.clone(), body).await?;
            if !stored.duplicate || self.has_message(&stored, &subject, signature).await {
                break;
            }
        }
        Ok(())
    }

    /// Publishes the message of a job once more, with another `Nats-Msg-Id`.
    pub(super) async fn publish_again(
        &self,
        message: &jetstream::Message,
    ) -> Result<(), PublishJobError> {
        let mut headers = copied_headers(message.headers.as_ref());
        headers.insert(MESSAGE_ID_HEADER, Ulid::generate().to_string());
        let (subject, body) = (message.subject.to_string(), message.payload.clone());
        self.publish_message(subject, headers, body).await?;
        Ok(())
    }

    /// Whether the stream has a message with this signature. It has none if it cannot say.
    async fn has_message(&self, stored: &PublishAck, subject: &str, signature: &str) -> bool {
        let Ok(stream) = self.jetstream.get_stream_no_info(&stored.stream).await else {
            return false;
        };
        let found = stream.get_raw_message(stored.sequence).await;
        found.is_ok_and(|found| {
            let stored = found.headers.get(SIGNATURE_HEADER);
            found.subject.as_str() == subject
                && stored.is_some_and(|stored| stored.as_str() == signature)
        })
    }

    /// Publishes the message of a job that no daemon runs. `id` identifies the job, if it has an id.
    pub(super) async fn publish_dead_letter(
        &self,
        queue: &str,
        id: Option<&str>,
        message: &jetstream::Message,
        error: &Error,
    ) -> Result<(), SourceUnavailable> {
        let headers = build_headers(id, message, error);
        let subject = dead_letter_subject(queue);
        let body = message.payload.clone();
        let stored = self.publish_message(subject.clone(), headers.clone(), body).await;
        let stored = match stored {
            // With its headers it is larger than the job was.
            Err(PublishJobError::TooLarge) => {
                self.publish_message(subject, without_body(headers), Bytes::new()).await
            }
            stored => stored,
        };
        match stored {
            Ok(_) => Ok(()),
            // The record of the job has the error.
            Err(PublishJobError::TooLarge | PublishJobError::NoSigningKey) => Ok(()),
            Err(PublishJobError::Unavailable(error)) => Err(error),
        }
    }

    /// Publishes a message, and waits until its stream has stored it.
    async fn publish_message(
        &self,
        subject: String,
        headers: HeaderMap,
        body: Bytes,
    ) -> Result<PublishAck, PublishJobError> {
        let publishing = self.jetstream.publish_with_headers(subject, headers, body).await;
        let acknowledged = match publishing {
            Ok(acknowledgement) => acknowledgement.await,
            Err(error) => Err(error),
        };
        match acknowledged {
            Ok(acknowledgement) => Ok(acknowledgement),
            Err(error) if error.kind() == PublishErrorKind::MaxPayloadExceeded => {
                Err(PublishJobError::TooLarge)
            }
            Err(error) => Err(SourceUnavailable::new(error).into()),
        }
    }
}

impl From<PublishJobError> for Error {
    fn from(error: PublishJobError) -> Self {
        match error {
            PublishJobError::NoSigningKey => Self::invalid_field("fleet", error.to_string()),
            PublishJobError::TooLarge => Self::invalid_field("params", error.to_string()),
            PublishJobError::Unavailable(error) => error.into(),
        }
    }
}
