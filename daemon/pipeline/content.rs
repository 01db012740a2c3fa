//! Content of calls on their spans (`--capture-content`).

use prost::Message;
use serde_json::Value;

use crate::daemon::{
    catalog::{Catalog, bound_to},
    telemetry::{content::ContentCapture, semconv, spans::OtelSpan},
    tool::Tool,
};

/// Larger responses are not converted for a span that has a part of them.
const MAX_CONVERTED_BYTES: usize = 1 << 20;

/// Returns a response as redacted JSON.
pub(super) type ResponseToJson<T> = fn(&Catalog, &<T as Tool>::Response) -> Option<Value>;

/// Sets the arguments of a call on its span. `params` are redacted.
pub(super) fn capture_arguments(capture: ContentCapture, span: &OtelSpan, params: &Value) {
    if let Some(max_bytes) = capture.max_bytes()
        && span.is_recording()
    {
        let json = bound_to(params.clone(), max_bytes).to_string();
        span.set(semconv::GEN_AI_TOOL_CALL_ARGUMENTS, json);
    }
}

/// A response of the tool `T` as redacted JSON, or its size if it is large.
pub(super) fn response_to_json<T>(catalog: &Catalog, response: &T::Response) -> Option<Value>
where
    T: Tool<Response: Message>,
{
    let bytes = response.encoded_len();
    if bytes > MAX_CONVERTED_BYTES {
        return Some(format!("<{bytes} bytes>").into());
    }
    catalog.tool(T::NAME)?.redacted_response(response).ok()
}

/// Sets the result of a call on its span. `to_json` returns it, redacted.
pub(super) fn capture_result(
    capture: ContentCapture,
    span: &OtelSpan,
    to_json: impl FnOnce() -> Option<Value>,
) {
    if let Some(max_bytes) = capture.max_bytes()
        && span.is_recording()
        && let Some(json) = to_json()
    {
        span.set(semconv::GEN_AI_TOOL_CALL_RESULT, bound_to(json, max_bytes).to_string());
    }
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
            let text = bound_to(value.clone(), 4096).to_string();
            assert!(text.len() <= 4096, "{}", text.len());
            let parsed: Value = serde_json::from_str(&text).unwrap();
            assert_ne!(parsed, value);
            assert!(text.contains("bytes"), "{text}");
        }
        assert_eq!(bound_to(json!({"a": 1}), 4096), json!({"a": 1}));
    }
}
