//! The header `range` (RFC 9110, section 14.2).

use http::{HeaderMap, header::RANGE};

/// A range of the bytes of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ByteRange {
    /// From an offset, at most so many bytes.
    From { offset: u64, limit: Option<u64> },
    /// The last bytes.
    Last { bytes: u64 },
}

impl ByteRange {
    /// The range that a request has. `None` stands for the whole file: servers may ignore several
    /// ranges, other units and malformed ones.
    pub(super) fn of(headers: &HeaderMap) -> Option<Self> {
        let mut values = headers.get_all(RANGE).into_iter();
        let (unit, range) = values.next()?.to_str().ok()?.split_once('=')?;
        if !unit.trim().eq_ignore_ascii_case("bytes") || values.next().is_some() {
            return None;
        }

        match range.trim().split_once('-')? {
            ("", bytes) => Some(Self::Last { bytes: parse_number(bytes)? }),
            (first, "") => Some(Self::From { offset: parse_number(first)?, limit: None }),
            (first, last) => {
                let offset = parse_number(first)?;
                let beyond = parse_number(last)?.checked_sub(offset)?;
                Some(Self::From { offset, limit: Some(beyond.saturating_add(1)) })
            }
        }
    }
}

/// Digits without a sign. A number that is too large is beyond the end of every file.
fn parse_number(text: &str) -> Option<u64> {
    let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    is_number.then(|| text.parse().unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use http::{HeaderMap, HeaderValue, header::RANGE};

    use super::ByteRange::{self, From, Last};

    fn parse(text: &'static str) -> Option<ByteRange> {
        ByteRange::of(&HeaderMap::from_iter([(RANGE, HeaderValue::from_static(text))]))
    }

    #[test]
    fn single_ranges_are_parsed() {
        for (text, expected) in [
            ("bytes=0-0", From { offset: 0, limit: Some(1) }),
            ("Bytes=2-4", From { offset: 2, limit: Some(3) }),
            ("bytes=7-", From { offset: 7, limit: None }),
            ("bytes=-5", Last { bytes: 5 }),
            ("bytes=-0", Last { bytes: 0 }),
            ("bytes=0-18446744073709551615", From { offset: 0, limit: Some(u64::MAX) }),
            ("bytes=99999999999999999999-", From { offset: u64::MAX, limit: None }),
        ] {
            assert_eq!(parse(text), Some(expected), "{text}");
        }
        for text in [
            "",
            "bytes",
            "bytes=",
            "bytes=-",
            "bytes=4-2",
            "bytes=+1-2",
            "bytes=0-1,4-5",
            "rows=1-2",
        ] {
            assert_eq!(parse(text), None, "{text}");
        }
    }
}
