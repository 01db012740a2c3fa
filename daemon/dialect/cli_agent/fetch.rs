//! The tool for web pages.

use std::time::Instant;

use serde_json::{Value as Json, json};

use super::{
    super::{
        definition::{CanonicalCall, CanonicalTools, DialectResponseFuture},
        parameter::DialectParams,
    },
    output::{CliOutput, failure_response},
};
use crate::daemon::error::{Error, Reason};

/// Most bytes of a page.
const MAX_PAGE_BYTES: u64 = 1 << 20;
const TRUNCATION_WARNING: &str = "Error: Response too large (>1MB), truncating";

pub(super) fn fetch_webpage(
    params: DialectParams,
    tools: &mut dyn CanonicalTools,
) -> DialectResponseFuture<'_> {
    Box::pin(async move {
        let started = Instant::now();
        let (url, timeout) = (params.str("url"), params.seconds("timeout_seconds"));
        let call = CanonicalCall::new(
            "fetch_url",
            json!({
                "url": url,
                "timeout_sec": timeout.as_secs(),
                "format": "FETCH_FORMAT_MARKDOWN",
                "max_bytes": MAX_PAGE_BYTES,
            }),
        )
        .with_aliases(&[("timeout_sec", "timeout_seconds")]);
        let mut page = match tools.call(call).await {
            Ok(page) => page,
            Err(error) => {
                let Some((code, output, suggestion)) = explain_failure(&error, timeout.as_secs())
                else {
                    return Err(error);
                };
                return Ok(failure_response(started, code, &output, suggestion, Json::Null));
            }
        };

        let size = page.count("content_length");
        let mut warnings = Vec::new();
        if page.flag("truncated") {
            warnings.push(TRUNCATION_WARNING.to_owned());
        }
        let output = CliOutput {
            output: format!("Fetched content from {url} ({})", format_size(size)),
            metadata: json!({
                "url": url,
                "status_code": page.count("status_code"),
                "content_length": size,
                "content_type": page.text("content_type"),
                "content": page.take("content"),
            }),
            warnings,
            ..CliOutput::default()
        };
        Ok(output.into_response(started))
    })
}

/// Code, message and suggestion for a page that could not be fetched. `None` for an error about the
/// call itself.
fn explain_failure(error: &Error, seconds: u64) -> Option<(&'static str, String, &'static str)> {
    let metadata_value = |name: &str| {
        let entry = error.metadata.iter().find(|(key, _)| key == name);
        entry.map(|(_, value)| value.as_str())
    };
    let explanation = if error.reason == Reason::InvalidParams {
        (
            "invalid_url",
            "Invalid URL format".to_owned(),
            "Give a URL that begins with http:// or https://, without a user name and a password",
        )
    } else if error.reason == Reason::Timeout && metadata_value("approval_id").is_none() {
        (
            "timeout",
            format!("Request timed out after {seconds} seconds"),
            "Allow more time with timeout_seconds (at most 60), or try again later",
        )
    } else if error.reason == Reason::FetchError {
        (
            "fetch_error",
            format!(
                "Failed to fetch - {}",
                metadata_value("cause").unwrap_or_default().replace('_', " ")
            ),
            "Check the URL, and try again later",
        )
    } else if error.reason == Reason::EgressDenied {
        (
            "egress_denied",
            format!("Failed to fetch - {error}"),
            "Fetch from another host, or ask the operator to allow this one",
        )
    } else {
        return None;
    };
    Some(explanation)
}

/// A size in a unit for people.
fn format_size(bytes: u64) -> String {
    const BYTES_PER_KIB: u64 = 1024;
    // Tenths, rounded.
    let tenths = |unit: u64| (bytes * 10 + unit / 2) / unit;
    let with = |tenths: u64, unit: &str| format!("{}.{} {unit}", tenths / 10, tenths % 10);
    match bytes {
        0..BYTES_PER_KIB => format!("{bytes} B"),
        _ if tenths(BYTES_PER_KIB) < 10 * BYTES_PER_KIB => with(tenths(BYTES_PER_KIB), "KB"),
        _ => with(tenths(BYTES_PER_KIB * BYTES_PER_KIB), "MB"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_formatted_for_people() {
        for (bytes, expected) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1.0 KB"),
            (5324, "5.2 KB"),
            (1 << 20, "1.0 MB"),
            ((1 << 20) - 1, "1.0 MB"),
        ] {
            assert_eq!(format_size(bytes), expected);
        }
    }
}
