//! `last_command`: what the session's last command was, and what became of it.

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

/// Bytes of each stream that are told.
const MAX_HEAD_BYTES: usize = 4096;

/// The tool.
#[derive(Debug)]
pub(crate) struct LastCommand;

/// How a stream begins.
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
        let (session, place) = (context.session, context.permit);
        let look = task::spawn_blocking(move || {
            let _place = place;
            fd_exhaustion::retry_blocking(|| find_last_command(&session))
        });
        let response = look.await.map_err(Error::internal)?;
        let response = response.map_err(|error| match fd_exhaustion::is_fd_exhaustion(&error) {
            true => {
                fd_exhaustion::fd_exhausted_error(error, "what the last command has left behind")
            }
            false => Error::internal(error),
        });
        response?.map_or_else(
            || {
                let text = "this session has run no command, or none that is kept: run one, or name its session (jig-session)";
                Err(Error::new(Reason::NoCommandHistory, text))
            },
            |response| Ok(ToolOutput::new(response)),
        )
    }
}

/// Looks for it. Blocks.
fn find_last_command(session: &Arc<Session>) -> io::Result<Option<LastCommandResponse>> {
    let Some(command) = session.last_command()? else {
        return Ok(None);
    };
    let [stdout_path, stderr_path] = StepId::stream_paths(command.step.number());
    let total = |name: &str| {
        let ended = command.end_record.as_ref()?;
        ended.get(name).and_then(Value::as_u64)
    };
    let stdout = read_head(session, &stdout_path, total("stdout_bytes"))?;
    let stderr = read_head(session, &stderr_path, total("stderr_bytes"))?;
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

/// What the records say.
fn response(command: &RecordedCommand) -> LastCommandResponse {
    let params = command.start_record.get("tool_params");
    let params = params.or_else(|| command.start_record.get("params"));
    let param = |name: &str| params.and_then(|params| params.get(name));
    let argv: Vec<String> = match param("argv").and_then(Value::as_array) {
        Some(words) => {
            let words = words.iter().filter_map(Value::as_str);
            words.map(str::to_owned).collect()
        }
        None => Vec::new(),
    };
    // What is large is in the record by its size.
    let shown = ["command", "argv"].into_iter().find_map(|name| {
        let text = param(name).and_then(Value::as_str);
        text.map(str::to_owned)
    });
    let none = Map::new();
    // Of one that was lost, the record says when that was seen, and nothing of how it ended.
    let was_lost = match &command.end_record {
        Some(ended) => ended.get("error_type").and_then(Value::as_str) == Some("daemon_lost"),
        None => !command.is_running,
    };
    let ended = command.end_record.as_ref().filter(|_| !was_lost);
    let ended = ended.unwrap_or(&none);
    let text = |name: &str| {
        let text = ended.get(name).and_then(Value::as_str);
        text.unwrap_or_default().to_owned()
    };
    let outcome = match ended.get("outcome").and_then(Value::as_str) {
        Some(name) => Outcome::from_str_name(&format!("OUTCOME_{name}")).unwrap_or_default(),
        None if was_lost => Outcome::DaemonLost,
        None => Outcome::Unspecified,
    };
    let exit_code = ended.get("exit_code").and_then(Value::as_i64);
    LastCommandResponse {
        command: shown.unwrap_or_else(|| argv.join(" ")),
        argv,
        outcome: outcome.into(),
        exit_code: exit_code.and_then(|code| i32::try_from(code).ok()),
        signal: text("signal"),
        running: command.is_running,
        start_time: timestamp(&command.start_record),
        end_time: timestamp(ended),
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

/// How a stream begins that has `total` bytes, where that is known.
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
    while let Some(room) = bytes.get_mut(length..).filter(|room| !room.is_empty()) {
        match file.read_at(room, length as u64)? {
            0 => break,
            read => length += read,
        }
    }
    bytes.truncate(length);
    Ok(bytes)
}

/// Bytes as text. A character that the cut has split is left out.
fn lossy_text(bytes: &[u8], is_cut: bool) -> String {
    let whole = match bytes.utf8_chunks().last() {
        // The longest beginning of a character.
        Some(last)
            if is_cut && last.invalid().len() <= 3 && is_character_prefix(last.invalid()) =>
        {
            bytes.len() - last.invalid().len()
        }
        Some(_) | None => bytes.len(),
    };
    String::from_utf8_lossy(bytes.get(..whole).unwrap_or_default()).into_owned()
}

/// Whether more bytes could make a character of these.
fn is_character_prefix(bytes: &[u8]) -> bool {
    str::from_utf8(bytes).is_err_and(|error| error.error_len().is_none())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cut_splits_no_character() {
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
