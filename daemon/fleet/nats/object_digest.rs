//! Digests of objects, as their descriptions have them.

use async_nats::jetstream::object_store::ObjectInfo;
use base64::{Engine as _, engine::general_purpose::URL_SAFE};

/// What is before the SHA-256 in Base64.
const DIGEST_PREFIX: &str = "SHA-256=";

/// The digest of an object in its description.
pub(super) fn format_digest(sha256: &[u8]) -> String {
    format!("{DIGEST_PREFIX}{}", URL_SAFE.encode(sha256))
}

/// The SHA-256 of an object. Empty if its description has none.
pub(super) fn sha256_of(info: &ObjectInfo) -> Vec<u8> {
    let digest = info.digest.as_deref().and_then(|digest| digest.strip_prefix(DIGEST_PREFIX));
    digest.and_then(|digest| URL_SAFE.decode(digest).ok()).unwrap_or_default()
}
