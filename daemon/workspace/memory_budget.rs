//! Limits the memory for file contents across all calls of the daemon.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use crate::daemon::error::{Error, Reason};

/// Contents that all calls hold together, both original and new.
const MAX_RESERVED_BYTES: u64 = 1 << 30;
/// Delay before a retry: about as long as a change of a large file takes.
const MEMORY_RETRY_DELAY: Duration = Duration::from_secs(1);

static RESERVED_BYTES: AtomicU64 = AtomicU64::new(0);

/// Reserved memory, until it is dropped.
#[derive(Debug, Default)]
pub(crate) struct MemoryReservation(u64);

impl MemoryReservation {
    /// Reserves memory for this many bytes. Fails with `RESOURCE_EXHAUSTED` above the limit.
    pub(crate) fn reserve(bytes: u64) -> Result<Self, Error> {
        let mut reservation = Self::default();
        reservation.grow_to(bytes)?;
        Ok(reservation)
    }

    /// Grows the reservation to at least this many bytes.
    pub(crate) fn grow_to(&mut self, bytes: u64) -> Result<(), Error> {
        let additional = bytes.saturating_sub(self.0);
        let reserve = |reserved: u64| {
            reserved.checked_add(additional).filter(|reserved| *reserved <= MAX_RESERVED_BYTES)
        };
        // Relaxed: no other data is published with the counter.
        match RESERVED_BYTES.try_update(Ordering::Relaxed, Ordering::Relaxed, reserve) {
            Ok(_) => {
                self.0 += additional;
                Ok(())
            }
            Err(_) => {
                let text = "other calls hold too many large files in memory: retry when they have finished";
                Err(Error::new(Reason::ResourceExhausted, text)
                    .with_retry_after(MEMORY_RETRY_DELAY))
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
    fn reservations_are_limited_and_released() {
        // Tests that run at the same time reserve little.
        let mut first = MemoryReservation::reserve(MAX_RESERVED_BYTES / 2).unwrap();
        let error = MemoryReservation::reserve(3 * MAX_RESERVED_BYTES / 4).unwrap_err();
        assert_eq!(error.reason, Reason::ResourceExhausted);
        assert!(error.retry_after.is_some());
        assert!(MemoryReservation::reserve(u64::MAX).is_err());
        first.grow_to(MAX_RESERVED_BYTES / 4).unwrap(); // already reserved
        first.grow_to(3 * MAX_RESERVED_BYTES / 4).unwrap();
        assert!(MemoryReservation::reserve(MAX_RESERVED_BYTES / 2).is_err());
        drop(first);
        MemoryReservation::reserve(3 * MAX_RESERVED_BYTES / 4).unwrap();
    }
}
