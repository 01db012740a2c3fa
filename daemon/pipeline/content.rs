//! Content of calls on their spans (`--capture-content`).

use serde_json::Value;

use crate::daemon::{
    catalog::{Catalog, truncate_to},
    telemetry::{content::ContentCapture, semconv, spans::OtelSpan},
    tool::Tool,
};

/// Returns a response as redacted JSON.
pub(super) type ResponseToJson<T> = fn(&Catalog, &<T as Tool>::Response) -> Option<Value>;

/// Sets the arguments of a call on its span. `params` are redacted.
pub(super) fn capture_arguments(capture: ContentCapture, span: &OtelSpan, params: &Value) {
    if let Some(max_bytes) = capture.max_bytes() {
        let json = bounded_json(params.clone(), max_bytes);
        span.set(semconv::GEN_AI_TOOL_CALL_ARGUMENTS, json);
    }
}

/// Sets the result of a call on its span. `to_json` returns it, redacted.
pub(super) fn capture_result(
    capture: ContentCapture,
    span: &OtelSpan,
    to_json: impl FnOnce() -> Option<Value>,
) {
    if let Some(max_bytes) = capture.max_bytes()
        && let Some(json) = to_json()
    {
        span.set(semconv::GEN_AI_TOOL_CALL_RESULT, bounded_json(json, max_bytes));
    }
}

/// The JSON of a value, of at most `max_bytes`. What is cut is marked.
fn bounded_json(value: Value, max_bytes: usize) -> String {
    let json = truncate_to(value, max_bytes).to_string();
    if json.len() <= max_bytes {
        return json;
    }
    Value::from(format!("<{} bytes>", json.len())).to_string()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn large_values_are_valid_json_and_say_what_is_missing() {
        for value in [
            json!({"stdout": "x".repeat(10_000), "exit_code": 0}),
            json!({"lines": vec!["a line"; 1000]}),
            (0..1000).map(|n| (n.to_string(), json!(n))).collect::<serde_json::Map<_, _>>().into(),
        ] {
            let text = bounded_json(value.clone(), 4096);
            assert!(text.len() <= 4096, "{}", text.len());
            let parsed: Value = serde_json::from_str(&text).unwrap();
            assert_ne!(parsed, value);
            assert!(text.contains("bytes"), "{text}");
        }
        assert_eq!(bounded_json(json!({"a": 1}), 4096), "{\"a\":1}");
    }
}
