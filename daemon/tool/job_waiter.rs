//! Jobs, as a tool sees them.

use std::{fmt::Debug, future::Future, pin::Pin, time::Instant};

use crate::{api::v1, daemon::error::Error};

/// The jobs that a caller may look at.
pub(crate) trait JobWaiter: Send + Sync + Debug {
    /// What came of a job, if it has ended by then.
    fn wait(
        &self,
        id: String,
        until: Instant,
    ) -> Pin<Box<dyn Future<Output = Result<v1::AwaitJobResponse, Error>> + Send + '_>>;
}
