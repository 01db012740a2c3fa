//! Separates the request ids of a revoked key from those of a later key with the same name.

use std::sync::Arc;

use super::Idempotency;
use crate::daemon::{
    config::keys::KeyDigest,
    pipeline::access::principal::Principal,
    store::{database::DatabaseError, requests::KeyFingerprint},
};

impl Idempotency {
    /// Returns a digest that distinguishes a key from earlier keys with the same name.
    pub(in crate::daemon::pipeline) fn key_fingerprint(
        &self,
        principal: &Principal,
    ) -> KeyFingerprint {
        self.table.key_fingerprint(principal.digest().map(KeyDigest::as_bytes))
    }

    /// Removes the claims and stored replies of all keys except those of `principals`.
    ///
    /// Work of a revoked key runs to its end, for its waiters. A later key with the same name
    /// claims the id anew.
    pub(crate) async fn remove_revoked(
        &self,
        principals: impl IntoIterator<Item = Arc<Principal>>,
    ) -> Result<(), DatabaseError> {
        let keys = principals
            .into_iter()
            .map(|principal| (principal.name().to_owned(), self.key_fingerprint(&principal)));
        self.table.remove_revoked(keys.collect()).await
    }
}
