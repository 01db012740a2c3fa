//! Checks what authenticates the caller of an entry: the digest of a key, and certificates.

use std::collections::BTreeSet;

use super::secret::KeyDigest;
use crate::daemon::config::client_certificate::{CERTIFICATE_NAME_RULE, CertificateName};

/// Checks the fields `sha256` and `certificates` of an entry, which needs one of them.
pub(super) fn check_credentials(
    sha256: Option<&str>,
    certificates: Option<&[String]>,
    report: &mut impl FnMut(String),
) -> (Option<KeyDigest>, BTreeSet<CertificateName>) {
    let digest = sha256.map(KeyDigest::parse);
    if digest == Some(None) {
        report("sha256 must be 64 hexadecimal digits, as `jig key new` writes them".to_owned());
    }

    let mut names = BTreeSet::new();
    for (index, text) in certificates.into_iter().flatten().enumerate() {
        // The text could be a misplaced key.
        match CertificateName::parse(text) {
            Some(name) => drop(names.insert(name)),
            None => report(format!("certificates[{index}]: {CERTIFICATE_NAME_RULE}")),
        }
    }
    if certificates.is_some_and(<[String]>::is_empty) {
        report("certificates is empty: name at least one, or remove it".to_owned());
    } else if sha256.is_none() && certificates.is_none() {
        report("give sha256 for a key, certificates, or both".to_owned());
    }
    (digest.flatten(), names)
}
