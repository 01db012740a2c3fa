//! `jig read`: prints files of the workspace.

use std::{
    io::{self, IsTerminal as _},
    process::ExitCode,
};

use base64::{Engine as _, prelude::BASE64_STANDARD};
use clap::Args;
use jig::{
    api::v1::{Encoding, ReadFileRequest, ReadFileResponse},
    client::Client,
};

use super::{exit_code, paths, report_and_exit};
use crate::{
    cli_error::CliError, connection, exit, global::GlobalArgs, json, output,
    stdout_writer::StdoutWriter,
};

/// Print files of the workspace, one after the other.
///
/// To a file or pipe it writes everything, byte for byte; a file that changes during the read is an
/// error. On a terminal, and with --max or --json, each file is limited to one response: text, and
/// of more than 10,000 lines the first and the last 5,000.
#[derive(Debug, Args)]
pub(crate) struct ReadArgs {
    /// Files to read, relative to the workspace.
    #[arg(required = true, value_name = "PATH")]
    paths: Vec<String>,
    /// Lines to print of each file, counted from 1: `A:B`, `A:`, `:B`, or `A` for one line.
    #[arg(long, value_name = "A:B", value_parser = parse_line_range)]
    lines: Option<LineRangeArg>,
    /// Print the bytes in base64. Works for binary files too.
    #[arg(long)]
    base64: bool,
    /// Maximum bytes to read of each file, up to 10,485,760. Default: 3,145,728.
    #[arg(long, value_name = "BYTES")]
    max: Option<u32>,
}

/// A range of lines, both ends included.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct LineRangeArg {
    start: Option<u32>,
    end: Option<u32>,
}

pub(crate) fn read(global: &GlobalArgs, args: ReadArgs) -> ExitCode {
    let is_base64 = args.base64;
    let is_whole = args.max.is_none() && !global.json && !io::stdout().is_terminal();
    let range = args.lines.unwrap_or_default();

    let request = move |path| ReadFileRequest {
        path,
        start_line: range.start,
        end_line: range.end,
        encoding: is_base64.then(|| Encoding::Base64.into()),
        max_bytes: args.max,
    };

    if is_whole {
        let requests: Vec<ReadFileRequest> = args.paths.iter().cloned().map(request).collect();
        let copied = paths::check_request_id(global, &args.paths).and_then(|()| {
            connection::call(global, move |client| copy_each(client, requests, is_base64))
        });
        return match copied {
            Ok(code) => ExitCode::from(code),
            Err(failure) => report_and_exit(Err(failure), false),
        };
    }

    let call =
        move |client: Client, path| async move { Ok(client.read_file(request(path)).await?) };
    paths::call_for_each_path(global, args.paths, call, json::read_file, |_, response| {
        print(response, is_base64)
    })
}

/// Writes the requested part of each file while it arrives. Returns the exit code.
async fn copy_each(
    client: Client,
    requests: Vec<ReadFileRequest>,
    is_base64: bool,
) -> Result<u8, CliError> {
    let is_single = requests.len() == 1;
    let mut writer = StdoutWriter::start();
    let mut worst = exit::SUCCESS;
    for request in requests {
        let path = request.path.clone();
        match copy(&client, request, is_base64, &mut writer).await {
            Err(failure) if !is_single && failure.is_file_error() => {
                paths::report_path_failure(&path, &failure, false);
                worst = worst.max(exit_code(&failure));
            }
            copied => copied?,
        }
    }

    writer.finish().await?;
    Ok(worst)
}

async fn copy(
    client: &Client,
    request: ReadFileRequest,
    is_base64: bool,
    writer: &mut StdoutWriter,
) -> Result<(), CliError> {
    let client = client.clone();
    let mut encoder = is_base64.then(Base64Encoder::default);
    let mut encode = |page: Vec<u8>| match &mut encoder {
        Some(encoder) => encoder.encode(page),
        None => page,
    };

    let (first, last) = (request.start_line, request.end_line);
    if first.or(last).is_none() {
        let mut pages = client.bytes_by_page(request.path);
        while let Some(page) = pages.next().await? {
            writer.write(encode(page)).await?;
        }
    } else {
        let mut pages = client.lines_by_page(request.path, first.unwrap_or(1), last);
        while let Some(page) = pages.next().await? {
            writer.write(encode(page)).await?;
        }
    }

    if let Some(encoder) = encoder {
        writer.write(encoder.finish()).await?;
    }
    Ok(())
}

/// Encodes pages of bytes as one base64 text.
#[derive(Debug, Default)]
struct Base64Encoder {
    /// Up to two bytes that need the following bytes.
    remainder: Vec<u8>,
}

impl Base64Encoder {
    fn encode(&mut self, page: Vec<u8>) -> Vec<u8> {
        let mut bytes = std::mem::take(&mut self.remainder);
        bytes.extend(page);
        self.remainder = bytes.split_off(bytes.len() - bytes.len() % 3);
        BASE64_STANDARD.encode(bytes).into_bytes()
    }

    fn finish(self) -> Vec<u8> {
        (BASE64_STANDARD.encode(self.remainder) + "\n").into_bytes()
    }
}

fn print(response: &ReadFileResponse, is_base64: bool) -> Result<(), CliError> {
    output::write_stdout(response.content.as_bytes())?;
    if is_base64 {
        output::write_stdout(b"\n")?;
    }
    if let Some(note) = truncation_note(response) {
        output::note(&note);
    }
    Ok(())
}

/// Describes what the response leaves out.
fn truncation_note(response: &ReadFileResponse) -> Option<String> {
    if response.omitted_lines > 0 {
        return Some(format!(
            "{} of {} lines in the middle are omitted; read them with --lines",
            response.omitted_lines, response.total_lines
        ));
    }
    // The daemon does not count the lines of the largest files.
    let total = match response.total_lines {
        0 => String::new(),
        lines => format!(" of {lines}"),
    };
    response.truncated.then(|| {
        format!(
            "truncated in line {}{total} ({} bytes in total); read on with --lines, or raise --max",
            response.end_line, response.size_bytes
        )
    })
}

fn parse_line_range(text: &str) -> Result<LineRangeArg, String> {
    let number = |text: &str| match text.parse::<u32>() {
        Ok(number) if number > 0 => Ok(number),
        _ => Err(format!("`{text}` is not a line number; lines count from 1")),
    };

    let Some((start, end)) = text.split_once(':') else {
        let line = Some(number(text)?);
        return Ok(LineRangeArg { start: line, end: line });
    };

    let side = |text: &str| {
        if text.is_empty() { Ok(None) } else { number(text).map(Some) }
    };

    let range = LineRangeArg { start: side(start)?, end: side(end)? };
    match (range.start, range.end) {
        (None, None) => Err("give at least one end of the range".to_owned()),
        (Some(start), Some(end)) if start > end => Err(format!("{start} is greater than {end}")),
        _ => Ok(range),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn line_ranges_are_parsed() {
        for (text, start, end) in [
            ("1:2", Some(1), Some(2)),
            ("3:3", Some(3), Some(3)),
            ("3:", Some(3), None),
            (":3", None, Some(3)),
            ("7", Some(7), Some(7)),
        ] {
            assert_eq!(parse_line_range(text), Ok(LineRangeArg { start, end }), "{text}");
        }
        for text in ["", ":", "0", "0:1", "1:0", "2:1", "a:b", "1:2:3", "-1:2", "4294967296"] {
            assert!(parse_line_range(text).is_err(), "{text}");
        }
    }

    #[test]
    fn base64_does_not_depend_on_pages() {
        let bytes: Vec<u8> = (0..=255).collect();
        for size in 1..7 {
            let mut encoder = Base64Encoder::default();
            let pages = bytes.chunks(size).map(<[u8]>::to_vec);
            let mut text: Vec<u8> = pages.flat_map(|page| encoder.encode(page)).collect();
            text.extend(encoder.finish());
            assert_eq!(text, (BASE64_STANDARD.encode(&bytes) + "\n").into_bytes());
        }
    }

    #[test]
    fn omissions_are_described() {
        let whole = ReadFileResponse::default();
        assert_eq!(truncation_note(&whole), None);
        let omitted = ReadFileResponse {
            truncated: true,
            omitted_lines: 2000,
            total_lines: 12000,
            ..whole.clone()
        };
        assert!(truncation_note(&omitted).unwrap().starts_with("2000 of 12000 lines"));
        let cut = ReadFileResponse { truncated: true, ..whole };
        assert!(truncation_note(&cut).unwrap().contains("--max"));
    }
}
