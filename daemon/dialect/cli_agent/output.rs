//! What its tools answer: what people read and what programs do.

use std::time::{Duration, Instant};

use serde_json::{Map, Value as Json, json};

use super::super::{
    definition::DialectCallSummary,
    response::{DialectFailure, DialectResponse},
};

/// What a tool has done.
#[derive(Debug, Default)]
pub(super) struct CliOutput {
    /// What people read.
    pub(super) output: String,
    /// Files that are others than before.
    pub(super) files_affected: Vec<String>,
    /// What programs read; null where there is nothing.
    pub(super) metadata: Json,
    /// What is worth knowing beside that.
    pub(super) warnings: Vec<String>,
    /// A further one, which people read first.
    pub(super) heading: Option<&'static str>,
}

impl CliOutput {
    /// What went well, in the time since then.
    pub(super) fn into_response(mut self, since: Instant) -> DialectResponse {
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
            "execution_time_ms": elapsed_millis(since),
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

/// What went wrong: how programs tell it, what people read, and what they should do.
pub(super) fn failure_response(
    since: Instant,
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
        "execution_time_ms": elapsed_millis(since),
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

/// The object of `--json`.
pub(in crate::daemon::dialect) fn flat_result(
    invoked: &DialectCallSummary<'_>,
    data: Option<Map<String, Json>>,
) -> Json {
    let (of_document, other) = match data {
        Some(data) if data.contains_key("success") => (Some(data), None),
        // A tool of the configuration: the document has none.
        other => (None, other),
    };
    let mut flat = of_document.unwrap_or_else(|| {
        let mut fields = Map::new();
        fields.extend(other.map(|data| ("metadata".to_owned(), data.into())));
        fields.insert("output".to_owned(), invoked.text.into());
        fields.insert("success".to_owned(), invoked.is_success.into());
        fields.insert("files_affected".to_owned(), json!([]));
        let time = Duration::try_from_secs_f64(invoked.duration_sec).unwrap_or_default();
        let time = u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        fields.insert("execution_time_ms".to_owned(), time.into());
        fields
    });
    flat.insert("tool".to_owned(), invoked.tool.into());
    flat.into()
}

fn elapsed_millis(since: Instant) -> u64 {
    u64::try_from(since.elapsed().as_millis()).unwrap_or(u64::MAX)
}
