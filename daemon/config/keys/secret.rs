//! API keys: generation of secrets, and their digests.

use std::fmt;

use base64::{Engine as _, prelude::BASE64_URL_SAFE_NO_PAD};
use rustix::rand::{GetRandomFlags, getrandom};
use sha2::{Digest as _, Sha256};
use subtle::ConstantTimeEq as _;

use crate::daemon::config::client_certificate::CertificateName;

/// Prefix of every key, so that secret scanners find published keys.
pub(super) const KEY_PREFIX: &str = "jig_";
const KEY_RANDOM_BYTES: usize = 32;

/// The secret of a key. Shown once, at its creation.
pub(crate) struct SecretKey(String);

/// SHA-256 of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub(crate) struct KeyDigest([u8; 32]);

impl SecretKey {
    pub(crate) fn generate() -> std::io::Result<Self> {
        let mut bytes = [0; KEY_RANDOM_BYTES];
        // Up to 256 bytes are always complete (getrandom(2)).
        if getrandom(&mut bytes, GetRandomFlags::empty())? != KEY_RANDOM_BYTES {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
        Ok(Self(format!("{KEY_PREFIX}{}", BASE64_URL_SAFE_NO_PAD.encode(bytes))))
    }

    pub(crate) fn digest(&self) -> KeyDigest {
        KeyDigest::from_key(self.0.as_bytes())
    }

    /// Returns the secret text.
    pub(crate) fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for SecretKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}

/// Returns the name of a key for messages, or a placeholder if the name could be a secret.
pub(crate) fn redacted_name(name: &str) -> String {
    if name.contains(KEY_PREFIX) {
        "(a possible key is not shown)".to_owned()
    } else {
        format!("{name:?}")
    }
}

impl KeyDigest {
    pub(crate) fn from_key(key: &[u8]) -> Self {
        Self(Sha256::digest(key).into())
    }

    /// The digest of everything that authenticates one caller: a key, certificates or both.
    ///
    /// Without certificates it is the digest of the key.
    pub(super) fn of_credentials<'a>(
        key: Option<Self>,
        certificates: impl ExactSizeIterator<Item = &'a CertificateName>,
    ) -> Self {
        if let Some(key) = key.filter(|_| certificates.len() == 0) {
            return key;
        }
        let mut hash = Sha256::new();
        hash.update(key.unwrap_or_default().0);
        for certificate in certificates {
            hash.update(certificate.to_string());
            hash.update([0]);
        }
        Self(hash.finalize().into())
    }

    /// Compares two digests in time that does not depend on the position of a difference.
    pub(crate) fn constant_time_eq(&self, other: &Self) -> bool {
        self.0.ct_eq(&other.0).into()
    }

    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// Reads 64 hexadecimal digits.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let digits = text.as_bytes();
        if digits.len() != 64 {
            return None;
        }
        let mut bytes = [0; 32];
        for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
            let pair = std::str::from_utf8(pair).ok()?;
            if !pair.bytes().all(|digit| digit.is_ascii_hexdigit()) {
                return None;
            }
            *byte = u8::from_str_radix(pair, 16).ok()?;
        }
        Some(Self(bytes))
    }
}

impl fmt::Display for KeyDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_matches_its_digest_and_is_not_in_debug_output() {
        let [one, other] = [0, 1].map(|_| SecretKey::generate().unwrap());
        assert_ne!(one.reveal(), other.reveal());
        assert_eq!(one.reveal().len(), KEY_PREFIX.len() + 43);
        assert!(!format!("{one:?}").contains(one.reveal()));
        let digest = one.digest();
        assert_eq!(KeyDigest::parse(&digest.to_string()), Some(digest));
        assert!(digest.constant_time_eq(&KeyDigest::from_key(one.reveal().as_bytes())));
        assert!(!digest.constant_time_eq(&other.digest()));
    }

    #[test]
    fn a_digest_has_64_hexadecimal_digits() {
        // SHA-256 of "abc", FIPS 180-4.
        let text = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(KeyDigest::parse(text), Some(KeyDigest::from_key(b"abc")));
        assert_eq!(KeyDigest::parse(&text.to_uppercase()), Some(KeyDigest::from_key(b"abc")));
        for bad in ["", &text[1..], &format!("{text}0"), &text.replace('b', "+")] {
            assert_eq!(KeyDigest::parse(bad), None, "{bad}");
        }
    }
}
