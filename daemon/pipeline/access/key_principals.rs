//! The principals of the key file, by their credentials.

use std::{collections::HashMap, sync::Arc};

use super::{
    credentials::{Credentials, unauthenticated_error},
    principal::Principal,
};
use crate::daemon::{
    config::{
        client_certificate::{CertificateName, ClientCertificate},
        keys::{ApiKey, KeyDigest},
    },
    error::Error,
};

/// The principals of one key file.
#[derive(Debug, Default)]
pub(super) struct KeyPrincipals {
    all: Vec<Arc<Principal>>,
    /// The timing of a lookup reveals nothing useful: digests of keys with 256 random bits can
    /// neither be chosen nor reversed.
    by_key: HashMap<KeyDigest, Arc<Principal>>,
    by_certificate: HashMap<CertificateName, Arc<Principal>>,
}

impl FromIterator<(ApiKey, Arc<Principal>)> for KeyPrincipals {
    fn from_iter<T: IntoIterator<Item = (ApiKey, Arc<Principal>)>>(entries: T) -> Self {
        let mut principals = Self::default();
        for (key, principal) in entries {
            if let Some(digest) = key.digest {
                principals.by_key.insert(digest, Arc::clone(&principal));
            }
            for name in key.certificates {
                principals.by_certificate.insert(name, Arc::clone(&principal));
            }
            principals.all.push(principal);
        }
        principals
    }
}

impl KeyPrincipals {
    /// All principals, in the order of the file.
    pub(super) fn all(&self) -> impl Iterator<Item = &Arc<Principal>> {
        self.all.iter()
    }

    /// Finds the principal with these credentials. A key and a certificate must be of the same one.
    pub(super) fn authenticate(
        &self,
        credentials: Credentials<'_>,
    ) -> Result<Arc<Principal>, Error> {
        let by_key = credentials.key.map(|key| self.find_by_key(key)).transpose()?;
        let by_certificate = match credentials.certificate {
            Some(certificate) => self.find_by_certificate(certificate)?,
            None => None,
        };

        let principal = match (by_key, by_certificate) {
            (Some(by_key), Some(by_certificate)) if !Arc::ptr_eq(by_key, by_certificate) => {
                return Err(unauthenticated_error(
                    "the key and the client certificate of this call belong to different callers: send one of the two, or a key of the certificate's owner",
                ));
            }
            (Some(principal), _) | (None, Some(principal)) => principal,
            (None, None) if credentials.certificate.is_some() => {
                return Err(unauthenticated_error(
                    "no entry of the key file names this client certificate: send a key, or ask the operator to add an entry (`jig key new --certificate`)",
                ));
            }
            (None, None) => {
                return Err(unauthenticated_error(
                    "this daemon requires a key: send `authorization: Bearer KEY` or `x-api-key: KEY` (jig: --key or JIG_KEY; `jig key new` creates a key)",
                ));
            }
        };
        if principal.has_expired() {
            return Err(unauthenticated_error(
                "this key has expired: ask the operator for a new one",
            ));
        }
        Ok(Arc::clone(principal))
    }

    fn find_by_key(&self, key: &[u8]) -> Result<&Arc<Principal>, Error> {
        let digest = KeyDigest::from_key(key);
        let found = self.by_key.get_key_value(&digest);
        let matching = found.filter(|(known, _)| known.constant_time_eq(&digest));
        let principal = matching.map(|(_, principal)| principal);
        principal.ok_or_else(|| {
            unauthenticated_error("unknown or revoked key: ask the operator for a new one")
        })
    }

    /// Returns `None` if no entry names the certificate.
    fn find_by_certificate(
        &self,
        certificate: &ClientCertificate,
    ) -> Result<Option<&Arc<Principal>>, Error> {
        let mut found = certificate.names().iter().filter_map(|name| self.by_certificate.get(name));
        let Some(principal) = found.next() else {
            return Ok(None);
        };

        if let Some(other) = found.find(|other| !Arc::ptr_eq(other, principal)) {
            return Err(unauthenticated_error(format!(
                "the client certificate has names of two callers, {} and {}: ask the operator to name it in one entry of the key file",
                principal.name(),
                other.name()
            )));
        }
        // The handshake has checked it, but a connection can last longer than a certificate.
        if certificate.has_expired() {
            return Err(unauthenticated_error(
                "the client certificate has expired: connect again with a new one",
            ));
        }
        Ok(Some(principal))
    }
}
