//! Waits for the lease of a named shell.

use std::time::Instant;

use super::{AdmissionControl, AdmissionRequest, CountGuard, shell_leases::ShellKey};
use crate::daemon::{error::Error, pipeline::shutdown::Shutdown, queue::Permit};

impl AdmissionControl {
    /// Waits until no other call uses the shell. Cancel safe: the call leaves the queue.
    pub(in super::super) async fn lease_shell(
        &self,
        key: ShellKey,
        request: AdmissionRequest<'_>,
        shutdown: &Shutdown,
    ) -> Result<Permit, Error> {
        shutdown.check_accepting()?;
        let limiter = self.shell_leases.limiter(key, self.limits.max_queued_per_principal);
        let queue_deadline = Instant::now() + self.limits.queue_timeout;
        let _awaiting = CountGuard::new(&self.shell_leases.awaiting);
        self.acquire(&limiter, request, usize::MAX, queue_deadline, shutdown).await
    }
}
