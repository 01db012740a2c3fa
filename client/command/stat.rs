//! `jig stat`: what is at a path of the workspace.

use std::process::ExitCode;

use clap::Args;
use jig::{
    api::v1::{FileType, StatPathRequest, StatPathResponse},
    client::Client,
};

use super::finish;
use crate::{connection, failure::Failure, file_json, global::Global, output, style::Style};

/// Tell what is at a path of the workspace: type, size, mode, time, SHA-256.
#[derive(Debug, Args)]
pub(crate) struct StatArgs {
    /// Path to describe, relative to the workspace. A symbolic link is not followed.
    path: String,
}

pub(crate) fn stat(global: &Global, args: StatArgs) -> ExitCode {
    let request = StatPathRequest { path: args.path };
    let path = request.path.clone();
    let result = connection::call(global, async move |client: Client| {
        Ok(client.stat_path(request).await?)
    })
    .and_then(|response| print(&path, &response, global.json));
    finish(result, global.json)
}

fn print(path: &str, response: &StatPathResponse, as_json: bool) -> Result<(), Failure> {
    if as_json {
        return output::json(&file_json::stat_path(response));
    }
    let path = Style::of_stdout().name(path);
    output::stdout(text(&path, response).as_bytes())
}

fn text(path: &str, response: &StatPathResponse) -> String {
    let kind = response.r#type();
    let mut text = format!(
        "{path}\ntype    {}\nsize    {} bytes\nmode    {} ({:04o})\n",
        word(kind),
        response.size_bytes,
        mode(kind, response.mode),
        response.mode & 0o7777,
    );
    if let Some(time) = response.modify_time {
        text.push_str(&format!("changed {time}\n"));
    }
    if let Some(sha256) = &response.sha256 {
        text.push_str(&format!("sha256  {sha256}\n"));
    }
    text
}

fn word(kind: FileType) -> &'static str {
    match kind {
        FileType::File => "file",
        FileType::Directory => "directory",
        FileType::Symlink => "symbolic link",
        FileType::Fifo => "FIFO",
        FileType::Socket => "socket",
        FileType::CharacterDevice => "character device",
        FileType::BlockDevice => "block device",
        FileType::Unspecified => "something else",
    }
}

/// Type and permissions as `ls -l` shows them.
pub(super) fn mode(kind: FileType, mode: u32) -> String {
    let mut text = String::from(match kind {
        FileType::File => "-",
        FileType::Directory => "d",
        FileType::Symlink => "l",
        FileType::Fifo => "p",
        FileType::Socket => "s",
        FileType::CharacterDevice => "c",
        FileType::BlockDevice => "b",
        FileType::Unspecified => "?",
    });
    for (bit, letter) in (0..9).rev().zip("rwxrwxrwx".chars()) {
        text.push(if mode & (1 << bit) == 0 { '-' } else { letter });
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_there_is_told() {
        let response = StatPathResponse {
            r#type: FileType::File.into(),
            size_bytes: 7,
            mode: 0o754,
            modify_time: None,
            sha256: Some("abc".into()),
        };
        assert_eq!(
            text("a", &response),
            "a\ntype    file\nsize    7 bytes\nmode    -rwxr-xr-- (0754)\nsha256  abc\n"
        );
        assert_eq!(mode(FileType::Directory, 0), "d---------");
    }
}
