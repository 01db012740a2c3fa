//! The jobs, as the tool `wait_job` sees them.

use std::{fmt::Debug, time::Instant};

use crate::{
    api::v1,
    daemon::{error::Error, task::BoxFuture},
};

/// Access to the jobs that the caller may see.
pub(crate) trait JobWaiter: Send + Sync + Debug {
    /// Waits until the job has ended, at most until `until`, and returns its result if it has one.
    fn wait(
        &self,
        id: String,
        until: Instant,
    ) -> BoxFuture<'_, Result<v1::AwaitJobResponse, Error>>;
}
