//! `jig stat`: prints the metadata of paths in the workspace.

use std::process::ExitCode;

use clap::Args;
use jig::{
    api::v1::{FileType, StatPathRequest, StatPathResponse},
    client::Client,
};

use super::paths;
use crate::{file_json, global::GlobalArgs, output, style::Style};

/// Show type, size, mode, modification time and SHA-256 of paths in the workspace.
#[derive(Debug, Args)]
pub(crate) struct StatArgs {
    /// Paths to describe, relative to the workspace. Symbolic links are not followed.
    #[arg(required = true, value_name = "PATH")]
    paths: Vec<String>,
}

pub(crate) fn stat(global: &GlobalArgs, args: StatArgs) -> ExitCode {
    let call =
        |client: Client, path| async move { Ok(client.stat_path(StatPathRequest { path }).await?) };
    paths::call_for_each_path(global, args.paths, call, file_json::stat_path, |path, response| {
        let path = Style::of_stdout().escape_name(path);
        output::write_stdout(stat_text(&path, response).as_bytes())
    })
}

fn stat_text(path: &str, response: &StatPathResponse) -> String {
    let kind = response.r#type();
    let mut text = format!(
        "{path}\ntype    {}\nsize    {} bytes\nmode    {} ({:04o})\n",
        file_type_name(kind),
        response.size_bytes,
        mode_string(kind, response.mode),
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

fn file_type_name(kind: FileType) -> &'static str {
    match kind {
        FileType::File => "file",
        FileType::Directory => "directory",
        FileType::Symlink => "symbolic link",
        FileType::Fifo => "FIFO",
        FileType::Socket => "socket",
        FileType::CharacterDevice => "character device",
        FileType::BlockDevice => "block device",
        FileType::Unspecified => "unknown",
    }
}

/// Formats type and permissions like `ls -l`.
pub(super) fn mode_string(kind: FileType, mode: u32) -> String {
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
    fn metadata_is_formatted_for_people() {
        let response = StatPathResponse {
            r#type: FileType::File.into(),
            size_bytes: 7,
            mode: 0o754,
            modify_time: None,
            sha256: Some("abc".into()),
        };
        assert_eq!(
            stat_text("a", &response),
            "a\ntype    file\nsize    7 bytes\nmode    -rwxr-xr-- (0754)\nsha256  abc\n"
        );
        assert_eq!(mode_string(FileType::Directory, 0), "d---------");
    }
}
