//! `jig write`: writes a file of the workspace.

use std::process::ExitCode;

use base64::{Engine as _, prelude::BASE64_STANDARD};
use clap::Args;
use jig::{
    api::v1::{Encoding, WriteFileRequest, WriteFileResponse, WriteMode},
    client::Client,
};

use super::report_and_exit;
use crate::{
    cli_error::CliError, connection, file_json, global::GlobalArgs, input::InputSource, output,
    style::Style,
};

/// Write a file of the workspace, of up to 10 MiB. For larger files, use `jig cp`.
///
/// Example: `date | jig write logs/date.txt --append`.
#[derive(Debug, Args)]
pub(crate) struct WriteArgs {
    /// File to write, relative to the workspace.
    path: String,
    #[command(flatten)]
    source: InputSource,
    /// Permission bits of the file, in octal: `755`. Default: unchanged, and 644 for a new file.
    #[arg(long, value_name = "OCTAL", value_parser = parse_octal)]
    mode: Option<u32>,
    /// Append to the file instead of replacing it.
    #[arg(long, conflicts_with = "create_new")]
    append: bool,
    /// Fail if the path exists.
    #[arg(long)]
    create_new: bool,
    /// Do not create missing parent directories.
    #[arg(long)]
    no_parents: bool,
    /// Change the file only if it has this SHA-256.
    #[arg(long, value_name = "SHA256")]
    expect: Option<String>,
}

pub(crate) fn write(global: &GlobalArgs, args: WriteArgs) -> ExitCode {
    let path = args.path.clone();
    let result = request(args).and_then(|request| {
        let response = connection::call(global, async move |client: Client| {
            Ok(client.write_file(request).await?)
        })?;
        print(&path, &response, global.json)
    });
    report_and_exit(result, global.json)
}

fn request(args: WriteArgs) -> Result<WriteFileRequest, CliError> {
    let mode = match (args.append, args.create_new) {
        (true, _) => Some(WriteMode::Append),
        (_, true) => Some(WriteMode::CreateNew),
        _ => None,
    };

    let (content, encoding) = match String::from_utf8(args.source.read_bytes()?) {
        Ok(text) => (text, None),
        Err(error) => (BASE64_STANDARD.encode(error.as_bytes()), Some(Encoding::Base64.into())),
    };

    Ok(WriteFileRequest {
        path: args.path,
        content,
        encoding,
        mode: mode.map(Into::into),
        create_directories: args.no_parents.then_some(false),
        expected_sha256: args.expect,
        file_mode: args.mode,
    })
}

fn print(path: &str, response: &WriteFileResponse, as_json: bool) -> Result<(), CliError> {
    if as_json {
        return output::write_json(&file_json::write_file(response));
    }
    let verb = if response.created { "created" } else { "wrote" };
    let path = Style::of_stdout().escape_name(path);
    output::write_stdout(format!("{verb} {path} ({} bytes)\n", response.bytes_written).as_bytes())
}

fn parse_octal(text: &str) -> Result<u32, String> {
    u32::from_str_radix(text, 8)
        .ok()
        .filter(|mode| *mode <= 0o777)
        .ok_or_else(|| "must be permission bits in octal, 0 to 777".to_owned())
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;

    use super::*;
    use crate::cli::{Cli, CliCommand};

    fn parse(line: &str) -> WriteFileRequest {
        let words: Vec<OsString> = line.split(' ').map(OsString::from).collect();
        let CliCommand::Write(args) = Cli::parse_from(&words).unwrap().command else {
            panic!("not write");
        };
        request(args).unwrap()
    }

    #[test]
    fn flags_reach_the_request() {
        assert_eq!(
            parse("jig write a/b --text -x --mode 755 --append --no-parents --expect 00"),
            WriteFileRequest {
                path: "a/b".into(),
                content: "-x".into(),
                encoding: None,
                mode: Some(WriteMode::Append.into()),
                create_directories: Some(false),
                expected_sha256: Some("00".into()),
                file_mode: Some(0o755),
            }
        );
        let request = parse("jig write a --text= --create-new");
        assert_eq!(request.mode, Some(WriteMode::CreateNew.into()));
        assert_eq!(parse_octal("4755").ok().or(parse_octal("8").ok()), None);
    }

    #[test]
    fn binary_content_is_sent_as_base64() {
        let file = std::env::temp_dir().join(format!("jig-write-{}", std::process::id()));
        std::fs::write(&file, [0xff, 0]).unwrap();
        let request = parse(&format!("jig write a --from {}", file.display()));
        std::fs::remove_file(&file).unwrap();
        assert_eq!(request.content, "/wA=");
        assert_eq!(request.encoding, Some(Encoding::Base64.into()));
    }
}
