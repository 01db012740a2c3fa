//! Progress notifications of one request, from the output of its command.

use std::time::Duration;

use rmcp::{
    RoleServer,
    model::{ProgressNotificationParam, ProgressToken},
    service::{Peer, RequestContext},
};
use tokio::time::{Instant, sleep_until};

/// Shortest time between two notifications. Output in between is part of the next one.
const MIN_NOTIFICATION_INTERVAL: Duration = Duration::from_millis(100);
/// Maximum length of the line of output in a notification.
const MAX_LINE_BYTES: usize = 500;

/// Sends progress notifications, if the client has asked for them.
///
/// The progress is the number of bytes that the command wrote, and the message its last line.
#[derive(Debug)]
pub(super) struct ProgressReporter {
    peer: Peer<RoleServer>,
    token: Option<ProgressToken>,
    /// Number of output bytes, and of notices. Increases with each notification.
    progress: u64,
    message: String,
    last_sent: Option<Instant>,
    is_due: bool,
}

impl ProgressReporter {
    pub(super) fn new(context: &RequestContext<RoleServer>) -> Self {
        Self {
            peer: context.peer.clone(),
            token: context.meta.get_progress_token(),
            progress: 0,
            message: String::new(),
            last_sent: None,
            is_due: false,
        }
    }

    /// Counts output of the command.
    pub(super) fn add_output(&mut self, data: &[u8]) {
        if self.token.is_none() || data.is_empty() {
            return;
        }
        self.progress += data.len() as u64;
        self.is_due = true;
        if let Some(line) = last_line(data) {
            self.message = line;
        }
    }

    /// Reports a state of the call.
    pub(super) fn add_notice(&mut self, notice: &str) {
        if self.token.is_some() {
            self.progress += 1;
            self.is_due = true;
            notice.clone_into(&mut self.message);
        }
    }

    /// Waits until a notification is due. Cancel safe.
    pub(super) async fn due(&self) {
        match self.last_sent {
            _ if !self.is_due => std::future::pending().await,
            Some(sent) => sleep_until(sent + MIN_NOTIFICATION_INTERVAL).await,
            None => {}
        }
    }

    /// Sends the notification that is due.
    pub(super) async fn send(&mut self) {
        let Some(token) = self.token.clone().filter(|_| self.is_due) else { return };
        self.is_due = false;
        self.last_sent = Some(Instant::now());

        #[expect(clippy::cast_precision_loss, reason = "MCP's progress is a floating-point number")]
        let mut progress = ProgressNotificationParam::new(token, self.progress as f64);
        progress.message = Some(self.message.clone()).filter(|message| !message.is_empty());
        // A client that has gone cancels the request as well.
        let _gone = self.peer.notify_progress(progress).await;
    }
}

/// Returns the last line of output that is not empty, without control characters.
fn last_line(data: &[u8]) -> Option<String> {
    let mut lines = data.rsplit(|byte| matches!(byte, b'\n' | b'\r'));
    let line = lines.find(|line| !line.trim_ascii().is_empty())?;
    let start = line.get(..MAX_LINE_BYTES).unwrap_or(line);
    let text = String::from_utf8_lossy(start);
    Some(text.trim().chars().filter(|char| !char.is_control()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn last_line_is_the_last_one_with_text() {
        for (output, expected) in [
            (&b"one\ntwo\n\n"[..], Some("two")),
            (b"10%\r20%\r", Some("20%")),
            (b"\x1b[31mred\x1b[0m", Some("[31mred[0m")),
            (b"\n \n", None),
        ] {
            assert_eq!(last_line(output).as_deref(), expected);
        }
        assert_eq!(last_line(&[b'x'; 2000]).unwrap().len(), MAX_LINE_BYTES);
    }
}
