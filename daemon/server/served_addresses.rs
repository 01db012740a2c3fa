//! The addresses that the daemon announces when it accepts calls.

use std::io::{self, Write as _};

use super::listener::Listeners;
use crate::daemon::config::listen::ListenerProtocol;

/// The bound addresses, by what they serve.
#[derive(Debug)]
pub(super) struct ServedAddresses {
    calls: Vec<String>,
    health: Vec<String>,
    metrics: Vec<String>,
}

impl ServedAddresses {
    /// `monitoring` has the listeners for health checks and metrics.
    pub(super) fn new(listeners: &Listeners, monitoring: &Listeners) -> Self {
        Self {
            calls: listeners.addresses(),
            health: monitoring.addresses_of(ListenerProtocol::Health),
            metrics: monitoring.addresses_of(ListenerProtocol::Metrics),
        }
    }

    /// Prints a line for each address to standard output.
    pub(super) fn print(&self) -> io::Result<()> {
        let mut stdout = io::stdout().lock();
        for address in &self.calls {
            writeln!(stdout, "listening on {address}")?;
        }
        // Last: programs read the addresses for calls first.
        for address in &self.health {
            writeln!(stdout, "health checks on {address}")?;
        }
        for address in &self.metrics {
            writeln!(stdout, "metrics on {address}")?;
        }
        stdout.flush()
    }

    pub(super) fn log(&self) {
        tracing::info!(addresses = ?self.calls, "serving");
        if !self.health.is_empty() {
            tracing::info!(addresses = ?self.health, "serving health checks");
        }
        if !self.metrics.is_empty() {
            tracing::info!(addresses = ?self.metrics, "serving metrics");
        }
    }
}
