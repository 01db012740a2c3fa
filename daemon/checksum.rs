//! SHA-256 as the contract writes it: in lower-case hexadecimal.

use sha2::{Digest as _, Sha256};

use super::error::Violation;

/// A sum that grows with what comes.
#[derive(Debug, Clone, Default)]
pub(crate) struct Checksum(Sha256);

impl Checksum {
    /// Adds bytes.
    pub(crate) fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// The sum.
    pub(crate) fn finish(self) -> String {
        to_hex(&self.0.finalize())
    }
}

/// The sum of `bytes`.
pub(crate) fn sha256(bytes: &[u8]) -> String {
    to_hex(&Sha256::digest(bytes))
}

/// Bytes in lower-case hexadecimal.
pub(crate) fn to_hex(bytes: &[u8]) -> String {
    let digit = |value: u8| char::from(b"0123456789abcdef"[usize::from(value)]);
    bytes.iter().flat_map(|byte| [digit(byte >> 4), digit(byte & 15)]).collect()
}

/// What is wrong with a sum that a request gives, in either case, in `field`.
pub(crate) fn sha256_violation(field: &str, sum: &str) -> Option<Violation> {
    let is_sum = sum.len() == 64 && sum.bytes().all(|byte| byte.is_ascii_hexdigit());
    let problem = "must be a SHA-256: 64 hexadecimal digits";
    (!is_sum).then(|| Violation::new(field, problem))
}
