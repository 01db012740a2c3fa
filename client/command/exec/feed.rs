//! Giving a process what is typed or piped in here.

use std::{
    future::pending,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use jig::api::v1::WriteStdinRequest;
use tokio::sync::mpsc;

use super::{
    aside::aside,
    ending::End,
    loss::{Tries, is_loss},
    running::Known,
    typed::{PART_BYTES, Part},
};
use crate::{failure::Failure, local::Local};

/// How long what is typed is offered to a daemon that refuses it although the process is read: one
/// that ends takes no more calls, and goes on with those that there are.
const REFUSALS: Duration = Duration::from_secs(3);

/// What is typed, in the order in which it was typed.
struct Input {
    parts: mpsc::Receiver<Part>,
    /// What came behind bytes that are given first.
    held: Option<Part>,
}

/// Gives the process what is typed as soon as it runs. Ends when who types leaves, or nothing can be
/// read here any more.
pub(super) async fn feed(
    parts: mpsc::Receiver<Part>,
    mut known: Known,
    are_keys: bool,
) -> Result<End, Failure> {
    let mut input = Input { parts, held: None };
    let mut number = 0_u64;
    let name = own_name();
    loop {
        // First that it runs: what is typed meanwhile is given at once then.
        let process_id = known.running().await.process_id;
        let data = match input.next().await {
            Some(Part::Data(data)) => Some(data),
            Some(Part::Leave) => return Ok(End::Left),
            Some(Part::Fails(error)) => {
                return Err(Local::new("standard input cannot be read", &error).into());
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
        if !give(&mut known, request).await? || is_end {
            break;
        }
    }
    // It reads no more; it may still write. Of keys, the way out is still wanted: nothing may be in
    // its way.
    if !are_keys {
        return pending().await;
    }
    while let Some(part) = input.next().await {
        if matches!(part, Part::Leave) {
            return Ok(End::Left);
        }
    }
    pending().await
}

/// Gives it one part, again while the connection is lost. Answers whether it takes more.
async fn give(known: &mut Known, request: WriteStdinRequest) -> Result<bool, Failure> {
    // From the first one that was refused: one may wait for as long as the process reads nothing.
    let mut refused: Option<Tries> = None;
    loop {
        let client = known.running().await.client;
        let Err(error) = client.write_stdin(request.clone()).await else {
            return Ok(true);
        };
        if matches!(error.name(), "STDIN_CLOSED" | "PROCESS_ENDED") {
            return Ok(false);
        }
        let is_lost = is_loss(&error);
        let is_read = known.now().is_none_or(|running| running.is_read);
        let tries = refused.get_or_insert_with(Tries::begin);
        if error.name() == "DRAINING" || is_lost && is_read && tries.last(REFUSALS) {
            aside(&format!(
                "input cannot be given any more, what is written still comes: {}",
                error.message
            ));
            return Ok(false);
        }
        if !is_lost {
            return Err(error.into());
        }
        // The write id makes sure that it is given once.
        tries.pause().await;
        if known.now().is_some_and(|running| !running.is_read) {
            // How long that is tried is not decided here.
            known.read().await;
            refused = None;
        }
    }
}

impl Input {
    /// What comes next; bytes that have come already are one part, so that who types faster than the
    /// network answers is not left behind more and more.
    async fn next(&mut self) -> Option<Part> {
        let first = match self.held.take() {
            Some(part) => Some(part),
            None => self.parts.recv().await,
        };
        let Some(Part::Data(mut data)) = first else {
            return first;
        };
        while data.len() < PART_BYTES {
            match self.parts.try_recv() {
                Ok(Part::Data(more)) => data.extend_from_slice(&more),
                Ok(other) => {
                    self.held = Some(other);
                    break;
                }
                Err(_) => break,
            }
        }
        Some(Part::Data(data))
    }
}

/// A name that no other run of jig gives its writes.
fn own_name() -> String {
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
        for part in [Part::Data(b"a".to_vec()), Part::Data(b"b".to_vec()), Part::Leave] {
            sender.send(part).await.unwrap();
        }
        let mut input = Input { parts, held: None };
        assert!(matches!(input.next().await, Some(Part::Data(data)) if data == b"ab"));
        assert!(matches!(input.next().await, Some(Part::Leave)));
        drop(sender);
        assert!(input.next().await.is_none());
    }
}
