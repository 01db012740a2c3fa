//! `last_command`: returns the session's last command and its outcome.

use std::{fs::File, io, os::unix::fs::FileExt as _, sync::Arc};

use prost_types::Timestamp;
use serde_json::{Map, Value};

use super::{Tool, ToolContext, ToolOutput, WorkspaceContext};
use crate::{
    api::v1::{LastCommandRequest, LastCommandResponse, Outcome},
    daemon::{
        error::{Error, Reason, Violation},
        fd_exhaustion,
        store::session::{OpenedArtifact, RecordedCommand, Session, StepId},
        task,
    },
};

/// Bytes of each stream in the response.
const MAX_HEAD_BYTES: usize = 4096;

#[derive(Debug)]
pub(crate) struct LastCommand;

/// The beginning of an output stream.
#[derive(Debug, Default)]
struct StreamHead {
    text: String,
    is_truncated: bool,
}

impl Tool for LastCommand {
    const NAME: &'static str = "last_command";
    type Request = LastCommandRequest;
    type Response = LastCommandResponse;
    type Params = ();

    fn validate(
        LastCommandRequest {}: LastCommandRequest,
        _: &WorkspaceContext,
        _: &mut Vec<Violation>,
    ) -> Result<Option<()>, Error> {
        Ok(Some(()))
    }

    async fn execute(
        (): (),
        context: ToolContext,
    ) -> Result<ToolOutput<LastCommandResponse>, Error> {
        let (session, permit) = (context.session, context.permit);
        let lookup = task::spawn_blocking(move || {
            let _permit = permit;
            fd_exhaustion::retry_blocking(|| find_last_command(&session))
        });
        let response = lookup.await.map_err(Error::internal)?.map_err(|error| {
            if fd_exhaustion::is_fd_exhaustion(&error) {
                fd_exhaustion::fd_exhausted_error(error, "the output of the last command")
            } else {
                Error::internal(error)
            }
        })?;

        response.map(ToolOutput::new).ok_or_else(|| {
            let text = "this session has run no command, or none that is stored: run one, or name another session (jig-session)";
            Error::new(Reason::NoCommandHistory, text)
        })
    }
}

/// Finds the last command and reads the beginning of its output. Blocks.
fn find_last_command(session: &Arc<Session>) -> io::Result<Option<LastCommandResponse>> {
    let Some(command) = session.last_command()? else {
        return Ok(None);
    };

    let [stdout_path, stderr_path] = StepId::stream_paths(command.step.number());
    let recorded_total =
        |name: &str| command.end_record.as_ref()?.get(name).and_then(Value::as_u64);
    let stdout = read_head(session, &stdout_path, recorded_total("stdout_bytes"))?;
    let stderr = read_head(session, &stderr_path, recorded_total("stderr_bytes"))?;

    Ok(Some(LastCommandResponse {
        stdout: stdout.text,
        stderr: stderr.text,
        stdout_truncated: stdout.is_truncated,
        stderr_truncated: stderr.is_truncated,
        stdout_path,
        stderr_path,
        ..response(&command)
    }))
}

/// The response without output: what the start and end records hold.
fn response(command: &RecordedCommand) -> LastCommandResponse {
    let start = &command.start_record;
    let params = start.get("tool_params").or_else(|| start.get("params"));
    let param = |name: &str| params.and_then(|params| params.get(name));
    let argv: Vec<String> = match param("argv").and_then(Value::as_array) {
        Some(words) => words.iter().filter_map(Value::as_str).map(str::to_owned).collect(),
        None => Vec::new(),
    };
    // A large value is recorded as a text that gives its size.
    let command_text = ["command", "argv"]
        .into_iter()
        .find_map(|name| param(name).and_then(Value::as_str).map(str::to_owned));

    // The end record of a lost command has the time at which the loss was noticed, and no outcome.
    let was_lost = match &command.end_record {
        Some(end) => end.get("error_type").and_then(Value::as_str) == Some("daemon_lost"),
        None => !command.is_running,
    };
    let no_fields = Map::new();
    let end = command.end_record.as_ref().filter(|_| !was_lost).unwrap_or(&no_fields);
    let text = |name: &str| end.get(name).and_then(Value::as_str).unwrap_or_default().to_owned();
    let outcome = match end.get("outcome").and_then(Value::as_str) {
        Some(name) => Outcome::from_str_name(&format!("OUTCOME_{name}")).unwrap_or_default(),
        None if was_lost => Outcome::DaemonLost,
        None => Outcome::Unspecified,
    };
    let exit_code = end.get("exit_code").and_then(Value::as_i64);
    LastCommandResponse {
        command: command_text.unwrap_or_else(|| argv.join(" ")),
        argv,
        outcome: outcome.into(),
        exit_code: exit_code.and_then(|code| i32::try_from(code).ok()),
        signal: text("signal"),
        running: command.is_running,
        start_time: timestamp(start),
        end_time: timestamp(end),
        step: command.step.number(),
        error_type: text("error_type"),
        error_message: text("message"),
        limit: text("limit"),
        ..LastCommandResponse::default()
    }
}

fn timestamp(record: &Map<String, Value>) -> Option<Timestamp> {
    record.get("time")?.as_str()?.parse().ok()
}

/// The beginning of a stream of `total` bytes, if that is known.
fn read_head(session: &Session, path: &str, total: Option<u64>) -> io::Result<StreamHead> {
    let file = match session.open_artifact(path)? {
        OpenedArtifact::File(file) => file,
        OpenedArtifact::Empty | OpenedArtifact::Missing => return Ok(StreamHead::default()),
    };

    let bytes = first_bytes(&file)?;
    let total = total.unwrap_or(file.metadata()?.len());
    let is_truncated = total > bytes.len() as u64;
    Ok(StreamHead { text: lossy_text(&bytes, is_truncated), is_truncated })
}

fn first_bytes(file: &File) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; MAX_HEAD_BYTES];
    let mut length = 0;
    while let Some(rest) = bytes.get_mut(length..).filter(|rest| !rest.is_empty()) {
        match file.read_at(rest, length as u64)? {
            0 => break,
            read => length += read,
        }
    }
    bytes.truncate(length);
    Ok(bytes)
}

/// Converts bytes to text. Leaves out a character that the cut has split.
fn lossy_text(bytes: &[u8], is_cut: bool) -> String {
    let valid_length = match bytes.utf8_chunks().last() {
        // A truncated UTF-8 character has at most three bytes.
        Some(last)
            if is_cut && last.invalid().len() <= 3 && is_character_prefix(last.invalid()) =>
        {
            bytes.len() - last.invalid().len()
        }
        Some(_) | None => bytes.len(),
    };
    String::from_utf8_lossy(bytes.get(..valid_length).unwrap_or_default()).into_owned()
}

/// Whether further bytes could complete these to a character.
fn is_character_prefix(bytes: &[u8]) -> bool {
    str::from_utf8(bytes).is_err_and(|error| error.error_len().is_none())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn truncated_text_has_no_partial_character() {
        for (bytes, is_cut, text) in [
            (&b"ab"[..], true, "ab"),
            ("a\u{e9}".as_bytes(), true, "a\u{e9}"),
            (b"a\xc3", true, "a"),
            (b"a\xc3", false, "a\u{fffd}"),
            (b"a\xf0\x9f\x98", true, "a"),
            (b"a\xff", true, "a\u{fffd}"),
            (b"", true, ""),
        ] {
            assert_eq!(lossy_text(bytes, is_cut), text, "{bytes:?}");
        }
    }
}
