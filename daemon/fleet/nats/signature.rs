//! Signatures of jobs: a daemon that publishes a job signs the principal that it has authenticated,
//! so that the daemon that runs the job can trust its name.

use std::fmt;

use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::Sha256;

use crate::daemon::checksum::to_hex;

/// The key that all daemons of a fleet share.
#[derive(Clone)]
pub(crate) struct SigningKey(Hmac<Sha256>);

/// What a signature covers. A change of any part makes it invalid.
#[derive(Debug, Clone, Copy)]
pub(super) struct SignedParts<'a> {
    pub(super) subject: &'a str,
    pub(super) request_id: &'a str,
    pub(super) principal: &'a str,
    /// Empty without a session.
    pub(super) session: &'a str,
    pub(super) body: &'a [u8],
}

impl SigningKey {
    pub(crate) fn new(secret: &[u8]) -> Self {
        Self(Hmac::new_from_slice(secret).expect("HMAC accepts keys of any length"))
    }

    /// Signs a job: HMAC-SHA-256 of all parts, each after its length as 4 bytes, in hexadecimal.
    pub(super) fn sign(&self, parts: SignedParts<'_>) -> String {
        to_hex(&self.mac(parts).finalize().into_bytes())
    }

    /// Checks a signature, in constant time.
    pub(super) fn verify(&self, parts: SignedParts<'_>, signature: &str) -> bool {
        let Some(bytes) = from_hex(signature) else {
            return false;
        };
        self.mac(parts).verify_slice(&bytes).is_ok()
    }

    fn mac(&self, parts: SignedParts<'_>) -> Hmac<Sha256> {
        let SignedParts { subject, request_id, principal, session, body } = parts;
        let mut mac = self.0.clone();
        for part in [subject.as_bytes(), request_id.as_bytes(), principal.as_bytes()]
            .into_iter()
            .chain([session.as_bytes(), body])
        {
            let length = u32::try_from(part.len()).unwrap_or(u32::MAX);
            mac.update(&length.to_be_bytes());
            mac.update(part);
        }
        mac
    }
}

impl fmt::Debug for SigningKey {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("SigningKey")
    }
}

fn from_hex(text: &str) -> Option<Vec<u8>> {
    let digits = text.as_bytes();
    if !digits.len().is_multiple_of(2) {
        return None;
    }
    let digit = |byte: u8| char::from(byte).to_digit(16);
    let pairs = digits.chunks_exact(2);
    pairs.map(|pair| u8::try_from(digit(pair[0])? << 4 | digit(pair[1])?).ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const PARTS: SignedParts<'static> = SignedParts {
        subject: "jig.jobs.build.main",
        request_id: "request-1",
        principal: "key:ci",
        session: "",
        body: b"body",
    };

    #[test]
    fn a_change_of_any_part_is_found() {
        let key = SigningKey::new(&[7; 32]);
        let signature = key.sign(PARTS);
        assert!(key.verify(PARTS, &signature));
        assert!(key.verify(PARTS, &signature.to_uppercase()));

        for changed in [
            SignedParts { subject: "jig.jobs.build.other", ..PARTS },
            SignedParts { request_id: "request-2", ..PARTS },
            SignedParts { principal: "key:admin", ..PARTS },
            SignedParts { session: "s", ..PARTS },
            SignedParts { body: b"other", ..PARTS },
            // The parts are the same bytes, divided otherwise.
            SignedParts { request_id: "request-1k", principal: "ey:ci", ..PARTS },
        ] {
            assert!(!key.verify(changed, &signature), "{changed:?}");
        }
        for malformed in ["", "0", "zz", &signature[2..], &format!("{signature}00")] {
            assert!(!key.verify(PARTS, malformed), "{malformed}");
        }
        assert!(!SigningKey::new(&[8; 32]).verify(PARTS, &signature));
    }

    #[test]
    fn signatures_are_those_of_other_programs() {
        // Python: hmac.new(bytes([7] * 32), message, "sha256").hexdigest()
        assert_eq!(
            SigningKey::new(&[7; 32]).sign(PARTS),
            "6467ef9b8a936830b83c8069b21901757c22774620f9fa1daace4ac611f87afb"
        );
    }
}
