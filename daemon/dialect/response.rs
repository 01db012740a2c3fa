//! What calls answer: of canonical tools, and of dialects.

use base64::{Engine as _, prelude::BASE64_STANDARD};
use serde_json::{Map, Value as Json};

use super::invocation::DialectInvocation;
use crate::daemon::{
    error::{Error, Reason},
    process::outcome::signal_number,
};

/// Most bytes of a text that a result shows: what is larger is cut by the tool, which says so, and not on the way
/// to who called. An envelope has room for so much, and for what is beside it.
pub(super) const MAX_RESULT_TEXT_BYTES: usize = 3 << 20;
/// What a value takes in an envelope beside its JSON, at most.
const VALUE_OVERHEAD_BYTES: usize = 32;

/// What a call of a dialect answers.
#[derive(Debug, Default)]
pub(crate) struct DialectResponse {
    /// The structured result, where the document has one.
    pub(crate) data: Option<Map<String, Json>>,
    /// What goes back to the model; where it is not given, `data` as JSON.
    pub(crate) text: Option<String>,
    /// What a model is shown of `data`, where that is less.
    pub(crate) model_data: Option<Map<String, Json>>,
    /// Why it failed, if it did, or what is worth knowing.
    pub(crate) failure: Option<DialectFailure>,
    /// Job that does the work, where one does.
    pub(crate) job_id: Option<String>,
    /// Whether the tool left something out, and the document has no place in the result that says so.
    pub(crate) is_truncated: bool,
}

/// Why a call failed, as the document of its dialect has it.
#[derive(Debug)]
pub(crate) struct DialectFailure {
    /// What programs tell it by.
    pub(crate) code: String,
    /// What people are told.
    pub(crate) message: String,
    /// What to try next; none where that of the contract will do.
    pub(crate) suggestion: Option<String>,
    /// Whether the call did what it was to nevertheless: this is only worth knowing.
    pub(crate) is_success: bool,
}

/// What a canonical tool has answered, by the names of its fields.
#[derive(Debug, Default)]
pub(crate) struct ResponseData(Map<String, Json>);

// === impl Answer ===

impl DialectResponse {
    /// Whether the call did what it was to.
    pub(crate) fn is_success(&self) -> bool {
        self.failure.as_ref().is_none_or(|failure| failure.is_success)
    }

    /// A structured result.
    pub(crate) fn data(data: Json) -> Self {
        Self { data: data.as_object().cloned(), ..Self::default() }
    }

    /// A text.
    pub(crate) fn text(text: impl Into<String>) -> Self {
        Self { text: Some(text.into()), ..Self::default() }
    }

    /// The same, which lacks something that was found. The result says nothing of it: the envelope does.
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

    /// The same, which says why the call failed, and what to try next where the contract knows the reason.
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

    /// What a failure says in the words of the contract.
    pub(super) fn from_error(_invocation: &DialectInvocation, error: &Error) -> Self {
        Self::default().with_failure(&error_code(error), error.to_string())
    }
}

/// The reason of an error, as envelopes name it: in lower case.
pub(crate) fn error_code(error: &Error) -> String {
    error.reason.name().to_lowercase()
}

/// The first of these that fit into a result, and whether that is all of them.
pub(super) fn take_fitting(items: impl IntoIterator<Item = Json>) -> (Vec<Json>, bool) {
    let mut room = MAX_RESULT_TEXT_BYTES;
    let mut fitting = Vec::new();
    for item in items {
        let fields = item.as_object().map_or(0, Map::len);
        let size = item.to_string().len() + VALUE_OVERHEAD_BYTES * (1 + fields);
        let Some(left) = room.checked_sub(size) else {
            return (fitting, false);
        };
        room = left;
        fitting.push(item);
    }
    (fitting, true)
}

/// The last line of a part of an artifact.
pub(super) fn next_part(path: &str) -> String {
    format!("[jig: the output continues in {path}]")
}

/// A text, and more on a line of its own.
pub(super) fn join_lines(text: &str, more: &str) -> String {
    let is_apart = text.is_empty() || more.is_empty() || text.ends_with('\n');
    format!("{text}{}{more}", if is_apart { "" } else { "\n" })
}

// === impl Data ===

impl ResponseData {
    /// These fields.
    pub(crate) fn new(fields: Map<String, Json>) -> Self {
        Self(fields)
    }

    /// A text; empty where there is none.
    pub(crate) fn text(&self, name: &str) -> &str {
        self.0.get(name).and_then(Json::as_str).unwrap_or_default()
    }

    /// What was read of a file. Of a part of an artifact, the last line names the next part.
    pub(super) fn content(&self) -> String {
        let content = self.text("content");
        match self.text("next_path") {
            "" => content.to_owned(),
            next => join_lines(content, &next_part(next)),
        }
    }

    /// A number, if there is one.
    pub(crate) fn number(&self, name: &str) -> Option<i64> {
        self.0.get(name).and_then(Json::as_i64)
    }

    /// A number that counts something; 0 where there is none.
    pub(crate) fn count(&self, name: &str) -> u64 {
        self.0.get(name).and_then(Json::as_u64).unwrap_or_default()
    }

    /// The exit code of a command as a shell has it: of one that a signal has ended, 128 and its number. None where
    /// nobody knows how it ended.
    pub(crate) fn exit_code(&self) -> Option<i64> {
        let by_signal = || signal_number(self.text("signal")).map(|signal| 128 + i64::from(signal));
        self.number("exit_code").or_else(by_signal)
    }

    /// The name of an enum's value without the prefix that all of them have, in lower case.
    pub(crate) fn enum_name(&self, name: &str, prefix: &str) -> String {
        self.text(name).trim_start_matches(prefix).to_lowercase()
    }

    /// What a text stands for that is Base64.
    pub(crate) fn bytes(&self, name: &str) -> Result<Vec<u8>, Error> {
        let bytes = BASE64_STANDARD.decode(self.text(name));
        bytes.map_err(Error::internal)
    }

    /// A flag.
    pub(crate) fn flag(&self, name: &str) -> bool {
        self.0.get(name).and_then(Json::as_bool).unwrap_or_default()
    }

    /// A list; empty where there is none.
    pub(crate) fn list(&self, name: &str) -> &[Json] {
        let list = self.0.get(name).and_then(Json::as_array);
        list.map_or(&[], Vec::as_slice)
    }

    /// The objects of a list.
    pub(crate) fn objects(&self, name: &str) -> impl Iterator<Item = Self> {
        let objects = self.list(name).iter().filter_map(Json::as_object);
        objects.cloned().map(Self)
    }

    /// The texts of a list.
    pub(crate) fn texts(&self, name: &str) -> impl Iterator<Item = &str> {
        self.list(name).iter().filter_map(Json::as_str)
    }

    /// Whatever it is, taken out; null where there is nothing.
    pub(crate) fn take(&mut self, name: &str) -> Json {
        self.0.remove(name).unwrap_or_default()
    }

    /// All of them.
    pub(crate) fn into_fields(self) -> Map<String, Json> {
        self.0
    }

    /// Only the fields of these names.
    pub(crate) fn select(mut self, names: &[&str]) -> Map<String, Json> {
        self.0.retain(|name, _| names.contains(&name.as_str()));
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_has_as_many_as_fit() {
        let (few, is_all) = take_fitting(["a", "b"].map(Json::from));
        assert_eq!((few, is_all), (vec!["a".into(), "b".into()], true));
        let long = Json::from("x".repeat(MAX_RESULT_TEXT_BYTES / 4));
        let (some, is_all) = take_fitting(std::iter::repeat_n(long, 10));
        assert_eq!((some.len(), is_all), (3, false));
    }
}
