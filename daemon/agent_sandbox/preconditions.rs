//! Conditions of requests, in the order of RFC 9110, section 13.2.2.
//!
//! The version of a file is its entity tag. Dates are no strong validators, because commands can
//! set the time of a file.

use http::{
    HeaderMap, HeaderName, Method, StatusCode,
    header::{IF_MATCH, IF_MODIFIED_SINCE, IF_NONE_MATCH, IF_RANGE, IF_UNMODIFIED_SINCE},
};
use httpdate::HttpDate;

use super::api_error::ApiError;

/// What conditions compare.
#[derive(Debug)]
pub(super) struct Validators {
    /// A strong entity tag, with its quotes.
    pub(super) etag: String,
    pub(super) modified: Option<HttpDate>,
}

/// What the conditions of a `GET` or `HEAD` select.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Selection {
    File,
    NotModified,
    Failed,
}

impl Validators {
    /// Evaluates the conditions of a `GET` or `HEAD`.
    pub(super) fn evaluate(&self, headers: &HeaderMap) -> Selection {
        let is_later = |name| {
            let (modified, date) = self.modified.zip(parse_date(headers, name))?;
            Some(modified > date)
        };
        let has_failed = if headers.contains_key(IF_MATCH) {
            !self.is_listed(headers, IF_MATCH, Comparison::Strong)
        } else {
            is_later(IF_UNMODIFIED_SINCE) == Some(true)
        };
        if has_failed {
            return Selection::Failed;
        }

        let is_known = if headers.contains_key(IF_NONE_MATCH) {
            self.is_listed(headers, IF_NONE_MATCH, Comparison::Weak)
        } else {
            is_later(IF_MODIFIED_SINCE) == Some(false)
        };
        if is_known { Selection::NotModified } else { Selection::File }
    }

    /// Whether the range of a request applies. With a date, it does not.
    pub(super) fn allow_range(&self, headers: &HeaderMap) -> bool {
        headers.get(IF_RANGE).is_none_or(|tag| tag.as_bytes() == self.etag.as_bytes())
    }

    /// Whether a header lists the file's tag, or any tag.
    fn is_listed(&self, headers: &HeaderMap, name: HeaderName, comparison: Comparison) -> bool {
        let values = headers.get_all(name).into_iter().filter_map(|value| value.to_str().ok());
        // A tag of the daemon has no comma, so the parts of another tag never equal it.
        values.flat_map(|value| value.split(',')).map(str::trim).any(|tag| {
            let weak = tag.strip_prefix("W/").filter(|_| comparison == Comparison::Weak);
            tag == "*" || weak.unwrap_or(tag) == self.etag
        })
    }
}

/// How entity tags are compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Comparison {
    Strong,
    Weak,
}

/// The date in a header. HTTP ignores invalid ones.
fn parse_date(headers: &HeaderMap, name: HeaderName) -> Option<HttpDate> {
    headers.get(name)?.to_str().ok()?.parse().ok()
}

/// Whether a `PUT` may only create a file: `if-none-match: *`.
pub(super) fn is_create_only(headers: &HeaderMap) -> bool {
    let mut values = headers.get_all(IF_NONE_MATCH).into_iter();
    let has_star = values.next().is_some_and(|value| value.as_bytes().trim_ascii() == b"*");
    has_star && values.next().is_none()
}

/// Rejects the conditions of a change that the contract cannot check and apply in one step.
pub(super) fn reject_conditions(method: &Method, headers: &HeaderMap) -> Result<(), ApiError> {
    let allows_star = method == Method::PUT && is_create_only(headers);
    let mut unsupported = vec![IF_MATCH, IF_UNMODIFIED_SINCE];
    if !allows_star {
        unsupported.push(IF_NONE_MATCH);
    }
    let Some(name) = unsupported.into_iter().find(|name| headers.contains_key(name)) else {
        return Ok(());
    };
    let text = format!(
        "{method} does not support the header {name}, so nothing was changed. PUT supports if-none-match: *, which only creates a file. Use jig.v1.TransferService with expected_sha256 for other conditions"
    );
    Err(ApiError::new(StatusCode::NOT_IMPLEMENTED, "UNIMPLEMENTED", text))
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, UNIX_EPOCH};

    use http::{HeaderMap, HeaderName};

    use super::{Selection, Validators};

    const EARLIER: &str = "Thu, 01 Jan 1970 00:01:39 GMT";
    const MODIFIED: &str = "Thu, 01 Jan 1970 00:01:40 GMT";

    fn headers(lines: &[(&'static str, &'static str)]) -> HeaderMap {
        let lines = lines.iter();
        lines.map(|(name, value)| (HeaderName::from_static(name), value.parse().unwrap())).collect()
    }

    fn validators() -> Validators {
        let modified = UNIX_EPOCH + Duration::from_secs(100);
        Validators { etag: "\"a\"".to_owned(), modified: Some(modified.into()) }
    }

    #[test]
    fn conditions_have_the_order_of_http() {
        use Selection::{Failed, File, NotModified};
        for (lines, expected) in [
            (&[][..], File),
            (&[("if-match", "\"b\", \"a\"")], File),
            (&[("if-match", "*")], File),
            (&[("if-match", "W/\"a\"")], Failed),
            (&[("if-match", "\"b\"")], Failed),
            (&[("if-match", "\"a\""), ("if-unmodified-since", EARLIER)], File),
            (&[("if-unmodified-since", EARLIER)], Failed),
            (&[("if-unmodified-since", MODIFIED)], File),
            (&[("if-unmodified-since", "yesterday")], File),
            (&[("if-none-match", "\"b\", W/\"a\"")], NotModified),
            (&[("if-none-match", "*")], NotModified),
            (&[("if-none-match", "\"b\""), ("if-modified-since", MODIFIED)], File),
            (&[("if-modified-since", MODIFIED)], NotModified),
            (&[("if-modified-since", EARLIER)], File),
            (&[("if-match", "\"b\""), ("if-none-match", "\"a\"")], Failed),
        ] {
            assert_eq!(validators().evaluate(&headers(lines)), expected, "{lines:?}");
        }
        let undated = Validators { modified: None, ..validators() };
        for name in ["if-modified-since", "if-unmodified-since"] {
            assert_eq!(undated.evaluate(&headers(&[(name, MODIFIED)])), File, "{name}");
        }
    }

    #[test]
    fn range_needs_the_same_tag() {
        for (lines, expected) in [
            (&[][..], true),
            (&[("if-range", "\"a\"")], true),
            (&[("if-range", "W/\"a\"")], false),
            (&[("if-range", MODIFIED)], false),
        ] {
            assert_eq!(validators().allow_range(&headers(lines)), expected, "{lines:?}");
        }
    }
}
