//! SHA-256 checksums as the contract writes them: in lower-case hexadecimal.

use sha2::{Digest as _, Sha256};

use super::error::Violation;

/// An incremental SHA-256.
#[derive(Debug, Clone, Default)]
pub(crate) struct Checksum(Sha256);

impl Checksum {
    pub(crate) fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    pub(crate) fn finish(self) -> String {
        to_hex(&self.0.finalize())
    }
}

/// Returns the SHA-256 of `bytes` in hexadecimal.
pub(crate) fn sha256(bytes: &[u8]) -> String {
    to_hex(&Sha256::digest(bytes))
}

/// Encodes bytes in lower-case hexadecimal.
pub(crate) fn to_hex(bytes: &[u8]) -> String {
    let digit = |value: u8| char::from(b"0123456789abcdef"[usize::from(value)]);
    bytes.iter().flat_map(|byte| [digit(byte >> 4), digit(byte & 15)]).collect()
}

/// Returns a violation of `field` if `sum` is not a SHA-256 in hexadecimal, in either case.
pub(crate) fn sha256_violation(field: &str, sum: &str) -> Option<Violation> {
    let is_valid = sum.len() == 64 && sum.bytes().all(|byte| byte.is_ascii_hexdigit());
    (!is_valid).then(|| Violation::new(field, "must be a SHA-256: 64 hexadecimal digits"))
}
