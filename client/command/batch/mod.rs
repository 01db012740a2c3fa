//! `jig batch`: runs several tool calls that a file describes.

mod document;

use std::{path::PathBuf, process::ExitCode};

use clap::Args;
use jig::{
    api::{
        json_struct::struct_to_json,
        v1::{BatchError, BatchMode, BatchResult, InvokeBatchResponse, ToolMessage},
    },
    client::Client,
};
use serde_json::{Value, json};

use self::document::parse_request;
use super::{columns::align_columns, report_and_exit};
use crate::{
    cli_error::CliError,
    connection, escape, exit,
    global::GlobalArgs,
    input::{read_file, utf8_string},
    output,
};

/// Maximum length of an output in its line, in characters.
const MAX_OUTPUT_CHARS: usize = 120;

/// Make several tool calls concurrently, as jobs, and print their results.
///
/// The file is a JSON object with 1 to 20 calls: `{"calls": [{"call_id": "a", "name": "read_file",
/// "arguments": {"path": "README.md"}}]}`. Optional fields are `mode` (`sync` or `async`),
/// `wait_ms`, `queue`, `dialect` and `result_format` (as --format of `jig tools`). Ctrl-C stops
/// waiting but not the calls; `jig job cancel` cancels one.
///
/// Exit code: 1 if a call failed. Calls that continue do not count as failed.
#[derive(Debug, Args)]
pub(crate) struct BatchArgs {
    /// File with the calls; `-` is standard input.
    file: PathBuf,
    /// Dialect of the calls, for example `rauskuclaw`. Overrides the field `dialect`.
    #[arg(long, value_name = "NAME")]
    dialect: Option<String>,
    /// Print the jobs without waiting for their results.
    #[arg(long = "async")]
    is_async: bool,
}

pub(crate) fn batch(global: &GlobalArgs, args: BatchArgs) -> ExitCode {
    match invoke_batch(global, args) {
        Ok(code) => ExitCode::from(code),
        Err(failure) => {
            if matches!(failure, CliError::Interrupted(_)) {
                output::note(
                    "calls that have started continue as jobs: jig job ls lists them, jig job cancel cancels one",
                );
            }
            report_and_exit(Err(failure), global.json)
        }
    }
}

fn invoke_batch(global: &GlobalArgs, args: BatchArgs) -> Result<u8, CliError> {
    let mut request = parse_request(&utf8_string(read_file(args.file)?)?)?;
    if let Some(dialect) = args.dialect {
        request.dialect = dialect;
    }
    if args.is_async {
        request.set_mode(BatchMode::Async);
    }

    let response = connection::call(global, async move |client: Client| {
        Ok(client.invoke_batch(request).await?)
    })?;

    if global.json {
        output::write_json(&to_json(&response))?;
    } else {
        output::write_stdout(result_lines(&response.results).as_bytes())?;
    }

    let has_failed = |result: &BatchResult| !result.ok && !result.pending;
    let any_failed = response.results.iter().any(has_failed);
    Ok(if any_failed { exit::FAILURE } else { exit::SUCCESS })
}

/// Formats a line per call.
fn result_lines(results: &[BatchResult]) -> String {
    let rows: Vec<_> = results
        .iter()
        .map(|result| {
            let (state, detail) = result_status(result);
            let detail = detail.lines().collect::<Vec<_>>().join(" ");
            vec![
                escape::name(&result.call_id).into_owned(),
                escape::name(&result.name).into_owned(),
                state.to_owned(),
                escape::text(&detail).into_owned(),
            ]
        })
        .collect();
    align_columns(&rows)
}

/// Returns the state of a call, and its result, error or job.
fn result_status(result: &BatchResult) -> (&'static str, String) {
    if result.pending {
        return ("pending", result.job_id.clone());
    }
    match (&result.error, &result.output) {
        (Some(error), _) if !result.ok => ("failed", format!("{}: {}", error.code, error.message)),
        (_, Some(output)) => {
            let text = Value::Object(struct_to_json(output.clone())).to_string();
            let detail = match text.char_indices().nth(MAX_OUTPUT_CHARS) {
                Some((end, _)) => format!("{}…", text.get(..end).unwrap_or(&text)),
                None => text,
            };
            (if result.ok { "ok" } else { "failed" }, detail)
        }
        (_, None) if result.ok => ("ok", result.job_id.clone()),
        (_, None) => ("failed", String::new()),
    }
}

fn to_json(response: &InvokeBatchResponse) -> Value {
    json!({
        "results": response.results.iter().map(result_json).collect::<Vec<_>>(),
        "tool_messages": response.tool_messages.iter().map(message_json).collect::<Vec<_>>(),
        "messages_json": response.messages_json,
        "ok": response.ok,
        "mode": response.mode,
    })
}

fn result_json(result: &BatchResult) -> Value {
    json!({
        "call_id": result.call_id,
        "name": result.name,
        "ok": result.ok,
        "pending": result.pending,
        "job_id": result.job_id,
        "job_type": result.job_type,
        "output": result.output.clone().map(struct_to_json),
        "error": result.error.as_ref().map(error_json),
    })
}

fn error_json(error: &BatchError) -> Value {
    json!({
        "code": error.code,
        "message": error.message,
        "details": error.details.clone().map(struct_to_json),
    })
}

fn message_json(message: &ToolMessage) -> Value {
    json!({
        "role": message.role,
        "tool_call_id": message.tool_call_id,
        "name": message.name,
        "content": message.content,
    })
}

#[cfg(test)]
mod tests {
    use prost_types::{Struct, Value as WireValue, value::Kind};

    use super::*;
    use crate::contract::has_all_fields;

    fn result_of(call_id: &str, ok: bool) -> BatchResult {
        BatchResult {
            call_id: call_id.to_owned(),
            name: "read_file".to_owned(),
            ok,
            ..BatchResult::default()
        }
    }

    #[test]
    fn result_lines_show_state_and_detail() {
        let text = WireValue { kind: Some(Kind::StringValue("ü".repeat(200))) };
        let results = [
            BatchResult {
                output: Some(Struct { fields: [("a".to_owned(), text)].into() }),
                ..result_of("one", true)
            },
            BatchResult {
                error: Some(BatchError {
                    code: "FILE_NOT_FOUND".into(),
                    message: "no\nfile".into(),
                    details: None,
                }),
                ..result_of("second", false)
            },
            BatchResult { pending: true, job_id: "01A".into(), ..result_of("3", false) },
            BatchResult { job_id: "01B".into(), ..result_of("4", true) },
        ];
        let lines = result_lines(&results);
        let lines: Vec<_> = lines.lines().collect();
        assert!(lines[0].starts_with("one     read_file  ok       {\"a\":\"ü"));
        assert!(lines[0].ends_with("ü…"), "{}", lines[0]);
        assert_eq!(
            lines[1..],
            [
                "second  read_file  failed   FILE_NOT_FOUND: no file",
                "3       read_file  pending  01A",
                "4       read_file  ok       01B",
            ]
        );
    }

    #[test]
    fn every_field_of_the_contract_is_printed() {
        let response = to_json(&InvokeBatchResponse {
            results: vec![BatchResult {
                error: Some(BatchError::default()),
                ..BatchResult::default()
            }],
            tool_messages: vec![ToolMessage::default()],
            ..InvokeBatchResponse::default()
        });
        has_all_fields("jig.v1.InvokeBatchResponse", &response);
        has_all_fields("jig.v1.BatchResult", &response["results"][0]);
        has_all_fields("jig.v1.BatchError", &response["results"][0]["error"]);
        has_all_fields("jig.v1.ToolMessage", &response["tool_messages"][0]);
    }
}
