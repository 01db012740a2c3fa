//! Publishing: jobs, and the dead letters of jobs that no daemon runs.

use async_nats::{
    HeaderMap,
    jetstream::{self, context::PublishErrorKind},
};
use bytes::Bytes;

use super::{
    names::{
        DEAD_LETTER_MESSAGE_HEADER, DEAD_LETTER_REASON_HEADER, DEAD_LETTER_SUBJECT_HEADER,
        PRINCIPAL_HEADER, REQUEST_ID_HEADER, SESSION_HEADER, SIGNATURE_HEADER, TRACEPARENT_HEADER,
        dead_letter_subject, job_subject,
    },
    signature::{SignedParts, SigningKey},
};
use crate::daemon::{error::Error, fleet::work_source::SourceUnavailable};

/// Bytes of the message of a dead letter that are published.
const MAX_DEAD_LETTER_MESSAGE_BYTES: usize = 1024;

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

/// A job that the stream has stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PublishedJob {
    /// Whether the stream had a message with this request id, and dropped this one.
    pub(crate) is_duplicate: bool,
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

    /// Publishes a job, and waits until the stream has stored it.
    pub(crate) async fn publish(
        &self,
        job: &OutgoingJob<'_>,
    ) -> Result<PublishedJob, PublishJobError> {
        let subject = job_subject(job.queue, Some(job.workspace));
        let signature = self.sign(job)?;
        let mut headers = HeaderMap::new();
        headers.insert(REQUEST_ID_HEADER, job.request_id);
        headers.insert(PRINCIPAL_HEADER, job.principal);
        headers.insert(SIGNATURE_HEADER, signature.as_str());
        if !job.session.is_empty() {
            headers.insert(SESSION_HEADER, job.session);
        }
        if !job.traceparent.is_empty() {
            headers.insert(TRACEPARENT_HEADER, job.traceparent);
        }
        let is_duplicate = self.publish_message(subject, headers, job.body.clone()).await?;
        Ok(PublishedJob { is_duplicate })
    }

    /// Publishes the message of a job that no daemon runs. `id` identifies the job, if it has an id.
    pub(super) async fn publish_dead_letter(
        &self,
        queue: &str,
        id: Option<&str>,
        message: &async_nats::Message,
        error: &Error,
    ) -> Result<(), SourceUnavailable> {
        let text = error.to_string();
        let length = text.floor_char_boundary(MAX_DEAD_LETTER_MESSAGE_BYTES);
        let mut headers = HeaderMap::new();
        // A repetition after a lost acknowledgement is the same dead letter.
        if let Some(id) = id {
            headers.insert(REQUEST_ID_HEADER, id);
        }
        headers.insert(DEAD_LETTER_REASON_HEADER, error.reason.name());
        headers.insert(DEAD_LETTER_MESSAGE_HEADER, text[..length].replace(['\r', '\n'], " "));
        headers.insert(DEAD_LETTER_SUBJECT_HEADER, message.subject.as_str());

        let subject = dead_letter_subject(queue);
        match self.publish_message(subject, headers, message.payload.clone()).await {
            Ok(_is_duplicate) => Ok(()),
            // With its headers it is larger than the job was. Its record has the error.
            Err(PublishJobError::TooLarge | PublishJobError::NoSigningKey) => Ok(()),
            Err(PublishJobError::Unavailable(error)) => Err(error),
        }
    }

    /// Publishes a message, and waits until its stream has stored it. Returns whether the stream had
    /// it before.
    async fn publish_message(
        &self,
        subject: String,
        headers: HeaderMap,
        body: Bytes,
    ) -> Result<bool, PublishJobError> {
        let publishing = self.jetstream.publish_with_headers(subject, headers, body).await;
        let acknowledged = match publishing {
            Ok(acknowledgement) => acknowledgement.await,
            Err(error) => Err(error),
        };
        match acknowledged {
            Ok(acknowledgement) => Ok(acknowledgement.duplicate),
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
