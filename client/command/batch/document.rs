//! Several calls, as a file has them: the document that `invoke-batch` takes, with the vocabulary and the format
//! of the results.

use clap::ValueEnum as _;
use jig::api::v1::{BatchCall, BatchMode, InvokeBatchRequest, ToolFormat};
use serde_json::{Map, Value};

use crate::{cli_error::CliError, command::tools::ToolFormatArg};

/// What is wrong with a document, all of it.
#[derive(Debug, Default)]
struct DocumentErrors(Vec<String>);

/// Reads the document. What the calls say is looked at by the daemon.
pub(super) fn parse_request(text: &str) -> Result<InvokeBatchRequest, CliError> {
    let fails = |error| CliError::Usage(format!("the file is no JSON: {error}"));
    let Value::Object(mut document) = serde_json::from_str(text).map_err(fails)? else {
        let text = r#"the file must be a JSON object: {"calls": [{"call_id": …, "name": …, "arguments": {…}}]}"#;
        return Err(CliError::Usage(text.to_owned()));
    };
    let mut wrong = DocumentErrors::default();
    let request = InvokeBatchRequest {
        calls: parse_calls(&mut document, &mut wrong),
        mode: wrong
            .take_text(&mut document, "", "mode")
            .map(|word| parse_mode(&word, &mut wrong).into()),
        wait_ms: parse_wait_ms(&mut document, &mut wrong),
        queue: wrong.take_text(&mut document, "", "queue"),
        dialect: wrong.take_text(&mut document, "", "dialect").unwrap_or_default(),
        result_format: wrong
            .take_text(&mut document, "", "result_format")
            .map(|word| parse_format(&word, &mut wrong).into()),
    };
    wrong.reject_unknown(&document, "");
    match wrong.0.is_empty() {
        true => Ok(request),
        false => Err(CliError::Usage(format!("the file: {}", wrong.0.join("; ")))),
    }
}

fn parse_calls(document: &mut Map<String, Value>, wrong: &mut DocumentErrors) -> Vec<BatchCall> {
    let calls = match document.remove("calls") {
        Some(Value::Array(calls)) => calls,
        Some(_) => {
            wrong.0.push("calls must be an array".to_owned());
            return Vec::new();
        }
        // The daemon says that it needs some.
        None => return Vec::new(),
    };
    let calls = calls.into_iter().enumerate();
    calls
        .filter_map(|(index, call)| {
            let place = format!("calls[{index}].");
            let Value::Object(mut call) = call else {
                wrong.0.push(format!("calls[{index}] must be an object"));
                return None;
            };
            let read = BatchCall {
                call_id: wrong.take_text(&mut call, &place, "call_id").unwrap_or_default(),
                name: wrong.take_text(&mut call, &place, "name").unwrap_or_default(),
                arguments: None,
                arguments_json: parse_arguments(&mut call, &place, wrong),
            };
            wrong.reject_unknown(&call, &place);
            Some(read)
        })
        .collect()
}

/// An object, or its text, as models of OpenAI write it.
fn parse_arguments(
    call: &mut Map<String, Value>,
    place: &str,
    wrong: &mut DocumentErrors,
) -> String {
    match call.remove("arguments") {
        None | Some(Value::Null) => "{}".to_owned(),
        Some(Value::String(text)) => text,
        Some(object @ Value::Object(_)) => object.to_string(),
        Some(_) => {
            wrong.0.push(format!("{place}arguments must be an object"));
            String::new()
        }
    }
}

fn parse_mode(word: &str, wrong: &mut DocumentErrors) -> BatchMode {
    let known = match word {
        "sync" => Some(BatchMode::Sync),
        "async" => Some(BatchMode::Async),
        name => BatchMode::from_str_name(name),
    };
    known.unwrap_or_else(|| {
        let text = format!("mode is {word:?}; it must be sync or async");
        wrong.0.push(text);
        BatchMode::Unspecified
    })
}

fn parse_format(word: &str, wrong: &mut DocumentErrors) -> ToolFormat {
    let named = ToolFormatArg::from_str(word, true).ok().map(ToolFormatArg::to_proto);
    named.or_else(|| ToolFormat::from_str_name(word)).unwrap_or_else(|| {
        let names = ToolFormatArg::value_variants().iter();
        let names = names.filter_map(clap::ValueEnum::to_possible_value);
        let names: Vec<_> = names.map(|name| name.get_name().to_owned()).collect();
        let text = format!("result_format is {word:?}; it must be one of {}", names.join(", "));
        wrong.0.push(text);
        ToolFormat::Unspecified
    })
}

fn parse_wait_ms(document: &mut Map<String, Value>, wrong: &mut DocumentErrors) -> Option<u32> {
    let value = document.remove("wait_ms").filter(|value| !value.is_null())?;
    let number = value.as_u64().and_then(|number| u32::try_from(number).ok());
    if number.is_none() {
        wrong.0.push(format!("wait_ms is {value}; it must be a number of milliseconds"));
    }
    number
}

impl DocumentErrors {
    /// A text; null is as good as none.
    fn take_text(
        &mut self,
        of: &mut Map<String, Value>,
        place: &str,
        name: &str,
    ) -> Option<String> {
        match of.remove(name)? {
            Value::Null => None,
            Value::String(text) => Some(text),
            Value::Bool(_) | Value::Number(_) | Value::Array(_) | Value::Object(_) => {
                self.0.push(format!("{place}{name} must be a string"));
                None
            }
        }
    }

    /// What is not known.
    fn reject_unknown(&mut self, of: &Map<String, Value>, place: &str) {
        let names = of.keys();
        self.0.extend(names.map(|name| format!("{place}{name} is not known")));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_example_of_the_document_is_read() {
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
    fn what_the_document_does_not_have() {
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
    fn all_that_is_wrong_is_named() {
        for (text, told) in [
            ("[", &["no JSON"][..]),
            ("[]", &["must be a JSON object"]),
            (r#"{"calls": {}}"#, &["calls must be an array"]),
            (
                r#"{"calls": [1, {"call_id": 2, "arguments": [], "args": {}}], "mode": "later", "wait_ms": "1s",
                    "result_format": "xml", "queue": 5, "timeout": 1}"#,
                &[
                    "calls[0] must be an object",
                    "calls[1].call_id must be a string",
                    "calls[1].arguments must be an object",
                    "calls[1].args is not known",
                    "mode is \"later\"",
                    "wait_ms is \"1s\"",
                    "openai-chat, openai-responses",
                    "queue must be a string",
                    "; timeout is not known",
                ],
            ),
        ] {
            let Err(CliError::Usage(message)) = parse_request(text) else {
                panic!("{text}");
            };
            for part in told {
                assert!(message.contains(part), "{part} in {message}");
            }
        }
    }
}
