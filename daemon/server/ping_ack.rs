//! An acknowledgement of a PING frame that waits for a moment, so that it leaves with an answer.
//!
//! Clients such as grpc-go send a PING with nearly every call, to measure the connection. The
//! acknowledgement would be a write of its own before each answer, and would wake the client twice.

use std::{array, io::IoSlice, iter, pin::Pin, task::Context, time::Duration};

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
    /// Elapses when the acknowledgement has waited for long enough. Made for the first one.
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
        let timer = self.timer.get_or_insert_with(|| Box::pin(sleep(HOLD_TIME)));
        timer.as_mut().reset(Instant::now() + HOLD_TIME);
        true
    }

    /// What waits. Empty if nothing does.
    pub(super) fn waiting(&self) -> &[u8] {
        &self.frame[PING_LENGTH - self.waiting..]
    }

    /// Whether something has waited for long enough. Otherwise, the task is woken when it has.
    pub(super) fn poll_due(&mut self, context: &mut Context<'_>) -> bool {
        let Some(timer) = self.timer.as_mut().filter(|_| self.waiting > 0) else {
            return false;
        };
        timer.is_elapsed() || timer.as_mut().poll(context).is_ready()
    }

    /// What waits and then `data`, or the first parts of it, for one write. The rest is empty.
    pub(super) fn before<'a>(&'a self, data: &[IoSlice<'a>]) -> [IoSlice<'a>; WRITE_PARTS] {
        let mut parts = iter::once(IoSlice::new(self.waiting())).chain(data.iter().copied());
        array::from_fn(|_| parts.next().unwrap_or(IoSlice::new(&[])))
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
        assert_eq!(
            ack.before(&data).iter().flat_map(|part| part.to_vec()).collect::<Vec<u8>>(),
            b"ayload.firstsecond"
        );
        assert_eq!(ack.written(9), 2, "bytes of data");
        assert_eq!(ack.waiting(), b"");
    }
}
