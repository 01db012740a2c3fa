//! Room in memory for the contents of files that are held whole.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use crate::daemon::error::{Error, Reason};

/// Most bytes that all calls of the daemon together hold: contents as they were, and as they will be.
const MOST: u64 = 1 << 30;
/// When to try again: a change of a large file takes about as long.
const RETRY: Duration = Duration::from_secs(1);

static TAKEN: AtomicU64 = AtomicU64::new(0);

/// Room for contents, until it is dropped.
#[derive(Debug, Default)]
pub(crate) struct Room(u64);

impl Room {
    /// Takes room for a content of this many bytes; `RESOURCE_EXHAUSTED` where there is none.
    pub(crate) fn take(bytes: u64) -> Result<Self, Error> {
        let mut room = Self::default();
        room.reach(bytes)?;
        Ok(room)
    }

    /// Has it be for this many bytes at least.
    pub(crate) fn reach(&mut self, bytes: u64) -> Result<(), Error> {
        let more = bytes.saturating_sub(self.0);
        let fits = |taken: u64| taken.checked_add(more).filter(|taken| *taken <= MOST);
        // Nothing else is published with it.
        match TAKEN.try_update(Ordering::Relaxed, Ordering::Relaxed, fits) {
            Ok(_) => {
                self.0 += more;
                Ok(())
            }
            Err(_) => {
                let text = "other calls work on files that are so large that there is no memory for this one: try again";
                Err(Error::new(Reason::ResourceExhausted, text).retry_after(RETRY))
            }
        }
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        TAKEN.fetch_sub(self.0, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn room_is_given_until_there_is_none_and_taken_back() {
        // Beside tests that take little.
        let mut first = Room::take(MOST / 2).unwrap();
        let error = Room::take(3 * MOST / 4).unwrap_err();
        assert_eq!(error.reason, Reason::ResourceExhausted);
        assert!(error.retry_after.is_some());
        assert!(Room::take(u64::MAX).is_err());
        first.reach(MOST / 4).unwrap(); // that it has
        first.reach(3 * MOST / 4).unwrap();
        assert!(Room::take(MOST / 2).is_err());
        drop(first);
        Room::take(3 * MOST / 4).unwrap();
    }
}
