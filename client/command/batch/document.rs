//! Parses the file of `jig batch`: the document of `invoke-batch` with two additional fields,
//! `dialect` and `result_format`.

use clap::ValueEnum as _;
use jig::api::v1::{BatchCall, BatchMode, InvokeBatchRequest, ToolFormat};
use serde_json::{Map, Value};

use crate::{cli_error::CliError, command::tools::ToolFormatArg};

/// Problems of a document, all of them.
#[derive(Debug, Default)]
struct DocumentErrors(Vec<String>);

/// Parses the document. The daemon validates the calls themselves.
pub(super) fn parse_request(text: &str) -> Result<InvokeBatchRequest, CliError> {
    let to_error = |error| CliError::Usage(format!("the file is not JSON: {error}"));
    let Value::Object(mut document) = serde_json::from_str(text).map_err(to_error)? else {
        let text = r#"the file must be a JSON object: {"calls": [{"call_id": …, "name": …, "arguments": {…}}]}"#;
        return Err(CliError::Usage(text.to_owned()));
    };

    let mut errors = DocumentErrors::default();
    let request = InvokeBatchRequest {
        calls: parse_calls(&mut document, &mut errors),
        mode: errors
            .take_text(&mut document, "", "mode")
            .map(|word| parse_mode(&word, &mut errors).into()),
        wait_ms: parse_wait_ms(&mut document, &mut errors),
        queue: errors.take_text(&mut document, "", "queue"),
        dialect: errors.take_text(&mut document, "", "dialect").unwrap_or_default(),
        result_format: errors
            .take_text(&mut document, "", "result_format")
            .map(|word| parse_format(&word, &mut errors).into()),
    };
    errors.reject_unknown(&document, "");

    if !errors.0.is_empty() {
        return Err(CliError::Usage(format!("the file: {}", errors.0.join("; "))));
    }
    Ok(request)
}

fn parse_calls(document: &mut Map<String, Value>, errors: &mut DocumentErrors) -> Vec<BatchCall> {
    let calls = match document.remove("calls") {
        Some(Value::Array(calls)) => calls,
        Some(_) => {
            errors.0.push("calls must be an array".to_owned());
            return Vec::new();
        }
        // The daemon rejects a batch without calls.
        None => return Vec::new(),
    };

    let calls = calls.into_iter().enumerate();
    calls
        .filter_map(|(index, call)| {
            let prefix = format!("calls[{index}].");
            let Value::Object(mut call) = call else {
                errors.0.push(format!("calls[{index}] must be an object"));
                return None;
            };
            let parsed = BatchCall {
                call_id: errors.take_text(&mut call, &prefix, "call_id").unwrap_or_default(),
                name: errors.take_text(&mut call, &prefix, "name").unwrap_or_default(),
                arguments: None,
                arguments_json: parse_arguments(&mut call, &prefix, errors),
            };
            errors.reject_unknown(&call, &prefix);
            Some(parsed)
        })
        .collect()
}

/// Parses an object, or its JSON text, which OpenAI's models produce.
fn parse_arguments(
    call: &mut Map<String, Value>,
    prefix: &str,
    errors: &mut DocumentErrors,
) -> String {
    match call.remove("arguments") {
        None | Some(Value::Null) => "{}".to_owned(),
        Some(Value::String(text)) => text,
        Some(object @ Value::Object(_)) => object.to_string(),
        Some(_) => {
            errors.0.push(format!("{prefix}arguments must be an object"));
            String::new()
        }
    }
}

fn parse_mode(word: &str, errors: &mut DocumentErrors) -> BatchMode {
    let known = match word {
        "sync" => Some(BatchMode::Sync),
        "async" => Some(BatchMode::Async),
        name => BatchMode::from_str_name(name),
    };
    known.unwrap_or_else(|| {
        let text = format!("mode is {word:?}; it must be sync or async");
        errors.0.push(text);
        BatchMode::Unspecified
    })
}

fn parse_format(word: &str, errors: &mut DocumentErrors) -> ToolFormat {
    let named = ToolFormatArg::from_str(word, true).ok().map(ToolFormatArg::to_proto);
    named.or_else(|| ToolFormat::from_str_name(word)).unwrap_or_else(|| {
        let names: Vec<_> = ToolFormatArg::value_variants()
            .iter()
            .filter_map(clap::ValueEnum::to_possible_value)
            .map(|name| name.get_name().to_owned())
            .collect();
        let text = format!("result_format is {word:?}; it must be one of {}", names.join(", "));
        errors.0.push(text);
        ToolFormat::Unspecified
    })
}

fn parse_wait_ms(document: &mut Map<String, Value>, errors: &mut DocumentErrors) -> Option<u32> {
    let value = document.remove("wait_ms").filter(|value| !value.is_null())?;
    let number = value.as_u64().and_then(|number| u32::try_from(number).ok());
    if number.is_none() {
        errors.0.push(format!("wait_ms is {value}; it must be a number of milliseconds"));
    }
    number
}

impl DocumentErrors {
    /// Removes and returns a string field. Treats null as absent.
    fn take_text(
        &mut self,
        object: &mut Map<String, Value>,
        prefix: &str,
        name: &str,
    ) -> Option<String> {
        match object.remove(name)? {
            Value::Null => None,
            Value::String(text) => Some(text),
            Value::Bool(_) | Value::Number(_) | Value::Array(_) | Value::Object(_) => {
                self.0.push(format!("{prefix}{name} must be a string"));
                None
            }
        }
    }

    /// Reports the fields that remain.
    fn reject_unknown(&mut self, object: &Map<String, Value>, prefix: &str) {
        self.0.extend(object.keys().map(|name| format!("unknown field {prefix}{name}")));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn documented_example_is_parsed() {
        let request = parse_request(
            r#"{
              "calls": [
                { "call_id": "call-abc-123", "name": "data_file_read", "arguments": { "path": "README.md" } },
                { "call_id": "call-def-456", "name": "tools_file_search", "arguments": "{\"query\": \"test\"}" },
                { "call_id": "none", "name": "run" }
              ],
              "mode": "sync",
              "wait_ms": 15000,
              "queue": "default"
            }"#,
        )
        .unwrap();
        let call = |call_id: &str, name: &str, json: &str| BatchCall {
            call_id: call_id.to_owned(),
            name: name.to_owned(),
            arguments: None,
            arguments_json: json.to_owned(),
        };
        let expected = InvokeBatchRequest {
            calls: vec![
                call("call-abc-123", "data_file_read", r#"{"path":"README.md"}"#),
                call("call-def-456", "tools_file_search", r#"{"query": "test"}"#),
                call("none", "run", "{}"),
            ],
            mode: Some(BatchMode::Sync.into()),
            wait_ms: Some(15000),
            queue: Some("default".to_owned()),
            ..InvokeBatchRequest::default()
        };
        assert_eq!(request, expected);
    }

    #[test]
    fn additional_fields_are_parsed() {
        let request = parse_request(
            r#"{"mode": "async", "dialect": "rauskuclaw", "result_format": "anthropic", "wait_ms": null}"#,
        )
        .unwrap();
        assert_eq!(
            (request.mode(), request.dialect.as_str(), request.result_format(), request.wait_ms),
            (BatchMode::Async, "rauskuclaw", ToolFormat::Anthropic, None)
        );
        let by_name = super::parse_request(
            r#"{"result_format": "TOOL_FORMAT_MCP", "mode": "BATCH_MODE_SYNC"}"#,
        );
        let by_name = by_name.unwrap();
        assert_eq!((by_name.mode(), by_name.result_format()), (BatchMode::Sync, ToolFormat::Mcp));
    }

    #[test]
    fn all_errors_are_reported() {
        for (text, expected) in [
            ("[", &["not JSON"][..]),
            ("[]", &["must be a JSON object"]),
            (r#"{"calls": {}}"#, &["calls must be an array"]),
            (
                r#"{"calls": [1, {"call_id": 2, "arguments": [], "args": {}}], "mode": "later", "wait_ms": "1s",
                    "result_format": "xml", "queue": 5, "timeout": 1}"#,
                &[
                    "calls[0] must be an object",
                    "calls[1].call_id must be a string",
                    "calls[1].arguments must be an object",
                    "unknown field calls[1].args",
                    "mode is \"later\"",
                    "wait_ms is \"1s\"",
                    "openai-chat, openai-responses",
                    "queue must be a string",
                    "; unknown field timeout",
                ],
            ),
        ] {
            let Err(CliError::Usage(message)) = parse_request(text) else {
                panic!("{text}");
            };
            for part in expected {
                assert!(message.contains(part), "{part} in {message}");
            }
        }
    }
}
