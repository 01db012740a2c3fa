//! An acknowledgement of a PING frame that waits for a moment, so that it leaves with an answer.
//!
//! Clients such as grpc-go send a PING with nearly every call, to measure the connection. The
//! acknowledgement would be a write of its own before each answer, and would wake the client twice.

use std::{io::IoSlice, pin::Pin, task::Context, time::Duration};

use tokio::time::{Instant, Sleep, sleep};

/// How long an acknowledgement waits. RFC 9113, section 6.7, asks for a quick one: clients that
/// look for dead peers wait for seconds.
const HOLD_TIME: Duration = Duration::from_millis(5);
/// Length of a PING frame in bytes: the header and 8 bytes that the peer chose.
const PING_LENGTH: usize = 17;
/// How a PING frame with the flag ACK begins: length 8, type 6, flags 1, stream 0 (RFC 9113,
/// sections 4.1 and 6.7).
const PING_ACK_HEADER: [u8; 9] = [0, 0, 8, 6, 1, 0, 0, 0, 0];
/// Number of parts that one write takes.
const WRITE_PARTS: usize = 16;

/// At most one acknowledgement, or the part of it that is not written yet.
#[derive(Debug, Default)]
pub(super) struct HeldPingAck {
    frame: [u8; PING_LENGTH],
    /// Number of bytes at the end of the frame that wait.
    waiting: usize,
    /// Whether the acknowledgement has waited for long enough.
    is_due: bool,
    /// Runs while an acknowledgement waits. Made for the first one.
    timer: Option<Pin<Box<Sleep>>>,
}

impl HeldPingAck {
    /// Keeps `data` back if it is a single acknowledgement, and if nothing else waits.
    pub(super) fn hold(&mut self, data: &[IoSlice<'_>]) -> bool {
        let [part] = data else { return false };
        let Ok(frame) = <[u8; PING_LENGTH]>::try_from(&**part) else { return false };
        if self.waiting > 0 || !frame.starts_with(&PING_ACK_HEADER) {
            return false;
        }

        self.frame = frame;
        self.waiting = PING_LENGTH;
        self.is_due = false;
        let deadline = Instant::now() + HOLD_TIME;
        match &mut self.timer {
            Some(timer) => timer.as_mut().reset(deadline),
            None => self.timer = Some(Box::pin(sleep(HOLD_TIME))),
        }
        true
    }

    /// What waits. Empty if nothing does.
    pub(super) fn waiting(&self) -> &[u8] {
        &self.frame[PING_LENGTH - self.waiting..]
    }

    /// Whether something has waited for long enough. Otherwise, the task is woken when it has.
    pub(super) fn poll_due(&mut self, context: &mut Context<'_>) -> bool {
        if self.waiting > 0
            && !self.is_due
            && let Some(timer) = &mut self.timer
        {
            self.is_due = timer.as_mut().poll(context).is_ready();
        }
        self.waiting > 0 && self.is_due
    }

    /// What waits and then `data`, or the first parts of it, for one write.
    pub(super) fn before<'a>(
        &'a self,
        data: &[IoSlice<'a>],
    ) -> ([IoSlice<'a>; WRITE_PARTS], usize) {
        let mut parts = [IoSlice::new(&[]); WRITE_PARTS];
        let all = [IoSlice::new(self.waiting())].into_iter().chain(data.iter().copied());
        let mut count = 0;
        for (part, source) in parts.iter_mut().zip(all) {
            *part = source;
            count += 1;
        }
        (parts, count)
    }

    /// Notes that `written` bytes of [`Self::before`] are written. Returns how many of them are
    /// data.
    pub(super) fn written(&mut self, written: usize) -> usize {
        let of_frame = written.min(self.waiting);
        self.waiting -= of_frame;
        written - of_frame
    }
}

#[cfg(test)]
mod tests {
    use super::{HeldPingAck, IoSlice, PING_LENGTH};

    const PING_ACK: &[u8; PING_LENGTH] = b"\0\0\x08\x06\x01\0\0\0\0payload.";

    fn hold(ack: &mut HeldPingAck, data: &[u8]) -> bool {
        ack.hold(&[IoSlice::new(data)])
    }

    #[tokio::test]
    async fn only_a_single_acknowledgement_is_kept_back() {
        let mut ack = HeldPingAck::default();
        let ping = [b"\0\0\x08\x06\0", &PING_ACK[5..]].concat();
        for other in [&ping[..], &PING_ACK[..16], &[*PING_ACK, *PING_ACK].concat(), b""] {
            assert!(!hold(&mut ack, other), "{other:?}");
        }
        assert!(hold(&mut ack, PING_ACK));
        assert!(!hold(&mut ack, PING_ACK), "one waits already");
        assert_eq!(ack.written(PING_LENGTH), 0);
        assert!(hold(&mut ack, PING_ACK));
    }

    #[tokio::test]
    async fn parts_of_writes_are_counted() {
        let mut ack = HeldPingAck::default();
        assert!(hold(&mut ack, PING_ACK));
        assert_eq!(ack.written(10), 0);
        let data = [IoSlice::new(b"first"), IoSlice::new(b"second")];
        let (parts, count) = ack.before(&data);
        assert_eq!(
            parts[..count].iter().flat_map(|part| part.to_vec()).collect::<Vec<u8>>(),
            b"ayload.firstsecond"
        );
        assert_eq!(ack.written(9), 2, "bytes of data");
        assert_eq!(ack.waiting(), b"");
    }
}
