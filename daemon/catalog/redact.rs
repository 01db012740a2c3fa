//! The parameters of a call as its record has them: without lines of files, and no more than there is room
//! for.

#![expect(
    clippy::wildcard_enum_match_arm,
    reason = "kinds of values that hold no text, in enums of other crates"
)]

use prost_reflect::{DynamicMessage, Value};
use serde_json::Value as Json;

use super::rules::{MAX_RECORDED_PARAMS_BYTES, MessageRules, size_placeholder};

impl MessageRules {
    /// What a record has of `message`, of which this is `shown`.
    pub(super) fn redact_for_record(&self, message: &DynamicMessage, shown: Json) -> Json {
        truncate_params(self.redact_file_content(message, shown))
    }

    /// JSON of a message with the size in place of what are lines of files.
    fn redact_file_content(&self, message: &DynamicMessage, mut json: Json) -> Json {
        for field in &self.fields {
            let (name, value) = (field.descriptor.name(), message.get_field(&field.descriptor));
            let Some(shown) = json.get_mut(name) else {
                continue;
            };
            if field.rules.payload || field.rules.file_text {
                *shown = size_placeholder(&value);
            } else if let Some(inner) = &field.inner {
                match (value.as_ref(), shown) {
                    (Value::List(items), Json::Array(all)) => {
                        for (item, shown) in items.iter().zip(all) {
                            if let Some(item) = item.as_message() {
                                *shown = inner.redact_file_content(item, shown.take());
                            }
                        }
                    }
                    (Value::Message(item), shown) => {
                        *shown = inner.redact_file_content(item, shown.take())
                    }
                    _ => {}
                }
            }
        }
        json
    }
}

/// Parameters of the same shape that a record has room for: of long texts the beginning.
pub(crate) fn truncate_params(params: Json) -> Json {
    let mut params = params;
    for longest in [4096, 512, 64] {
        if params.to_string().len() <= MAX_RECORDED_PARAMS_BYTES {
            return params;
        }
        truncate_texts(&mut params, longest);
    }
    let fields = params.as_object_mut().into_iter().flatten();
    for (_, value) in fields {
        let bytes = value.to_string().len();
        // Many that are small.
        if bytes > 512 {
            *value = format!("<{bytes} bytes>").into();
        }
    }
    params
}

/// Leaves of each text that is longer its beginning.
fn truncate_texts(value: &mut Json, longest: usize) {
    match value {
        Json::String(text) if text.len() > longest => *text = truncated_text(text, longest),
        Json::Array(items) => {
            items.iter_mut().for_each(|item| truncate_texts(item, longest));
        }
        Json::Object(fields) => {
            fields.values_mut().for_each(|item| truncate_texts(item, longest));
        }
        _ => {}
    }
}

/// The beginning of a text that is longer, and how much more there is.
fn truncated_text(text: &str, longest: usize) -> String {
    let mut end = longest;
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
    fn what_is_too_long_keeps_its_shape() {
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
