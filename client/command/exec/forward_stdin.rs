//! Giving a process what is typed or piped in here.

use std::{
    future::pending,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use jig::api::v1::WriteStdinRequest;
use tokio::sync::mpsc;

use super::{
    followed_process::FollowedProcessWatch,
    notes::note_in_background,
    outcome::FollowEnd,
    reconnect::{ReconnectAttempts, is_connection_loss},
    stdin::{LocalStdinPart, MAX_PART_BYTES},
};
use crate::{cli_error::CliError, local_error::LocalError};

/// How long what is typed is offered to a daemon that refuses it although the process is read: one
/// that ends takes no more calls, and goes on with those that there are.
const MAX_REFUSAL_TIME: Duration = Duration::from_secs(3);

/// What is typed, in the order in which it was typed.
struct LocalStdinReader {
    parts: mpsc::Receiver<LocalStdinPart>,
    /// What came behind bytes that are given first.
    held_back: Option<LocalStdinPart>,
}

/// Gives the process what is typed as soon as it runs. Ends when who types leaves, or nothing can be
/// read here any more.
pub(super) async fn forward_stdin(
    parts: mpsc::Receiver<LocalStdinPart>,
    mut known: FollowedProcessWatch,
    are_keys: bool,
) -> Result<FollowEnd, CliError> {
    let mut input = LocalStdinReader { parts, held_back: None };
    let mut number = 0_u64;
    let name = write_id_prefix();
    loop {
        // First that it runs: what is typed meanwhile is given at once then.
        let process_id = known.started().await.process_id;
        let data = match input.next_part().await {
            Some(LocalStdinPart::Data(data)) => Some(data),
            Some(LocalStdinPart::Leave) => return Ok(FollowEnd::LeftByUser),
            Some(LocalStdinPart::ReadFailed(error)) => {
                return Err(LocalError::new("standard input cannot be read", &error).into());
            }
            None => None,
        };
        let is_end = data.is_none();
        number += 1;
        let request = WriteStdinRequest {
            process_id,
            data: data.unwrap_or_default().into(),
            eof: is_end,
            write_id: format!("{name}-{number}"),
        };
        if !write_part(&mut known, request).await? || is_end {
            break;
        }
    }
    // It reads no more; it may still write. Of keys, the way out is still wanted: nothing may be in
    // its way.
    if !are_keys {
        return pending().await;
    }
    while let Some(part) = input.next_part().await {
        if matches!(part, LocalStdinPart::Leave) {
            return Ok(FollowEnd::LeftByUser);
        }
    }
    pending().await
}

/// Gives it one part, again while the connection is lost. Answers whether it takes more.
async fn write_part(
    known: &mut FollowedProcessWatch,
    request: WriteStdinRequest,
) -> Result<bool, CliError> {
    // From the first one that was refused: one may wait for as long as the process reads nothing.
    let mut refused: Option<ReconnectAttempts> = None;
    loop {
        let client = known.started().await.client;
        let Err(error) = client.write_stdin(request.clone()).await else {
            return Ok(true);
        };
        if matches!(error.name(), "STDIN_CLOSED" | "PROCESS_ENDED") {
            return Ok(false);
        }
        let is_lost = is_connection_loss(&error);
        let is_read = known.current().is_none_or(|running| running.is_connected);
        let tries = refused.get_or_insert_with(ReconnectAttempts::start);
        if error.name() == "DRAINING" || is_lost && is_read && tries.have_lasted(MAX_REFUSAL_TIME) {
            note_in_background(&format!(
                "input cannot be given any more, what is written still comes: {}",
                error.message
            ));
            return Ok(false);
        }
        if !is_lost {
            return Err(error.into());
        }
        // The write id makes sure that it is given once.
        tries.wait_backoff().await;
        if known.current().is_some_and(|running| !running.is_connected) {
            // How long that is tried is not decided here.
            known.connected().await;
            refused = None;
        }
    }
}

impl LocalStdinReader {
    /// What comes next; bytes that have come already are one part, so that who types faster than the
    /// network answers is not left behind more and more.
    async fn next_part(&mut self) -> Option<LocalStdinPart> {
        let first = match self.held_back.take() {
            Some(part) => Some(part),
            None => self.parts.recv().await,
        };
        let Some(LocalStdinPart::Data(mut data)) = first else {
            return first;
        };
        while data.len() < MAX_PART_BYTES {
            match self.parts.try_recv() {
                Ok(LocalStdinPart::Data(more)) => data.extend_from_slice(&more),
                Ok(other) => {
                    self.held_back = Some(other);
                    break;
                }
                Err(_) => break,
            }
        }
        Some(LocalStdinPart::Data(data))
    }
}

/// A name that no other run of jig gives its writes.
fn write_id_prefix() -> String {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    let nanos = since.map_or(0, |time| time.as_nanos());
    format!("{nanos:x}-{}", std::process::id())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn keys_that_came_together_are_given_together() {
        let (sender, parts) = mpsc::channel(8);
        for part in [
            LocalStdinPart::Data(b"a".to_vec()),
            LocalStdinPart::Data(b"b".to_vec()),
            LocalStdinPart::Leave,
        ] {
            sender.send(part).await.unwrap();
        }
        let mut input = LocalStdinReader { parts, held_back: None };
        assert!(
            matches!(input.next_part().await, Some(LocalStdinPart::Data(data)) if data == b"ab")
        );
        assert!(matches!(input.next_part().await, Some(LocalStdinPart::Leave)));
        drop(sender);
        assert!(input.next_part().await.is_none());
    }
}
