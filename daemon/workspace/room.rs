//! Room in memory for the contents of files that are being changed, which are held whole.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use crate::daemon::error::{Error, Reason};

/// Most bytes that all changes of the daemon together hold, as far as it is known before: each
/// content counts twice, as it was and as it will be.
const MOST: u64 = 1 << 30;
/// When to try again: a change of a large file takes about as long.
const RETRY: Duration = Duration::from_secs(1);

static TAKEN: AtomicU64 = AtomicU64::new(0);

/// Room for one content, until it is dropped.
#[derive(Debug)]
pub(super) struct Room(u64);

impl Room {
    /// Takes room for a content of this many bytes; `RESOURCE_EXHAUSTED` where there is none.
    pub(super) fn take(bytes: u64) -> Result<Self, Error> {
        let bytes = bytes.saturating_mul(2);
        let fits = |taken: u64| taken.checked_add(bytes).filter(|taken| *taken <= MOST);
        // Nothing else is published with it.
        match TAKEN.try_update(Ordering::Relaxed, Ordering::Relaxed, fits) {
            Ok(_) => Ok(Self(bytes)),
            Err(_) => {
                let text = "other calls change files that are so large that there is no memory for this one: try again";
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
        let first = Room::take(MOST / 4).unwrap();
        let error = Room::take(MOST / 2).unwrap_err();
        assert_eq!(error.reason, Reason::ResourceExhausted);
        assert!(error.retry_after.is_some());
        assert!(Room::take(u64::MAX).is_err());
        drop(first);
        Room::take(MOST / 2 - MOST / 8).unwrap();
    }
}
