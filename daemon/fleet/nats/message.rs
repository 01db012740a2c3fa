//! Messages of the job stream: what they say, and whose rights the job has.

use async_nats::HeaderMap;
use bytes::Bytes;

use super::{
    names::{
        MESSAGE_ID_HEADER, PRINCIPAL_HEADER, REQUEST_ID_HEADER, SESSION_HEADER, SIGNATURE_HEADER,
        TRACEPARENT_HEADER, parse_job_subject, single_header,
    },
    signature::{SignedParts, SigningKey},
};
use crate::daemon::{
    error::{Error, Reason, Violation},
    pipeline::context::MAX_REQUEST_ID_CHARS,
};

/// A job as its message describes it. The body is not decoded yet.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct JobMessage {
    pub(super) queue: String,
    /// `None` for the first workspace of each daemon.
    pub(super) workspace: Option<String>,
    pub(super) request_id: String,
    pub(super) session: Option<String>,
    pub(super) traceparent: Option<String>,
    /// The principal that a daemon has authenticated and signed. `None` without a signature.
    pub(super) signed_principal: Option<String>,
    pub(super) body: Bytes,
}

/// Why a message is not accepted.
#[derive(Debug)]
pub(super) struct InvalidMessage {
    /// Queue of its subject, if there is one.
    pub(super) queue: Option<String>,
    /// Its request id, if it has a valid one.
    pub(super) request_id: Option<String>,
    pub(super) error: Error,
}

impl JobMessage {
    /// Reads a message, and checks its signature. `signing_key` is that of this fleet, if it has one.
    ///
    /// A message that names a principal without a valid signature is invalid: it does not get the
    /// rights of its queue instead.
    pub(super) fn parse(
        message: &async_nats::Message,
        signing_key: Option<&SigningKey>,
    ) -> Result<Self, Box<InvalidMessage>> {
        let subject = message.subject.as_str();
        let Some((queue, workspace)) = parse_job_subject(subject) else {
            let error = Error::invalid_field("subject", "must be jig.jobs.QUEUE[.WORKSPACE]");
            return Err(Box::new(InvalidMessage { queue: None, request_id: None, error }));
        };
        let headers = message.headers.as_ref();
        let queue = queue.to_owned();
        let request_id = parse_request_id(headers).map_err(|error| InvalidMessage {
            queue: Some(queue.clone()),
            request_id: None,
            error,
        })?;
        let invalid = |error| {
            let (queue, request_id) = (Some(queue.clone()), Some(request_id.clone()));
            Box::new(InvalidMessage { queue, request_id, error })
        };

        let header = |name| {
            single_header(headers, name)
                .map_err(|problem| invalid(Error::invalid_field(name, problem)))
        };
        let session = header(SESSION_HEADER)?;
        let traceparent = header(TRACEPARENT_HEADER)?;
        let principal = header(PRINCIPAL_HEADER)?;
        let signature = header(SIGNATURE_HEADER)?;

        let signed_principal = match (principal, signature) {
            (None, None) => None,
            (Some(principal), Some(signature)) => {
                let parts = SignedParts {
                    subject,
                    request_id: &request_id,
                    principal,
                    session: session.unwrap_or_default(),
                    body: &message.payload,
                };
                if !signing_key.is_some_and(|key| key.verify(parts, signature)) {
                    let text = "the signature of the job is not that of a daemon of this fleet: sign it with fleet.signing_key_file, or leave Jig-Principal and Jig-Signature out";
                    return Err(invalid(Error::new(Reason::Unauthenticated, text)));
                }
                Some(principal)
            }
            (Some(_), None) | (None, Some(_)) => {
                let text = "Jig-Principal and Jig-Signature belong together: give both, or none for the rights of the queue";
                return Err(invalid(Error::new(Reason::Unauthenticated, text)));
            }
        };

        Ok(Self {
            workspace: workspace.map(str::to_owned),
            session: session.filter(|session| !session.is_empty()).map(str::to_owned),
            traceparent: traceparent.map(str::to_owned),
            signed_principal: signed_principal.map(str::to_owned),
            body: message.payload.clone(),
            queue,
            request_id,
        })
    }
}

/// Returns the header that has the request id of a message.
pub(super) fn request_id_header(headers: Option<&HeaderMap>) -> &'static str {
    let has_own = headers.is_some_and(|headers| headers.get(REQUEST_ID_HEADER).is_some());
    if has_own { REQUEST_ID_HEADER } else { MESSAGE_ID_HEADER }
}

/// Reads the request id of a message, which has the rules of `jig-request-id`.
fn parse_request_id(headers: Option<&HeaderMap>) -> Result<String, Error> {
    let header = request_id_header(headers);
    let invalid = |text| Error::invalid(vec![Violation::new(header, text)]);
    match single_header(headers, header) {
        Ok(Some(id)) if id.is_empty() || id.chars().count() > MAX_REQUEST_ID_CHARS => {
            Err(invalid(format!("must have 1 to {MAX_REQUEST_ID_CHARS} characters")))
        }
        // It could not be copied to another message.
        Ok(Some(id)) if id.contains(char::is_control) => {
            Err(invalid("must have no control characters, such as a tab".to_owned()))
        }
        Ok(Some(id)) => Ok(id.to_owned()),
        Ok(None) => Err(invalid("is required: the request id of the job".to_owned())),
        Err(problem) => Err(invalid(problem)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: &[u8] = &[7; 32];

    fn message(subject: &str, headers: &[(&'static str, &str)]) -> async_nats::Message {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.append(*name, *value);
        }
        async_nats::Message {
            subject: subject.into(),
            reply: None,
            payload: Bytes::from_static(b"body"),
            headers: Some(map),
            status: None,
            description: None,
            length: 0,
        }
    }

    fn signature(subject: &str, principal: &str) -> String {
        SigningKey::new(KEY).sign(SignedParts {
            subject,
            request_id: "r",
            principal,
            session: "",
            body: b"body",
        })
    }

    #[test]
    fn a_message_has_the_rights_of_its_signature_or_of_its_queue() {
        let key = SigningKey::new(KEY);
        let subject = "jig.jobs.build.main";
        let plain = JobMessage::parse(&message(subject, &[("Nats-Msg-Id", "r")]), Some(&key));
        let plain = plain.unwrap();
        assert_eq!((plain.queue.as_str(), plain.workspace.as_deref()), ("build", Some("main")));
        assert_eq!((plain.signed_principal, plain.session), (None, None));

        let signature = signature(subject, "key:ci");
        let signed = [
            ("Nats-Msg-Id", "r"),
            ("Jig-Principal", "key:ci"),
            ("Jig-Signature", signature.as_str()),
        ];
        let parsed = JobMessage::parse(&message(subject, &signed), Some(&key)).unwrap();
        assert_eq!(parsed.signed_principal.as_deref(), Some("key:ci"));

        // Another key, no key, another subject.
        let other = SigningKey::new(b"other");
        for (subject, key) in
            [(subject, Some(&other)), (subject, None), ("jig.jobs.build", Some(&key))]
        {
            let error = JobMessage::parse(&message(subject, &signed), key).unwrap_err();
            assert_eq!(error.error.reason, Reason::Unauthenticated);
            assert_eq!(error.request_id.as_deref(), Some("r"));
        }
    }

    #[test]
    fn a_principal_without_a_signature_is_rejected() {
        for headers in [
            [("Nats-Msg-Id", "r"), ("Jig-Principal", "key:admin")],
            [("Nats-Msg-Id", "r"), ("Jig-Signature", "00")],
        ] {
            let error = JobMessage::parse(&message("jig.jobs.build", &headers), None).unwrap_err();
            assert_eq!(error.error.reason, Reason::Unauthenticated);
        }
    }

    #[test]
    fn a_request_id_of_its_own_comes_first() {
        let key = SigningKey::new(KEY);
        let subject = "jig.jobs.build.main";
        let signature = signature(subject, "key:ci");
        let headers = [
            ("Nats-Msg-Id", "another"),
            ("Jig-Request-Id", "r"),
            ("Jig-Principal", "key:ci"),
            ("Jig-Signature", signature.as_str()),
        ];
        let parsed = JobMessage::parse(&message(subject, &headers), Some(&key)).unwrap();
        assert_eq!(parsed.request_id, "r");
        // Without it, the signature is of another request id.
        let stripped = [headers[0], headers[2], headers[3]];
        let error = JobMessage::parse(&message(subject, &stripped), Some(&key)).unwrap_err();
        assert_eq!(error.error.reason, Reason::Unauthenticated);
    }

    #[test]
    fn a_request_id_is_required() {
        let long = "x".repeat(MAX_REQUEST_ID_CHARS + 1);
        for headers in [
            &[][..],
            &[("Nats-Msg-Id", "")],
            &[("Nats-Msg-Id", long.as_str())],
            &[("Nats-Msg-Id", "a\tb")],
            &[("Nats-Msg-Id", "a\u{85}b")],
            &[("Nats-Msg-Id", "a"), ("Nats-Msg-Id", "b")],
            &[("Nats-Msg-Id", "a"), ("Jig-Request-Id", "")],
            &[("Nats-Msg-Id", "a"), ("Jig-Request-Id", "b"), ("Jig-Request-Id", "c")],
        ] {
            let error = JobMessage::parse(&message("jig.jobs.build", headers), None).unwrap_err();
            assert_eq!((error.error.reason, error.request_id), (Reason::InvalidParams, None));
            assert_eq!(error.queue.as_deref(), Some("build"));
        }
    }
}
