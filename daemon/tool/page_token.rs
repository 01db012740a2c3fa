//! Page tokens: where the next page starts, and which request it belongs to.

use base64::{Engine as _, prelude::BASE64_URL_SAFE_NO_PAD};
use sha2::{Digest as _, Sha256};

use crate::daemon::error::Error;

/// First byte of a token.
const TOKEN_VERSION: u8 = 1;
/// Bytes of the filter hash in a token. The hash detects a token of another request. It is no MAC: a
/// caller can forge a token, and gains nothing by it.
const FILTER_HASH_BYTES: usize = 16;

/// A hash of everything that selects the entries to list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PageFilterHash([u8; FILTER_HASH_BYTES]);

impl PageFilterHash {
    /// Hashes the fields of a request.
    pub(crate) fn new(texts: &[&str], numbers: &[u32]) -> Self {
        let mut hash = Sha256::new();
        for text in texts {
            hash.update(text.len().to_le_bytes());
            hash.update(text);
        }
        for number in numbers {
            hash.update(number.to_le_bytes());
        }

        let mut prefix = [0; FILTER_HASH_BYTES];
        prefix.copy_from_slice(&hash.finalize()[..FILTER_HASH_BYTES]);
        Self(prefix)
    }
}

/// The token of the page that starts after `last`.
pub(crate) fn encode_page_token(filters: &PageFilterHash, last: &str) -> String {
    let token = [&[TOKEN_VERSION], filters.0.as_slice(), last.as_bytes()].concat();
    BASE64_URL_SAFE_NO_PAD.encode(token)
}

/// The name after which the page starts.
pub(crate) fn decode_page_token(token: &str, filters: &PageFilterHash) -> Result<String, Error> {
    let invalid = || {
        Error::invalid_field(
            "page_token",
            "is not the next_page_token of a page: leave it out to start with the first page",
        )
    };

    let bytes = BASE64_URL_SAFE_NO_PAD.decode(token).map_err(|_error| invalid())?;
    let rest = bytes.strip_prefix(&[TOKEN_VERSION]).ok_or_else(invalid)?;
    let (token_filters, last) =
        rest.split_first_chunk::<FILTER_HASH_BYTES>().ok_or_else(invalid)?;
    if *token_filters != filters.0 {
        return Err(Error::invalid_field(
            "page_token",
            "belongs to a request with other fields: repeat those of the first page, or leave it out to start over",
        ));
    }

    match str::from_utf8(last) {
        Ok(last) if !last.is_empty() => Ok(last.to_owned()),
        _ => Err(invalid()),
    }
}
