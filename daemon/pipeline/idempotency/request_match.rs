//! Rejects a request id that is reused for a different request.

use crate::daemon::{
    error::{Error, Reason},
    store::requests::{RequestIdentity, RequestKey},
};

/// Returns `REQUEST_ID_REUSED` if method, session or message differ from those of the first call.
pub(super) fn require_same_request(
    key: &RequestKey,
    request: &RequestIdentity,
    before: &RequestIdentity,
) -> Result<(), Error> {
    let mut differences = Vec::new();
    if request.method != before.method {
        differences.push(format!("its method was {}", before.method));
    }
    if request.session != before.session {
        differences.push("its session differed".to_owned());
    }
    if differences.is_empty() && request.fingerprint != before.fingerprint {
        differences.push("its request message differed".to_owned());
    }

    if differences.is_empty() {
        return Ok(());
    }

    let text = format!(
        "jig-request-id {:?} was already used for another call ({}): give each call an id of its own, and repeat it unchanged",
        key.id,
        differences.join(", ")
    );

    Err(Error::new(Reason::RequestIdReused, text).with_metadata("request_id", key.id.clone()))
}
