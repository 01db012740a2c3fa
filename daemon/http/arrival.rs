//! The time in which a request must arrive.

use std::time::{Duration, Instant};

use tokio::time::timeout_at;

use crate::daemon::error::{Error, Reason};

/// Time within which each `MIN_PROGRESS_BYTES` of a request must arrive. A client that is alive
/// needs milliseconds.
const PROGRESS_TIMEOUT: Duration = Duration::from_secs(30);
const MIN_PROGRESS_BYTES: usize = 64 << 10;

/// Checks that a request keeps arriving.
#[derive(Debug)]
pub(crate) struct ArrivalTimeout {
    deadline: Instant,
    /// Length of the request at which its time begins anew.
    goal: usize,
}

impl ArrivalTimeout {
    pub(crate) fn new() -> Self {
        Self { deadline: Instant::now() + PROGRESS_TIMEOUT, goal: MIN_PROGRESS_BYTES }
    }

    /// Checks a request of which `received` bytes have arrived. Empty frames without end must not
    /// keep it open.
    ///
    /// # Errors
    ///
    /// `TIMEOUT`: the request has not made enough progress in time.
    pub(crate) fn check(&mut self, received: usize) -> Result<(), Error> {
        if received >= self.goal {
            *self = Self { goal: received + MIN_PROGRESS_BYTES, ..Self::new() };
        }
        if Instant::now() < self.deadline { Ok(()) } else { Err(stalled(received)) }
    }

    /// Waits for the next part of a request of which `received` bytes have arrived.
    ///
    /// # Errors
    ///
    /// As [`ArrivalTimeout::check`].
    pub(crate) async fn wait<T>(
        &mut self,
        received: usize,
        next: impl Future<Output = T>,
    ) -> Result<T, Error> {
        self.check(received)?;
        timeout_at(self.deadline.into(), next).await.map_err(|_| stalled(received))
    }
}

fn stalled(received: usize) -> Error {
    let text = format!(
        "received only {received} bytes of the request, and less than {MIN_PROGRESS_BYTES} in the last {} seconds. Nothing was done: send it again",
        PROGRESS_TIMEOUT.as_secs()
    );
    Error::new(Reason::Timeout, text)
}

#[cfg(test)]
mod tests {
    use std::{future, time::Instant};

    use super::{ArrivalTimeout, MIN_PROGRESS_BYTES};
    use crate::daemon::error::Reason;

    #[tokio::test]
    async fn only_progress_extends_the_time() {
        let mut arrival = ArrivalTimeout::new();
        arrival.check(0).unwrap();

        arrival.deadline = Instant::now();
        let error = arrival.wait(MIN_PROGRESS_BYTES - 1, future::ready(())).await.unwrap_err();
        assert_eq!(error.reason, Reason::Timeout);
        let error = arrival.check(MIN_PROGRESS_BYTES - 1).unwrap_err();
        assert_eq!(error.reason, Reason::Timeout);

        arrival.wait(MIN_PROGRESS_BYTES, future::ready(())).await.unwrap();
        arrival.deadline = Instant::now();
        arrival.check(2 * MIN_PROGRESS_BYTES - 1).unwrap_err();
    }
}
