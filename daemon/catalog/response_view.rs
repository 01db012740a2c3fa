//! Selects the fields of a response that models see. These have content and are not only for
//! operators and programs.

use std::collections::HashMap;

use prost_reflect::FieldDescriptor;
use serde_json::{Map, Value};

use super::rules::MessageRules;
use crate::api::v1::ModelView;

/// The fields of a message, by name.
#[derive(Debug)]
pub(super) struct ResponseView(HashMap<String, FieldView>);

#[derive(Debug)]
struct FieldView {
    visibility: ModelView,
    /// Texts that carry no information.
    blank_texts: Vec<String>,
    /// Whether an absent field differs from one with a zero value.
    has_presence: bool,
    inner: Option<ResponseView>,
}

impl ResponseView {
    /// The view of the message that has these rules.
    pub(super) fn from_rules(rules: &MessageRules) -> Self {
        let fields = rules.message().fields().map(|field| {
            let name = field.name().to_owned();
            (name, FieldView::from_descriptor(&field, rules))
        });
        Self(fields.collect())
    }

    /// The fields of `data` that models see.
    pub(super) fn filter(&self, data: &Map<String, Value>) -> Map<String, Value> {
        data.iter()
            .filter_map(|(name, value)| {
                let Some(field) = self.0.get(name) else {
                    return Some((name.clone(), value.clone()));
                };
                let is_visible = match field.visibility {
                    ModelView::Always => true,
                    ModelView::Never => false,
                    ModelView::Unspecified => !field.is_blank(value),
                };
                is_visible.then(|| (name.clone(), field.filter_value(value)))
            })
            .collect()
    }
}

impl FieldView {
    fn from_descriptor(field: &FieldDescriptor, rules: &MessageRules) -> Self {
        let field_spec = rules.field(field);
        let rules = field_spec.map(|field_spec| &field_spec.rules);
        let default = rules.map(|rules| rules.model_default.clone());
        let kind = field.kind();
        let unspecified = kind.as_enum().map(|values| values.default_value().name().to_owned());
        let blank_texts = default.into_iter().chain(unspecified);

        Self {
            visibility: rules.map(|rules| rules.model_view()).unwrap_or_default(),
            blank_texts: blank_texts.filter(|text| !text.is_empty()).collect(),
            has_presence: field.supports_presence(),
            inner: field_spec
                .and_then(|field_spec| field_spec.inner.as_ref())
                .map(ResponseView::from_rules),
        }
    }

    fn is_blank(&self, value: &Value) -> bool {
        match value {
            Value::Null => true,
            Value::Bool(flag) => !self.has_presence && !flag,
            Value::Number(number) => !self.has_presence && number.as_u64() == Some(0),
            Value::String(text) => {
                !self.has_presence && text.is_empty() || self.blank_texts.contains(text)
            }
            Value::Array(items) => items.is_empty(),
            Value::Object(fields) => fields.is_empty(),
        }
    }

    fn filter_value(&self, value: &Value) -> Value {
        match (&self.inner, value) {
            (Some(view), Value::Object(fields)) => view.filter(fields).into(),
            (Some(_), Value::Array(items)) => {
                items.iter().map(|item| self.filter_value(item)).collect()
            }
            _ => value.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use crate::daemon::catalog::Catalog;

    #[test]
    fn models_see_only_fields_with_content() {
        let catalog = Catalog::load().unwrap();
        for (tool, data, expected) in [
            (
                "run",
                json!({"outcome": "OUTCOME_EXITED", "exit_code": 0, "signal": "", "stdout": "hi\n", "stderr": "", "stdout_bytes": 3, "stdout_path": "p", "isolation": "L3", "usage": {"user_ms": 1}, "kill_pending": false, "duration_ms": 5}),
                json!({"exit_code": 0, "stdout": "hi\n"}),
            ),
            (
                "run",
                json!({"outcome": "OUTCOME_TIMED_OUT", "exit_code": null, "signal": "SIGKILL"}),
                json!({"outcome": "OUTCOME_TIMED_OUT", "signal": "SIGKILL"}),
            ),
            (
                "search",
                json!({"matches": [], "truncated": false, "total_matches": 0, "files_searched": 9}),
                json!({"matches": []}),
            ),
            (
                "search",
                json!({"matches": [{"file": "a", "line": 1, "column": 2, "content": "", "context_before": [], "context_after": ["x"]}], "truncated": true, "total_matches": 2}),
                json!({"matches": [{"file": "a", "line": 1, "content": "", "context_after": ["x"]}], "truncated": true, "total_matches": 2}),
            ),
            (
                "read_file",
                json!({"content": "", "encoding": "ENCODING_UTF8", "sha256": "e3", "start_line": 0, "truncated": false}),
                json!({"content": ""}),
            ),
            (
                "read_file",
                json!({"content": "eA==", "encoding": "ENCODING_BASE64"}),
                json!({"content": "eA==", "encoding": "ENCODING_BASE64"}),
            ),
            (
                "list_dir",
                json!({"entries": [{"name": "d", "type": "FILE_TYPE_DIRECTORY", "size_bytes": 0, "mode": 493}, {"name": "x", "type": "FILE_TYPE_UNSPECIFIED"}]}),
                json!({"entries": [{"name": "d", "type": "FILE_TYPE_DIRECTORY"}, {"name": "x"}]}),
            ),
            (
                "wait_job",
                json!({"pending": true, "ok": false, "output": null, "text": ""}),
                json!({"pending": true, "ok": false}),
            ),
            ("no_such_tool", json!({"a": ""}), json!({"a": ""})),
        ] {
            let visible = catalog.model_view(tool, data.as_object().unwrap());
            assert_eq!(serde_json::Value::from(visible), expected, "{tool}");
        }
    }
}
