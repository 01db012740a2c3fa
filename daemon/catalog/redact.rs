//! Redacts and truncates the parameters of a call for its record.

#![expect(
    clippy::wildcard_enum_match_arm,
    reason = "kinds of values without text, in enums of other crates"
)]

use prost_reflect::{DynamicMessage, Value};
use serde_json::Value as Json;

use super::rules::{MAX_RECORDED_PARAMS_BYTES, MessageRules, size_placeholder};

impl MessageRules {
    /// The parameters of `message` for a record. `json` is the message as JSON, without secrets.
    pub(super) fn redact_for_record(&self, message: &DynamicMessage, json: Json) -> Json {
        truncate_params(self.redact_file_content(message, json))
    }

    /// Replaces secrets and content of files by their size.
    pub(super) fn redact_file_content(&self, message: &DynamicMessage, mut json: Json) -> Json {
        for field in &self.fields {
            let (name, value) = (field.descriptor.name(), message.get_field(&field.descriptor));
            let Some(field_json) = json.get_mut(name) else {
                continue;
            };

            if field.rules.file_content || field.rules.log_size_only || field.rules.sensitive {
                *field_json = size_placeholder(&value);
            } else if let Some(inner) = &field.inner {
                match (value.as_ref(), field_json) {
                    (Value::List(items), Json::Array(all)) => {
                        for (item, item_json) in items.iter().zip(all) {
                            if let Some(item) = item.as_message() {
                                *item_json = inner.redact_file_content(item, item_json.take());
                            }
                        }
                    }
                    (Value::Message(item), item_json) => {
                        *item_json = inner.redact_file_content(item, item_json.take())
                    }
                    _ => {}
                }
            }
        }
        json
    }
}

/// Truncates parameters to the size of a record, without a change of their shape if possible.
pub(crate) fn truncate_params(params: Json) -> Json {
    truncate_to(params, MAX_RECORDED_PARAMS_BYTES)
}

/// Truncates an object to about `max_bytes` as JSON, without a change of its shape if possible.
fn truncate_to(mut params: Json, max_bytes: usize) -> Json {
    for max_text_bytes in [max_bytes / 4, 512, 64] {
        if params.to_string().len() <= max_bytes {
            return params;
        }
        truncate_texts(&mut params, max_text_bytes);
    }

    // Many short values: replaces large fields by their size.
    for (_, value) in params.as_object_mut().into_iter().flatten() {
        let bytes = value.to_string().len();
        if bytes > 512 {
            *value = format!("<{bytes} bytes>").into();
        }
    }
    params
}

/// As [`truncate_to`], but a value that is still larger becomes its size.
pub(crate) fn bound_to(value: Json, max_bytes: usize) -> Json {
    let value = truncate_to(value, max_bytes);
    let bytes = value.to_string().len();
    if bytes <= max_bytes { value } else { format!("<{bytes} bytes>").into() }
}

/// Truncates each text to about `max_bytes`.
fn truncate_texts(value: &mut Json, max_bytes: usize) {
    match value {
        Json::String(text) if text.len() > max_bytes => *text = truncated_text(text, max_bytes),
        Json::Array(items) => {
            items.iter_mut().for_each(|item| truncate_texts(item, max_bytes));
        }
        Json::Object(fields) => {
            fields.values_mut().for_each(|item| truncate_texts(item, max_bytes));
        }
        _ => {}
    }
}

/// The beginning of a text, and the number of bytes that follow.
fn truncated_text(text: &str, max_bytes: usize) -> String {
    let mut end = max_bytes;
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    let rest = text.len() - end;
    format!("{} … ({rest} bytes more)", text.get(..end).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn long_params_are_truncated_in_shape() {
        let long = "\u{e9}\n".repeat(6000);

        let cut = truncate_params(json!({"command": long, "env": ["a", long], "n": 5}));
        assert!(cut.to_string().len() <= MAX_RECORDED_PARAMS_BYTES, "{cut}");
        let command = cut["command"].as_str().unwrap();
        assert!(command.starts_with("\u{e9}\n") && command.ends_with(" bytes more)"));
        assert_eq!((&cut["n"], &cut["env"][0]), (&json!(5), &json!("a")));

        let many = vec!["word"; 9000];
        let cut = truncate_params(json!({"argv": many, "cwd": "."}));
        assert_eq!(cut, json!({"argv": "<63001 bytes>", "cwd": "."}));
    }
}
