//! Builds the responses of the tools: a text for people and fields for programs.

use std::time::{Duration, Instant};

use serde_json::{Map, Value as Json, json};

use super::super::{
    definition::DialectCallSummary,
    response::{DialectFailure, DialectResponse},
};

/// The result of a successful call.
#[derive(Debug, Default)]
pub(super) struct CliOutput {
    /// Text for people.
    pub(super) output: String,
    /// Files that the call changed.
    pub(super) files_affected: Vec<String>,
    /// Fields for programs; null if there are none.
    pub(super) metadata: Json,
    pub(super) warnings: Vec<String>,
    /// A warning that comes before the text.
    pub(super) heading: Option<&'static str>,
}

impl CliOutput {
    /// Builds the response of a call that started at `started`.
    pub(super) fn into_response(mut self, started: Instant) -> DialectResponse {
        let mut output = self.output;
        for warning in &self.warnings {
            if !output.ends_with('\n') {
                output.push('\n');
            }
            output.push_str(warning);
        }

        if let Some(heading) = self.heading {
            output = format!("{heading}\n{output}");
            self.warnings.insert(0, heading.to_owned());
        }

        let mut data = json!({
            "success": true,
            "output": output,
            "files_affected": self.files_affected,
            "execution_time_ms": elapsed_millis(started),
        });

        if !self.metadata.is_null() {
            data["metadata"] = self.metadata;
        }
        if !self.warnings.is_empty() {
            data["warnings"] = self.warnings.into();
        }
        DialectResponse::data(data)
    }
}

/// Builds the response of a failed call: a code for programs, a text for people, and a suggestion.
pub(super) fn failure_response(
    started: Instant,
    code: &str,
    output: &str,
    suggestion: &str,
    metadata: Json,
) -> DialectResponse {
    let message = match code {
        "file_not_found" if output.ends_with("not found") => {
            format!("{output} in working directory")
        }
        _ => output.to_owned(),
    };

    let mut data = json!({
        "success": false,
        "output": format!("Error: {output}"),
        "files_affected": [],
        "execution_time_ms": elapsed_millis(started),
        "error": { "code": code, "message": message, "suggestion": suggestion },
    });

    if !metadata.is_null() {
        data["metadata"] = metadata;
    }
    DialectResponse {
        failure: Some(DialectFailure {
            code: code.to_owned(),
            message,
            suggestion: Some(suggestion.to_owned()),
            is_success: false,
        }),
        ..DialectResponse::data(data)
    }
}

/// The result object that the document defines for `--json`.
pub(in crate::daemon::dialect) fn flat_result(
    summary: &DialectCallSummary<'_>,
    data: Option<Map<String, Json>>,
) -> Json {
    let (own, other) = match data {
        Some(data) if data.contains_key("success") => (Some(data), None),
        // A custom tool, which the document does not know.
        other => (None, other),
    };

    let mut flat = own.unwrap_or_else(|| {
        let mut fields = Map::new();
        fields.extend(other.map(|data| ("metadata".to_owned(), data.into())));
        fields.insert("output".to_owned(), summary.text.into());
        fields.insert("success".to_owned(), summary.is_success.into());
        fields.insert("files_affected".to_owned(), json!([]));
        let duration = Duration::try_from_secs_f64(summary.duration_sec).unwrap_or_default();
        let millis = u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
        fields.insert("execution_time_ms".to_owned(), millis.into());
        fields
    });
    flat.insert("tool".to_owned(), summary.tool.into());
    flat.into()
}

fn elapsed_millis(started: Instant) -> u64 {
    u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX)
}
