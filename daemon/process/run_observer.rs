//! What follows a run beside the supervisor, such as its span and the proxy.

use super::outcome::ResourceLimit;
use crate::daemon::sandbox::proxy_listener::ProxyLease;

/// Notified once the command is in its sandbox.
pub(crate) trait RunObserver: Send {
    /// `pid` is the command's process id in the daemon's namespace, if it is known, and `vpid` the id
    /// in its own.
    fn started(&mut self, pid: Option<i32>, vpid: i32);

    /// Called if the command can reach the daemon's proxy.
    fn proxy_opened(&mut self, _lease: ProxyLease) {}

    /// Waits until the command exceeds a limit that the observer watches. Cancel safe.
    fn limit_exceeded(&mut self) -> impl Future<Output = ResourceLimit> + Send {
        std::future::pending()
    }
}
