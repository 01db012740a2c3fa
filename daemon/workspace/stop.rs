//! Ending work whose time is up: the blocking tools ask, the call's deadline answers.

use std::{
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use crate::daemon::{
    error::{Error, Reason},
    task,
};

/// Says whether a call should end. Clones say the same.
#[derive(Debug, Clone, Default)]
pub(crate) struct Stop(Arc<AtomicBool>);

impl Stop {
    /// A call that may go on.
    pub(crate) fn new() -> Self {
        Self::default()
    }

    /// Runs `function` on a thread that may block, asks for its end once `end` is there, and waits
    /// for its answer all the same.
    pub(crate) async fn at<R: Send + 'static>(
        end: impl Future<Output = ()>,
        function: impl FnOnce(&Self) -> R + Send + 'static,
    ) -> Result<R, Error> {
        let stop = Self::new();
        let told = stop.clone();
        let mut running = pin!(task::blocking(move || function(&told)));
        let answer = tokio::select! {
            answer = &mut running => answer,
            () = end => {
                stop.stop();
                running.await
            }
        };
        answer.map_err(Error::internal)
    }

    /// Asks for the end. It comes with the next [`Self::check`].
    pub(crate) fn stop(&self) {
        // Nothing else is published with it.
        self.0.store(true, Ordering::Relaxed);
    }

    /// Whether the end was asked for.
    pub(crate) fn is_stopped(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// An error once the end was asked for.
    pub(crate) fn check(&self) -> Result<(), Error> {
        if self.is_stopped() {
            return Err(Error::new(
                Reason::Timeout,
                "the time for the call has passed: ask for less at once, or allow more time",
            ));
        }
        Ok(())
    }
}
