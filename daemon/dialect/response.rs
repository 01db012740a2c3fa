//! Responses: of canonical tools as a dialect reads them, and of dialects as the caller gets them.

use base64::{Engine as _, prelude::BASE64_STANDARD};
use serde_json::{Map, Value as Json};

use super::invocation::DialectInvocation;
use crate::daemon::{
    error::{Error, Reason},
    process::outcome::signal_number,
};

/// Most bytes of text in a result. A tool truncates longer text itself and says so. A response
/// message has room for this and its other fields.
pub(super) const MAX_RESULT_TEXT_BYTES: usize = 3 << 20;
/// Most bytes that a message adds to the JSON of a value.
const VALUE_OVERHEAD_BYTES: usize = 32;

/// The response of a dialect's tool.
#[derive(Debug, Default)]
pub(crate) struct DialectResponse {
    /// The structured result, if the source document has one.
    pub(crate) data: Option<Map<String, Json>>,
    /// The text for the model. By default, `data` as JSON.
    pub(crate) text: Option<String>,
    /// The part of `data` that the model sees, if it does not see all.
    pub(crate) model_data: Option<Map<String, Json>>,
    /// The error, or a warning about a call that succeeded.
    pub(crate) failure: Option<DialectFailure>,
    /// Id of the job that does the work, if any.
    pub(crate) job_id: Option<String>,
    /// Whether the tool omitted something and the document has no field that reports it.
    pub(crate) is_truncated: bool,
}

/// An error or a warning in the terms of the dialect's document.
#[derive(Debug)]
pub(crate) struct DialectFailure {
    /// Code for programs.
    pub(crate) code: String,
    /// Message for people.
    pub(crate) message: String,
    /// What to try next; by default, the contract's suggestion for the reason.
    pub(crate) suggestion: Option<String>,
    /// Whether the call succeeded nevertheless, so that this is only a warning.
    pub(crate) is_success: bool,
}

/// The response of a canonical tool, by field name.
#[derive(Debug, Default)]
pub(crate) struct ResponseData(Map<String, Json>);

// === impl DialectResponse ===

impl DialectResponse {
    /// Whether the call succeeded.
    pub(crate) fn is_success(&self) -> bool {
        self.failure.as_ref().is_none_or(|failure| failure.is_success)
    }

    pub(crate) fn data(data: Json) -> Self {
        Self { data: data.as_object().cloned(), ..Self::default() }
    }

    pub(crate) fn text(text: impl Into<String>) -> Self {
        Self { text: Some(text.into()), ..Self::default() }
    }

    /// Marks the response as truncated. The result itself has no field for that; the response
    /// message carries it.
    pub(super) fn truncated(self, message: String) -> Self {
        Self {
            is_truncated: true,
            failure: Some(DialectFailure {
                code: "truncated".to_owned(),
                message,
                suggestion: Some("Ask for less at a time.".to_owned()),
                is_success: true,
            }),
            ..self
        }
    }

    /// Adds an error, with the contract's suggestion if `code` is one of its reasons.
    pub(crate) fn with_failure(self, code: &str, message: impl Into<String>) -> Self {
        let reason = Reason::from_name(&code.to_uppercase());
        Self {
            failure: Some(DialectFailure {
                code: code.to_owned(),
                message: message.into(),
                suggestion: reason.map(|reason| reason.suggestion().to_owned()),
                is_success: false,
            }),
            ..self
        }
    }

    /// The error as the contract describes it.
    pub(super) fn from_error(_invocation: &DialectInvocation, error: &Error) -> Self {
        Self::default().with_failure(&error_code(error), error.to_string())
    }
}

/// The reason of an error in lower case, as responses of dialects name it.
pub(crate) fn error_code(error: &Error) -> String {
    error.reason.name().to_lowercase()
}

/// Takes items as long as they fit into a result. Returns them, and whether they are all.
pub(super) fn take_fitting(items: impl IntoIterator<Item = Json>) -> (Vec<Json>, bool) {
    let mut remaining_bytes = MAX_RESULT_TEXT_BYTES;
    let mut fitting = Vec::new();
    for item in items {
        let fields = item.as_object().map_or(0, Map::len);
        let size = item.to_string().len() + VALUE_OVERHEAD_BYTES * (1 + fields);
        let Some(rest) = remaining_bytes.checked_sub(size) else {
            return (fitting, false);
        };

        remaining_bytes = rest;
        fitting.push(item);
    }
    (fitting, true)
}

/// Appends `more` on a line of its own.
pub(super) fn join_lines(text: &str, more: &str) -> String {
    let is_separate = text.is_empty() || more.is_empty() || text.ends_with('\n');
    format!("{text}{}{more}", if is_separate { "" } else { "\n" })
}

// === impl ResponseData ===

impl ResponseData {
    pub(crate) fn new(fields: Map<String, Json>) -> Self {
        Self(fields)
    }

    /// A text field; empty if it is missing.
    pub(crate) fn text(&self, name: &str) -> &str {
        self.0.get(name).and_then(Json::as_str).unwrap_or_default()
    }

    /// The content of a file. The last line of a part of an artifact names the next part.
    pub(super) fn content(&self) -> String {
        self.append_next_part(self.text("content"))
    }

    /// Appends a line that names the next part of an artifact to `content`, if there is one.
    pub(super) fn append_next_part(&self, content: &str) -> String {
        match self.text("next_path") {
            "" => content.to_owned(),
            next => join_lines(content, &format!("[jig: the output continues in {next}]")),
        }
    }

    /// Whether content was truncated and no next part continues it.
    pub(super) fn is_cut(&self) -> bool {
        self.flag("truncated") && self.text("next_path").is_empty()
    }

    /// An integer field.
    pub(crate) fn number(&self, name: &str) -> Option<i64> {
        self.0.get(name).and_then(Json::as_i64)
    }

    /// A count; 0 if it is missing.
    pub(crate) fn count(&self, name: &str) -> u64 {
        self.0.get(name).and_then(Json::as_u64).unwrap_or_default()
    }

    /// The exit code of a command as a shell reports it. For a command that a signal ended, it is
    /// 128 plus the signal number. `None` if the outcome is unknown.
    pub(crate) fn exit_code(&self) -> Option<i64> {
        let from_signal =
            || signal_number(self.text("signal")).map(|signal| 128 + i64::from(signal));
        self.number("exit_code").or_else(from_signal)
    }

    /// The name of an enum value without the common prefix, in lower case.
    pub(crate) fn enum_name(&self, name: &str, prefix: &str) -> String {
        self.text(name).trim_start_matches(prefix).to_lowercase()
    }

    /// Decodes a Base64 field.
    pub(crate) fn bytes(&self, name: &str) -> Result<Vec<u8>, Error> {
        BASE64_STANDARD.decode(self.text(name)).map_err(Error::internal)
    }

    /// A flag; false if it is missing.
    pub(crate) fn flag(&self, name: &str) -> bool {
        self.0.get(name).and_then(Json::as_bool).unwrap_or_default()
    }

    /// A list; empty if it is missing.
    pub(crate) fn list(&self, name: &str) -> &[Json] {
        let list = self.0.get(name).and_then(Json::as_array);
        list.map_or(&[], Vec::as_slice)
    }

    /// The objects in a list.
    pub(crate) fn objects(&self, name: &str) -> impl Iterator<Item = Self> {
        self.list(name).iter().filter_map(Json::as_object).cloned().map(Self)
    }

    /// The texts in a list.
    pub(crate) fn texts(&self, name: &str) -> impl Iterator<Item = &str> {
        self.list(name).iter().filter_map(Json::as_str)
    }

    /// Removes a field and returns its value; null if it is missing.
    pub(crate) fn take(&mut self, name: &str) -> Json {
        self.0.remove(name).unwrap_or_default()
    }

    pub(crate) fn into_fields(self) -> Map<String, Json> {
        self.0
    }

    /// Keeps only the fields of these names.
    pub(crate) fn select(mut self, names: &[&str]) -> Map<String, Json> {
        self.0.retain(|name, _| names.contains(&name.as_str()));
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn items_are_taken_until_one_does_not_fit() {
        let (few, is_complete) = take_fitting(["a", "b"].map(Json::from));
        assert_eq!((few, is_complete), (vec!["a".into(), "b".into()], true));

        let long = Json::from("x".repeat(MAX_RESULT_TEXT_BYTES / 4));
        let (some, is_complete) = take_fitting(std::iter::repeat_n(long, 10));
        assert_eq!((some.len(), is_complete), (3, false));
    }
}
