//! Whose request ids they are: those of a revoked key are not those of the next key of its name.

use std::sync::Arc;

use super::Idempotency;
use crate::daemon::{
    config::keys::KeyDigest,
    pipeline::access::principal::Principal,
    store::{database::DatabaseError, requests::KeyFingerprint},
};

impl Idempotency {
    /// What tells a caller from another that had its name before.
    pub(in crate::daemon::pipeline) fn key_fingerprint(
        &self,
        principal: &Principal,
    ) -> KeyFingerprint {
        self.log.key_fingerprint(principal.digest().map(KeyDigest::as_bytes))
    }

    /// Drops the claims and answers of all keys but these callers'. Work of a revoked key goes on to its
    /// end, for those who wait for it; the next holder of the name claims its id anew.
    pub(crate) async fn remove_revoked(
        &self,
        holders: impl IntoIterator<Item = Arc<Principal>>,
    ) -> Result<(), DatabaseError> {
        let holders = holders.into_iter();
        let keys = holders.map(|holder| (holder.name().to_owned(), self.key_fingerprint(&holder)));
        self.log.remove_revoked(keys.collect()).await
    }
}
