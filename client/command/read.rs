//! `jig read`: a file of the workspace.

use std::process::ExitCode;

use clap::Args;
use jig::api::v1::{Encoding, ReadFileRequest, ReadFileResponse};

use super::finish;
use crate::{connection, failure::Failure, global::Global, json, output};

/// Print a file of the workspace.
#[derive(Debug, Args)]
pub(crate) struct ReadArgs {
    /// File to read, relative to the workspace.
    path: String,
    /// Lines to read, counted from 1: `A:B`, `A:`, `:B`, or `A` for one line.
    #[arg(long, value_name = "A:B", value_parser = lines)]
    lines: Option<Lines>,
    /// Print the bytes in base64, which also works for files that are not text.
    #[arg(long)]
    base64: bool,
    /// Most bytes to read; 3,145,728 by default, 10,485,760 at most.
    #[arg(long, value_name = "BYTES")]
    max: Option<u32>,
}

/// A range of lines, both ends included.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Lines {
    start: Option<u32>,
    end: Option<u32>,
}

pub(crate) fn read(global: &Global, args: ReadArgs) -> ExitCode {
    let is_base64 = args.base64;
    let range = args.lines.unwrap_or_default();
    let request = ReadFileRequest {
        path: args.path,
        start_line: range.start,
        end_line: range.end,
        encoding: is_base64.then(|| Encoding::Base64.into()),
        max_bytes: args.max,
    };
    let result = connection::call(global, async move |client: jig::client::Client| {
        Ok(client.read_file(request).await?)
    })
    .and_then(|response| print(&response, is_base64, global.json));
    finish(result, global.json)
}

fn print(response: &ReadFileResponse, is_base64: bool, as_json: bool) -> Result<(), Failure> {
    if as_json {
        return output::json(&json::read_file(response));
    }
    output::stdout(response.content.as_bytes())?;
    if is_base64 {
        output::stdout(b"\n")?;
    }
    if let Some(note) = note(response) {
        output::note(&note);
    }
    Ok(())
}

/// What of the file is missing.
fn note(response: &ReadFileResponse) -> Option<String> {
    if response.omitted_lines > 0 {
        return Some(format!(
            "{} of {} lines were left out in the middle; read them with --lines",
            response.omitted_lines, response.total_lines
        ));
    }
    // Of the largest files nobody has counted them.
    let of = match response.total_lines {
        0 => String::new(),
        lines => format!(" of {lines}"),
    };
    response.truncated.then(|| {
        format!(
            "cut off in line {}{of} ({} bytes in all); read on with --lines, or raise --max",
            response.end_line, response.size_bytes
        )
    })
}

fn lines(text: &str) -> Result<Lines, String> {
    let number = |text: &str| match text.parse::<u32>() {
        Ok(number) if number > 0 => Ok(number),
        _ => Err(format!(
            "`{text}` is not the number of a line, which count from 1"
        )),
    };
    let Some((start, end)) = text.split_once(':') else {
        let line = Some(number(text)?);
        return Ok(Lines {
            start: line,
            end: line,
        });
    };
    let side = |text: &str| {
        if text.is_empty() {
            Ok(None)
        } else {
            number(text).map(Some)
        }
    };
    let range = Lines {
        start: side(start)?,
        end: side(end)?,
    };
    match (range.start, range.end) {
        (None, None) => Err("at least one end is needed".to_owned()),
        (Some(start), Some(end)) if start > end => Err(format!("{start} comes after {end}")),
        _ => Ok(range),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_of_lines() {
        for (text, start, end) in [
            ("1:2", Some(1), Some(2)),
            ("3:3", Some(3), Some(3)),
            ("3:", Some(3), None),
            (":3", None, Some(3)),
            ("7", Some(7), Some(7)),
        ] {
            assert_eq!(lines(text), Ok(Lines { start, end }), "{text}");
        }
        for text in [
            "",
            ":",
            "0",
            "0:1",
            "1:0",
            "2:1",
            "a:b",
            "1:2:3",
            "-1:2",
            "4294967296",
        ] {
            assert!(lines(text).is_err(), "{text}");
        }
    }

    #[test]
    fn what_is_missing_is_told() {
        let whole = ReadFileResponse::default();
        assert_eq!(note(&whole), None);
        let omitted = ReadFileResponse {
            truncated: true,
            omitted_lines: 2000,
            total_lines: 12000,
            ..whole.clone()
        };
        assert!(note(&omitted).unwrap().starts_with("2000 of 12000 lines"));
        let cut = ReadFileResponse {
            truncated: true,
            ..whole
        };
        assert!(note(&cut).unwrap().contains("--max"));
    }
}
