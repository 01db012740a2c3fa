//! Whether a request id is used for what it was used for before.

use crate::daemon::{
    error::{Error, Reason},
    store::requests::{Asked, Key},
};

/// Refuses a request id that was used for something else.
pub(super) fn same(key: &Key, asked: &Asked, before: &Asked) -> Result<(), Error> {
    let mut differences = Vec::new();
    if asked.method != before.method {
        differences.push(format!("its method was {}", before.method));
    }
    if asked.session != before.session {
        differences.push("its session was another".to_owned());
    }
    if differences.is_empty() && asked.fingerprint != before.fingerprint {
        differences.push("its request message was another".to_owned());
    }
    if differences.is_empty() {
        return Ok(());
    }
    let text = format!(
        "jig-request-id {:?} was that of another call ({}): give each call an id of its own, and repeat it unchanged",
        key.id,
        differences.join(", ")
    );
    Err(Error::new(Reason::RequestIdReused, text).with("request_id", key.id.clone()))
}
