//! Room in memory for the contents of files that are held whole.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use crate::daemon::error::{Error, Reason};

/// Most bytes that all calls of the daemon together hold: contents as they were, and as they will be.
const MAX_RESERVED_BYTES: u64 = 1 << 30;
/// When to try again: a change of a large file takes about as long.
const RETRY_DELAY: Duration = Duration::from_secs(1);

static RESERVED_BYTES: AtomicU64 = AtomicU64::new(0);

/// Room for contents, until it is dropped.
#[derive(Debug, Default)]
pub(crate) struct MemoryReservation(u64);

impl MemoryReservation {
    /// Takes room for a content of this many bytes; `RESOURCE_EXHAUSTED` where there is none.
    pub(crate) fn reserve(bytes: u64) -> Result<Self, Error> {
        let mut room = Self::default();
        room.grow_to(bytes)?;
        Ok(room)
    }

    /// Has it be for this many bytes at least.
    pub(crate) fn grow_to(&mut self, bytes: u64) -> Result<(), Error> {
        let more = bytes.saturating_sub(self.0);
        let fits =
            |taken: u64| taken.checked_add(more).filter(|taken| *taken <= MAX_RESERVED_BYTES);
        // Nothing else is published with it.
        match RESERVED_BYTES.try_update(Ordering::Relaxed, Ordering::Relaxed, fits) {
            Ok(_) => {
                self.0 += more;
                Ok(())
            }
            Err(_) => {
                let text = "other calls work on files that are so large that there is no memory for this one: try again";
                Err(Error::new(Reason::ResourceExhausted, text).retry_after(RETRY_DELAY))
            }
        }
    }
}

impl Drop for MemoryReservation {
    fn drop(&mut self) {
        RESERVED_BYTES.fetch_sub(self.0, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn room_is_given_until_there_is_none_and_taken_back() {
        // Beside tests that take little.
        let mut first = MemoryReservation::reserve(MAX_RESERVED_BYTES / 2).unwrap();
        let error = MemoryReservation::reserve(3 * MAX_RESERVED_BYTES / 4).unwrap_err();
        assert_eq!(error.reason, Reason::ResourceExhausted);
        assert!(error.retry_after.is_some());
        assert!(MemoryReservation::reserve(u64::MAX).is_err());
        first.grow_to(MAX_RESERVED_BYTES / 4).unwrap(); // that it has
        first.grow_to(3 * MAX_RESERVED_BYTES / 4).unwrap();
        assert!(MemoryReservation::reserve(MAX_RESERVED_BYTES / 2).is_err());
        drop(first);
        MemoryReservation::reserve(3 * MAX_RESERVED_BYTES / 4).unwrap();
    }
}
