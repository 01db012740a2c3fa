//! Forwards standard input to a process.

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

/// Maximum time to retry input that the daemon rejects although the stream is connected. A daemon
/// that shuts down accepts no new calls but continues open streams.
const MAX_REJECTED_INPUT_RETRY: Duration = Duration::from_secs(3);

/// Input in the order in which it was typed.
struct LocalStdinReader {
    parts: mpsc::Receiver<LocalStdinPart>,
    /// Part that followed bytes which are returned first.
    held_back: Option<LocalStdinPart>,
}

/// Forwards input to the process once it has started.
///
/// Returns when the user leaves or when input cannot be read.
pub(super) async fn forward_stdin(
    parts: mpsc::Receiver<LocalStdinPart>,
    mut process: FollowedProcessWatch,
    is_raw: bool,
) -> Result<FollowEnd, CliError> {
    let mut input = LocalStdinReader { parts, held_back: None };
    let mut number = 0_u64;
    let prefix = write_id_prefix();
    loop {
        // Waits for the start first. Input typed until then is forwarded in one part.
        let process_id = process.started().await.process_id;
        let data = match input.next_part().await {
            Some(LocalStdinPart::Data(data)) => Some(data),
            Some(LocalStdinPart::Detach) => return Ok(FollowEnd::DetachedByUser),
            Some(LocalStdinPart::ReadFailed(error)) => {
                return Err(LocalError::new("cannot read standard input", &error).into());
            }
            None => None,
        };

        let is_end = data.is_none();
        number += 1;
        let request = WriteStdinRequest {
            process_id,
            data: data.unwrap_or_default().into(),
            eof: is_end,
            write_id: format!("{prefix}-{number}"),
        };

        if !write_part(&mut process, request).await? || is_end {
            break;
        }
    }

    // The process accepts no more input but may still write. On a terminal, keep reading: `~.` must
    // still work.
    if !is_raw {
        return pending().await;
    }

    while let Some(part) = input.next_part().await {
        if matches!(part, LocalStdinPart::Detach) {
            return Ok(FollowEnd::DetachedByUser);
        }
    }
    pending().await
}

/// Forwards one part, with retries while the connection is lost. Returns whether the process
/// accepts more.
async fn write_part(
    process: &mut FollowedProcessWatch,
    request: WriteStdinRequest,
) -> Result<bool, CliError> {
    // Counts from the first rejection: a call may wait as long as the process reads nothing.
    let mut retries: Option<ReconnectAttempts> = None;
    loop {
        let client = process.started().await.client;
        let Err(error) = client.write_stdin(request.clone()).await else {
            return Ok(true);
        };
        if matches!(error.name(), "STDIN_CLOSED" | "PROCESS_ENDED") {
            return Ok(false);
        }

        let is_lost = is_connection_loss(&error);
        let is_connected = process.current().is_none_or(|process| process.is_connected);
        let attempts = retries.get_or_insert_with(ReconnectAttempts::start);
        let is_rejected = is_lost && is_connected && attempts.have_lasted(MAX_REJECTED_INPUT_RETRY);
        if error.name() == "DRAINING" || is_rejected {
            note_in_background(&format!(
                "input is no longer accepted, output continues: {}",
                error.message
            ));
            return Ok(false);
        }

        if !is_lost {
            return Err(error.into());
        }

        // The write id prevents a duplicate.
        attempts.wait_backoff().await;
        if process.current().is_some_and(|process| !process.is_connected) {
            // The follower decides how long to try.
            process.connected().await;
            retries = None;
        }
    }
}

impl LocalStdinReader {
    /// Returns the next part. Merges bytes that have already arrived, so that forwarding keeps up
    /// with fast typing on a slow network.
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

/// Returns a prefix for write ids that no other jig process uses.
fn write_id_prefix() -> String {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    let nanos = since.map_or(0, |time| time.as_nanos());
    format!("{nanos:x}-{}", std::process::id())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn keys_that_arrive_together_are_forwarded_together() {
        let (sender, parts) = mpsc::channel(8);
        for part in [
            LocalStdinPart::Data(b"a".to_vec()),
            LocalStdinPart::Data(b"b".to_vec()),
            LocalStdinPart::Detach,
        ] {
            sender.send(part).await.unwrap();
        }
        let mut input = LocalStdinReader { parts, held_back: None };
        assert!(
            matches!(input.next_part().await, Some(LocalStdinPart::Data(data)) if data == b"ab")
        );
        assert!(matches!(input.next_part().await, Some(LocalStdinPart::Detach)));
        drop(sender);
        assert!(input.next_part().await.is_none());
    }
}
